// The line that is always in sight: how far a run is, how long it goes on, and what to distrust. The rest folds.

import {announce, h, put} from "./dom.js";
import {accuracy, ago, number} from "./format.js";
import {links} from "./runs.js";

const ENDED = {interrupted: "warn", failed: "bad"}, MARKS = {finished: "✓", interrupted: "◼", failed: "✗"};

export class Header {
  constructor(box) {
    this.box = box;
    this.line = h("span.line");
    this.rest = h("div.rest");
    this.ask = h("button", {type: "button", onclick: () => Notification.requestPermission().then(() => this.draw(this.shown))}, "Tell me when it ends");
    box.replaceChildren(h("summary", {}, this.line), this.rest);
    setInterval(() => this.tick(), 1000);
  }

  /** `shown`: {head, card, newer, round, done, steps, heard}; null where no run is shown. */
  draw(shown) {
    this.shown = shown;
    this.box.hidden = !shown;
    if (!shown) return;
    const {head, card, newer} = shown, key = JSON.stringify([head && facts(head), head?.ended, card?.files, card?.state, newer?.id, globalThis.Notification?.permission]);
    if (key !== this.key && head) {
      const ask = !head.ended && globalThis.Notification?.permission === "default";
      this.rest.replaceChildren(h("b", {}, head.run), ...facts(head).map(pill), card ? links(card) : "", ask ? this.ask : "", newer ? h("a", {href: `#/run/${encodeURIComponent(newer.id)}`}, `${newer.method} is running now →`) : "",
        head.server_note ? h("span.quiet", {}, head.server_note) : "");
    }
    this.key = key;
    if (head?.ended && this.going === head.run) this.tell(head);
    this.going = head && !head.ended ? head.run : null;
    this.tick();
  }

  tell(head) {
    const text = `${head.experiment}: ${head.method} ${head.ending}: ${head.ended}`;
    announce(text);
    if (globalThis.Notification?.permission === "granted") new Notification(text, {body: `accuracy ${accuracy(head.figures.final_accuracy)}`});
  }

  tick() {
    if (!this.shown) return;
    const {head, steps} = this.shown, step = steps.at(-1), failed = step?.text.startsWith("failed: ");
    const [first, ...more] = head ? progress(this.shown) : [failed ? ["failed", "bad"] : ["preparing", "good"]];
    const waits = step && !head?.ended && !this.shown.round ? [failed ? step.text.slice(8) : `${step.text}, for ${ago((performance.now() - step.at) / 1000)}`] : [];
    const key = JSON.stringify([first, ...waits, ...more]);
    if (key !== this.told) this.line.replaceChildren(pill(first), [...waits, ...more].join(" · "), ...(head ? facts(head).filter(([, kind]) => kind === "bad" || kind === "warn").map(pill) : []));
    this.told = key;
    if (!head) document.title = failed ? "✗ failed – Edgebed" : "… preparing – Edgebed";
    else document.title = `${head.ended ? MARKS[head.ending] : `${this.shown.round}/${this.shown.card?.of ?? "?"}`} ${head.method} – Edgebed`;
  }
}

const pill = ([text, kind]) => h("span.pill" + (kind ? "." + kind : ""), {}, text);

/** Round, accuracy, elapsed, left, last update; of a run that is over how it ended. */
function progress({head, card, round, done, heard}) {
  const far = `round ${round}${card?.of ? ` of ${card.of}` : ""}`, now = head.figures.final_accuracy, reached = now === null ? [] : [accuracy(now)];
  if (head.ending === "finished") return [[`ended: ${head.ended}`, "good"], far, ...reached];
  if (head.ended) return [[head.ending, ENDED[head.ending]], far, ...reached, head.ended];
  const elapsed = (Date.now() - Date.parse(head.session.began)) / 1000, own = done - head.session.from, silent = (performance.now() - heard) / 1000;
  const {first_s, last_s} = head.session, each_s = head.enforcement === "simulated" ? elapsed / own : (last_s - first_s) / own; // a simulation's clock is its own
  const left = own > 0 && card?.of ? Math.max(0, each_s * (card.of - done) - (head.enforcement === "simulated" ? silent : elapsed - last_s)) : null;
  return [[card?.state === "silent" ? "silent" : "running", card?.state === "silent" ? "warn" : "good"], far, ...reached, `${ago(elapsed)} elapsed`, ...(left === null ? [] : [`at most ${ago(left)} left`]), `updated ${ago(silent)} ago`];
}

/** What holds the limits, and what makes figures doubtful. */
function facts(head) {
  const boards = (names) => `the real board${names.length > 1 ? "s" : ""} ${names.join(", ")}`, items = [
    [head.enforcement === "unlimited" ? "unlimited: real boards" : `limits held by ${head.enforcement}`, head.enforcement === "software" ? "bad" : ""],
    [head.speed && head.speed !== "host" ? `speed of ${head.speed}` : "speed of this host", ""],
    ...(head.host_index ? [[head.host_index, head.host_index.includes("a slow host") ? "warn" : ""]] : []),
    [head.dilation > 1 ? `D = ${number(head.dilation)}` : "D = 1", head.dilation > 1 ? "warn" : ""],
    head.enforcement === "simulated" ? ["simulated: no device ran", ""] : [head.calibrated ? (head.checks ? `calibrated: ${head.checks} limits hold` : "calibrated") : "NOT calibrated", head.calibrated ? "good" : "bad"],
    [`${head.backend}, seed ${head.seed}`, ""],
  ];
  if (head.limited_boards.length && head.enforcement !== "kernel") items.push([`limited by their own kernel: ${boards(head.limited_boards)}`, ""]);
  if (head.unlimited.length && head.enforcement !== "unlimited") items.push([`unlimited: ${boards(head.unlimited)}`, ""]);
  if (head.resumed) items.push([`resumed ${head.resumed} ×`, "warn"]);
  return items;
}
