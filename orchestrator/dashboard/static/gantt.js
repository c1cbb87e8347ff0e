// One round: a row per device with the names of its time, the server below. A live round grows.

import {h, table} from "./dom.js";
import {ordered, phase, seconds, tick} from "./format.js";
import {Rows} from "./rows.js";
import {PHASES} from "../vocabulary.js";

export class Gantt {
  constructor(ondevice = null) {
    this.rows = new Rows("Gantt of the round", {onpick: ondevice});
    this.cuts = h("details.alt", {hidden: true}, h("summary", {}, "Why these cuts"));
    this.element = h("div", {}, this.rows.element, this.cuts);
  }

  draw(data) {
    this.rows.draw(data ? drawnRound(data) : {rows: [], empty: "no round has begun yet"});
    this.cuts.hidden = !data?.choice;
    if (data?.choice) this.cuts.replaceChildren(this.cuts.firstChild, h("p.quiet", {}, data.choice.about), h("div.scroll", {tabindex: 0, role: "region", "aria-label": "Why these cuts, scrolls"},
      table("Why these cuts", data.choice.columns, data.choice.rows)));
  }
}

/** The rows of a round; the straggler first where they are many. */
export function drawnRound(data) {
  const names = Object.keys(data.devices), done = (name) => data.devices[name].done_s ?? -1;
  if (!data.live && names.length > 15) names.sort((a, b) => done(b) - done(a));
  const seen = new Set([...names.flatMap((name) => data.devices[name].bars), ...data.server, ...data.own].map((bar) => bar[0]));
  const predicted = names.some((name) => data.devices[name].predicted_s);
  const slow = data.straggler ? ` The straggler is ${data.straggler}.` : "";
  return {
    rows: [...names.map((name) => device(data, name)), {label: "server halves", own: true, bars: data.server.map(bar)}, {label: "orchestrator", own: true, bars: data.own.map(bar)}],
    to: Math.max(data.length_s, ...names.map((name) => data.devices[name].predicted_s || 0)), format: tick, now: data.live ? data.length_s : undefined,
    legend: [...ordered(seen).map((name) => ({name: phase(name), cls: `p-${name}`, title: PHASES[name]})), ...(predicted ? [{name: "predicted", cls: "predicted-key"}] : [])],
    summary: `Round ${data.round}${data.live ? ", in progress" : ""}: ${names.length} devices over ${seconds(data.length_s)}.${slow}`,
    ...sums(data),
  };
}

function device(data, name) {
  const one = data.devices[name];
  return {label: name, pick: name, slow: data.straggler === name, bars: one.bars.map(bar), note: one.out,
    line: one.predicted_s ? {x: one.predicted_s, text: `predicted ${seconds(one.predicted_s)}`} : null};
}

function bar([name, a, b, detail]) {
  const meaning = PHASES[name] ? `: ${PHASES[name]}` : "";
  return [`p-${name}`, a, b, `${phase(name)}${detail ? ` (${detail})` : ""}${meaning}\n${seconds(b - a)}, from ${seconds(a)} to ${seconds(b)}`];
}

/** Seconds by name, as a table. */
function sums(data) {
  const columns = ordered(new Set(Object.values(data.devices).flatMap((one) => Object.keys(one.sums))));
  return {
    columns: [["device"], ["done after", "num"], ["predicted", "num"], ["cut", "num"], ...columns.map((name) => [phase(name), "num"])],
    cells: () => Object.entries(data.devices).map(([name, one]) => [name, one.out || seconds(one.actual_s), seconds(one.predicted_s),
      one.cut ?? "–", ...columns.map((column) => (one.sums[column] ? seconds(one.sums[column]) : "·"))]),
  };
}
