// One round: a row per device with the names of its time, the server below. A live round grows.

import {h, table} from "./dom.js";
import {Rows} from "./rows.js";

export class Gantt {
  constructor(ondevice = null) {
    this.rows = new Rows("Gantt of the round", {onpick: ondevice});
    this.cuts = h("details.alt", {hidden: true}, h("summary", {}, "Why these cuts"));
    this.element = h("div", {}, this.rows.element, this.cuts);
  }

  draw(data) {
    this.rows.draw(data ?? {rows: [], empty: "no round has begun yet"});
    this.cuts.hidden = !data?.choice;
    if (data?.choice) this.cuts.replaceChildren(this.cuts.firstChild, h("p.quiet", {}, data.choice.about), h("div.scroll", {tabindex: 0, role: "region", "aria-label": "Why these cuts, scrolls"},
      table("Why these cuts", data.choice.columns, data.choice.rows)));
  }
}
