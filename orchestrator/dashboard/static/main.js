// Routes (#/, #/run/ID, #/compare/ID,ID), the stream of changes, and the strip that is always in sight.

import {CompareView} from "./compare.js";
import {$, announce, h, hatches, put} from "./dom.js";
import {Header} from "./header.js";
import {RunView} from "./run.js";
import {RunsView} from "./runs.js";
import {WAITS} from "../vocabulary.js";

document.body.append(hatches(WAITS));

const views = {runs: new RunsView($("view-runs")), run: new RunView($("view-run")), compare: new CompareView($("view-compare"))};
const header = new Header($("strip"));
let source = null, cards = [], steps = [], shown = "", ended = false, arrived = false, heard = 0;

function route() {
  const [, kind, rest = ""] = location.hash.split("/");
  if (kind === "run" && rest) return {view: "run", run: decoded(rest)};
  if (kind === "compare") return {view: "compare", runs: rest.split(",").filter(Boolean).map(decoded)};
  return {view: "runs"};
}

/** Addresses are typed by people too: one that is no encoding is taken as it stands. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function go(focus) {
  const to = route();
  for (const name of Object.keys(views)) $(`view-${name}`).hidden = name !== to.view;
  for (const name of ["runs", "run", "compare"]) {
    if (name === to.view) $(`nav-${name}`).setAttribute("aria-current", "page");
    else $(`nav-${name}`).removeAttribute("aria-current");
  }
  if (to.view === "run") {
    views.run.open(to.run);
    $("nav-run").hidden = false;
    $("nav-run").href = location.hash;
  }
  if (to.view === "compare") {
    views.compare.open(to.runs);
    $("nav-compare").hidden = false;
    $("nav-compare").href = location.hash;
  }
  document.title = to.view === "compare" ? "Comparison – Edgebed" : "Edgebed";
  strip();
  listen(to.view === "run" ? to.run : "");
  if (focus) { scrollTo(0, 0); $(`h-${to.view}`).focus({preventScroll: true}); }
}

function listen(run) {
  if (source && shown === run) return;
  source?.close();
  shown = run;
  source = new EventSource(`/events${run ? `?run=${encodeURIComponent(run)}` : ""}`);
  let fresh = true;
  source.onopen = () => { say("connected", "good"); fresh = true; };
  source.onerror = () => { if (!ended) say(source.readyState === EventSource.CLOSED ? "connection refused: reload the page" : "connection lost, trying again", "bad"); };
  source.addEventListener("runs", (event) => {
    cards = JSON.parse(event.data);
    views.runs.draw(cards);
    views.compare.heard(cards);
    strip();
    arrive();
  });
  source.addEventListener("state", (event) => {
    const change = JSON.parse(event.data);
    if (fresh && !change.whole) return;
    fresh = false;
    heard = performance.now();
    views.run.take(change);
    strip();
  });
  source.addEventListener("gantt", (event) => views.run.takeGantt(JSON.parse(event.data)));
  source.addEventListener("steps", (event) => {
    steps = JSON.parse(event.data).map(([text, age]) => ({text, at: performance.now() - age * 1000}));
    strip();
  });
  source.addEventListener("missing", () => views.run.missing());
  source.addEventListener("bye", () => {
    ended = true;
    source.close();
    for (const link of document.querySelectorAll('a[href^="/runs/"]')) link.removeAttribute("href"); // nobody answers them
    say("the page has ended, what you see stays", "");
    strip();
  });
}

/** A page opened without a choice shows the run that goes on, or the only one; the newest of a run's own page. */
function arrive() {
  if (arrived || !cards.length) return;
  arrived = true;
  if (location.hash && location.hash !== "#/") return;
  const running = cards.filter((card) => card.state === "running");
  const one = running.length ? running[0] : cards.length === 1 ? cards[0] : null;
  if (one) location.replace(`#/run/${encodeURIComponent(one.id)}`);
}

function say(text, kind) {
  const before = $("link").textContent;
  put($("link"), text);
  $("link").className = `pill ${kind}`;
  if (kind === "bad" && before !== text) announce(text);
}

/** How far the run that is shown has come; without one, what is done before the first. */
function strip() {
  const {head, id} = views.run, {view} = route(), card = cards.find((one) => one.id === id);
  const newer = head && cards.find((one) => one.id !== id && one.state === "running" && one.experiment === head.experiment && head.ended);
  if (view === "run" && newer && views.run.isFollowed()) {
    announce(`${newer.method} is running now`);
    location.replace(`#/run/${encodeURIComponent(newer.id)}`);
    return;
  }
  const before = steps.length && !cards.some((one) => one.state === "running") && (!ended || steps.at(-1).text.startsWith("failed: "));
  header.draw(view === "run" && head ? {head, card, newer, steps, round: views.run.rows.at(-1)?.[0] ?? 0, done: head.figures.rounds, heard} : before ? {head: null, steps} : null);
}

addEventListener("hashchange", () => go(true));
go(false);
