// The histograms of all rows at one step: a line for each row, on one axis, as ridges or, if rows are thin, as colours.

import { apart, sharesOf } from "./bins.js";
import { tableOf } from "./colors.js";
import { clamp, color, h, onceAFrame, penOf } from "./dom.js";
import { ending } from "./maplabels.js";
import { Player } from "./player.js";
import { shadeOf, shareMap } from "./sheetdraw.js";
import { countWhile } from "./steps.js";

const [THINNEST, TALLEST] = [1, 44]; // pixels of a row
const RIDGE_FROM = 18; // pixels of a row from which on it is a ridge
const RIDGE_OVER = 1.5; // how far a ridge reaches, in rows
const LABEL_FROM = 11; // pixels between two labels
const WIDEST_LABEL = 0.3; // of the width
const FOOT_HEIGHT = 34; // pixels of the axis of values
const UNDER = 26; // pixels between the picture and the end of the window

/**
 * The picture of a sheet of histograms. `on` holds `open(name)`, `tell(i, t)`, which describes a row at a step, and `move(step)`, which
 * shows another step and resolves when it is drawn.
 */
export class LayerSheet {
  constructor(on) {
    this.on = on;
    this.canvas = h("canvas", { tabindex: "0", role: "application", class: "layer-sheet" });
    this.holder = h("div", {}, this.canvas);
    this.slider = h("input", { type: "range", class: "slider", min: "0", "aria-label": "Step of the histograms", oninput: () => on.move(this.steps[Number(this.slider.value)]) });
    this.said = h("span", { class: "layer-step" });
    this.player = new Player({ count: () => this.steps.length, index: () => Number(this.slider.value), show: (i) => on.move(this.steps[i]), isShown: () => this.element.isConnected });
    this.tools = h("div", { class: "tools" }, this.player.element, h("label", { class: "choice grow" }, this.said, this.slider));
    this.element = h("div", {}, this.tools, this.holder);
    this.steps = [];
    this.selected = null;
    this.redraw = onceAFrame(() => this.draw());
    new ResizeObserver(() => this.redraw()).observe(this.holder);
    addEventListener("resize", this.redraw);
    const rowAt = (event) => clamp(Math.floor(event.offsetY / this.row), 0, this.model.names.length - 1);
    this.canvas.addEventListener("pointermove", (event) => this.row && this.select(rowAt(event)));
    this.canvas.addEventListener("click", (event) => this.row && on.open(this.model.names[rowAt(event)]));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  /** Show histograms: { names, histograms (null where one has not arrived), axis, map, step }. */
  show(model) {
    this.model = model;
    this.steps = model.histograms.find((each) => each?.steps.length)?.steps ?? [];
    const at = model.step === "" ? this.steps.length - 1 : Math.max(countWhile(this.steps, (step) => step <= Number(model.step)) - 1, 0);
    this.slider.max = Math.max(this.steps.length - 1, 0);
    this.slider.value = at;
    this.said.textContent = this.steps.length ? `Step ${this.steps[at].toLocaleString("en-US")}` : "Step";
    this.canvas.setAttribute("aria-label", `Histograms of ${model.names.length} rows at step ${this.steps[at] ?? 0}. Arrow keys move over rows and steps, Enter shows the row.`);
    if (this.selected !== null) this.select(clamp(this.selected, 0, model.names.length - 1), true);
    this.redraw();
  }

  /** The index of the shown step in a histogram, whose steps may be others; -1 if it begins later. */
  indexIn(histogram) {
    return countWhile(histogram.steps, (step) => step <= this.steps[Number(this.slider.value)]) - 1;
  }

  select(i, again = false) {
    if ((i === this.selected && !again) || !this.model.names.length) return;
    this.selected = i;
    const histogram = this.model.histograms[i];
    const t = histogram ? this.indexIn(histogram) : -1;
    if (t >= 0) this.on.tell(i, t);
    this.redraw();
  }

  press(event) {
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && this.selected !== null) this.on.open(this.model.names[this.selected]);
    else if (move) this.select(clamp((this.selected ?? -1) + move, 0, this.model.names.length - 1));
    else if (by) this.on.move(this.steps[clamp(Number(this.slider.value) + by, 0, this.steps.length - 1)]);
    else return;
    event.preventDefault();
  }

