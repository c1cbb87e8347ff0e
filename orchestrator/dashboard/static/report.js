// The pages that `edgebed report` and `edgebed compare --html` write: the data stand in the page (orchestrator/report/page.py).

import {Chart} from "./charts.js";
import {CompareView} from "./compare.js";
import {$, h, hatches} from "./dom.js";
import {Gantt} from "./gantt.js";
import {OverTimeView} from "./over_time.js";
import {Rows} from "./rows.js";
import {WAITS} from "../vocabulary.js";

const data = JSON.parse($("data").textContent);

document.body.append(hatches(WAITS));
for (const [id, figure] of Object.entries(data.figures)) drawFigure($(id), figure);
if (data.rounds.length) drawRounds($("gantt"), data.rounds);
if (data.over_time) {
  const view = new OverTimeView();
  $("over_time").append(view.element);
  view.draw(data.over_time);
}
const contents = $("contents");
if (contents) for (const [i, head] of document.querySelectorAll("main h2").entries()) {
  head.id ||= `part-${i}`;
  contents.append(h("a", {href: `#${head.id}`}, head.textContent));
}
if (data.compared) new CompareView($("compare")).draw(data.compared);

function drawFigure(place, figure) {
  if (figure.kind === "chart") {
    const chart = new Chart(figure.title, {height: figure.height});
    place.append(chart.element);
    chart.draw(figure);
    return;
  }
  const rows = new Rows(figure.title);
  place.append(h("section.card", {"aria-label": figure.title}, h("h3", {}, figure.title), rows.element));
  rows.draw(figure);
}

/** The Gantt of a round that can be chosen; that of median length at first, as in the figures for papers. */
function drawRounds(place, rounds) {
  const gantt = new Gantt(), draw = () => gantt.draw(rounds[choice.value].view);
  const choice = h("select", {id: "round", onchange: draw}, rounds.map(({label}, i) => h("option", {value: i}, label)));
  choice.value = Math.max(0, rounds.findIndex(({label}) => label.includes("median")));
  place.append(h("div.tools.above", {}, h("label", {for: "round"}, "Round:"), choice), gantt.element);
  draw();
}
