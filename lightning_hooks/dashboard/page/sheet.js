// The sheet of histograms: a small map for every row of a tensor, all on one axis, in the order of execution.

import { askHistograms, axisOf, extentOf, histogramsOf, sharesOf } from "./bins.js";
import { short } from "./colors.js";
import { choice, clamp, h, onceAFrame, several } from "./dom.js";
import { filterOf } from "./patterns.js";
import { drawHistograms, shareLegend } from "./sheetdraw.js";
import { LayerSheet } from "./sheetlayers.js";
import { ranges } from "./source.js";
import { tagOf, tensorTitle } from "./titles.js";

const BATCH = 128; // rows of one request
const MAP_HEIGHT = 128; // pixels of a map
const MOST_MAPS = 12; // rows up to which each has a map of its own at first
const AHEAD = "600px"; // the distance from the window within which maps are drawn
const LAYER_HINT = "Point at a row, or move with the arrow keys, to read it here.";
const POINT_HINT = "Point at a map, or move with the arrow keys, to read it here; Shift and an arrow key move over the steps.";

export class SheetView {
  constructor(app) {
    this.app = app;
    this.usesTable = true;
    this.usesOther = this.usesStat = false;
    this.figures = [];
    this.filter = h("input", {
      type: "search",
      placeholder: "encoder.*  !*.bias  re:.*[02]",
      "aria-label": "Show only histograms whose name matches these patterns",
      oninput: () => app.state.set({ filter: this.filter.value }),
    });
    this.note = h("p", { class: "note", hidden: true });
    this.title = h("h2", {});
    this.readout = h("output", { class: "readout bar-readout", "aria-live": "polite" }, POINT_HINT);
    this.legend = h("div", { class: "legend" });
    this.grid = h("div", { class: "sheet", onkeydown: (event) => this.press(event) });
    this.shape = choice("Show", [["layers", "all rows at a step"], ["steps", "each row over steps"]], "layers", (sheet) => app.state.set({ sheet }));
    this.layers = new LayerSheet({
      open: (name) => this.model.isRow(name) && app.state.set({ view: "row", row: name }),
      tell: (i, t) => this.tell(this.figures[i], t, null),
      move: (step) => this.moveTo(step),
    });
    this.head = h("div", { class: "sheet-head" }, this.legend, this.readout);
    this.element = h("div", { class: "view" }, h("div", { class: "tools" }, h("label", { class: "choice" }, h("span", {}, "Rows"), this.filter), this.shape), this.title, this.note, this.head, this.layers.element, this.grid);
    this.redraw = onceAFrame(() => this.drawAll());
    this.seen = new IntersectionObserver((entries) => this.meet(entries), { rootMargin: AHEAD });
    new ResizeObserver(() => this.redraw()).observe(this.grid);
  }

  async update(isCurrent) {
    const { app } = this;
    const { meta } = app;
    if (!histogramsOf(meta, app.state.tensor).length && !app.tableIsChosen) {
      const other = meta.tensors.find(({ tensor }) => histogramsOf(meta, tensor).length);
      if (other) {
        app.state.settle({ tensor: other.tensor, stat: other.stats.includes(app.state.stat) ? app.state.stat : other.stats[0] });
        app.fillControls();
      }
    }
    const state = app.state.copy();
    const rows = await app.loaded.rows(state.run, state.tensor, state.stat);
    if (!isCurrent()) return;
    if (document.activeElement !== this.filter) this.filter.value = state.filter;
    const { matches, error } = filterOf(state.filter);
    const all = histogramsOf(meta, state.tensor);
    const placeOf = new Map(rows.nodes.map((node, i) => [node.name, i]));
    const place = ({ name }) => placeOf.get(name) ?? rows.nodes.length;
    const shown = all.filter(({ name }) => !matches || matches(name)).sort((a, b) => place(a) - place(b));
    this.note.hidden = !error;
    this.note.textContent = error;
    this.isLayers = state.sheet === "layers" || (state.sheet === "" && shown.length > MOST_MAPS);
    this.shape.querySelector("select").value = this.isLayers ? "layers" : "steps";
    const key = JSON.stringify([state.run, meta.version, state.tensor, state.map, this.isLayers, shown.map(({ index }) => index)]);
    if (key === this.shown) return this.showLayers();
    this.shown = key;
    this.model = { run: state.run, map: state.map, isRow: (name) => rows.rowByName.has(name), arrived: new Map(), asked: new Set() };
    this.show(shown, all.length, state);
  }

