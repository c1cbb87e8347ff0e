// What happened, newest first, with filters: faults, devices that left and came back, profiles that changed.

import {h, put, table} from "./dom.js";
import {seconds} from "./format.js";
import {EVENTS} from "../vocabulary.js";

const SHOWN = 200;

export class Events {
  constructor() {
    this.kind = h("select", {id: "event-kind", onchange: () => this.redraw(true)}, h("option", {value: ""}, "all"), Object.entries(EVENTS).map(([value, label]) => h("option", {value}, label)));
    this.device = h("input", {type: "search", id: "event-device", oninput: () => this.redraw(true)});
    this.count = h("span.quiet");
    this.body = h("div.scroll.short", {tabindex: 0, role: "region", "aria-label": "Events, scrolls"});
    this.element = h("section.card", {"aria-labelledby": "h-events"},
      h("div.head", {}, h("h2", {id: "h-events"}, "Events ", this.count), h("div.tools", {},
        h("label", {for: "event-kind"}, "Kind"), this.kind, h("label", {for: "event-device"}, "Device"), this.device)), this.body);
  }

  draw(marks) {
    const changed = this.drawn !== marks.length || this.first !== marks[0]?.[4];
    this.marks = marks;
    if (changed) this.redraw();
    [this.drawn, this.first] = [marks.length, marks[0]?.[4]];
  }

  redraw() {
    const words = this.device.value.toLowerCase(), kind = this.kind.value;
    const found = (this.marks || []).filter((m) => (!kind || m[2] === kind) && m[3].toLowerCase().includes(words)).toReversed();
    put(this.count, found.length > SHOWN ? `newest ${SHOWN} of ${found.length}` : String(found.length));
    this.body.replaceChildren(found.length
      ? table("Events, newest first", [["round"], ["time", "num"], ["kind"], ["device"], ["what"]],
        found.slice(0, SHOWN).map((m) => [m[1], seconds(m[0]), h("span.kind.m-" + m[2], {}, EVENTS[m[2]] || m[2]), m[3] || "–", m[4]]), ".events")
      : h("p.quiet", {}, "Nothing unexpected has happened, and no profile has changed."));
  }
}
