// The heat map: rows of a table by steps. Knows what is in sight, draws what of that has arrived, and asks for what is missing.

import { clamp, h, onceAFrame, penOf } from "./dom.js";
import { AXIS, drawMap, widestLabel } from "./mapdraw.js";
import { listenTo } from "./mapinput.js";
import { cellOf, summaryOf } from "./segments.js";
import { TILE } from "./source.js";

const READABLE = 16; // pixels of a row
const LARGEST = 26;
const SMALLEST = 2;

/**
 * One panel. `model` says what to draw:
 *   run, title, rows (Rows), shown (nodes), isOpen(node), flat (labels are whole names), exact (how folded parts merge)
 *   cells (Cells), isDifference (of two runs), tensor, stat, from, to (steps), unit
 *   map and scale (of the colours), fit (all rows in the window), height and labels (pixels), marks (of findings: { node, step, text })
 * `on` is told: onZoom(from, to), onFold(node), onPick(node, step, opens), onScroll(top), onArrival(), onError(error).
 */
export class HeatMap {
  constructor(on) {
    this.on = on;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": "Heat map. Arrow keys move over rows and steps, plus and minus zoom, Enter shows the row, Space folds a part.",
    });
    this.spacer = h("div", { class: "spacer" });
    this.scroll = h("div", { class: "scroll" }, h("div", { class: "stick" }, this.canvas), this.spacer);
    this.tip = h("div", { class: "tip", hidden: true });
    this.said = h("div", { class: "visually-hidden", "aria-live": "polite" });
    this.title = h("h2", { class: "panel-title" });
    this.element = h("section", { class: "panel" }, this.title, this.scroll, this.tip, this.said);
    this.redraw = onceAFrame(() => this.draw());
    this.cursor = null;
    this.image = document.createElement("canvas");
    this.scroll.addEventListener("scroll", () => {
      // Where it only followed it leads nobody: its end may be before that of the others.
      if (this.scroll.scrollTop !== this.followed) this.on.onScroll(this.scroll.scrollTop);
      this.redraw();
    });
    new ResizeObserver(() => this.redraw()).observe(this.scroll);
    listenTo(this);
  }

  /** Set what is drawn next; the view draws when it knows the colours. */
  show(model) {
    this.model = model;
    this.title.textContent = model.title;
  }

  /** Scroll as another panel does. */
  follow(top) {
    this.scroll.scrollTop = top;
    this.followed = this.scroll.scrollTop;
  }

  /** Sizes in CSS pixels, and the cells in sight. */
  layout() {
    const { shown, from, to, unit, fit, height: available, labels = widestLabel(this) } = this.model;
    const width = Math.max(this.scroll.clientWidth, 200);
    const gutter = Math.min(Math.max(labels, 60), Math.max(Math.round(width * 0.3), 90));
    const plot = Math.max(width - gutter - 8, 50);
    const room = Math.max(available - AXIS, 80);
    const row = clamp(room / Math.max(shown.length, 1), fit ? SMALLEST : READABLE, LARGEST);
    const total = Math.ceil(row * shown.length);
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

  /** The first and the last step of a cell. */
  stepsOf(cell, at) {
    return this.model.rows.steps.within(cell * at.cell, (cell + 1) * at.cell);
  }

  /** The line of a finding: of its row or of the folded part that this is in; -1 where neither is shown. */
  placeOf(mark) {
    return this.model.rows.placeOf(mark.node, this.model.shown);
  }

  /** The findings in a cell. */
  marksIn(r, [first, last]) {
    return this.model.marks.filter((mark) => first <= mark.step && mark.step <= last && this.placeOf(mark) === r);
  }

  /** Call with every segment in sight: line, its first cell, first and last cell in sight within it, segment; undefined if it has not arrived. */
  segments(at, call) {
    const { shown, isOpen, cells } = this.model;
    const tiles = [];
    for (let tile = at.firstTile; tile <= at.lastTile; tile++) {
      const begin = tile * TILE;
      const [from, to] = [Math.max(at.begin - begin, 0), Math.min(at.end - begin, TILE)];
      tiles.push({ begin, from, to, here: cells.tile(at.level, tile) });
    }
    for (let r = at.first; r < at.last; r++) {
      const node = shown[r];
      if (isOpen(node)) continue;
      for (const { begin, from, to, here } of tiles) call(r, begin, from, to, here?.get(node));
    }
  }

  /** What the summaries depend on: the same values for the same segments. */
  sight() {
    const { shown, cells } = this.model;
    const { first, last, level, firstTile, lastTile } = this.layout();
    return [shown, cells, cells.arrivals, first, last, level, firstTile, lastTile];
  }

  /** Summaries of the segments in sight, as `summaryOf` returns them. */
  summaries() {
    const found = [];
    this.segments(this.layout(), (r, begin, from, to, segment) => segment && found.push(summaryOf(segment)));
    return found;
  }

  /** What is in sight, has arrived and was measured, as rows of a table: name, first and last step, least, greatest, NaN, infinite. */
  visible() {
    const at = this.layout();
    const lines = [];
    this.segments(at, (r, begin, from, to, segment) => {
      const { name } = this.model.rows.nodes[this.model.shown[r]];
      for (let i = from; segment && i < to; i++) {
        const found = cellOf(segment, i);
        if (found) lines.push([name, ...this.stepsOf(begin + i, at), found.least, found.greatest, found.nan, found.infinite]);
      }
    });
    return lines;
  }

  async load() {
    const { shown, isOpen, cells } = this.model;
    const at = this.layout();
    const nodes = shown.slice(at.first, at.last).filter((node) => !isOpen(node));
    if (!nodes.length) return;
    if (await cells.load(at.level, at.firstTile, at.lastTile, nodes)) this.on.onArrival();
  }

  draw() {
    if (!this.model || !this.element.isConnected) return;
    const at = (this.drawn = this.layout());
    this.load().catch((error) => this.on.onError(error));
    this.spacer.style.height = `${at.total - at.height}px`;
    this.scroll.style.height = `${at.height + AXIS}px`;
    drawMap(penOf(this.canvas, at.width, at.height + AXIS), this, at);
  }

  /** Change how many steps are shown, by a factor, around a step. */
  zoom(factor, around) {
    const { from, to } = this.model;
    const at = around ?? (from + to) / 2;
    this.on.onZoom(at - (at - from) * factor, at + (to - at) * factor);
  }

  pan(share) {
    const { from, to } = this.model;
    this.on.onZoom(from + (to - from) * share, to + (to - from) * share);
  }

  /** Bring a row into sight. */
  reveal(node) {
    const r = this.model.shown.indexOf(node);
    const at = this.layout();
    if (r >= 0) this.scroll.scrollTop = Math.max((r + 0.5) * at.row - at.height / 2, 0);
  }
}
