// A row per device (or method) with bars over a common axis: Gantt charts, swim lanes, loads, shares, times with intervals.

import {announce, fold, h, s, table, tip} from "./dom.js";
import {FORMATS, hatched, phase, seconds, ticks} from "./format.js";
import {PHASES} from "../vocabulary.js";

const END = 16, ABOVE = 22;

/**
 * draw({rows: [{label, bars: [[cls, from, to, text, level]], marks: [[cls, from, to, text]], note, slow, own, pick, line: predicted end, whisker: [low, high]}],
 *       from, to, format, x: label, now, timed, legend: [{name, cls}], summary, empty, columns, cells})
 *
 * Marks are thin strips below the bars. `cls` is a class of palette.css: p-NAME for a phase. `level` (0 to 1) is how strongly a cell is coloured. `cells` are
 * the rows of the table; without `columns` it lists the bars. `timed`: bars are [phase, from, to, more], and their seconds are told.
 */
export class Rows {
  constructor(label, {onpick = null} = {}) {
    this.label = label;
    this.onpick = onpick;
    this.svg = s("svg.gantt", {role: "img", tabindex: 0});
    this.legend = h("div.legend", {});
    this.table = fold("As a table", () => this.asTable());
    this.scroll = h("div.gantt-scroll", {tabindex: -1, role: "region", "aria-label": `${label}, scrolls`}, this.svg);
    this.element = h("div", {}, this.scroll, this.legend, this.table.element);
    this.at = [-1, -1];
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => tip(""));
    this.svg.addEventListener("blur", () => this.mark(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("click", (event) => this.pick(this.row(event.target)));
    new ResizeObserver(() => this.render()).observe(this.element);
  }

  draw(data) {
    this.data = data?.timed ? {...data, rows: data.rows.map((row) => ({...row, bars: row.bars.map(timed)}))} : data;
    this.render();
    this.table.changed();
  }

  render() {
    const {data, svg} = this, width = Math.floor(this.scroll.clientWidth);
    if (width < 120) return;
    if (!data || !data.rows.length) {
      svg.setAttribute("viewBox", `0 0 ${width} 60`);
      svg.setAttribute("height", 60);
      svg.replaceChildren(s("text.empty", {x: width / 2, y: 34}, data?.empty || "nothing yet"));
      this.legend.replaceChildren();
      return;
    }
    const {rows} = data, longest = Math.max(6, ...rows.map((row) => row.label.length));
    const left = Math.min(30 + 7.4 * longest, 230, width * 0.38), size = rows.length > 40 ? 16 : rows.length > 15 ? 20 : 26;
    const from = data.from ?? 0, span = Math.max(data.to - from, 1e-6), height = ABOVE + rows.length * size + 8;
    const X = (v) => left + (Math.max(0, Math.min(v - from, span)) / span) * (width - left - END);
    const format = typeof data.format === "string" ? FORMATS[data.format] : data.format;
    this.scale = {X, left, size};
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", `${this.label}. ${data.summary || ""} Arrow keys read single bars; the table below has the figures.`);
    this.frame = s("g");
    svg.replaceChildren(
      s("g.axes", {}, !rows.some((row) => row.bars.length) ? [] : ticks(from, from + span, Math.max(2, Math.floor((width - left) / 110)), format).map((v) => [
        s("line.grid", {x1: X(v), x2: X(v), y1: ABOVE - 4, y2: height - 6}), s("text.tick.middle", {x: Math.min(X(v), width - 24), y: 13}, format(v, from + span))])),
      ...rows.map((row, i) => this.drawn(row, i, X, width)),
      (data.now ?? null) === null ? s("g") : s("line.now", {x1: X(data.now), x2: X(data.now), y1: ABOVE - 4, y2: height - 6}), this.frame);
    this.legend.replaceChildren(...(data.legend || []).map((one) => h("span", {title: PHASES[one.cls.slice(2)]}, h(`i.${one.cls}${hatched(one.cls) ? ".hatched" : ""}`), one.name)));
  }

  drawn(row, i, X, width) {
    const {left, size} = this.scale, y = ABOVE + i * size, pad = size > 18 ? 4 : 2, room = Math.max(5, Math.floor((left - 24) / 7.2));
    const name = row.label.length > room ? `${row.label.slice(0, room - 1)}…` : row.label, extra = [];
    const bars = row.bars.map(([cls, a, b, , level], k) => s(`rect.${cls}`, {
      x: X(a), y: y + pad, width: Math.max(0.6, X(b) - X(a)), height: size - 2 * pad, "data-bar": `${i} ${k}`,
      "fill-opacity": level === undefined ? null : 0.06 + 0.94 * Math.max(0, Math.min(1, level))}));
    if (row.line) extra.push(s("line.predicted", {x1: X(row.line), x2: X(row.line), y1: y + 1, y2: y + size - 1}, s("title", {}, `predicted ${seconds(row.line)}`)));
    if (row.whisker) {
      const [a, b] = row.whisker.map(X), middle = y + size / 2;
      const d = `M${a} ${middle - 5}v10M${a} ${middle}H${b}M${b} ${middle - 5}v10`;
      extra.push(s("path.whisker.under", {d}), s("path.whisker", {d}));
    }
    for (const [cls, a, b, text] of row.marks ?? []) {
      extra.push(s(`rect.strip.${cls}`, {x: X(a) - 1, y: y + size - 4, width: Math.max(3, X(b) - X(a) + 2), height: 4}, s("title", {}, text)));
    }
    for (const v of row.ticks ?? []) extra.push(s("path.target", {d: `M${X(v)} ${y + 6}v${size - 12}`}));
    if (row.note) extra.push(s(row.at ? "text.value" : "text.note", {x: X(row.at ?? this.data.from ?? 0) + 6, y: y + size / 2 + 4}, row.note));
    return s("g.row" + (row.slow ? ".slow" : ""), {"data-row": i},
      s("text.name" + (row.own ? ".own" : row.pick ? ".pick" : ""), {x: left - 8, y: y + size / 2 + 4}, (row.slow ? "▸ " : "") + name, s("title", {}, row.label)),
      s("rect.track", {x: left, y: y + pad, width: width - END - left, height: size - 2 * pad}), bars, extra);
  }

  asTable() {
    const {data} = this;
    if (!data || !data.rows.length) return h("p", {}, data?.empty || "nothing yet");
    if (data.columns) return table(this.label, data.columns, data.cells.slice(0, 2000));
    return table(this.label, [[""], [data.x || "what"]], data.rows.flatMap((row) => [...row.bars, ...(row.marks ?? [])].map((bar) => [row.label, bar[3].replaceAll("\n", "; ")])).slice(0, 2000));
  }

  // ---- pointer and keys ----

  row(target) { return this.data?.rows[target.closest("[data-row]")?.getAttribute("data-row")]; }

  pick(row) { if (row?.pick && this.onpick) this.onpick(row.pick); }

  hover(event) {
    const at = event.target.getAttribute("data-bar")?.split(" ").map(Number);
    tip(at ? this.told(at) : "", event.clientX, event.clientY);
  }

  told([i, k]) { return `${this.data.rows[i].label}: ${this.data.rows[i].bars[k][3]}`; }

  key(event) {
    const {rows} = this.data ?? {rows: []}, last = rows.length - 1, [i, k] = this.at;
    const to = {ArrowRight: [i, k + 1], ArrowLeft: [i, k - 1], ArrowDown: [i + 1, k], ArrowUp: [i - 1, k], Home: [i, 0], End: [i, Infinity]}[event.key];
    if (event.key === "Escape") this.mark(null);
    if (event.key === "Enter") this.pick(rows[i]);
    if (!to || last < 0) return;
    event.preventDefault();
    const row = Math.max(0, Math.min(last, to[0])), most = rows[row].bars.length - 1;
    this.mark([row, Math.max(0, Math.min(most, to[1]))]);
  }

  /** Put the cursor on a bar, and say what it is. */
  mark(at) {
    this.at = at ?? [-1, -1];
    this.frame?.replaceChildren();
    tip("");
    const bar = at && this.data.rows[at[0]].bars[at[1]];
    if (!bar) { if (at) announce(`${this.data.rows[at[0]].label}: nothing`); return; }
    const {X, size} = this.scale, x = X(bar[1]), y = ABOVE + at[0] * size, box = this.svg.getBoundingClientRect(), text = this.told(at);
    this.frame.append(s("rect.frame", {x: x - 1, y: y + 1, width: Math.max(2, X(bar[2]) - x) + 2, height: size - 2}));
    announce(text.replaceAll("\n", ", "));
    tip(text, box.left + x, box.top + y + size);
  }
}

/** A phase with its meaning and its seconds. */
function timed([name, a, b, more]) {
  return [`p-${name}`, a, b, `${phase(name)}${more ? ` (${more})` : ""}${PHASES[name] ? `: ${PHASES[name]}` : ""}\n${seconds(b - a)}, from ${seconds(a)} to ${seconds(b)}`];
}
