// The view of one run: figures, the round, the fleet, curves, events, calibration.

import {Boards} from "./boards.js";
import {Chart} from "./charts.js";
import {announce, fold, h, put, table} from "./dom.js";
import {Fleet} from "./fleet.js";
import {accuracy, ago, bytes, number, rate, seconds, share, signed, tick} from "./format.js";
import {Gantt} from "./gantt.js";
import {Events} from "./events.js";
import {OverTimeView} from "./over_time.js";
import {CALIBRATION, CAUSES, DISTURBANCES, EVENTS, NO_CAUSE} from "../vocabulary.js";

export const R = {number: 0, axis: 1, seconds: 2, accuracy: 3, loss: 4, drawn: 5, merged: 6, out: 7, straggler: 8, gap: 9, why: 10, behind: 11, disturbed: 12, bounds: 13, more: 14};

/** The whole run is drawn again at most this often. */
const OVER_TIME_MS = 5000;

export class RunView {
  constructor(root) {
    this.root = root;
    this.id = null;
    this.round = null; // null: follow the newest
    this.device = null;
    this.build();
  }

  build() {
    this.title = h("h1", {id: "h-run", tabindex: -1}, "Run");
    this.figures = h("dl.figures", {});
    this.story = h("p.why", {id: "story"});
    this.gantt = new Gantt((name) => this.pickDevice(name));
    this.roundTitle = h("h2", {id: "h-round"}, "Round");
    this.why = h("p.why", {id: "why"});
    this.field = h("input", {type: "number", min: 1, id: "round", onchange: () => this.pickRound(this.field.valueAsNumber)});
    this.follow = h("button", {type: "button", onclick: () => this.pickRound(null)}, "Follow the newest");
    const step = (by) => () => this.pickRound((this.round ?? this.newest()) + by);
    const picker = h("div.tools", {}, h("button", {type: "button", onclick: step(-1), "aria-label": "Round before"}, "◀"),
      h("label", {for: "round"}, "Round"), this.field, h("button", {type: "button", onclick: step(1), "aria-label": "Round after"}, "▶"), this.follow);
    this.fleet = new Fleet((name) => this.pickDevice(name));
    this.boards = new Boards();
    this.accuracy = new Chart("Accuracy over time", {onpick: (n) => this.pickRound(n)});
    this.lengths = new Chart("Rounds, and how far the slowest device was behind", {onpick: (n) => this.pickRound(n)});
    this.history = new Chart("Rounds of one device", {onpick: (n) => this.pickRound(n)});
    this.tiers = new Chart("Cut (stages on the device), per round", {height: 120});
    this.deviceTitle = h("h2", {id: "h-device", tabindex: -1}, "Device");
    this.deviceFacts = h("p.why");
    this.deviceMarks = h("div.scroll.short", {tabindex: 0, role: "region", "aria-label": "Events of this device"});
    this.devicePart = h("section.card", {"aria-labelledby": "h-device", hidden: true},
      h("div.head", {}, this.deviceTitle, h("button", {type: "button", onclick: () => this.pickDevice(null)}, "Close")),
      this.deviceFacts, h("div.grid", {}, this.history.element, this.tiers.element), this.deviceMarks);
    this.overTime = new OverTimeView((name) => this.pickDevice(name));
    this.events = new Events();
    this.checks = fold("All rows of the calibration", () => this.checkTable());
    this.checksLine = h("p", {});
    this.root.replaceChildren(this.title, this.story, this.figures,
      h("section.card", {"aria-labelledby": "h-round"}, h("div.head", {}, this.roundTitle, picker), this.why, this.gantt.element),
      this.fleet.element, this.boards.element, this.devicePart,
      h("div.grid", {}, this.accuracy.element, this.lengths.element),
      this.overTime.element, this.events.element,
      h("section.card", {"aria-labelledby": "h-checks"}, h("h2", {id: "h-checks"}, "Calibration"), this.checksLine, this.checks.element));
  }

  // ---- data ----

  open(id) {
    if (this.id === id) return;
    Object.assign(this, {id, round: null, device: null, head: null, rows: [], marks: [], devices: [], calibration: [], live: undefined, picked: null, wasLive: false});
    this.devicePart.hidden = true;
    put(this.title, id);
    this.gantt.draw(null);
    for (const chart of [this.accuracy, this.lengths, this.history, this.tiers]) chart.reset();
  }

  missing() {
    put(this.title, `There is no run ${this.id} here`);
    announce(this.title.textContent);
  }

