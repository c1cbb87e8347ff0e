// Figures as text, in the form of orchestrator/records/words/formatting.py; a test compares the two.

import {PHASES, WAITS} from "../vocabulary.js";

export const dash = "–";
const known = (v, show) => (v === null || v === undefined ? dash : show(v));

/** At most `digits` significant digits, no trailing zeros. */
export const number = (v, digits = 3) => known(v, () => String(Number(v.toPrecision(digits))));

/** Milliseconds below one second. */
export const seconds = (v) => known(v, () => {
  if (Math.abs(v) < 0.9995) return v === 0 ? "0 s" : `${number(v * 1000)} ms`;
  return `${Math.abs(v) < 999.5 ? number(v) : v.toFixed(0)} s`;
});

export const signed = (v) => (v < 0 ? "−" : v > 0 ? "+" : "") + seconds(Math.abs(v));

/** A length of time in a word or two. */
export function ago(s) {
  const whole = Math.max(0, Math.round(s)), minutes = Math.round(whole / 60);
  if (whole < 100) return `${whole} s`;
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A share that was asked for, with the digits it needs. */
export const share = (v) => `${number(v * 100, 6)}%`;

/** A share; one more digit below 0.1%, where only one was asked for. */
export const percent = (v, decimals = 1) => known(v, () => `${(v * 100).toFixed(decimals === 1 && v > 0 && v < 0.001 ? 2 : decimals)}%`);

/** Never rounded up: 0.8997 misses a target of 90%. */
export const accuracy = (v) => known(v, () => `${(Math.floor(v * 1000 + 1e-6) / 10).toFixed(1)}%`);

export const bytes = (v) => known(v, () => {
  for (const unit of ["B", "kB", "MB"]) {
    if (v < 999.5) return `${number(v)} ${unit}`;
    v /= 1000;
  }
  return `${number(v)} GB`;
});

export const rate = (bits) => `${number(bits / 1e6, 4)} Mbit/s`;

/** Seconds at the ticks of an axis that ends at `most`: one unit, and no more digits than they need. */
export function tick(v, most = v) {
  if (most >= 7200) return `${number(v / 3600)} h`;
  if (most >= 600) return `${number(v / 60)} min`;
  return v >= 1 || v === 0 ? `${number(v, 4)} s` : `${number(v * 1000)} ms`;
}

/** Formats by name, for figures that Python describes. */
export const FORMATS = {seconds, percent, accuracy, number, bytes, tick, share: (v) => percent(v, 0), whole: (v) => (Number.isInteger(v) ? String(v) : ""), count: String};

/** The words for a name of a device's time. */
export const phase = (name) => name.replaceAll("_", " ");

/** Whether a class is that of a wait: those are hatched. */
export const hatched = (cls) => cls.startsWith("p-") && WAITS.includes(cls.slice(2));

/** Names in the order of the vocabulary; those that it does not have at the end. */
export function ordered(names) {
  return [...Object.keys(PHASES).filter((name) => names.has(name)), ...[...names].filter((name) => !(name in PHASES)).sort()];
}

/** For a logarithmic axis: 1, 2 and 5 times the powers of ten. */
export function powers(low, high) {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) found.push(...[1, 2, 5].map((m) => m * 10 ** e));
  return found.filter((v) => v >= low && v <= high);
}

/** Round numbers for an axis: about `count` of them between two values; of long times whole minutes or parts of an hour. */
export function ticks(low, high, count, format) {
  const span = high - low, unit = format !== tick || span < 600 ? 1 : span < 7200 ? 60 : 3600;
  if (!(span > 0)) return [low];
  if (unit > 1) return ticks(low / unit, high / unit, count).map((v) => v * unit);
  const raw = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((v) => v >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}
