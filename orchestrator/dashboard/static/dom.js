// Small means to build and change elements. Styles are set through properties: the content policy forbids attributes.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("td.num", {title: "…"}, "text", child, [more]). Functions in attributes named on… listen. */
export function h(spec, attributes = {}, ...children) {
  const [name, ...classes] = spec.split(".");
  return fill(document.createElement(name), classes, attributes, children);
}

/** The same for SVG. */
export function s(spec, attributes = {}, ...children) {
  const [name, ...classes] = spec.split(".");
  return fill(document.createElementNS(SVG, name), classes, attributes, children);
}

function fill(element, classes, attributes, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Patterns that `rect.p-NAME` of a wait is filled with (palette.css). */
export function hatches(names) {
  return s("svg", {width: 0, height: 0, "aria-hidden": "true", class: "hatches"}, s("defs", {}, names.map((name) =>
    s("pattern", {id: `hatch-${name}`, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"},
      s(`rect.p-solid.p-${name}`, {width: 5, height: 5}), s("line.hatch", {x1: 0, x2: 0, y1: 0, y2: 5})))));
}

export const $ = (id) => document.getElementById(id);

/** Text of an element, touched only where it differs: selections and screen readers stay undisturbed. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Say something to screen readers. Sparingly. */
export function announce(text) {
  put($("announce"), text);
}

/** A tooltip beside the pointer, or hidden where there is no text. */
export function tip(text, x, y) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.replaceChildren(...text.split("\n").map((line, i) => h(i ? "div" : "b", {}, line)));
  const width = box.offsetWidth, height = box.offsetHeight;
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

/** A table: heads are [label, "num"?]; rows are lists of cells (text or elements). */
export function table(caption, heads, rows, className = "") {
  return h("table" + className, {},
    h("caption.hidden-text", {}, caption),
    h("thead", {}, h("tr", {}, heads.map(([label, kind]) => h("th" + (kind ? "." + kind : ""), {scope: "col"}, label)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) =>
      h((i ? "td" : "th") + (heads[i][1] ? "." + heads[i][1] : ""), i ? {} : {scope: "row"}, cell))))));
}

/** A table that is built when somebody opens it, and again when it was open while data changed. */
export function fold(label, build) {
  const body = h("div.scroll", {tabindex: 0, role: "region", "aria-label": label});
  const details = h("details.alt", {}, h("summary", {}, label), body);
  const draw = () => { if (details.open) body.replaceChildren(build()); };
  details.addEventListener("toggle", draw);
  return {element: details, changed: draw};
}
