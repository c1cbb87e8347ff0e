// The fleet as a table: one row per device, meters for what it uses of its limits. Rows stay, cells change.

import {h, put} from "./dom.js";
import {number, percent, seconds} from "./format.js";

const COLUMNS = [
  ["device", ""], ["state", ""], ["last round", "num"], ["predicted", "num"], ["cut", "num"], ["CPU of quota", "num"],
  ["up of Mbit/s", "num"], ["down of Mbit/s", "num"], ["memory of MiB", "num"], ["throttled", "num"], ["batches in one period", "num"], ["profile", ""],
];

export class Fleet {
  constructor(onpick) {
    this.onpick = onpick;
    this.rows = new Map();
    this.count = h("span.quiet");
    this.filter = h("input", {type: "search", id: "device-filter", oninput: () => this.redraw()});
    this.state = h("select", {id: "device-state", onchange: () => this.redraw()}, ["all", "working", "away", "left out", "reprofiled"].map((v) => h("option", {value: v}, v)));
    this.body = h("tbody");
    const heads = COLUMNS.map(([label, kind]) => h("th" + (kind ? "." + kind : ""), {scope: "col"}, label));
    this.element = h("section.card", {"aria-labelledby": "h-fleet"},
      h("div.head", {}, h("h2", {id: "h-fleet"}, "Fleet ", this.count), h("div.tools", {},
        h("label", {for: "device-filter"}, "Name or profile"), this.filter, h("label", {for: "device-state"}, "State"), this.state)),
      h("div.scroll.edge", {tabindex: 0, role: "region", "aria-label": "Fleet, scrolls"},
        h("table.fleet", {}, h("caption.hidden-text", {}, "Devices: state, profile, use of their limits"), h("thead", {}, h("tr", {}, heads)), this.body)),
      h("p.quiet", {}, "CPU and throttling: over the last 10 s or so that the device reported. Up and down: while it was sending or receiving in its last round. Batches in one period: those that used no more CPU time than one period of the quota gives. Limits are those of the profile; D divides them all."));
  }

  draw(devices, head) {
    [this.devices, this.head] = [devices, head];
    this.redraw();
  }

  redraw() {
    if (!this.devices) return;
    const words = this.filter.value.toLowerCase(), state = this.state.value;
    const shown = this.devices.filter((d) => `${d.name} ${d.profile}`.toLowerCase().includes(words) &&
      (state === "all" || d.state === state || (state === "reprofiled" && d.reprofiled !== null)));
    const away = this.devices.filter((d) => d.state === "away").length;
    put(this.count, `${this.devices.length} devices${away ? `, ${away} away` : ""}${shown.length < this.devices.length ? `, ${shown.length} shown` : ""}`);
    const names = new Set(shown.map((d) => d.name));
    for (const [name, row] of this.rows) if (!names.has(name)) { row.remove(); this.rows.delete(name); }
    shown.forEach((device, i) => {
      if (!this.rows.has(device.name)) this.rows.set(device.name, this.make(device.name));
      const row = this.rows.get(device.name);
      if (this.body.children[i] !== row) this.body.insertBefore(row, this.body.children[i] ?? null);
      this.update(row, device);
    });
  }

  make(name) {
    const button = h("button.link", {type: "button", onclick: () => this.onpick(name)}, name);
    const cells = COLUMNS.slice(1).map(([label, kind]) => h("td" + (kind ? "." + kind : ""), {},
      ["CPU of quota", "throttled", "up of Mbit/s", "down of Mbit/s", "memory of MiB"].includes(label) ? h("span.metered", {}, h("span.value"), h("span.meter", {"aria-hidden": "true"}, h("span"))) : h("span.value")));
    return h("tr", {}, h("th", {scope: "row"}, button), cells);
  }

  update(row, d) {
    const cells = [...row.children].slice(1), mega = (v) => (d.unlimited ? "no limit" : number(v / 1e6));
    const show = (i, text, share) => {
      put(cells[i].querySelector(".value"), text);
      const meter = cells[i].querySelector(".meter > span");
      if (meter) meter.style.width = `${Math.min(100, Math.max(0, (share ?? 0) * 100))}%`;
      if (meter) meter.parentElement.classList.toggle("none", share === null || share === undefined);
    };
    row.className = `s-${d.state.replace(" ", "-")}`;
    show(0, d.state);
    show(10, d.profile + (d.unlimited ? ", unlimited: a real board" : "") + (d.reprofiled !== null ? ` (since round ${d.reprofiled})` : ""));
    show(4, d.cpu_share === null ? `– of ${number(d.cpus)}` : `${percent(d.cpu_share, 0)} of ${number(d.cpus)}`, d.cpu_share);
    show(8, percent(d.throttled_share, 0), d.throttled_share);
    show(9, percent(d.batches_in_quota ?? null, 0));
    show(5, d.uplink_share === null ? `– of ${mega(d.uplink_bit_s)}` : `${percent(d.uplink_share, 0)} of ${mega(d.uplink_bit_s)}`, d.uplink_share);
    show(6, d.downlink_share === null ? `– of ${mega(d.downlink_bit_s)}` : `${percent(d.downlink_share, 0)} of ${mega(d.downlink_bit_s)}`, d.downlink_share);
    show(7, d.memory_used_mib === null ? `– of ${d.memory_mib}` : `${d.memory_used_mib.toFixed(0)} of ${d.memory_mib}`, d.memory_used_mib === null ? null : d.memory_used_mib / d.memory_mib);
    show(3, d.cut === null ? "–" : String(d.cut));
    show(1, seconds(d.actual_s));
    show(2, seconds(d.predicted_s));
  }
}