  take(change) {
    const first = !this.head;
    if (change.whole) [this.rows, this.marks] = [[], []];
    this.rows.splice(change.rows_from, Infinity, ...change.rows);
    this.marks.splice(change.events_from, Infinity, ...change.events);
    if (change.calibration) this.calibration = change.calibration;
    [this.head, this.heard] = [change.head, performance.now()];
    this.wasLive ||= !change.head.ended;
    this.devices = change.devices;
    this.boards.draw(change.boards);
    if (!first) this.tell(change.events);
    this.draw();
  }

  tell(marks) {
    const gone = marks.filter((mark) => ["left", "joined", "profile"].includes(mark[2])).slice(-2);
    if (gone.length) announce(gone.map((mark) => `${mark[3]}: ${mark[4]}`).join("; "));
  }

  takeGantt(data) {
    this.live = data;
    if (this.round === null && !document.hidden) this.drawRound();
  }

  /** Whether the reader looked on until the run ended, and at nothing else: then the next method's run follows. */
  isFollowed() { return this.wasLive && this.round === null && this.device === null; }

  newest() { return this.rows.length ? this.rows.at(-1)[R.number] : 1; }

  row(number) { return this.rows.findLast((row) => row[R.number] === number); }

  async pickRound(number) {
    if (number !== null && (!Number.isFinite(number) || !this.row(number))) { this.drawRound(); return; }
    this.round = number;
    this.picked = null;
    this.drawRound();
    if (number === null) return;
    const id = this.id, answer = await fetch(`/api/runs/${encodeURIComponent(id)}/rounds/${number}`);
    if (answer.ok && this.id === id && this.round === number) {
      this.picked = await answer.json();
      this.drawRound();
    }
  }

  async pickDevice(name) {
    this.device = name;
    this.devicePart.hidden = name === null;
    if (name === null) return;
    put(this.deviceTitle, `Device ${name}`);
    this.deviceTitle.focus({preventScroll: true});
    await this.loadDevice();
    this.devicePart.scrollIntoView({block: "nearest"});
  }

  async loadDevice() {
    const {id, device} = this;
    const answer = await fetch(`/api/runs/${encodeURIComponent(id)}/devices/${encodeURIComponent(device)}`);
    if (!answer.ok || this.id !== id || this.device !== device) return;
    this.drawDevice(await answer.json());
  }

  // ---- drawing ----

  draw() {
    const {head} = this;
    put(this.title, `${head.experiment}: ${head.method}`);
    put(this.story, head.story);
    this.drawFigures();
    this.fleet.draw(this.devices, head);
    this.events.draw(this.marks);
    this.drawChecks();
    this.explainRound();
    // Curves change when a round ends or something happens, not with every batch: drawing them costs the host time.
    const key = JSON.stringify([this.id, this.marks.length, this.rows.slice(-130).map((row) => row.slice(2, 11)), this.rows.length]);
    if (key === this.drawnAt) return;
    this.drawnAt = key;
    this.drawCharts();
    this.loadOverTime();
    if (this.device) this.loadDevice();
  }

  /** The whole run, again after a new round; of a run that goes on not more often than every few seconds. */
  async loadOverTime() {
    const {id} = this, wait = Math.max(0, (this.overTimeAt ?? 0) + OVER_TIME_MS - performance.now());
    if (this.overTimeDue) return;
    this.overTimeDue = true;
    await new Promise((done) => setTimeout(done, this.overTimeOf === id ? wait : 0));
    [this.overTimeDue, this.overTimeAt, this.overTimeOf] = [false, performance.now(), this.id];
    const asked = this.id, answer = await fetch(`/api/runs/${encodeURIComponent(asked)}/time`);
    if (answer.ok && this.id === asked) this.overTime.draw(await answer.json());
  }

  /** Rounds that are over, in the order of their ends: those of an asynchronous method overlap. */
  finished() {
    return this.rows.filter((row) => row[R.seconds] !== null).sort((a, b) => a[R.axis] + a[R.seconds] - b[R.axis] - b[R.seconds]);
  }

  drawFigures() {
    const {head} = this, top = head.figures, reached = top.time_to_target_s;
    const figures = [
      ["rounds done", String(top.rounds)],
      ["time of rounds", head.elapsed_s < 600 ? seconds(head.elapsed_s) : ago(head.elapsed_s)],
      ["accuracy now", accuracy(top.final_accuracy)],
      ["best accuracy", accuracy(top.best_accuracy)],
      [`time to ${share(head.target)}`, reached === null ? (head.ended ? "not reached" : "not yet") : seconds(reached)],
      head.serving ? ["devices", String(this.devices.length)] : ["straggler gap, median", seconds(top.straggler_gap_s)],
      ["bytes up", bytes(head.bytes_up)],
      ["bytes down", bytes(head.bytes_down)],
    ];
    if (this.figures.childElementCount !== figures.length) {
      this.figures.replaceChildren(...figures.map(() => h("div", {}, h("dt"), h("dd"))));
    }
    figures.forEach(([label, value], i) => {
      put(this.figures.children[i].children[0], label);
      put(this.figures.children[i].children[1], value);
    });
  }