  show(shown, count, state) {
    const { meta } = this.app;
    const [from, to] = [meta.steps?.[0] ?? 0, (meta.steps?.[1] ?? 0) + 1];
    Object.assign(this.model, { from, to, axis: null });
    const title = `${tensorTitle(state.tensor)}: ${several(shown.length, "histogram")}${this.isLayers ? "" : " over steps"}${state.filter ? `, rows ${state.filter}` : ""}`;
    this.title.replaceChildren(title, tagOf(state.tensor));
    this.head.hidden = !shown.length;
    this.legend.replaceChildren(...shareLegend(state.map));
    this.readout.textContent = this.isLayers ? LAYER_HINT : POINT_HINT;
    this.seen.disconnect();
    this.grid.hidden = this.isLayers && shown.length > 0;
    this.layers.selected = null;
    this.figures = shown.map(({ name, index }, i) => this.figure(name, index, i));
    if (this.isLayers) for (let batch = 0; batch * BATCH < shown.length; batch++) this.load(batch);
    this.showLayers();
    this.grid.replaceChildren(...(shown.length ? this.figures.map((each) => each.element) : this.emptyNotes(count, state)));
    if (!this.isLayers) for (const { element } of this.figures) this.seen.observe(element);
  }

  /** Show all rows at the step of the address. */
  showLayers() {
    this.layers.element.hidden = !this.isLayers || !this.figures.length;
    if (!this.isLayers || !this.figures.length) return;
    const { axis, map, arrived } = this.model;
    this.layers.show({ names: this.figures.map(({ name }) => name), histograms: this.figures.map(({ index }) => arrived.get(index) ?? null), axis, map, step: this.app.state.step });
  }

  async moveTo(step) {
    this.app.state.set({ step }, true);
    this.showLayers();
  }

  /** Use a key while no other element uses it. */
  pressed(event) {
    if (!this.isLayers || !this.figures.length || !/^Arrow|^Home$|^End$|^Page/.test(event.key)) return false;
    this.layers.canvas.focus({ preventScroll: true });
    this.layers.press(event);
    return true;
  }

  /** The notes, with links to the views that have something to draw, that stand in place of the maps if there are none. */
  emptyNotes(count, { tensor, filter }) {
    const { meta, state } = this.app;
    if (count) return [h("p", { class: "empty" }, `No row matches ${filter}.`)];
    const others = meta.tensors.filter((each) => histogramsOf(meta, each.tensor).length);
    const leftOut = meta.left_out ? ` The report left out ${several(meta.left_out, "histogram")}.` : "";
    if (!others.length) return [h("p", { class: "empty" }, `This run has no histograms. Ask for the statistic 'histogram' in a rule to see them here.${leftOut}`)];
    const buttons = others.map((each) => h("button", { onclick: () => state.set({ tensor: each.tensor, stat: each.stats[0] }) }, each.tensor));
    return [h("p", { class: "empty" }, `No histograms of ${tensor} in this run.${leftOut} There are some of: `, ...buttons)];
  }

  figure(name, index, i) {
    const canvas = h("canvas", { class: "histogram-map", "aria-hidden": "true" });
    const open = () => this.model.isRow(name) && this.app.state.set({ view: "row", row: name });
    const label = h("button", { class: "link", tabindex: i ? "-1" : "0", title: name, onclick: open, onfocus: () => this.tell(figure, figure.t, null) }, name);
    const element = h("figure", { class: "histogram-figure" }, h("figcaption", {}, label), canvas);
    const figure = { name, index, i, element, label, canvas, t: null, find: null };
    canvas.addEventListener("pointermove", (event) => {
      const hit = figure.find?.(event.offsetX, event.offsetY);
      if (hit) this.tell(figure, hit.t, hit.line);
    });
    canvas.addEventListener("click", open);
    return figure;
  }

