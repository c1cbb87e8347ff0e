// Line and bar charts in SVG. Each is a figure with a caption, a keyboard cursor, a tooltip, and its figures as a table.

import {announce, fold, h, s, table, tip} from "./dom.js";
import {ticks} from "./format.js";

const LEFT = 56, RIGHT = 14, TOP = 24, BOTTOM = 34;

/**
 * @param title  caption
 * @param options.height  pixels
 * @param options.onpick  called with a point's `pick` on click or Enter
 *
 * draw({series: [{name, cls, points: [[x, y, label, pick]], bars, step}], x: [label, format], y: [label, format],
 *       ticks, yMax, yMin, line: {y, label}, marks: [{x, kind, text}], summary, empty, columns, rows})
 */
export class Chart {
  constructor(title, {height = 220, onpick = null} = {}) {
    this.height = height;
    this.onpick = onpick;
    this.data = null;
    this.at = -1;
    this.svg = s("svg.chart", {role: "img", tabindex: 0, height});
    this.legend = h("div.legend", {"aria-hidden": "true"});
    this.table = fold("As a table", () => this.asTable());
    this.title = h("h3", {}, title);
    this.element = h("figure.card", {}, h("figcaption", {}, this.title, this.legend), this.svg, this.table.element);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.point(-1));
    this.svg.addEventListener("blur", () => this.point(-1));
    this.svg.addEventListener("click", () => this.pick());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.render()).observe(this.element);
  }

  draw(data) {
    this.data = data;
    this.render();
    this.table.changed();
  }

  asTable() {
    const {columns, rows} = this.data;
    return table(this.title.textContent, columns, rows().slice(-2000));
  }

  render() {
    const {data, svg} = this;
    const width = Math.floor(svg.getBoundingClientRect().width || this.element.clientWidth - 24);
    if (!data || width < 80) return;
    const all = data.series.flatMap((one) => one.points);
    const known = all.filter((p) => p[1] !== null);
    svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    svg.setAttribute("aria-label", `${this.title.textContent}. ${data.summary || ""} Arrow keys read single values.`);
    this.legend.replaceChildren(...(data.legend || data.series.filter((one) => one.name)).map((one) =>
      h("span", {}, one.marker === undefined ? h("i." + one.cls) : s("svg.sample", {viewBox: "0 0 28 12"},
        s(`path.line.${one.cls}.d${one.dash}`, {d: "M0 6H28"}), s(`path.dot.${one.cls}`, {d: marker(one.marker, 14, 6)})), one.name)));
    if (!known.length) {
      svg.replaceChildren(s("text.empty", {x: width / 2, y: this.height / 2}, data.empty || "nothing yet"));
      return;
    }
    const xs = known.map((p) => p[0]).concat((data.marks || []).map((m) => m.x));
    const x0 = data.xMin ?? Math.min(0, low(xs)), x1 = Math.max(high(xs) + (data.pad ?? 0), x0 + 1e-9);
    const y0 = data.yMin ?? Math.min(0, low(known.map((p) => p[1])));
    const y1 = data.yMax ?? Math.max(high(known.map((p) => p[1])) * 1.05, data.line ? data.line.y * 1.02 : 0, y0 + 1e-9);
    const X = (v) => LEFT + ((v - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const Y = (v) => this.height - BOTTOM - ((v - y0) / (y1 - y0)) * (this.height - TOP - BOTTOM);
    this.scale = {X, Y, width};
    const parts = [this.axes(x0, x1, y0, y1)];
    if (data.line) {
      parts.push(s("line.goal", {x1: LEFT, x2: width - RIGHT, y1: Y(data.line.y), y2: Y(data.line.y)}),
        s("text.goal-text.end", {x: width - RIGHT, y: Y(data.line.y) - 5}, data.line.label));
    }
    for (const one of data.series) parts.push(...this.one(one, width));
    parts.push(...(data.marks || []).map((mark) => this.mark(mark)));
    this.cursor = s("g.cursor");
    parts.push(this.cursor);
    svg.replaceChildren(...parts);
    if (this.at >= 0) this.point(Math.min(this.at, all.length - 1), false);
  }

  axes(x0, x1, y0, y1) {
    const {X, Y, width} = this.scale, {data} = this, bottom = this.height - BOTTOM;
    return s("g.axes", {},
      ticks(y0, y1, 5).map((v) => [
        s("line.grid", {x1: LEFT, x2: width - RIGHT, y1: Y(v), y2: Y(v)}),
        s("text.tick.end", {x: LEFT - 6, y: Y(v) + 4}, data.y[1](v))]),
      ticks(x0, x1, Math.max(2, Math.floor(width / 110))).filter((v) => !data.whole || Number.isInteger(v)).map((v) =>
        s("text.tick.middle", {x: X(v), y: bottom + 15}, data.x[1](v))),
      s("line.base", {x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom}),
      s("text.label", {x: width - RIGHT, y: this.height - 4}, data.x[0]),
      s("text.label.start", {x: 0, y: 12}, data.y[0]));
  }

  one(series, width) {
    const {X, Y} = this.scale;
    if (series.bars) return this.bars(series, width);
    if (series.ticks) return this.ticks(series, width);
    const points = thin(series.points.filter((p) => p[1] !== null), X);
    const steps = points.map((p, i) => {
      const here = `${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`;
      return i === 0 ? `M${here}` : series.step ? `H${X(p[0]).toFixed(1)}V${Y(p[1]).toFixed(1)}` : `L${here}`;
    });
    const made = [s(`path.line.${series.cls}.d${series.dash ?? 0}`, {d: steps.join("")})];
    const every = Math.max(1, Math.ceil(points.length / (series.marker === undefined ? 60 : 12)));
    if (series.marker !== undefined || every === 1) {
      made.push(...points.filter((_, i) => i % every === 0).map((p) => s(`path.dot.${series.cls}`, {d: marker(series.marker ?? 0, X(p[0]), Y(p[1]))})));
    }
    return made;
  }

  /** Short lines across the bars of another series. */
  ticks(series, width) {
    const {X, Y} = this.scale, half = Math.max(2, Math.min((width - LEFT - RIGHT) / Math.max(1, series.points.length), 40) / 2);
    return series.points.filter((p) => p[1] !== null).map((p) =>
      s("path.target", {d: `M${X(p[0]) - half} ${Y(p[1])}h${2 * half}`}));
  }

  bars(series, width) {
    const {X, Y} = this.scale, columns = new Map(), zero = Y(0);
    const size = Math.max(1, (width - LEFT - RIGHT) / Math.max(1, series.points.length));
    for (const p of series.points) {
      if (p[1] === null) continue;
      const key = size >= 2 ? p[0] : Math.round(X(p[0]) / 2);
      if (!columns.has(key) || columns.get(key)[1] < p[1]) columns.set(key, p);
    }
    const w = Math.max(1.5, Math.min(size * 0.8, 26));
    return [...columns.values()].map((p) => s("rect." + (p[4] || series.cls), {
      x: X(p[0]) - w / 2, width: w, y: Math.min(Y(p[1]), zero), height: Math.max(0.5, Math.abs(zero - Y(p[1])))}));
  }

  mark(mark) {
    const x = this.scale.X(mark.x), bottom = this.height - BOTTOM;
    return s("g.mark.m-" + mark.kind, {}, s("line", {x1: x, x2: x, y1: TOP, y2: bottom}),
      s("path", {d: shape(mark.kind, x, bottom)}), s("title", {}, mark.text));
  }

  // ---- the cursor ----

  places() { return this.data ? this.data.series.flatMap((one) => one.points.map((p) => [one, p])).filter(([, p]) => p[1] !== null) : []; }

  hover(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const near = (this.data.marks || []).filter((m) => Math.abs(this.scale.X(m.x) - px) < 5);
    let best = -1, distance = Infinity;
    this.places().forEach(([, p], i) => {
      const away = Math.abs(this.scale.X(p[0]) - px) + 0.1 * Math.abs(this.scale.Y(p[1]) - py);
      if (away < distance) [best, distance] = [i, away];
    });
    this.point(best, false, near.slice(0, 6).map((m) => m.text), [event.clientX, event.clientY]);
  }

  point(index, speak = false, more = [], where = null) {
    this.at = index;
    if (!this.cursor || index < 0) { this.cursor?.replaceChildren(); tip(""); return; }
    const place = this.places()[index];
    if (!place) return;
    const [one, p] = place, x = this.scale.X(p[0]), y = this.scale.Y(p[1]);
    this.cursor.replaceChildren(s("line", {x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM}), s("circle", {cx: x, cy: y, r: 4}));
    const text = `${one.name ? one.name + ": " : ""}${p[2]}`;
    if (speak) announce(text);
    const box = this.svg.getBoundingClientRect();
    if (where) tip([text, ...more].join("\n"), ...where);
    else if (speak) tip(text, box.left + x, box.top + y);
  }

  pick() {
    const place = this.places()[this.at];
    if (place && this.onpick && place[1][3] !== undefined) this.onpick(place[1][3]);
  }

  key(event) {
    const count = this.places().length, now = this.at;
    const next = {ArrowRight: now + 1, ArrowLeft: now < 0 ? count - 1 : now - 1, Home: 0, End: count - 1}[event.key];
    if (event.key === "Enter") this.pick();
    if (event.key === "Escape") this.point(-1);
    if (next === undefined || !count) return;
    event.preventDefault();
    this.point(Math.max(0, Math.min(count - 1, next)), true);
  }
}

function shape(kind, x, y) {
  if (kind === "profile") return `M${x} ${y - 6}l5 6l-5 6l-5 -6z`;
  if (kind === "joined" || kind === "resumed") return `M${x - 5} ${y + 5}h10l-5 -10z`;
  if (kind === "ended") return `M${x - 3} ${y - 5}h6v10h-6z`;
  return `M${x - 5} ${y - 5}h10l-5 10z`;
}

const low = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const high = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** Where several points fall on one pixel: first, lowest, highest, last. */
function thin(points, X) {
  if (points.length < 1500) return points;
  const kept = [];
  for (let i = 0; i < points.length;) {
    let j = i, least = i, most = i;
    for (const column = Math.round(X(points[i][0])); j < points.length && Math.round(X(points[j][0])) === column; j++) {
      if (points[j][1] < points[least][1]) least = j;
      if (points[j][1] > points[most][1]) most = j;
    }
    kept.push(...[...new Set([i, least, most, j - 1])].sort((a, b) => a - b).map((k) => points[k]));
    i = j;
  }
  return kept;
}

/** Path of a marker around (x, y): circle, square, triangle, diamond, triangle down, cross, star, plus. */
function marker(shape, x, y) {
  const at = (points) => `M${points.map(([a, b]) => `${(x + a).toFixed(1)} ${(y + b).toFixed(1)}`).join("L")}Z`;
  if (shape % 8 === 0) return `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z`;
  const star = [...Array(10).keys()].map((i) => [(i % 2 ? 1.8 : 4.2) * Math.sin(i * Math.PI / 5), -(i % 2 ? 1.8 : 4.2) * Math.cos(i * Math.PI / 5)]);
  const plus = [[-1, -4], [1, -4], [1, -1], [4, -1], [4, 1], [1, 1], [1, 4], [-1, 4], [-1, 1], [-4, 1], [-4, -1], [-1, -1]];
  return at([null, [[-3, -3], [3, -3], [3, 3], [-3, 3]], [[0, -4], [3.8, 3], [-3.8, 3]], [[0, -4.2], [4.2, 0], [0, 4.2], [-4.2, 0]],
    [[0, 4], [3.8, -3], [-3.8, -3]], plus.map(([a, b]) => [(a - b) * 0.71, (a + b) * 0.71]), star, plus][shape % 8]);
}
