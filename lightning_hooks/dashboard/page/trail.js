// The trail of a flight record: a bar for each call in the order of execution, as high as its largest magnitude on a logarithmic axis.

import { short } from "./colors.js";
import { curveAxis, curveTicks } from "./curve.js";
import { clamp, color, h, onceAFrame, penOf, several } from "./dom.js";
import { specialKeys } from "./legend.js";
import { drawDisc, tensorText } from "./marks.js";
import { texture } from "./textures.js";

const [GUTTER, EDGE] = [58, 8]; // pixels before and behind the bars
const [ROOF, BARS, LANE] = [16, 150, 17]; // pixels above the bars, of the bars, and of a lane below them
const LEAST_BAD = 7; // the least pixels of a call that is not finite
const INK_OF = { forward: "accent", backward: "fourth", update: "third" };
const SIGN_OF = { forward: "→", backward: "←", update: "↻" };
const ASK = "Point at a bar, or move over the bars with the arrow keys, to read its call here.";

/** The pass of a call: forward, backward or update. */
export function passOf({ tensor }) {
  if (/grad$/.test(tensor)) return "backward";
  return /(^|\/)(param|update|state\..*)$/.test(tensor) ? "update" : "forward";
}

/** Whether a call has numbers that are not finite, as the name of their texture; empty if all are finite. */
function badnessOf(entry, place) {
  if (!entry.nonfinite) return "";
  if (place?.result && isPlaceOf(entry, place)) return place.result.nan ? "nan" : "infinite";
  if (entry.kind) return entry.kind === "nan" ? "nan" : "infinite";
  // A record of an earlier version has no kind. Both extremes are unknown if an element is NaN, one of them if infinities have one sign.
  return entry.minimum === null && entry.maximum === null ? "nan" : "infinite";
}

/** What the elements of a call are that are not finite, in brackets. */
const kindText = ({ kind }) => ({ nan: " (with NaN)", "+inf": " (+Inf)", "-inf": " (−Inf)", inf: " (+Inf and −Inf)" })[kind] ?? "";

const isPlaceOf = (entry, place) => ["tensor", "step", "micro_batch", "call"].every((key) => entry[key] === place[key]) && entry.name === place.module;

function magnitudeOf({ minimum, maximum }) {
  const known = [minimum, maximum].filter((each) => each !== null).map(Math.abs);
  return known.length ? Math.max(...known) : null;
}

export class Trail {
  /** `onOpen(entry)` is called with the call that is clicked. */
  constructor({ trail, place }, onOpen) {
    Object.assign(this, { trail, onOpen, selected: null });
    this.bad = trail.map((entry) => badnessOf(entry, place));
    this.sizes = trail.map(magnitudeOf);
    // The call that the verdict names; otherwise the first one of the last step that is not finite.
    const named = place ? trail.findIndex((entry, i) => this.bad[i] && isPlaceOf(entry, place)) : -1;
    this.first = named >= 0 ? named : this.bad.findIndex((kind, i) => kind && trail[i].step === trail.at(-1).step);
    this.readout = h("output", { class: "readout bar-readout", "aria-live": "polite" }, ASK);
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": `The last ${several(trail.length, "call")} in order of execution. Arrow keys move over the calls, Enter shows the row.` });
    this.holder = h("div", { class: "bars trail" }, this.canvas);
    this.element = h("div", {}, this.readout, this.holder, this.legend());
    this.redraw = onceAFrame(() => this.draw());
    new ResizeObserver(() => this.redraw()).observe(this.holder);
    this.listen();
    if (this.first >= 0) this.select(this.first);
  }

  legend() {
    const passes = new Set(this.trail.map(passOf));
    const keys = [...passes].map((pass) => h("span", { class: "special" }, h("i", { class: `pass ${pass}`, style: `--pass: var(--${INK_OF[pass]})` }), ` ${SIGN_OF[pass]} ${pass}`));
    return h("div", { class: "legend" }, h("span", { class: "legend-title" }, "Height: largest magnitude of the tensor (log)"), ...keys, ...specialKeys(this.bad.includes("nan"), this.bad.includes("infinite"), false));
  }