  drawRound() {
    const data = this.round === null ? this.live : this.picked;
    const number = this.round ?? data?.round ?? this.newest();
    put(this.roundTitle, data?.live ? `Round ${number}, in progress` : `Round ${number}`);
    if (document.activeElement !== this.field) this.field.value = number;
    this.field.max = this.newest();
    this.follow.disabled = this.round === null;
    if (data && data.round === number) this.gantt.draw(data);
    this.explainRound();
  }

  explainRound() {
    const data = this.round === null ? this.live : this.picked, number = this.round ?? data?.round ?? this.newest();
    const parts = this.explain(this.row(number), data?.live), text = parts.map((part) => part.textContent ?? part).join("");
    if (this.why.textContent !== text) this.why.replaceChildren(...parts);
  }

  /** Who was the straggler of a round, and why. */
  explain(row, live) {
    if (!row) return ["No round has begun yet."];
    if (row[R.seconds] === null) return [live ? this.waiting() : "This round was not finished."];
    const out = row[R.out] ? ` ${row[R.out]} left out.` : "";
    if (this.head?.serving) return [`Requests were served for ${seconds(row[R.seconds])}; ${row[R.drawn]} devices took part.`];
    const rough = row[R.disturbed]?.length ? ` The host disturbed it: ${row[R.disturbed].map((cause) => DISTURBANCES[cause]).join(", ")}.` : "";
    const took = `It took ${seconds(row[R.seconds])}; ${row[R.merged]} of ${row[R.drawn]} devices merged.${out}${rough} `;
    const bounds = row[R.bounds] ? [h("b", {}, `It was ${row[R.bounds]}. `), row[R.more] ? `${row[R.more]} ` : ""] : [];
    if (row[R.gap] === null) return [took, ...bounds, "Fewer than two devices got done: nobody was behind."];
    if (!row[R.straggler]) return [took, ...bounds, `No straggler: the slowest device was ${seconds(row[R.gap])} behind the median device, less than 5% of the round.`];
    const why = row[R.why] ? [" because of ", h("b", {}, CAUSES[row[R.why]]), ` (against the median device: ${Object.values(CAUSES).map((cause, i) =>
      `${cause} ${signed(row[R.behind][i])}`).join(", ")}).`] : row[R.behind].length ? [`; ${NO_CAUSE} stands out.`] : ["; why is known when it has reported its phases."];
    return [took, ...bounds, "The straggler was ", h("b", {}, row[R.straggler]), `, ${seconds(row[R.gap])} behind the median device`, ...why];
  }

  /** Who is waited for in the round in progress, and for how long. */
  waiting() {
    const {waiting} = this.head, spent = (performance.now() - this.heard) / 1000 / this.head.dilation;
    if (!waiting) return "No device is done yet.";
    return waiting.names.length ? `Waiting for ${waiting.names.slice(0, 3).join(", ")}${waiting.names.length > 3 ? ` and ${waiting.names.length - 3} more` : ""}${waiting.s === null ? "" : ` for ${seconds(Math.round(10 * (waiting.s + spent)) / 10)}`}.` : "All devices are done; the server finishes.";
  }

  drawCharts() {
    const done = this.finished(), end = (row) => row[R.axis] + row[R.seconds], {serving} = this.head;
    const marks = this.marks.filter((m) => m[2] !== "ended").map(([x, , kind, device, text]) => ({x, kind, text: `${device}${device ? ": " : ""}${text}`}));
    const time = [["time of the rounds"], ["round", "num"], ["accuracy", "num"], ["loss", "num"]];
    this.accuracy.draw({
      series: [{name: "", cls: `c${this.head.style.colour}`, points: done.map((row) => [end(row), row[R.accuracy],
        `${accuracy(row[R.accuracy])} after ${seconds(end(row))} (round ${row[R.number]})`, row[R.number]])}],
      legend: legendOf(marks), x: ["time of the rounds ÷ D", tick], y: ["test accuracy", "share", accuracy], yMin: 0, yMax: 1,
      line: {y: this.head.target, label: `target ${share(this.head.target)}`}, marks: spread(marks),
      summary: done.length ? `${done.length} rounds.` : "", columns: time,
      rows: () => done.map((row) => [seconds(end(row)), row[R.number], accuracy(row[R.accuracy]), number(row[R.loss])]),
    });
    this.lengths.draw({
      series: [...(serving ? [] : [{name: "", cls: "own", bars: true, points: done.map((row) => [row[R.number], row[R.gap],
        `round ${row[R.number]}: ${row[R.straggler]} ${seconds(row[R.gap])} behind${row[R.why] ? `, ${CAUSES[row[R.why]]}` : ""}`, row[R.number], `k-${row[R.why] || "none"}`])}]),
      {name: "", cls: "own", points: done.map((row) => [row[R.number], row[R.seconds], `round ${row[R.number]}: ${seconds(row[R.seconds])}${serving ? "" : `, ${row[R.merged]} of ${row[R.drawn]} merged`}`, row[R.number]])}],
      legend: [{name: "length of the round", cls: "own"}, ...(serving ? [] : [...new Set(done.map((row) => row[R.why] || ""))].map((why) => ({name: `gap: ${CAUSES[why] ?? NO_CAUSE}`, cls: `k-${why || "none"}`})))],
      whole: true, pad: 0.5, xMin: 0.5, x: ["round", String], y: ["seconds ÷ D", tick],
      columns: [["round"], ["length", "num"], ["straggler"], ["behind", "num"], ["why"], ["merged", "num"], ["left out", "num"], ["disturbed by"]],
      rows: () => done.map((row) => [row[R.number], seconds(row[R.seconds]), row[R.straggler] || "–", seconds(row[R.gap]), CAUSES[row[R.why]] || "–", row[R.merged], row[R.out], row[R.disturbed] ? row[R.disturbed].map((cause) => DISTURBANCES[cause]).join(", ") || "nothing" : "–"]),
      empty: "no round has ended yet",
    });
  }

