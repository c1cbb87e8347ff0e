// The real boards of a fleet as a table: what their sensors read last. The rows come as text (orchestrator/records/timeline/board.py).

import {h, table} from "./dom.js";

export class Boards {
  constructor() {
    this.scroll = h("div.scroll", {tabindex: 0, role: "region", "aria-label": "Boards, scrolls"});
    this.element = h("section.card", {"aria-labelledby": "h-boards", hidden: true}, h("h2", {id: "h-boards"}, "Boards"), this.scroll,
      h("p.quiet", {}, "As read last, once a second while a board works. –: the board has no such sensor or tool. Energy: of its last round, waits included. Clock: as it said when it joined."));
  }

  draw(boards) {
    const key = JSON.stringify(boards ?? null);
    if (key === this.drawn) return;
    this.drawn = key;
    this.element.hidden = !boards;
    if (boards) this.scroll.replaceChildren(table("Boards", boards.columns.map((name) => [name]), boards.rows));
  }
}
