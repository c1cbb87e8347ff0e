// Several runs, those of one method together: curves with bands over seeds, times to target, tables for any baseline.
// The live page and the page of `edgebed compare --html` draw the same figures (orchestrator/records/compare/page.py).

import {Chart} from "./charts.js";
import {fold, h, table} from "./dom.js";
import {accuracy, bytes, seconds, tick} from "./format.js";
import {Rows} from "./rows.js";

const OVER = {
  time: {axis: ["time of the rounds ÷ D", tick, seconds]},
  log: {axis: ["time of the rounds ÷ D", tick, seconds], log: true, of: "time"},
  rounds: {axis: ["rounds that have ended", String], whole: true},
  bytes: {axis: ["bytes of all devices, both ways", bytes]},
};

export class CompareView {
  constructor(root) {
    this.root = root;
    this.runs = [];
    this.curves = new Chart("Accuracy", {height: 320});
    this.over = h("select", {id: "compare-over", onchange: () => this.drawCurves()}, [["time", "time"], ["log", "time, logarithmic"], ["rounds", "rounds"], ["bytes", "bytes"]].map(([value, label]) => h("option", {value}, label)));
    this.times = new Rows("Time to target: mean, whisker: 95% interval of three seeds or more, tick: one seed");
    this.gap = new Chart("Straggler gap per round", {height: 240});
    this.spent = new Rows("Seconds of the mean device in the mean round");
    this.baseline = h("select", {id: "compare-baseline", onchange: () => this.drawTable()});
    this.notes = h("ul.notes");
    this.groups = h("div.scroll.whole.edge", {tabindex: 0, role: "region", "aria-label": "Methods, scrolls"});
    this.about = h("p.quiet");
    this.more = h("div");
    this.single = fold("Run by run", () => this.runTable());
    root.replaceChildren(h("h1", {id: "h-compare", tabindex: -1}, "Runs side by side"), this.notes,
      h("div.tools.above", {}, h("label", {for: "compare-over"}, "Accuracy over"), this.over),
      this.curves.element,
      h("section.card", {"aria-labelledby": "h-table"}, h("div.head", {}, h("h2", {id: "h-table"}, "Methods"), h("div.tools", {}, h("label", {for: "compare-baseline"}, "Speed-up over"), this.baseline)),
        this.groups, this.about, this.single.element),
      h("div.grid", {}, card("Time to target (whisker: 95% interval; ticks: seeds)", this.times), card("What the mean device's time was spent on, per round", this.spent)),
      this.gap.element, this.more);
  }

  open(runs) {
    this.runs = runs;
    this.curves.reset();
    this.gap.reset();
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

  draw(data) {
    this.data = data;
    const {methods, notes, baseline} = data, chosen = this.baseline.value;
    this.notes.replaceChildren(...notes.map((note) => h("li", {}, note)));
    this.baseline.replaceChildren(...methods.map((one) => h("option", {value: one.name}, one.name)));
    this.baseline.value = methods.some((one) => one.name === chosen) ? chosen : baseline;
    this.drawCurves();
    this.drawTable();
    this.single.changed();
    this.gap.draw({series: this.series("gap"), whole: true, x: ["rounds that have ended", String], y: ["behind the median device", tick, seconds]});
    this.times.draw(data.times);
    this.spent.draw(data.spent);
    this.more.replaceChildren(...tables(data));
  }

  /** The mean of each method with its band; the runs themselves as thin lines. */
  series(chart) {
    return this.data.methods.flatMap(({name, style, charts}) => {
      const look = {name, cls: `c${style.colour}`, dash: style.dash}, {seeds, band} = charts[chart];
      if (!band) return seeds.map((one) => ({...look, marker: style.marker, points: one.points}));
      return [...seeds.map((one) => ({...look, faint: true, points: one.points})),
        {...look, plain: true, points: band.map(([x, mean]) => [x, mean]), band: band.map(([x, , least, most]) => [x, least, most])}];
    });
  }

  drawCurves() {
    const over = OVER[this.over.value];
    if (this.drawnOver !== this.over.value) this.curves.zoom = null;
    this.drawnOver = this.over.value;
    const series = this.series(over.of ?? this.over.value), above = (points) => (over.log ? points?.filter((p) => p[0] > 0) : points);
    this.curves.draw({series: series.map((one) => ({...one, points: above(one.points), band: above(one.band)})), x: over.axis, whole: over.whole, log: over.log, y: ["test accuracy", "share", accuracy], yMin: 0, yMax: 1, line: this.data.target,
      summary: `${this.data.methods.length} methods; bands: least to greatest seed.`});
  }

  drawTable() {
    const {labels} = this.data, base = this.baseline.value;
    this.groups.replaceChildren(table("Methods", labels.map((label, i) => [label, i ? "num" : undefined]), this.data.tables[base] ?? []));
    this.about.textContent = `Means over the runs (seeds) of a method with 95% intervals (Student's t); of one or two seeds the values. Where runs missed the target, times are restricted means, to the time in brackets, and speed-ups their ratios. Other speed-ups over ${base}: geometric means over pairs of runs of one seed. Bands: least to greatest of three seeds or more. Seconds are divided by the dilation.`;
  }

  runTable() {
    const {labels, texts} = this.data.runs, keys = Object.keys(labels).filter((key) => !["method", "run"].includes(key));
    return table("Run by run", [["run"], ["method"], ...keys.map((key) => [labels[key], "num"])], texts.map((row) => [row.run, row.method, ...keys.map((key) => row[key])]));
  }
}

const card = (title, rows) => h("section.card", {"aria-label": title}, h("h3", {}, title), rows.element);

function tables({paired, profiles}) {
  const found = [];
  if (paired) found.push(section("Paired ratios", `${paired.about}. Below 1 the method is faster. The first block on a fleet is left out, because the devices build the network in it.`, paired.labels, paired.rows));
  if (profiles.length) found.push(section("Stragglers by profile of device", "Others waited: seconds of all other devices, added up over the rounds in which such a device was the straggler.", ["method", "profile", "straggler in rounds", "others waited, per run", "why"], profiles));
  return found;
}

function section(title, about, labels, rows) {
  return h("section.card", {"aria-label": title}, h("h2", {}, title), h("div.scroll", {tabindex: 0, role: "region", "aria-label": `${title}, scrolls`}, table(title, labels.map((label) => [label]), rows)), h("p.quiet", {}, about));
}
