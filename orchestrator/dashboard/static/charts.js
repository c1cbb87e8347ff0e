// Line and bar charts in SVG. Each is a figure with a caption, a keyboard cursor, a tooltip, and its figures as a table.
// A name in the legend hides its series; a drag to the side, or + and −, zoom.

import {announce, fold, h, s, table, tip} from "./dom.js";
import {FORMATS, hatched, powers, ticks} from "./format.js";

const LEFT = 56, RIGHT = 14, TOP = 24, BOTTOM = 34, EDGE = 6; // EDGE: what a marker at the edge needs

/**
 * @param title  caption
 * @param options.height  pixels
 * @param options.onpick  called with a point's `pick` on click or Enter
 *
 * draw({series: [{name, cls, points: [[x, y, text, pick, cls, base]], bars, step, ticks, dots, faint, band: [[x, low, high]]}],
 *       x: [label, format of ticks, format of values], y: the same, yMax, yMin, line: {y, label}, marks: [{x, kind, text}],
 *       log, summary, empty, columns, rows})
 *
 * `log`: the x axis is logarithmic, all x are above 0. A format is a function or a name in FORMATS. A point without text, and a chart without columns, is told by the formats of
 * values. `base`: where a bar begins, if not at 0.
 */
export class Chart {
  constructor(title, {height = 220, onpick = null} = {}) {
    this.height = height;
    this.onpick = onpick;
    this.data = null;
    this.at = -1;
    this.hidden = new Set();
    this.zoom = null;
    this.svg = s("svg.chart", {role: "img", tabindex: 0, height});
    this.legend = h("div.legend");
    this.whole = h("button", {type: "button", hidden: true, onclick: () => this.zoomTo(null)}, "Whole");
    this.table = fold("As a table", () => this.asTable());
    this.title = h("h3", {}, title);
    this.element = h("figure.card", {}, h("figcaption", {}, this.title, this.legend, this.whole), this.svg, this.table.element);
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerup", (event) => this.release(event));
    this.svg.addEventListener("pointercancel", () => { this.pressed = null; });
    this.svg.addEventListener("pointerleave", () => this.point(-1));
    this.svg.addEventListener("blur", () => this.point(-1));
    this.svg.addEventListener("dblclick", () => this.zoomTo(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.render()).observe(this.element);
  }

  draw(data) {
    this.data = {...data, x: formats(data.x), y: formats(data.y)};
    this.render();
    this.table.changed();
  }

  /** Show everything again: the figures of something else follow. */
  reset() {
    this.hidden.clear();
    this.zoom = null;
  }

  asTable() {
    const {columns, rows, series, x, y} = this.data;
    if (columns) return table(this.title.textContent, columns, (typeof rows === "function" ? rows() : rows).slice(-2000));
    const told = series.filter((one) => !one.faint).flatMap((one) => one.points.map((p) => [one.name || "", x[2](p[0]), y[2](p[1])]));
    return table(this.title.textContent, [[""], [x[0], "num"], [y[0], "num"]], told.slice(-2000));
  }

  shown() { return this.data.series.filter((one) => !this.hidden.has(one.name)); }

  render() {
    const {data, svg} = this;
    const width = Math.floor(svg.getBoundingClientRect().width || this.element.clientWidth - 24);
    if (!data || width < 80) return;
    const all = this.shown().flatMap((one) => one.points), known = all.filter((p) => p[1] !== null);
    svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    svg.setAttribute("aria-label", `${this.title.textContent}. ${data.summary || ""} Arrow keys read single values, + and − zoom.`);
    this.drawLegend();
    this.whole.hidden = !this.zoom;
    if (!known.length) {
      svg.replaceChildren(s("text.empty", {x: width / 2, y: this.height / 2}, data.empty || (all.length || !this.hidden.size ? "nothing yet" : "all are hidden")));
      return;
    }
    const [x0, x1, y0, y1] = this.range(known);
    const L = data.log ? Math.log10 : (v) => v, X = (v) => LEFT + ((L(v) - L(x0)) / (L(x1) - L(x0))) * (width - LEFT - RIGHT);
    const Y = (v) => this.height - BOTTOM - ((v - y0) / (y1 - y0)) * (this.height - TOP - BOTTOM);
    this.scale = {X, Y, width, x0, x1};
    this.cursor = s("g.cursor");
    const from = LEFT - EDGE, room = width - LEFT - RIGHT + 2 * EDGE, inside = s("svg", {x: from, y: 0, width: room, height: this.height, viewBox: `${from} 0 ${room} ${this.height}`});
    inside.append(...this.shown().flatMap((one) => this.one(one, width)), ...(data.marks || []).map((mark) => this.mark(mark)), this.cursor);
    svg.replaceChildren(this.axes(x0, x1, y0, y1), ...this.goal(width, y0, y1), inside);
    if (this.at >= 0) this.point(Math.min(this.at, this.places().length - 1), false);
  }

  /** Of both axes: all points, or those between the ends of the zoom. */
  range(known) {
    const {data, zoom} = this;
    if (zoom) {
      const near = known.filter((p) => p[0] >= zoom[0] && p[0] <= zoom[1]).map((p) => p[1]);
      const least = low(near), most = high(near), pad = Math.max(1e-9, (most - least) * 0.08 || Math.abs(most) * 0.08);
      const bars = data.series.some((one) => one.bars);
      if (near.length) return [...zoom, bars ? Math.min(0, least) : least - pad, most + pad];
      return [...zoom, 0, 1];
    }
    const xs = known.map((p) => p[0]).concat((data.marks || []).map((m) => m.x)), ys = known.map((p) => p[1]);
    const x0 = data.xMin ?? (data.log ? low(xs) : Math.min(0, low(xs))), y0 = data.yMin ?? Math.min(0, low(ys));
    return [x0, Math.max(high(xs) + (data.pad ?? 0), x0 + 1e-9), y0,
      data.yMax ?? Math.max(high(ys) * 1.05, data.line ? data.line.y * 1.02 : 0, y0 + 1e-9)];
  }

  /** Names of the series, as buttons that hide and show them where there is more than one. */
  drawLegend() {
    const named = this.data.series.filter((one) => one.name && !one.faint), toggles = !this.data.legend && named.length > 1;
    const key = JSON.stringify([this.data.legend, named.map((one) => [one.name, one.cls, one.dash, one.marker]), toggles]);
    if (key !== this.legendKey) {
      this.legendKey = key;
      this.legend.replaceChildren(...(this.data.legend || named).map((one) => (toggles
        ? h("button.key", {type: "button", "data-name": one.name, title: "hide or show", onclick: () => this.toggle(one.name)}, sample(one), one.name)
        : h("span", {}, sample(one), one.name))));
    }
    for (const button of this.legend.querySelectorAll("button")) button.setAttribute("aria-pressed", !this.hidden.has(button.dataset.name));
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.render();
  }

  goal(width, y0, y1) {
    const {line} = this.data, {Y} = this.scale;
    if (!line || line.y < y0 || line.y > y1) return [];
    const y = Y(line.y), above = y - 5 > TOP; // at the top, the label of the axis is above
    return [s("line.goal", {x1: LEFT, x2: width - RIGHT, y1: y, y2: y}),
      s("text.goal-text", {x: LEFT + 6, y: above ? y - 5 : y + 13}, line.label)];
  }

  axes(x0, x1, y0, y1) {
    const {X, Y, width} = this.scale, {data} = this, bottom = this.height - BOTTOM;
    return s("g.axes", {},
      ticks(y0, y1, 5, data.y[1]).map((v) => [
        s("line.grid", {x1: LEFT, x2: width - RIGHT, y1: Y(v), y2: Y(v)}),
        s("text.tick.end", {x: LEFT - 6, y: Y(v) + 4}, data.y[1](v))]),
      (data.log ? powers(x0, x1) : ticks(x0, x1, Math.max(2, Math.floor(width / 110)), data.x[1])).filter((v) => !data.whole || Number.isInteger(v)).map((v) => {
        const text = data.x[1](v, x1), half = 4 * text.length; // pixels, and some to spare: the last label stays inside
        return s("text.tick.middle", {x: Math.min(X(v), width - half), y: bottom + 15}, text);
      }),
      s("line.base", {x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom}),
      s("text.label", {x: width - RIGHT, y: this.height - 4}, data.x[0]),
      s("text.label.start", {x: 0, y: 12}, data.y[0]));
  }

  one(series, width) {
    const {X, Y} = this.scale;
    if (series.bars) return this.bars(series, width);
    if (series.ticks) return this.ticks(series, width);
    const points = thin(series.points.filter((p) => p[1] !== null), X);
    if (series.dots) return points.map((p) => s(`path.dot.${series.cls}`, {d: marker(series.marker ?? 0, X(p[0]), Y(p[1]))}));
    const steps = points.map((p, i) => {
      const here = `${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`;
      return i === 0 ? `M${here}` : series.step ? `H${X(p[0]).toFixed(1)}V${Y(p[1]).toFixed(1)}` : `L${here}`;
    });
    const made = [s(`path.line.${series.cls}.d${series.dash ?? 0}${series.faint ? ".faint" : ""}`, {d: steps.join("")})];
    if (series.band) {
      const edge = (part, k) => part.map((p) => `${X(p[0]).toFixed(1)} ${Y(p[k]).toFixed(1)}`).join("L");
      made.unshift(s(`path.band.${series.cls}`, {d: `M${edge(series.band, 1)}L${edge(series.band.toReversed(), 2)}Z`}));
    }
    const every = Math.max(1, Math.ceil(points.length / (series.marker === undefined ? 60 : 12)));
    if (!series.faint && !series.plain && (series.marker !== undefined || every === 1)) {
      made.push(...points.filter((_, i) => i % every === 0).map((p) => s(`path.dot.${series.cls}`, {d: marker(series.marker ?? 0, X(p[0]), Y(p[1]))})));
    }
    return made;
  }

  /** Pixels for each of the points of a series. */
  room(series, width) {
    const {X} = this.scale;
    return this.data.whole ? X(1) - X(0) : (width - LEFT - RIGHT) / Math.max(1, series.points.length);
  }

  /** Short lines across the bars of another series. */
  ticks(series, width) {
    const {X, Y} = this.scale, half = Math.max(2, Math.min(this.room(series, width), 40) / 2);
    return series.points.filter((p) => p[1] !== null).map((p) =>
      s("path.target", {d: `M${X(p[0]) - half} ${Y(p[1])}h${2 * half}`}));
  }

  bars(series, width) {
    const {X, Y} = this.scale, columns = new Map();
    const size = Math.max(1, this.room(series, width));
    for (const p of series.points) {
      if (p[1] === null) continue;
      const key = size >= 2 ? p[0] : Math.round(X(p[0]) / 2);
      if (!columns.has(key) || columns.get(key)[1] < p[1]) columns.set(key, p);
    }
    const w = Math.max(1.5, Math.min(size * 0.8, 26));
    return [...columns.values()].map((p) => {
      const zero = Y(p[5] ?? 0);
      return s("rect." + (p[4] || series.cls), {x: X(p[0]) - w / 2, width: w, y: Math.min(Y(p[1]), zero), height: Math.max(0.5, Math.abs(zero - Y(p[1])))});
    });
  }

  mark(mark) {
    const x = this.scale.X(mark.x), bottom = this.height - BOTTOM;
    return s("g.mark.m-" + mark.kind, {}, s("line", {x1: x, x2: x, y1: TOP, y2: bottom}),
      s("path", {d: shape(mark.kind, x, bottom)}), s("title", {}, mark.text));
  }

  // ---- the cursor ----

  /** Points that the cursor can stand on, with their series. */
  places() {
    if (!this.data) return [];
    const [from, to] = this.zoom ?? [-Infinity, Infinity];
    return this.shown().filter((one) => !one.faint).flatMap((one) => one.points.map((p) => [one, p])).filter(([, p]) => p[1] !== null && p[0] >= from && p[0] <= to);
  }

  told([one, p]) {
    const {x, y} = this.data;
    return `${one.name ? one.name + ": " : ""}${p[2] ?? `${y[2](p[1])}, ${x[0]} ${x[2](p[0])}`}`;
  }

  hover(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    if (this.pressed !== null && this.pressed !== undefined && event.buttons) { this.select(px); return; }
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
    const [, p] = place, x = this.scale.X(p[0]), y = this.scale.Y(p[1]), text = this.told(place);
    this.cursor.replaceChildren(s("line", {x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM}), s("circle", {cx: x, cy: y, r: 4}));
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
    if (event.key === "Escape") { this.point(-1); this.zoomTo(null); }
    if (event.key === "+") this.zoomBy(0.5);
    if (event.key === "-") this.zoomBy(2);
    if (next === undefined || !count) return;
    event.preventDefault();
    this.point(Math.max(0, Math.min(count - 1, next)), true);
  }

  // ---- the zoom ----

  press(event) {
    this.pressed = event.button === 0 && this.scale ? event.clientX - this.svg.getBoundingClientRect().left : null;
  }

  /** The stretch between where the pointer was pressed and where it is. */
  select(px) {
    const [a, b] = [this.pressed, px].sort((one, other) => one - other);
    tip("");
    this.cursor.replaceChildren(s("rect.select", {x: a, width: b - a, y: TOP, height: this.height - TOP - BOTTOM}));
  }

  release(event) {
    if (this.pressed === null || this.pressed === undefined) return;
    const px = event.clientX - this.svg.getBoundingClientRect().left, from = this.pressed;
    this.pressed = null;
    if (Math.abs(px - from) < 8) { this.pick(); return; }
    this.zoomTo([Math.min(from, px), Math.max(from, px)].map((v) => this.value(v)));
  }

  /** The x at a pixel. */
  value(px) {
    const {x0, x1, width} = this.scale, share = (px - LEFT) / (width - LEFT - RIGHT);
    const at = Math.max(0, Math.min(1, share));
    return this.data.log ? x0 * (x1 / x0) ** at : x0 + at * (x1 - x0);
  }

  zoomBy(factor) {
    if (!this.scale) return;
    const {x0, x1} = this.scale, middle = this.places()[this.at]?.[1][0] ?? (x0 + x1) / 2, half = ((x1 - x0) * factor) / 2;
    this.zoomTo([middle - half, middle + half]);
  }

  /** Show what lies between two x; null: everything. */
  zoomTo(range) {
    const xs = this.data ? this.shown().flatMap((one) => one.points.map((p) => p[0])) : [];
    const wide = range && range[0] <= low(xs) && range[1] >= high(xs);
    this.zoom = wide ? null : range;
    this.at = -1;
    this.render();
  }
}

/** [label, format of ticks, format of values], the formats as functions. */
function formats([label, tick, value]) {
  const made = (format) => (typeof format === "string" ? FORMATS[format] : format);
  return [label, made(tick), made(value ?? tick)];
}

/** What stands before a name in the legend. */
export function sample(one) {
  if (one.dash === undefined) return h(`i.${one.cls}${hatched(one.cls) ? ".hatched" : ""}`);
  return s("svg.sample", {viewBox: "0 0 28 12"}, s(`path.line.${one.cls}.d${one.dash}`, {d: "M0 6H28"}), one.marker === undefined ? "" : s(`path.dot.${one.cls}`, {d: marker(one.marker, 14, 6)}));
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