  drawDevice(data) {
    const {rounds} = data, own = (key, text) => rounds.map((n, i) => [n, data[key][i], `round ${n}: ${text(data[key][i])}`, n]);
    const one = this.devices.find((d) => d.name === data.name), changes = data.events.filter((m) => m[2] === "profile");
    const marks = data.events.map(([, x, kind, , text]) => ({x, kind, text}));
    this.deviceFacts.replaceChildren(one?.unlimited ? `Profile ${one.profile}, unlimited: a real board with ${number(one.cpus)} cores. ` : `Profile ${one?.profile}, ${number(one?.cpus)} CPU, ${rate(one?.uplink_bit_s)} up, ${rate(one?.downlink_bit_s)} down. `,
      changes.length ? `Its profile changed ${changes.length} time${changes.length > 1 ? "s" : ""}, last before round ${changes.at(-1)[1]} (${changes.at(-1)[4]}).` : "Its profile has not changed.");
    this.history.draw({series: [{name: "actual", cls: "own", dash: 0, marker: 0, points: own("actual_s", seconds)}, {name: "predicted", cls: "own", dash: 2, marker: 3, points: own("predicted_s", seconds)}],
      whole: true, x: ["round", String], y: ["seconds ÷ D", tick], marks: spread(marks), columns: [["round"], ["actual", "num"], ["predicted", "num"], ["cut", "num"]],
      rows: () => rounds.map((n, i) => [n, seconds(data.actual_s[i]), seconds(data.predicted_s[i]), data.cuts[i] ?? "–"])});
    this.tiers.draw({series: [{name: "", cls: "own", step: true, points: own("cuts", (v) => `cut ${v}`)}], whole: true, x: ["round", String],
      y: ["cut", (v) => (Number.isInteger(v) ? String(v) : "")], marks: [], columns: [["round"], ["cut", "num"]], rows: () => rounds.map((n, i) => [n, data.cuts[i] ?? "–"])});
    this.deviceMarks.replaceChildren(data.events.length ? table(`Events of ${data.name}`, [["round"], ["time"], ["what"]],
      data.events.toReversed().map((m) => [m[1], seconds(m[0]), m[4]])) : h("p", {}, "Nothing has happened to it."));
  }

  drawChecks() {
    const {head} = this;
    put(this.checksLine, head.checks === 0 ? (head.calibrated ? "No rows were recorded." : "The limits were not shown to hold.")
      : head.checks_failed ? `${head.checks_failed} of ${head.checks} judged limits do NOT hold.` : `All ${head.checks} judged limits hold.`);
    if (this.calibration !== this.checkedWith) this.checks.changed();
    this.checkedWith = this.calibration;
  }

  checkTable() {
    return table("Requested against measured", CALIBRATION.map((label) => [label]), this.calibration);
  }
}

function legendOf(marks) {
  return [...new Set(marks.map((m) => m.kind))].map((kind) => ({name: EVENTS[kind], cls: `key.m-${kind}`}));
}

/** Marks that would stand on each other are told together. */
function spread(marks) {
  const kept = [];
  for (const mark of marks) {
    const last = kept.at(-1);
    if (last && last.kind === mark.kind && last.x === mark.x) last.text += `; ${mark.text}`;
    else kept.push({...mark});
  }
  return kept.length > 400 ? kept.filter((_, i) => i % Math.ceil(kept.length / 400) === 0) : kept;
}