  draw() {
    if (!this.model || !this.element.isConnected || !this.holder.clientWidth) return;
    const { names, axis } = this.model;
    const width = this.holder.clientWidth;
    const room = window.innerHeight - (this.holder.getBoundingClientRect().top + window.scrollY) - FOOT_HEIGHT - UNDER;
    this.row = clamp(room / Math.max(names.length, 1), THINNEST, TALLEST);
    const height = Math.ceil(this.row * names.length);
    const pen = penOf(this.canvas, width, height + FOOT_HEIGHT);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const widest = Math.max(0, ...[...names].sort((a, b) => b.length - a.length).slice(0, 20).map((name) => pen.measureText(name).width));
    const left = Math.ceil(Math.min(widest + 14, width * WIDEST_LABEL));
    const place = { left, plot: width - left - 8, height };
    this.drawLabels(pen, place);
    if (!axis) {
      // Nothing has arrived yet.
      pen.fillStyle = color("group");
      pen.fillRect(left, 0, place.plot, height);
      return;
    }
    this.drawAxis(pen, place, width);
    if (this.row >= RIDGE_FROM) this.drawRidges(pen, place);
    else this.drawColors(pen, place);
    if (this.selected !== null) {
      pen.strokeStyle = color("ink");
      pen.strokeRect(left - 0.5, this.selected * this.row + 0.5, place.plot + 1, Math.max(this.row - 1, 2));
    }
  }

  drawLabels(pen, { left }) {
    let free = -Infinity;
    this.model.names.forEach((name, i) => {
      const y = Math.max((i + 0.5) * this.row, 6);
      const isSelected = i === this.selected;
      if (y - free < LABEL_FROM && !isSelected) return;
      if (isSelected) {
        pen.fillStyle = color("page");
        pen.fillRect(0, y - 7, left - 4, 14);
      }
      pen.textAlign = "right";
      pen.fillStyle = color(isSelected ? "ink" : "soft");
      pen.fillText(ending(pen, name, left - 12), left - 8, y);
      free = y;
    });
    pen.textAlign = "left";
  }

  /** The shares of each row at the shown step; null where there are none. */
  get shares() {
    return this.model.histograms.map((each) => {
      const t = each ? this.indexIn(each) : -1;
      return t < 0 || !each.totals[t] ? null : sharesOf(each, this.model.axis, t);
    });
  }

  drawColors(pen, { left, plot, height }) {
    const { axis, map, names } = this.model;
    const image = h("canvas", { width: axis.lines, height: Math.max(names.length, 1) });
    const context = image.getContext("2d");
    const data = context.createImageData(axis.lines, Math.max(names.length, 1));
    const table = tableOf(shareMap(map));
    this.shares.forEach((shares, i) =>
      shares?.forEach((share, line) => {
        if (!share) return;
        const shade = 3 * shadeOf(share);
        data.data.set([table[shade], table[shade + 1], table[shade + 2], 255], 4 * (i * axis.lines + line));
      }),
    );
    context.putImageData(data, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, left, 0, plot, height);
    pen.strokeStyle = color("line");
    pen.strokeRect(left - 0.5, 0.5, plot + 1, height - 1);
  }

  drawRidges(pen, { left, plot }) {
    const { axis, map } = this.model;
    const table = tableOf(shareMap(map));
    const x = (line) => left + (line / axis.lines) * plot;
    this.shares.forEach((shares, i) => {
      const foot = (i + 1) * this.row - 1;
      pen.strokeStyle = color("line");
      pen.beginPath();
      pen.moveTo(left, foot);
      pen.lineTo(left + plot, foot);
      pen.stroke();
      if (!shares) return;
      const highest = Math.max(...shares);
      shares.forEach((share, line) => {
        if (!share) return;
        const tall = (share / highest) * Math.min(this.row * RIDGE_OVER, foot) * (i ? 1 : 0.62);
        const shade = 3 * shadeOf(share);
        pen.fillStyle = `rgb(${table[shade]}, ${table[shade + 1]}, ${table[shade + 2]})`;
        pen.globalAlpha = 0.85;
        pen.fillRect(x(line), foot - tall, x(line + 1) - x(line) + 0.3, tall);
      });
      pen.globalAlpha = 1;
    });
  }

  drawAxis(pen, { left, plot, height }, width) {
    const { axis } = this.model;
    const x = (at) => left + (at / axis.lines) * plot;
    pen.textAlign = "center";
    pen.strokeStyle = color("line");
    pen.fillStyle = color("soft");
    for (const { at, text, center } of apart(axis.ticks, (each) => clamp(x(each), left + 8, width - 20), (text) => pen.measureText(text).width + 6)) {
      pen.beginPath();
      pen.moveTo(x(at), 0);
      pen.lineTo(x(at), height + 5);
      pen.stroke();
      pen.fillText(text, center, height + 12);
    }
    pen.fillText("value (powers of two on both sides of 0)", left + plot / 2, height + 26);
    pen.textAlign = "left";
  }
}
