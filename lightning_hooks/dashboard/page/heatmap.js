// A heat map: rows of a table by steps. It draws the cells in sight that have arrived, and requests those that are missing.

import { clamp, h, onceAFrame, penOf } from "./dom.js";
import { drawMap } from "./mapdraw.js";
import { keyPressed, listenTo } from "./mapinput.js";
import { AXIS, widestLabel } from "./maplabels.js";
import { cellOf, summaryOf } from "./segments.js";
import { TILE } from "./source.js";

// Heights of a row in pixels.
const READABLE = 16;
const LARGEST = 120;
const SMALLEST = 2;

/**
 * One panel with a heat map. `model` holds the data to draw and how to draw them:
 *   run, title, rows (Rows), shown (the nodes of the lines), flat (labels are whole names), exact (whether folded groups merge exactly)
 *   cells (Cells), isDifference (of two runs), isRatio (as log2 of the ratio), isReference (coloured against the other run), tensor, stat, from, to (steps), unit (steps of a cell at level 0)
 *   map and scale (of the colours; the scale is null before it is known), fit (all rows in the window), height and labels (pixels), marks (of findings, see marksOn() in marks.js)
 *   gaps (Gaps: why cells were not measured; null if not known)
 *   selected ({ node, step } of the outlined cell, or null)
 * `on` holds the callbacks onZoom(from, to), onFold(node), onPick(node, step, opens), onScroll(top), onArrival(), onError(error).
 */
