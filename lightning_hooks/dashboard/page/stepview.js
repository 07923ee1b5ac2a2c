// The step view: a bar for every row at one step, in the order of the layers or reversed, and a second step to compare with.

import { INFINITE, NAN, makeScale, short } from "./colors.js";
import { choice, clamp, color, h, onceAFrame, penOf } from "./dom.js";
import { specialKeys, quantity } from "./legend.js";
import { ending, hatch } from "./mapdraw.js";
import { filterOf } from "./patterns.js";
import { farther } from "./segments.js";
import { cellArrays, ranges } from "./source.js";
import { stepsText } from "./steps.js";

const HEIGHT = 320; // pixels
const NAMED = 70; // the least width of a bar, in pixels, at which its name is below it

export class StepView {
  constructor(app) {
    this.app = app;
    this.usesOther = false;
    this.usesTable = true;
    this.backwards = null; // whether the last layer comes first; null: only for gradients
    const { state } = app;
    this.slider = h("input", { type: "range", "aria-label": "Step", class: "slider", oninput: () => state.set({ step: this.steps.at(Number(this.slider.value)) }) });
    this.second = h("input", {
      type: "text",
      inputmode: "numeric",
      size: "8",
      placeholder: "none",
      "aria-label": "Second step, to compare with",
      onchange: () => (/^\d*$/.test(this.second.value) ? state.set({ step2: this.second.value }) : app.say(`${this.second.value} is not a step`, "error")),
    });
    this.direction = choice("Order", [["forward", "first to last layer"], ["backward", "last to first layer"]], "forward", (value) => {
      this.backwards = value === "backward";
      app.update();
    });
    this.readout = h("output", { class: "readout", "aria-live": "polite" });
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Bars of all rows. Arrow keys move over the rows, Enter shows the row." });
    this.holder = h("div", { class: "bars" }, this.canvas);
    this.title = h("h2", {});
    this.quantity = h("span", { class: "legend-title" });
    this.legend = h("div", { class: "legend" });
    this.element = h(
      "div",
      { class: "view" },
      h("div", { class: "tools" }, h("label", { class: "choice grow" }, h("span", {}, "Step"), this.slider), h("label", { class: "choice" }, h("span", {}, "Compare with step"), this.second), this.direction),
      this.title,
      this.holder,
      this.legend,
      this.readout,
    );
    this.redraw = onceAFrame(() => this.draw());
    new ResizeObserver(() => this.redraw()).observe(this.holder);
    const point = (event) => this.select(Math.floor(((event.offsetX - 60) / this.plot) * this.bars.length));
    this.canvas.addEventListener("pointermove", point);
    this.canvas.addEventListener("click", (event) => {
      point(event); // on a touch screen no move event comes before the click
      this.open();
    });
    this.canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Enter") this.open();
      if (!move) return;
      event.preventDefault();
      this.select(clamp((this.selected ?? -1) + move, 0, this.bars.length - 1));
    });
  }

  async update(isCurrent) {
    const { app } = this;
    const state = app.state.copy();
    if (document.activeElement !== this.second) this.second.value = state.step2;
    const backwards = this.backwards ?? state.tensor.includes("grad");
    this.direction.querySelector("select").value = backwards ? "backward" : "forward";
    const rows = await app.loaded.rows(state.run, state.tensor, state.stat);
    if (!isCurrent()) return;
    const { steps } = rows;
    // If the table does not have a step, use the step before it.
    const indexOf = (step) => Math.max(steps.below(Number(step) + 1) - 1, 0);
    const index = state.step === "" ? steps.count - 1 : indexOf(state.step);
    this.steps = steps;
    this.slider.max = steps.count - 1;
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", `step ${steps.at(index)}`);
    const { matches, error } = filterOf(state.filter);
    const leaves = rows.filtered(matches);
    this.readout.textContent = error || (leaves.length ? "" : `No row matches ${state.filter}.`);
    const read = (at) => (at === null ? null : this.read(state, rows, leaves, steps.at(at)));
    const [now, then] = await Promise.all([index, state.step2 === "" ? null : indexOf(state.step2)].map(read));
    if (!isCurrent()) return;
    this.compared = then?.text ?? null;
    this.bars = leaves.map((node, i) => ({ name: rows.nodes[node].name, now: now.values[i], then: then?.values[i] ?? null }));
    if (backwards) this.bars.reverse();
    this.selected = null;
    this.title.textContent = `${state.tensor} ${state.stat} at ${now.text}${then ? `, compared with ${then.text} (red lines)` : ""}${state.filter ? `, rows ${state.filter}` : ""}`;
    const has = (is) => this.bars.some((bar) => is(bar.now));
    this.shown = state;
    this.legend.replaceChildren(this.quantity, ...specialKeys(has(Number.isNaN), has((value) => value === Infinity), has((value) => value === null)));
    this.redraw();
  }

  /**
   * The values of all rows at a step (null if a row was not measured), and the step as text: { values, text }. In a report the text
   * may name several steps, which were joined.
   */
  async read({ run, tensor, stat }, rows, leaves, step) {
    const { source } = this.app;
    const level = source.leastLevel({ run, tensor, stat });
    const unit = source.isLive ? 1 : rows.unit;
    const width = unit * 2 ** level;
    const cell = Math.floor(step / width);
    const text = stepsText(rows.steps.within(cell * width, (cell + 1) * width));
    if (!leaves.length) return { values: [], text };
    const nodes = ranges(leaves);
    const buffer = await source.tile({ run, tensor, stat, key: rows.key, unit, level, first: cell, last: cell + 1, nodes });
    const { least, greatest, nan, infinite } = cellArrays(buffer, leaves.length);
    const values = leaves.map((_, i) => {
      if (nan[i]) return NaN;
      if (infinite[i]) return Infinity;
      return Number.isNaN(least[i]) ? null : farther(least[i], greatest[i]);
    });
    return { values, text };
  }

  draw() {
    if (!this.bars || !this.element.isConnected) return;
    const width = Math.max(this.holder.clientWidth, 200);
    const context = penOf(this.canvas, width, HEIGHT);
    const all = this.bars.flatMap((bar) => [bar.now, bar.then]).filter((value) => Number.isFinite(value) && value !== null);
    const positive = all.map(Math.abs).filter((value) => value > 0);
    const leastPositive = Math.min(...positive);
    const scale = makeScale("auto", Math.min(0, ...all), Math.max(...all, 0), leastPositive, false);
    const log = scale.kind === "log";
    // Begin a logarithmic axis at a tenth of the least bar, so that this bar is visible.
    const bounds = log ? makeScale("log", leastPositive / 10, scale.high, leastPositive, false) : scale;
    const y = (value) => HEIGHT - 20 - (bounds.index(value) / 255) * (HEIGHT - 34);
    const zero = log ? HEIGHT - 20 : y(0);
    this.quantity.textContent = `Height: ${quantity(this.shown.tensor, this.shown.stat, bounds)}`;
    this.plot = width - 68;
    const step = this.plot / this.bars.length;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const at of [0, 0.25, 0.5, 0.75, 1]) {
      const value = bounds.at(at);
      const line = y(value);
      context.strokeStyle = color("line");
      context.beginPath();
      context.moveTo(60, line);
      context.lineTo(60 + this.plot, line);
      context.stroke();
      context.fillStyle = color("soft");
      context.fillText(short(value), 2, line);
    }
    const unmeasured = hatch(context);
    this.bars.forEach((bar, i) => {
      const x = 60 + i * step;
      const breadth = Math.max(step - (step > 4 ? 1 : 0), 0.5);
      if (Number.isFinite(bar.now)) {
        context.fillStyle = color(i === this.selected ? "ink" : "accent");
        context.fillRect(x, Math.min(y(bar.now), zero), breadth, Math.max(Math.abs(zero - y(bar.now)), 1));
      } else {
        context.fillStyle = bar.now === null ? unmeasured : `rgb(${(Number.isNaN(bar.now) ? NAN : INFINITE).join(", ")})`;
        context.fillRect(x, 14, breadth, HEIGHT - 34);
      }
      if (bar.then !== null && Number.isFinite(bar.then)) {
        context.fillStyle = color("page");
        context.fillRect(x, y(bar.then) - 2.5, Math.max(breadth, 2), 5);
        context.fillStyle = color("alert");
        context.fillRect(x, y(bar.then) - 1.5, Math.max(breadth, 2), 3);
      }
    });
    context.fillStyle = color("soft");
    if (step >= NAMED) {
      this.bars.forEach((bar, i) => context.fillText(ending(context, bar.name, step - 8), 60 + i * step, HEIGHT - 8));
    } else {
      const end = (bar) => (bar ? ending(context, bar.name, this.plot / 2 - 8) : "");
      context.fillText(end(this.bars[0]), 60, HEIGHT - 8);
      context.textAlign = "right";
      if (this.bars.length > 1) context.fillText(end(this.bars.at(-1)), 60 + this.plot, HEIGHT - 8);
      context.textAlign = "left";
    }
  }

  select(i) {
    const bar = this.bars?.[i];
    if (!bar || i === this.selected) return;
    this.selected = i;
    const compared = this.compared === null ? "" : `, at ${this.compared}: ${bar.then === null ? "not measured" : short(bar.then)}`;
    this.readout.textContent = `${bar.name}: ${bar.now === null ? "not measured" : short(bar.now)}${compared}`;
    this.redraw();
  }

  open() {
    const bar = this.bars?.[this.selected];
    if (bar) this.app.state.set({ view: "row", row: bar.name });
  }
}
