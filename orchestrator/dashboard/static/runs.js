// The list of runs with filters, and the choice of those to compare.

import {h, put, s} from "./dom.js";
import {accuracy, number, seconds} from "./format.js";

/** Columns: label, class, key to sort by, text. The first one is made apart. */
const COLUMNS = [
  ["run", "", "id"],
  ["state", "", "state"],
  ["method", "", "method", (card) => card.method],
  ["accuracy", "num", "accuracy", (card) => accuracy(card.accuracy)],
  ["time to target", "num", "time_to_target_s", (card) => seconds(card.time_to_target_s)],
  ["rounds", "num", "rounds", (card) => card.rounds],
  ["files", "", "id", links],
  ["started (UTC)", "", "started", (card) => card.started.slice(0, 19).replace("T", " ")],
  ["limits held by", "", "enforcement", (card) => card.enforcement],
  ["calibrated", "", "calibrated", (card) => (card.calibrated ? "yes" : card.enforcement === "simulated" ? "–" : h("b.bad", {}, "NO"))],
  ["seed", "num", "seed", (card) => card.seed],
  ["its curve", "", "accuracy", (card) => spark(card.spark)],
  ["model", "", "model", (card) => card.model],
  ["data", "", "data", (card) => card.data],
  ["D", "num", "dilation", (card) => number(card.dilation)],
  ["devices", "num", "devices", (card) => card.devices],
  ["experiment", "", "experiment", (card) => card.experiment],
];

/** Accuracy over rounds, without axes. */
function spark(values) {
  if (values.length < 2) return "";
  const d = values.map((v, i) => `${i ? "L" : "M"}${((i / (values.length - 1)) * 76 + 2).toFixed(1)} ${(20 - 18 * v).toFixed(1)}`).join("");
  return s("svg.spark", {viewBox: "0 0 80 22", role: "img", "aria-label": `accuracy from ${accuracy(values[0])} to ${accuracy(values.at(-1))}`}, s("path.line", {d}));
}

/** Report, trace and figures for papers; what is there. */
export function links({id, files, state}) {
  const to = (name) => `/runs/${encodeURIComponent(id)}/${name}`, found = [];
  if (files.includes("report.html")) found.push(h("a", {href: to("report.html"), target: "_blank", rel: "noopener"}, "report"));
  if (files.includes("trace.json")) found.push(h("a", {href: to("trace.json"), download: `${id}-trace.json`}, "trace"));
  if (state === "ended") found.push(h("a", {href: to("figures.pdf"), target: "_blank", rel: "noopener"}, "PDF"));
  return h("span.links", {}, found);
}

export class RunsView {
  constructor(root) {
    this.root = root;
    this.chosen = new Set();
    this.cards = [];
    const redraw = () => this.redraw();
    this.words = h("input", {type: "search", id: "run-words", oninput: redraw});
    this.method = h("select", {id: "run-method", onchange: redraw});
    this.state = h("select", {id: "run-state", onchange: redraw}, ["all", "running", "ended", "silent"].map((v) => h("option", {value: v}, v)));
    this.group = h("select", {id: "run-group", onchange: redraw}, [["experiment", "experiment"], ["", "nothing"]].map(([value, label]) => h("option", {value}, label)));
    this.go = h("button.main", {type: "button", onclick: () => { location.hash = `#/compare/${[...this.chosen].map(encodeURIComponent).join(",")}`; }});
    this.count = h("span.quiet");
    this.body = h("tbody");
    this.order = {key: "started", down: true};
    this.heads = COLUMNS.map(([label, kind, key]) => h("th" + (kind ? "." + kind : ""), {scope: "col"}, h("button.link", {type: "button", onclick: () => this.sortBy(key)}, label)));
    root.replaceChildren(h("div.head", {}, h("h1", {id: "h-runs", tabindex: -1}, "Runs ", this.count), h("div.tools", {},
      h("label", {for: "run-words"}, "Words"), this.words, h("label", {for: "run-method"}, "Method"), this.method, h("label", {for: "run-state"}, "State"), this.state, h("label", {for: "run-group"}, "Group by"), this.group, this.go)),
    h("div.card.scroll.tall.edge", {tabindex: 0, role: "region", "aria-label": "Runs, scrolls"}, h("table.runs", {}, h("caption.hidden-text", {}, "Runs"),
      h("thead", {}, h("tr", {}, this.heads)), this.body)));
    this.redraw();
  }