  /** Figures come near to the window or leave it: request the histograms of their batch, and draw those that are near. */
  meet(entries) {
    for (const { target, isIntersecting } of entries) {
      const figure = this.figures.find((each) => each.element === target);
      if (!figure) continue;
      figure.isNear = isIntersecting;
      if (isIntersecting) this.load(Math.floor(figure.i / BATCH));
    }
    this.redraw();
  }

  async load(batch) {
    const { model } = this;
    if (model.asked.has(batch)) return;
    model.asked.add(batch);
    const indices = this.figures.slice(batch * BATCH, (batch + 1) * BATCH).map((each) => each.index).sort((a, b) => a - b);
    try {
      const found = await askHistograms(this.app.source, model.run, indices, ranges(indices));
      if (model !== this.model) return;
      for (const [index, histogram] of found) model.arrived.set(index, histogram);
      model.axis = axisOf(extentOf(model.arrived.values())); // one axis for all maps
      this.showLayers();
      this.redraw();
    } catch (error) {
      if (model === this.model) this.app.failed(error);
    }
  }

  drawAll() {
    if (!this.model?.axis || !this.element.isConnected) return;
    for (const figure of this.figures) if (figure.isNear) this.draw(figure);
  }

  draw(figure) {
    const { axis, map, from, to, arrived } = this.model;
    const histogram = arrived.get(figure.index);
    if (!histogram) return;
    const width = Math.max(figure.element.clientWidth, 120);
    figure.find = drawHistograms(figure.canvas, { width, height: MAP_HEIGHT, histogram, axis, map, from, to, marked: figure.isTold ? figure.t : null });
  }

  /** Write into the readout what a map shows at step `t` (an index): on one line of its axis, or as a whole if `line` is null. */
  tell(figure, t, line) {
    const histogram = this.model.arrived.get(figure.index);
    const before = this.figures.find((each) => each.isTold);
    if (before) before.isTold = false;
    Object.assign(figure, { isTold: true, t: histogram ? clamp(t ?? Infinity, 0, histogram.steps.length - 1) : t });
    if (histogram?.steps.length) this.readout.textContent = `${figure.name}: ${histogramText(histogram, this.model.axis, figure.t, line)}`;
    this.redraw();
  }

  press(event) {
    const at = this.figures.findIndex((each) => each.label === document.activeElement);
    if (at < 0) return;
    const columns = getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity }[event.key];
    if (!move) return;
    event.preventDefault();
    const figure = this.figures[at];
    if (event.shiftKey) return this.tell(figure, (figure.t ?? 0) + Math.sign(move), null);
    const next = this.figures[clamp(at + move, 0, this.figures.length - 1)];
    figure.label.tabIndex = -1;
    next.label.tabIndex = 0;
    next.label.focus();
  }
}

/** What the histogram of a step says: the share of one line of its axis, or the middle half of the elements. */
export function histogramText(histogram, axis, t, line) {
  const step = `step ${histogram.steps[t].toLocaleString("en-US")}`;
  const shares = sharesOf(histogram, axis, t);
  const percent = (share) => `${short(Number((100 * share).toPrecision(3)))} %`;
  if (!histogram.totals[t]) return `${step}: no finite element`;
  const span = (i) => {
    const [low, high] = axis.bounds(i);
    return i === axis.zero ? "exactly or almost 0" : `from ${short(low)} to ${short(high)}`;
  };
  if (line !== null) return `${step}: ${percent(shares[line])} of ${several(histogram.totals[t], "element")} ${span(line)}`;
  let [sum, low, high] = [0, null, null];
  shares.forEach((share, i) => {
    sum += share;
    if (low === null && sum >= 0.25) low = i;
    if (high === null && sum >= 0.75 - 1e-12) high = i;
  });
  return `${step}: half of ${several(histogram.totals[t], "element")} from ${short(axis.bounds(low)[0])} to ${short(axis.bounds(high)[1])}, ${percent(shares[axis.zero])} are 0`;
}
