// The whole run: a lane per device, how much of its limits each used, and what the host's processes used.
// The structure is that of orchestrator/records/shown/over_time.py.

import {Chart} from "./charts.js";
import {h} from "./dom.js";
import {percent, seconds, tick} from "./format.js";
import {Rows} from "./rows.js";

const STEPS = [0, 0.25, 0.5, 0.75, 1];

export class OverTimeView {
  constructor(ondevice = null) {
    this.lanes = new Rows("Swim lanes of the whole run", {onpick: ondevice});
    this.load = new Rows("Load of the devices over time", {onpick: ondevice});
    this.what = h("select", {id: "load-what", onchange: () => this.drawLoad()});
    this.badge = h("span.pill");
    this.host = new Chart("Load of the host: cores in use", {height: 200});
    this.element = h("div", {},
      h("section.card", {"aria-labelledby": "h-lanes"}, h("h2", {id: "h-lanes"}, "The whole run"), this.lanes.element),
      h("section.card", {"aria-labelledby": "h-load"}, h("div.head", {}, h("h2", {id: "h-load"}, "Load over time"),
        h("div.tools", {}, h("label", {for: "load-what"}, "Share of the limit:"), this.what)), this.load.element,
      h("p.quiet", {}, "Over whole rounds, waits included: CPU time of its own work ÷ quota, bits ÷ rate; memory at the end of its task ÷ limit. The stronger the colour, the closer to the limit.")),
      h("div.badged", {}, this.badge, this.host.element));
  }

  draw(data) {
    this.data = data;
    this.lanes.draw(data.lanes);
    if (!this.what.childElementCount) this.what.replaceChildren(...Object.keys(data.loads).map((name) => h("option", {value: name}, name)));
    this.drawLoad();
    this.drawHost();
  }

  drawLoad() {
    const {data} = this, rows = data.loads[this.what.value] ?? [];
    const known = rows.some((row) => row.cells.length);
    this.load.draw({rows: known ? rows.map(({label, cells}) => ({label, pick: label, bars: cells.map(loadCell)})) : [], to: data.to, format: tick, empty: `no ${this.what.value} was reported`,
      legend: known ? STEPS.map((level) => ({name: percent(level, 0), cls: `level.l${level * 100}`})) : [], columns: [["device"], ["mean", "num"], ["most", "num"]],
      cells: rows.filter((row) => row.cells.length).map((row) => [row.label, percent(mean(row.cells)), percent(Math.max(...row.cells.map((cell) => cell[2])))])});
  }

  drawHost() {
    const {host, disturbed} = this.data, names = Object.keys(host);
    this.host.element.hidden = !names.length;
    this.badge.hidden = !names.length;
    this.badge.className = `pill ${disturbed.length ? "bad" : "good"}`;
    this.badge.textContent = disturbed.length ? `the host disturbed ${disturbed.length} round${disturbed.length > 1 ? "s" : ""}` : "the host disturbed no round";
    this.host.draw({series: names.map((name, i) => ({name, cls: "own", dash: i % 5, marker: i % 8, points: host[name]})), x: ["time of the run ÷ D", tick, seconds], y: ["cores", "number"],
      marks: disturbed.map(({x, text}) => ({x, kind: "disturbed", text})), summary: this.badge.textContent});
  }
}

function loadCell([a, b, share, which]) {
  return ["level", a, b, `${percent(share, 0)} of its limit, ${which}`, share];
}

const mean = (cells) => cells.reduce((sum, [a, b, share]) => sum + share * (b - a), 0) / Math.max(1e-9, cells.reduce((sum, [a, b]) => sum + b - a, 0));
