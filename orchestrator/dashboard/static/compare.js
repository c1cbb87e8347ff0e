// Several runs: their curves, and the table of `edgebed compare`.

import {Chart} from "./charts.js";
import {h, table} from "./dom.js";
import {accuracy, percent, seconds, tick} from "./format.js";

export class CompareView {
  constructor(root) {
    this.root = root;
    this.runs = [];
    this.time = new Chart("Accuracy over time", {height: 300});
    this.rounds = new Chart("Accuracy over rounds", {height: 240});
    this.gap = new Chart("Straggler gap per round", {height: 240});
    this.notes = h("ul.notes");
    this.body = h("div.scroll.whole", {tabindex: 0, role: "region", "aria-label": "Comparison, scrolls"});
    root.replaceChildren(h("h1", {id: "h-compare", tabindex: -1}, "Runs side by side"), this.notes, this.time.element,
      h("section.card", {"aria-labelledby": "h-table"}, h("h2", {id: "h-table"}, "Figures"),
        h("p.quiet", {}, "Seconds are divided by the dilation. A speed-up refers to the last run. A dash: known only to ", h("code", {}, "edgebed compare"), ", which reads all records."), this.body),
      h("div.grid", {}, this.rounds.element, this.gap.element));
  }

  open(runs) {
    this.runs = runs;
    this.load();
  }

  /** Called with every new list: asks again where one of these runs has gone on. */
  heard(cards) {
    const key = JSON.stringify(cards.filter((card) => this.runs.includes(card.id)).map((card) => [card.id, card.rounds, card.ended]));
    if (key !== this.key && this.runs.length) this.load();
    this.key = key;
  }

  async load() {
    const asked = this.runs, answer = await fetch(`/api/compare?runs=${asked.map(encodeURIComponent).join(",")}`);
    if (answer.ok && asked === this.runs) this.draw(await answer.json());
  }

  draw({texts, labels, notes, curves}) {
    const names = distinct(curves), series = (x, y, text) => curves.map((curve, i) => ({name: names[i], cls: `c${curve.style.colour}`, dash: curve.style.dash, marker: curve.style.marker,
      points: curve.points.map((p) => [p[x], p[y], text(p)])}));
    this.notes.replaceChildren(...notes.map((note) => h("li", {}, note)));
    const all = (x, label) => ({columns: [["run"], [label, "num"], ["accuracy", "num"], ["gap", "num"]],
      rows: () => curves.flatMap((curve, i) => curve.points.map((p) => [names[i], x ? p[3] : seconds(p[0]), accuracy(p[1]), seconds(p[2])]))});
    this.time.draw({series: series(0, 1, (p) => `${accuracy(p[1])} after ${seconds(p[0])}`), x: ["time of the rounds ÷ D", tick], y: ["test accuracy", (v) => percent(v, 0)], yMin: 0, yMax: 1, ...all(false, "time")});
    this.rounds.draw({series: series(3, 1, (p) => `${accuracy(p[1])} after ${p[3]} rounds`), whole: true, x: ["rounds that have ended", String], y: ["test accuracy", (v) => percent(v, 0)], yMin: 0, yMax: 1, ...all(true, "round")});
    this.gap.draw({series: series(3, 2, (p) => `after ${p[3]} rounds: ${seconds(p[2])}`), whole: true, x: ["rounds that have ended", String], y: ["behind the median device", tick], ...all(true, "round")});
    const keys = Object.keys(labels).filter((key) => key !== "method");
    this.body.replaceChildren(table("Runs side by side", [[""], ...names.map((name) => [name, "num"])], keys.map((key) => [labels[key], ...texts.map((row) => row[key])])));
  }
}

/** The methods' names; with the runs' where two are the same. */
function distinct(curves) {
  return curves.map((curve) => (curves.filter((other) => other.method === curve.method).length > 1 ? `${curve.method} ${curve.id.slice(-9)}` : curve.method));
}
