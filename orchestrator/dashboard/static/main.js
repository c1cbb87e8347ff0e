// Routes (#/, #/run/ID, #/compare/ID,ID), the stream of changes, and the strip that is always in sight.

import {CompareView} from "./compare.js";
import {$, announce, h, hatches, put} from "./dom.js";
import {number} from "./format.js";
import {RunView} from "./run.js";
import {RunsView, links} from "./runs.js";
import {WAITS} from "../vocabulary.js";

document.body.append(hatches(WAITS));

const views = {runs: new RunsView($("view-runs")), run: new RunView($("view-run")), compare: new CompareView($("view-compare"))};
let source = null, cards = [], shown = "", ended = false, arrived = false;

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
  document.title = to.view === "run" ? `${to.run} – Edgebed` : to.view === "compare" ? "Comparison – Edgebed" : "Edgebed";
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
    views.run.take(change);
    strip();
  });
  source.addEventListener("gantt", (event) => views.run.takeGantt(JSON.parse(event.data)));
  source.addEventListener("missing", () => views.run.missing());
  source.addEventListener("bye", () => {
    ended = true;
    source.close();
    say("the server has ended: what you see stays", "bad");
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

/** Enforcement, dilation and calibration are never out of sight. */
function strip() {
  const {head} = views.run, box = $("strip"), here = route().view === "run" && head;
  box.hidden = !here;
  if (!here) return;
  const newer = cards.find((card) => card.id !== views.run.id && card.state === "running" && card.experiment === head.experiment && head.ended);
  const items = [
    [head.ended ? `ended: ${head.ended}` : "running", head.ended ? "" : "good"],
    [head.enforcement === "unlimited" ? "unlimited: real boards" : `limits held by ${head.enforcement}`, head.enforcement === "software" ? "bad" : ""],
    [head.speed && head.speed !== "host" ? `speed of ${head.speed}` : "speed of this host", ""],
    ...(head.host_index ? [[head.host_index, head.host_index.includes("slow") ? "warn" : ""]] : []),
    [head.dilation > 1 ? `D = ${number(head.dilation)}: limits and seconds divided` : "D = 1", head.dilation > 1 ? "warn" : ""],
    [head.calibrated ? (head.checks ? `calibrated: ${head.checks} limits hold` : "calibrated") : "NOT calibrated", head.calibrated ? "good" : "bad"],
    [`${head.backend}, seed ${head.seed}`, ""],
  ];
  if (head.limited_boards.length && head.enforcement !== "kernel") items.push([`limited by their own kernel: the real board${head.limited_boards.length > 1 ? "s" : ""} ${head.limited_boards.join(", ")}`, ""]);
  if (head.unlimited.length && head.enforcement !== "unlimited") items.push([`unlimited: the real board${head.unlimited.length > 1 ? "s" : ""} ${head.unlimited.join(", ")}`, ""]);
  if (head.resumed) items.push([`resumed ${head.resumed} ×`, "warn"]);
  if (newer && views.run.isFollowed()) {
    announce(`${newer.method} is running now`);
    location.replace(`#/run/${encodeURIComponent(newer.id)}`);
    return;
  }
  const card = cards.find((one) => one.id === views.run.id);
  const key = JSON.stringify([items, newer?.id, card?.files, card?.state]);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(h("b", {}, head.run), ...items.map(([text, kind]) => h("span.pill" + (kind ? "." + kind : ""), {}, text)),
    card ? links(card) : "", newer ? h("a", {href: `#/run/${encodeURIComponent(newer.id)}`}, `${newer.method} is running now →`) : "",
    head.server_note ? h("span.quiet", {}, head.server_note) : "");
}

addEventListener("hashchange", () => go(true));
go(false);