  sortBy(key) {
    this.order = {key, down: this.order.key === key ? !this.order.down : false};
    this.redraw();
  }

  /** Runs without a value come last in both directions. */
  sorted(cards) {
    const {key, down} = this.order, known = cards.filter((card) => card[key] !== null);
    known.sort((a, b) => (a[key] > b[key] ? 1 : a[key] < b[key] ? -1 : 0) * (down ? -1 : 1));
    return [...known, ...cards.filter((card) => card[key] === null)];
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
    const shown = this.sorted(this.cards).filter((card) => (method === "all" || card.method === method) && (state === "all" || card.state === state) &&
      words.every((word) => `${card.id} ${card.experiment} ${card.method} ${card.backend} seed ${card.seed}`.toLowerCase().includes(word)));
    const key = JSON.stringify([shown, [...this.chosen], this.order, this.group.value]);
    this.heads.forEach((head, i) => { head.ariaSort = COLUMNS[i][2] === this.order.key ? (this.order.down ? "descending" : "ascending") : "none"; });
    put(this.count, shown.length < this.cards.length ? `${shown.length} of ${this.cards.length}` : String(this.cards.length));
    put(this.go, this.chosen.size > 1 ? `Compare ${this.chosen.size} runs` : "Choose two or more to compare");
    this.go.disabled = this.chosen.size < 2;
    if (key === this.key) return;
    this.key = key;
    const focus = document.activeElement?.dataset?.run, box = document.activeElement?.type === "checkbox";
    this.body.replaceChildren(...this.grouped(shown));
    if (!shown.length) this.body.replaceChildren(h("tr", {}, h("td", {colspan: COLUMNS.length}, this.cards.length ? "No run fits these filters." : "There is no run yet. It appears here when it begins.")));
    if (focus) this.body.querySelector(`${box ? "input" : "a"}[data-run="${CSS.escape(focus)}"]`)?.focus();
  }

  /** Rows, under a heading per experiment where that is wanted; groups in the order of their first runs. */
  grouped(cards) {
    if (!this.group.value) return cards.map((card) => this.row(card));
    const groups = new Map();
    for (const card of cards) groups.set(card.experiment, [...(groups.get(card.experiment) ?? []), card]);
    return [...groups].flatMap(([name, own]) => [this.heading(name, own), ...own.map((card) => this.row(card))]);
  }

  heading(name, own) {
    const all = own.every((card) => this.chosen.has(card.id));
    const choose = () => { for (const card of own) if (all) this.chosen.delete(card.id); else this.chosen.add(card.id); this.redraw(); };
    return h("tr.group", {}, h("th", {scope: "rowgroup", colspan: COLUMNS.length}, h("span.pick", {}, `${name} (${own.length})`, h("button.link", {type: "button", onclick: choose}, all ? "choose none" : "choose all"))));
  }

  row(card) {
    const box = h("input", {type: "checkbox", "data-run": card.id, "aria-label": `compare ${card.id}`, checked: this.chosen.has(card.id),
      onchange: () => { if (box.checked) this.chosen.add(card.id); else this.chosen.delete(card.id); this.redraw(); }});
    return h("tr", {}, h("th", {scope: "row"}, h("span.pick", {}, box, h("a", {href: `#/run/${encodeURIComponent(card.id)}`, "data-run": card.id}, card.id))),
      h("td", {}, h(`span.pill.r-${card.state}${/^error/.test(card.ended) ? ".bad" : ""}`, {}, card.state === "ended" ? card.ended : card.state === "silent" ? "silent, or killed" : card.state)),
      COLUMNS.slice(2).map(([, kind, , text]) => h("td" + (kind ? "." + kind : ""), {}, text(card))));
  }
}