  draw() {
    if (!this.holder.isConnected) return;
    const width = Math.max(this.holder.clientWidth, 200);
    const pen = penOf(this.canvas, width, ROOF + BARS + 2 * LANE);
    this.plot = width - GUTTER - EDGE;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    if (this.selected !== null) {
      pen.fillStyle = color("group");
      pen.fillRect(this.x(this.selected), ROOF, Math.max(this.plot / this.trail.length, 2), BARS + 2 * LANE);
    }
    const axis = this.axis();
    this.drawAxis(pen, axis);
    this.drawBars(pen, axis);
    this.drawLanes(pen);
    this.drawFirst(pen);
  }

  /** The axis of magnitudes. It begins below the least one, so that its bar can be seen. */
  axis() {
    const positive = this.sizes.filter((size) => size > 0 && Number.isFinite(size));
    const values = positive.length ? [Math.min(...positive) / 3, ...positive] : [];
    const steps = values.map((_, i) => i);
    return curveAxis([{ steps, ends: steps, least: values, greatest: values }], "1", { from: 0, to: values.length });
  }

  x(i) {
    return GUTTER + (i / this.trail.length) * this.plot;
  }

  drawAxis(pen, axis) {
    pen.textAlign = "right";
    for (const [value, text] of curveTicks(axis, 5)) {
      const y = Math.round(ROOF + BARS * (1 - axis.y(value))) + 0.5;
      pen.strokeStyle = color("line");
      pen.beginPath();
      pen.moveTo(GUTTER, y);
      pen.lineTo(GUTTER + this.plot, y);
      pen.stroke();
      pen.fillStyle = color("soft");
      pen.fillText(text, GUTTER - 5, clamp(y, ROOF + 5, ROOF + BARS - 4));
    }
    pen.textAlign = "left";
  }

  drawBars(pen, axis) {
    const patterns = {};
    const step = this.plot / this.trail.length;
    const breadth = Math.max(step - (step > 4 ? 1 : 0), 0.5);
    this.trail.forEach((entry, i) => {
      const kind = this.bad[i];
      if (kind) return;
      const size = this.sizes[i];
      const pass = passOf(entry);
      // An exact zero has no logarithm: a line at the foot of the bars.
      const height = size > 0 && !axis.isEmpty ? Math.max(BARS * axis.y(size), 1) : 1;
      pen.fillStyle = color(i === this.selected ? "ink" : INK_OF[pass]);
      const box = [this.x(i), ROOF + BARS - height, breadth, height];
      // A backward call is lighter, and has an outline where there is room.
      const isHollow = pass === "backward" && breadth >= 4 && height > 2;
      pen.globalAlpha = isHollow ? 0.3 : pass === "backward" && i !== this.selected ? 0.55 : 1;
      pen.fillRect(...box);
      pen.globalAlpha = 1;
      pen.strokeStyle = pen.fillStyle;
      if (isHollow) pen.strokeRect(box[0] + 0.5, box[1] + 0.5, breadth - 1, height - 1);
    });
    // Draw these last: a narrow one covers part of its neighbour.
    this.bad.forEach((kind, i) => {
      if (!kind) return;
      const wide = Math.max(breadth, LEAST_BAD);
      pen.fillStyle = patterns[kind] ??= texture(pen, kind);
      pen.fillRect(Math.min(this.x(i), GUTTER + this.plot - wide), ROOF, wide, BARS);
    });
  }

