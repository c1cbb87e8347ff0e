// One round: a row per device with the names of its time, the server below. A live round grows.

import {fold, h, s, table, tip} from "./dom.js";
import {ordered, phase, seconds, tick, ticks} from "./format.js";
import {PHASES, WAITS} from "../vocabulary.js";

const RIGHT = 16, TOP = 22;

export class Gantt {
  constructor(ondevice) {
    this.ondevice = ondevice;
    this.svg = s("svg.gantt", {role: "img", tabindex: -1});
    this.legend = h("div.legend", {});
    this.table = fold("Seconds by name, as a table", () => this.asTable());
    this.scroll = h("div.gantt-scroll", {tabindex: 0, role: "region", "aria-label": "Gantt of the round, scrolls"}, this.svg);
    this.element = h("div", {}, this.scroll, this.legend, this.table.element);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => tip(""));
    this.svg.addEventListener("click", (event) => {
      const name = event.target.closest("[data-device]")?.getAttribute("data-device");
      if (name) this.ondevice(name);
    });
    new ResizeObserver(() => this.render()).observe(this.element);
  }

  draw(data) {
    this.data = data;
    this.render();
    this.table.changed();
  }

  render() {
    const {data, svg} = this, width = Math.floor(this.scroll.clientWidth);
    if (width < 120) return;
    if (!data) {
      svg.setAttribute("viewBox", `0 0 ${width} 60`);
      svg.setAttribute("height", 60);
      svg.replaceChildren(s("text.empty", {x: width / 2, y: 34}, "no round has begun yet"));
      this.legend.replaceChildren();
      return;
    }
    const names = Object.keys(data.devices), done = (name) => data.devices[name].done_s ?? -1;
    if (!data.live && names.length > 15) names.sort((a, b) => done(b) - done(a)); // the straggler must be in sight
    const left = Math.min(190, 30 + 7.4 * Math.max(12, ...names.map((name) => name.length)));
    const row = names.length > 40 ? 16 : names.length > 15 ? 20 : 26;
    const rows = [...names.map((name) => this.device(name)), {label: "server halves", bars: data.server}, {label: "orchestrator", bars: data.own}];
    const height = TOP + rows.length * row + 8, span = Math.max(data.length_s, ...names.map((n) => data.devices[n].predicted_s || 0), 1e-6);
    const X = (v) => left + (Math.max(0, Math.min(v, span)) / span) * (width - left - RIGHT);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", this.say());
    svg.replaceChildren(
      s("g.axes", {}, ticks(0, span, Math.max(3, Math.floor(width / 120))).map((v) => [
        s("line.grid", {x1: X(v), x2: X(v), y1: TOP - 4, y2: height - 6}), s("text.tick.middle", {x: X(v), y: 13}, tick(v))])),
      ...rows.map((one, i) => this.row(one, TOP + i * row, row, X, left)),
      data.live ? s("line.now", {x1: X(data.length_s), x2: X(data.length_s), y1: TOP - 4, y2: height - 6}) : s("g"));
    this.drawLegend(rows);
  }

  device(name) {
    const one = this.data.devices[name];
    return {label: name, device: name, bars: one.bars, one, slow: this.data.straggler === name};
  }

  row(one, y, size, X, left) {
    const pad = size > 18 ? 4 : 2, cells = one.bars.map(([name, a, b, detail]) => s(`rect.p-${name}`, {
      x: X(a), y: y + pad, width: Math.max(0.6, X(b) - X(a)), height: size - 2 * pad,
      "data-tip": `${phase(name)}${detail ? ` (${detail})` : ""}${PHASES[name] ? `: ${PHASES[name]}` : ""}\n${seconds(b - a)}, from ${seconds(a)} to ${seconds(b)}`}));
    const extra = [];
    if (one.one?.predicted_s) {
      const x = X(one.one.predicted_s);
      extra.push(s("line.predicted", {x1: x, x2: x, y1: y + 1, y2: y + size - 1, "data-tip": `predicted ${seconds(one.one.predicted_s)}`}));
    }
    if (one.one?.out) extra.push(s("text.note", {x: X(0) + 6, y: y + size / 2 + 4}, one.one.out));
    return s("g.row" + (one.slow ? ".slow" : ""), {"data-device": one.device},
      s("text.name" + (one.device ? ".pick" : ".own"), {x: left - 8, y: y + size / 2 + 4}, (one.slow ? "▸ " : "") + one.label),
      s("rect.track", {x: left, y: y + pad, width: X(Infinity) - left, height: size - 2 * pad}), cells, extra);
  }

  drawLegend(rows) {
    const seen = new Set(rows.flatMap((one) => one.bars.map((bar) => bar[0])));
    const predicted = rows.some((one) => one.one?.predicted_s);
    this.legend.replaceChildren(
      ...ordered(seen).map((name) => h("span", {title: PHASES[name]}, h(`i.p-${name}${WAITS.includes(name) ? ".hatched" : ""}`), phase(name))),
      predicted ? h("span", {}, h("i.predicted-key"), "predicted") : "");
  }

  say() {
    const {data} = this, names = Object.keys(data.devices).length;
    const slow = data.straggler ? ` The straggler is ${data.straggler}.` : "";
    return `Round ${data.round}${data.live ? ", in progress" : ""}: ${names} devices over ${seconds(data.length_s)}.${slow} The table below has the figures.`;
  }

  asTable() {
    const {data} = this;
    if (!data) return h("p", {}, "no round has begun yet");
    const seen = new Set(Object.values(data.devices).flatMap((one) => Object.keys(one.sums)));
    const columns = ordered(seen);
    return table(`Round ${data.round}`,
      [["device"], ["done after", "num"], ["predicted", "num"], ["cut", "num"], ...columns.map((name) => [phase(name), "num"])],
      Object.entries(data.devices).map(([name, one]) => [name, one.out || seconds(one.actual_s), seconds(one.predicted_s),
        one.cut ?? "–", ...columns.map((column) => (one.sums[column] ? seconds(one.sums[column]) : "·"))]));
  }

  hover(event) {
    const text = event.target.getAttribute("data-tip"), name = event.target.closest("[data-device]")?.getAttribute("data-device");
    tip(text ? (name ? `${name}: ` : "") + text : "", event.clientX, event.clientY);
  }
}
