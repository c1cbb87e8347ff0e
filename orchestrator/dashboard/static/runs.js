// The list of runs with filters, and the choice of those to compare.

import {h, put} from "./dom.js";
import {accuracy, number} from "./format.js";

export class RunsView {
  constructor(root) {
    this.root = root;
    this.chosen = new Set();
    this.cards = [];
    const redraw = () => this.redraw();
    this.words = h("input", {type: "search", id: "run-words", oninput: redraw});
    this.method = h("select", {id: "run-method", onchange: redraw});
    this.state = h("select", {id: "run-state", onchange: redraw}, ["all", "running", "ended", "silent"].map((v) => h("option", {value: v}, v)));
    this.go = h("button.main", {type: "button", onclick: () => { location.hash = `#/compare/${[...this.chosen].map(encodeURIComponent).join(",")}`; }});
    this.count = h("span.quiet");
    this.body = h("tbody");
    const heads = [["run", ""], ["state", ""], ["rounds", "num"], ["accuracy", "num"], ["method", ""], ["limits held by", ""], ["calibrated", ""], ["D", "num"], ["devices", "num"], ["started (UTC)", ""], ["experiment", ""]];
    root.replaceChildren(h("div.head", {}, h("h1", {id: "h-runs", tabindex: -1}, "Runs ", this.count), h("div.tools", {},
      h("label", {for: "run-words"}, "Words"), this.words, h("label", {for: "run-method"}, "Method"), this.method, h("label", {for: "run-state"}, "State"), this.state, this.go)),
    h("div.card.scroll.edge", {tabindex: 0, role: "region", "aria-label": "Runs, scrolls"}, h("table.runs", {}, h("caption.hidden-text", {}, "Runs, the newest first"),
      h("thead", {}, h("tr", {}, heads.map(([label, kind]) => h("th" + (kind ? "." + kind : ""), {scope: "col"}, label)))), this.body)));
    this.redraw();
  }

  draw(cards) {
    this.cards = cards;
    const methods = ["all", ...new Set(cards.map((card) => card.method))];
    if (methods.length !== this.method.options.length) {
      const value = this.method.value;
      this.method.replaceChildren(...methods.map((v) => h("option", {value: v}, v)));
      this.method.value = methods.includes(value) ? value : "all";
    }
    this.redraw();
  }

  redraw() {
    const words = this.words.value.toLowerCase().split(/\s+/), method = this.method.value || "all", state = this.state.value;
    const shown = this.cards.filter((card) => (method === "all" || card.method === method) && (state === "all" || card.state === state) &&
      words.every((word) => `${card.id} ${card.experiment} ${card.method} ${card.backend} seed ${card.seed}`.toLowerCase().includes(word)));
    const key = JSON.stringify([shown, [...this.chosen]]);
    put(this.count, shown.length < this.cards.length ? `${shown.length} of ${this.cards.length}` : String(this.cards.length));
    put(this.go, this.chosen.size > 1 ? `Compare ${this.chosen.size} runs` : "Choose two or more to compare");
    this.go.disabled = this.chosen.size < 2;
    if (key === this.key) return;
    this.key = key;
    const focus = document.activeElement?.dataset?.run, box = document.activeElement?.type === "checkbox";
    this.body.replaceChildren(...shown.map((card) => this.row(card)));
    if (!shown.length) this.body.replaceChildren(h("tr", {}, h("td", {colspan: 11}, this.cards.length ? "No run fits these filters." : "There is no run yet. It appears here when it begins.")));
    if (focus) this.body.querySelector(`${box ? "input" : "a"}[data-run="${CSS.escape(focus)}"]`)?.focus();
  }

  row(card) {
    const box = h("input", {type: "checkbox", "data-run": card.id, "aria-label": `compare ${card.id}`, checked: this.chosen.has(card.id),
      onchange: () => { if (box.checked) this.chosen.add(card.id); else this.chosen.delete(card.id); this.redraw(); }});
    return h("tr", {}, h("th", {scope: "row"}, h("span.pick", {}, box, h("a", {href: `#/run/${encodeURIComponent(card.id)}`, "data-run": card.id}, card.id))),
      h("td", {}, h(`span.pill.r-${card.state}`, {}, card.state === "ended" ? card.ended : card.state === "silent" ? "silent, or killed" : card.state)),
      h("td.num", {}, card.rounds), h("td.num", {}, accuracy(card.accuracy)), h("td", {}, card.method), h("td", {}, card.enforcement),
      h("td", {}, card.calibrated ? "yes" : h("b.bad", {}, "NO")), h("td.num", {}, number(card.dilation)), h("td.num", {}, card.devices),
      h("td", {}, card.started.slice(0, 19).replace("T", " ")), h("td", {}, card.experiment));
  }
}