  /** Below the bars the passes, and below these the steps, each as far as it reaches. */
  drawLanes(pen) {
    const hasBatches = this.trail.some((entry) => entry.micro_batch > 0);
    const batch = ({ step, micro_batch: number }) => `step ${step.toLocaleString("en-US")}${hasBatches ? `, batch ${number + 1}` : ""}`;
    const lanes = [[(entry) => `${batch(entry)} ${passOf(entry)}`, passOf], [batch, batch]];
    lanes.forEach(([keyOf, textOf], lane) => {
      const top = ROOF + BARS + lane * LANE + 2;
      for (const { first, last } of runsOf(this.trail.map(keyOf))) {
        const [x, end] = [this.x(first), this.x(last + 1)];
        const pass = passOf(this.trail[first]);
        pen.fillStyle = color(lane ? "line" : INK_OF[pass]);
        pen.globalAlpha = lane ? 1 : 0.3;
        pen.fillRect(x + 0.5, lane ? top : top, Math.max(end - x - 1, 0.5), lane ? 1 : LANE - 4);
        pen.globalAlpha = 1;
        pen.fillStyle = color(lane ? "soft" : "ink");
        const text = textOf(this.trail[first]);
        const fitting = lane ? [text, text.replace("step ", "")] : [`${SIGN_OF[pass]} ${text}`, SIGN_OF[pass]];
        const shown = fitting.find((each) => pen.measureText(each).width <= end - x - 6);
        if (shown) pen.fillText(shown, x + 4, top + LANE / 2 - (lane ? 0 : 2));
      }
    });
  }

  /** The first call that is not finite, by its name above its bar. */
  drawFirst(pen) {
    if (this.first < 0) return;
    const { name, tensor } = this.trail[this.first];
    const x = this.x(this.first + 0.5);
    pen.fillStyle = color("alert");
    drawDisc(pen, clamp(x, GUTTER + 5, GUTTER + this.plot - 5), 9, 5);
    const text = `first not finite: ${tensorText(tensor, name)}`;
    const room = pen.measureText(text).width;
    const isRight = x + 10 + room < GUTTER + this.plot;
    pen.textAlign = isRight ? "left" : "right";
    pen.fillText(text, isRight ? x + 10 : x - 10, 9);
    pen.textAlign = "left";
  }

  select(i) {
    const entry = this.trail[i];
    if (!entry || i === this.selected) return;
    this.selected = i;
    const { minimum, maximum, nonfinite, abs_min: smallest } = entry;
    const bounds = minimum === null && maximum === null ? [] : [`least ${short(minimum ?? -Infinity)}`, `greatest ${short(maximum ?? Infinity)}`];
    if (typeof smallest === "number") bounds.push(`smallest magnitude ${short(smallest)}`);
    const numbers = [...bounds, nonfinite ? `${several(nonfinite, "element")} not finite${kindText(entry)}` : "all finite"].join(", ");
    const which = `step ${entry.step.toLocaleString("en-US")}, batch ${entry.micro_batch + 1}, call ${entry.call + 1}`;
    this.readout.replaceChildren(h("strong", {}, tensorText(entry.tensor, entry.name)), ` (${passOf(entry)}), ${which}: ${numbers}. Number ${i + 1} of ${this.trail.length}.`);
    this.redraw();
  }

  listen() {
    const { canvas } = this;
    const point = (event) => this.select(clamp(Math.floor(((event.offsetX - GUTTER) / this.plot) * this.trail.length), 0, this.trail.length - 1));
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("click", (event) => {
      point(event); // on a touch screen no move event comes before the click
      this.onOpen(this.trail[this.selected]);
    });
    canvas.addEventListener("keydown", (event) => {
      const at = this.selected ?? -1;
      const next = { ArrowRight: at + 1, ArrowLeft: at - 1, PageDown: at + 10, PageUp: at - 10, Home: 0, End: this.trail.length - 1 }[event.key];
      if (event.key === "Enter" && this.trail[at]) this.onOpen(this.trail[at]);
      if (next === undefined) return;
      event.preventDefault();
      this.select(clamp(next, 0, this.trail.length - 1));
    });
  }
}

/** Neighbours that are equal: [{ first, last }]. */
function runsOf(keys) {
  const runs = [];
  keys.forEach((key, i) => {
    if (i && key === keys[i - 1]) runs.at(-1).last = i;
    else runs.push({ first: i, last: i });
  });
  return runs;
}
