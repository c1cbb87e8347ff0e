// Numbers for people.

export const dash = "–";

export function seconds(v) {
  if (v === null || v === undefined) return dash;
  if (v >= 7200) return `${(v / 3600).toFixed(1)} h`;
  if (v >= 600) return `${(v / 60).toFixed(1)} min`;
  if (v >= 100) return `${v.toFixed(0)} s`;
  if (v >= 10) return `${v.toFixed(1)} s`;
  if (v === 0) return "0 s";
  if (v >= 1) return `${v.toFixed(2)} s`;
  return `${(v * 1000).toFixed(v < 0.01 ? 1 : 0)} ms`;
}

/** Seconds at the ticks of an axis: no more digits than they need. */
export function tick(v) {
  if (v >= 7200) return `${number(v / 3600)} h`;
  if (v >= 600) return `${number(v / 60)} min`;
  return v >= 1 || v === 0 ? `${Number(v.toPrecision(4))} s` : `${number(v * 1000)} ms`;
}

export const signed = (v) => (v < 0 ? "−" : "+") + seconds(Math.abs(v));
export const percent = (v, digits = 0) => (v === null || v === undefined ? dash : `${(v * 100).toFixed(digits)} %`);
/** Never rounded up: 0.8997 misses a target of 90 %. */
export const accuracy = (v) => (v === null || v === undefined ? dash : `${(Math.floor(v * 1000 + 1e-6) / 10).toFixed(1)} %`);
export const number = (v) => (v === null || v === undefined ? dash : String(Number(v.toPrecision(3))));

export function bytes(v) {
  for (const unit of ["B", "kB", "MB"]) {
    if (v < 1000) return `${number(v)} ${unit}`;
    v /= 1000;
  }
  return `${number(v)} GB`;
}

export const NAMES = {
  cpu: "its CPU", uplink: "its uplink", downlink: "its downlink", server: "the server half",
};

export const PHASES = {
  dispatch: "dispatch: its task was not sent yet", download: "download", decode: "decode", compute: "compute", encode: "encode",
  blocked: "blocked: upload queue full", upload_tail: "upload of the rest", reply_wait: "wait for a reply", request_wait: "wait for a request",
  server_wait: "wait for its server half", wait_for_others: "wait for others", plan: "plan", merge: "merge",
  evaluation: "evaluation", checkpoint: "checkpoint", orchestrator: "orchestrator", idle: "not drawn", left_out: "left out",
  offline: "away", unreported: "unreported", working: "at work, details not reported yet", server: "server half at work",
  probe: "probe",
};

/** Names in the order above; those that this page does not know yet at the end. */
export function ordered(names) {
  return [...Object.keys(PHASES).filter((name) => names.has(name)), ...[...names].filter((name) => !(name in PHASES)).sort()];
}

/** Round numbers for an axis: about `count` of them between two values. */
export function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((v) => v >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}