export class HeatMap {
  constructor(on) {
    this.on = on;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": "Heat map. Arrow keys move over rows and steps, plus and minus zoom, Enter shows the row, Space folds or unfolds a part, Backspace folds the part around.",
    });
    this.spacer = h("div", { class: "spacer" });
    this.scroll = h("div", { class: "scroll" }, h("div", { class: "stick" }, this.canvas), this.spacer);
    this.tip = h("div", { class: "tip", hidden: true });
    this.spoken = h("div", { class: "visually-hidden", "aria-live": "polite" });
    this.title = h("h2", { class: "panel-title" });
    this.element = h("section", { class: "panel" }, this.title, this.scroll, this.tip, this.spoken);
    this.redraw = onceAFrame(() => this.draw());
    this.cursor = null;
    this.boxes = []; // where the labels of groups are, see drawLabels() in maplabels.js
    this.image = document.createElement("canvas");
    this.scroll.addEventListener("scroll", () => {
      // Ignore scroll events caused by follow(): a shorter panel would otherwise scroll the longer ones back.
      if (this.scroll.scrollTop !== this.followed) this.on.onScroll(this.scroll.scrollTop);
      this.redraw();
    });
    new ResizeObserver(() => this.redraw()).observe(this.scroll);
    listenTo(this);
  }

  /** Set the model. The view calls draw() later, when it has chosen the colour scale. */
  show(model) {
    this.model = model;
    this.title.textContent = model.title;
  }

  /** Scroll to the position of another panel. */
  follow(top) {
    this.scroll.scrollTop = top;
    this.followed = this.scroll.scrollTop;
  }

  /** The layout: sizes in CSS pixels, and the ranges of rows, cells and tiles in sight. */
  layout() {
    const { shown, from, to, unit, fit, height: available, labels = widestLabel(this.model) } = this.model;
    const width = Math.max(this.scroll.clientWidth, 200);
    const gutter = Math.min(Math.max(labels, 60), Math.max(Math.round(width * 0.34), 90));
    const plot = Math.max(width - gutter - 8, 50);
    const room = Math.floor(Math.max(available - AXIS, 80));
    const share = room / Math.max(shown.length, 1);
    // Rows thinner than a pixel would be left out of the picture: then they are thicker, and scroll.
    const row = clamp(share, !fit ? READABLE : share < 1 ? SMALLEST : 1, LARGEST);
    const total = Math.ceil(row * shown.length - 1e-6);
    const height = Math.min(total, room);
    const top = Math.min(this.scroll.scrollTop, Math.max(total - height, 0));
    const first = Math.floor(top / row);
    const last = Math.min(Math.ceil((top + height) / row), shown.length);
    const span = Math.max(to - from, unit);
    const level = Math.max(this.model.cells.source.leastLevel(this.model), Math.ceil(Math.log2(span / unit / plot)), 0);
    const cell = unit * 2 ** level; // steps
    const begin = Math.max(Math.floor(from / cell), 0);
    const end = Math.max(Math.ceil(to / cell), begin + 1);
    const [firstTile, lastTile] = [begin, end - 1].map((each) => Math.floor(each / TILE));
    return { width, gutter, plot, row, total, height, top, first, last, span, level, cell, begin, end, firstTile, lastTile };
  }

  /** The first and the last step of a cell; `at` is the layout. */
  stepsOf(cell, at) {
    return this.model.rows.steps.within(cell * at.cell, (cell + 1) * at.cell);
  }

  /** The line of a mark: that of its row, or of the folded group that contains the row; -1 if neither is shown, or it has no row. */
  lineOf(mark) {
    return mark.node === null ? -1 : this.model.rows.lineOf(mark.node, this.model.shown);
  }

  /** The marks on line `r`; if `steps` is the first and the last step of a cell, only those in the cell. */
  marksIn(r, steps = [-Infinity, Infinity]) {
    const [first, last] = steps;
    return this.model.marks.filter((mark) => first <= mark.step && mark.step <= last && this.lineOf(mark) === r);
  }

  /**
   * Call a function with every segment in sight: its line, its first cell, the range of its cells that are in sight (counted within
   * the segment), and the segment, which is undefined if it has not arrived.
   */
  segments(at, call) {
    const { shown, cells } = this.model;
    const tiles = [];
    for (let tile = at.firstTile; tile <= at.lastTile; tile++) {
      const begin = tile * TILE;
      const [from, to] = [Math.max(at.begin - begin, 0), Math.min(at.end - begin, TILE)];
      tiles.push({ begin, from, to, segments: cells.tile(at.level, tile) });
    }
    for (let r = at.first; r < at.last; r++) {
      for (const { begin, from, to, segments } of tiles) call(r, begin, from, to, segments?.get(shown[r]));
    }
  }

  /**
   * The range of coarse cells from which the colours are chosen: of all rows, also of those that are scrolled out of sight, in the shown
   * steps, rounded outwards. It depends on nothing but the model, so a window of another size has the same colours.
   */
  coarse() {
    const { from, to, unit, cells } = this.model;
    const span = Math.max((to - from) / unit, 1);
    const block = unit * 2 ** Math.max(Math.floor(Math.log2(span / 4)), 0);
    const [first, last] = [Math.floor(from / block) * block, Math.ceil(to / block) * block];
    const level = Math.max(cells.source.leastLevel(this.model), Math.ceil(Math.log2((last - first) / unit / TILE)), 0);
    const cell = unit * 2 ** level;
    const [begin, end] = [Math.max(Math.floor(first / cell), 0), Math.max(Math.ceil(last / cell), 1)];
    return { level, begin, end, firstTile: Math.floor(begin / TILE), lastTile: Math.floor((end - 1) / TILE) };
  }

  /** The values on which summaries() depends: if they are equal, the summaries are the same. */
  coarseKey() {
    const { shown, cells } = this.model;
    const { level, begin, end } = this.coarse();
    return [shown, cells, cells.arrivals.get(level) ?? 0, level, begin, end];
  }

  /** The summaries (see summaryOf in segments.js) of each line; null if some have not arrived. */
  summaries() {
    const { shown, cells } = this.model;
    const { level, begin, end, firstTile, lastTile } = this.coarse();
    const lines = shown.map(() => []);
    for (let tile = firstTile; tile <= lastTile; tile++) {
      const segments = cells.tile(level, tile);
      const [from, to] = [Math.max(begin - tile * TILE, 0), Math.min(end - tile * TILE, TILE)];
      for (let r = 0; r < shown.length; r++) {
        const segment = segments?.get(shown[r]);
        if (!segment) return null;
        lines[r].push(summaryOf(segment, from, to));
      }
    }
    return lines;
  }

  /** Request the cells from which the colours are chosen. Resolves to whether any have arrived. */
  async loadCoarse() {
    const { shown, cells } = this.model;
    const { firstTile, lastTile } = this.layout();
    return cells.load(this.coarse(), shown, lastTile - firstTile + 1);
  }

  /** The measured cells in sight that have arrived, each as [name, first step, last step, least, greatest, NaN, infinite]. */
  visible() {
    const at = this.layout();
    const lines = [];
    this.segments(at, (r, begin, from, to, segment) => {
      const { name } = this.model.rows.nodes[this.model.shown[r]];
      for (let i = from; segment && i < to; i++) {
        const cell = cellOf(segment, i);
        if (cell && (cell.nan || cell.infinite || !Number.isNaN(cell.value))) lines.push([name, ...this.stepsOf(begin + i, at), cell.least, cell.greatest, cell.nan, cell.infinite]);
      }
    });
    return lines;
  }

  async load() {
    const { shown, cells } = this.model;
    const at = this.layout();
    const nodes = shown.slice(at.first, at.last);
    if (!nodes.length) return;
    const { firstTile, lastTile } = this.coarse();
    if (await cells.load(at, nodes, lastTile - firstTile + 1)) this.on.onArrival();
  }

  draw() {
    if (!this.model || !this.element.isConnected) return;
    const at = (this.drawn = this.layout());
    this.load().catch((error) => this.on.onError(error));
    this.spacer.style.height = `${at.total - at.height}px`;
    this.scroll.style.height = `${at.height + AXIS}px`;
    drawMap(penOf(this.canvas, at.width, at.height + AXIS), this, at);
  }

  /** Multiply the number of shown steps by a factor, and keep the step `around` (default: the middle) at its position. */
  zoom(factor, around) {
    const { from, to } = this.model;
    const at = around ?? (from + to) / 2;
    this.on.onZoom(at - (at - from) * factor, at + (to - at) * factor);
  }

  /** Use a key as if the map had the focus. */
  press(event) {
    keyPressed(this, event);
  }

  pan(share) {
    const { from, to } = this.model;
    this.on.onZoom(from + (to - from) * share, to + (to - from) * share);
  }

  /** Scroll so that a row is in sight. */
  reveal(node) {
    const r = this.model.rows.lineOf(node, this.model.shown);
    const at = this.layout();
    if (r >= 0) this.scroll.scrollTop = Math.max((r + 0.5) * at.row - at.height / 2, 0);
  }
}
