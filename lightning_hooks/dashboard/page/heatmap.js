// The heat map: rows of a table by steps. Draws what has arrived, asks for what is missing, and says what is under the pointer.

import { short } from "./colors.js";
import { color, h, onceAFrame } from "./dom.js";
import { WAITING, cellOf, difference, pixelsOf, summaryOf } from "./parts.js";
import { TILE } from "./source.js";
import { stepsText } from "./steps.js";

const AXIS = 22; // pixels above the cells
const READABLE = 16; // of a row
const LARGEST = 26;
const SMALLEST = 2;
const LABELS = 12; // pixels of text

/**
 * One panel. `model` says what to draw:
 *   title, rows (Rows), shown (nodes), cells and other (Cells; the second one is subtracted), nodeOfOther (node to node),
 *   from, to (steps), unit, isOpen(node), marks (of findings: { node, step, text })
 * `on` is told: onZoom(from, to), onFold(node), onPick(node, step), onScroll(top), onArrival(), onHover(text).
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
      this.on.onScroll?.(this.scroll.scrollTop);
      this.redraw();
    });
    new ResizeObserver(() => this.redraw()).observe(this.scroll);
    this.listen();
  }

  /** Set what is drawn next; the view draws when it knows the colours. */
  show(model) {
    this.model = model;
    this.title.textContent = model.title;
  }

  /** Sizes in CSS pixels, and the cells in sight. */
  layout() {
    const { shown, from, to, unit, fit, height: available } = this.model;
    const width = Math.max(this.scroll.clientWidth, 200);
    const gutter = this.gutter(width);
    const plot = Math.max(width - gutter - 8, 50);
    const room = Math.max(available - AXIS, 80);
    const row = Math.min(Math.max(room / Math.max(shown.length, 1), fit ? SMALLEST : READABLE), LARGEST);
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
    return { width, gutter, plot, row, total, height, top, first, last, span, level, cell, begin, end };
  }

  /** A part of what a node shows: undefined if it has not arrived, null where a node of the other run is missing. */
  part(node, level, tile) {
    const { cells, other } = this.model;
    return this.partIn(cells.tile(level, tile), other?.tile(level, tile), node);
  }

  partIn(tile, otherTile, node) {
    const { other, nodeOfOther } = this.model;
    const part = tile?.get(node);
    if (!other || !part) return part;
    const twin = nodeOfOther(node);
    if (twin === undefined) return null;
    const second = otherTile?.get(twin);
    return second && difference(part, second);
  }

  /** Call with every part in sight: line, first cell of the part, first and last cell in sight within it, part. */
  parts(at, call) {
    const { shown, rows, isOpen, cells, other } = this.model;
    const tiles = [];
    for (let tile = Math.floor(at.begin / TILE); tile * TILE < at.end; tile++) {
      const begin = tile * TILE;
      const [from, to] = [Math.max(at.begin - begin, 0), Math.min(at.end - begin, TILE)];
      tiles.push({ begin, from, to, mine: cells.tile(at.level, tile), others: other?.tile(at.level, tile) });
    }
    for (let r = at.first; r < at.last; r++) {
      const node = shown[r];
      if (rows.isPart(node) && isOpen(node)) continue;
      for (const { begin, from, to, mine, others } of tiles) call(r, begin, from, to, this.partIn(mine, others, node));
    }
  }

  /** What the summaries depend on: the same values for the same parts. */
  sight() {
    const { shown, cells, other } = this.model;
    const { first, last, level, begin, end } = this.layout();
    const tiles = [begin, end - 1].map((cell) => Math.floor(cell / TILE));
    return [shown, cells, cells.arrivals, other, other?.arrivals, first, last, level, ...tiles];
  }

  /** Summaries of the parts in sight, as `summaryOf` returns them. */
  summaries() {
    const found = [];
    this.parts(this.layout(), (r, begin, from, to, part) => part && found.push(summaryOf(part)));
    return found;
  }

  /** Call with every cell in sight that has arrived and was measured: line, cell, least, greatest, NaN, infinite. */
  each(at, call, unknown = null) {
    this.parts(at, (r, begin, from, to, part) => {
      if (part === undefined) unknown?.(r, begin + from, begin + to);
      for (let i = from; part && i < to; i++) {
        const found = cellOf(part, i);
        if (found) call(r, begin + i, found.least, found.greatest, found.nan, found.infinite);
      }
    });
  }

  async load() {
    const { shown, rows, isOpen, cells, other, nodeOfOther } = this.model;
    const at = this.layout();
    const nodes = shown.slice(at.first, at.last).filter((node) => !(rows.isPart(node) && isOpen(node)));
    if (!nodes.length) return;
    const tiles = [Math.floor(at.begin / TILE), Math.floor((at.end - 1) / TILE)];
    const loads = [cells.load(at.level, ...tiles, nodes)];
    if (other) {
      const twins = nodes.map(nodeOfOther).filter((node) => node !== undefined);
      if (twins.length) loads.push(other.load(at.level, ...tiles, twins));
    }
    if ((await Promise.all(loads)).some(Boolean)) this.on.onArrival();
  }

  draw() {
    if (!this.model || !this.element.isConnected) return;
    const started = performance.now();
    const at = (this.drawn = this.layout());
    this.load().catch((error) => this.on.onError(error));
    this.spacer.style.height = `${at.total - at.height}px`;
    this.scroll.style.height = `${at.height + AXIS}px`;
    const ratio = window.devicePixelRatio || 1;
    const canvas = this.canvas;
    canvas.width = at.width * ratio;
    canvas.height = (at.height + AXIS) * ratio;
    canvas.style.width = `${at.width}px`;
    canvas.style.height = `${at.height + AXIS}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.fillStyle = color("page");
    context.fillRect(0, 0, at.width, at.height + AXIS);
    this.drawCells(context, at);
    this.drawLabels(context, at);
    this.drawAxis(context, at);
    this.drawMarks(context, at);
    this.drawCursor(context, at);
    this.took = performance.now() - started;
  }

  drawCells(context, at) {
    const { scale, map, shown, rows, isOpen } = this.model;
    const [columns, lines] = [at.end - at.begin, at.last - at.first];
    if (lines < 1) return;
    const x = at.gutter + ((at.begin * at.cell - this.model.from) / at.span) * at.plot;
    const width = ((columns * at.cell) / at.span) * at.plot;
    const y = AXIS + at.first * at.row - at.top;
    context.save();
    context.beginPath();
    context.rect(at.gutter, AXIS, at.plot, at.height);
    context.clip();
    context.fillStyle = hatch(context);
    context.fillRect(at.gutter, AXIS, at.plot, at.height);
    const image = context.createImageData(columns, lines);
    const pixels = new Uint32Array(image.data.buffer);
    this.parts(at, (r, begin, from, to, part) => {
      const start = (r - at.first) * columns + begin - at.begin;
      if (part === undefined) pixels.fill(WAITING, start + from, start + to);
      else if (part) pixels.set(pixelsOf(part, scale, map).subarray(from, to), start + from);
    });
    this.image.width = columns;
    this.image.height = lines;
    this.image.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, x, y, width, lines * at.row);
    context.fillStyle = color("group");
    for (let r = at.first; r < at.last; r++) {
      if (!(rows.isPart(shown[r]) && isOpen(shown[r]))) continue;
      context.fillRect(at.gutter, AXIS + r * at.row - at.top, at.plot, at.row);
    }
    context.restore();
  }

  drawLabels(context, at) {
    const { shown, rows } = this.model;
    if (at.row < 9) return;
    const size = Math.min(LABELS, at.row - 3);
    context.font = `${size}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    const [ink, soft] = [color("ink"), color("soft")];
    context.save();
    context.beginPath();
    context.rect(0, AXIS, at.gutter - 4, at.height);
    context.clip();
    for (let r = at.first; r < at.last; r++) {
      const { text, indent } = this.label(shown[r]);
      const y = AXIS + (r + 0.5) * at.row - at.top;
      context.fillStyle = rows.isPart(shown[r]) ? ink : soft;
      context.fillText(ending(context, text, at.gutter - 8 - indent), indent, y);
    }
    context.restore();
  }

  /** The text before a row, and where it begins. */
  label(node) {
    const { rows, isOpen, flat } = this.model;
    const { depth, name, label, leaves } = rows.nodes[node];
    const isPart = rows.isPart(node);
    const sign = isPart ? (isOpen(node) ? "▾ " : "▸ ") : "";
    const count = isPart && !isOpen(node) ? `  (${leaves})` : "";
    return { text: sign + (flat ? name : label) + count, indent: flat ? 4 : 4 + Math.min(depth, 8) * 10 + (isPart ? 0 : 12) };
  }

  /** The pixels that the longest label takes, as far as there is room. */
  gutter(width) {
    const { shown } = this.model;
    if (this.measured?.shown !== shown) {
      const pen = this.image.getContext("2d");
      pen.font = `${LABELS}px system-ui, sans-serif`;
      // Only the longest are measured: there may be thousands.
      const labels = shown.map((node) => this.label(node)).sort((a, b) => b.text.length + b.indent / 6 - a.text.length - a.indent / 6);
      const widest = Math.max(0, ...labels.slice(0, 20).map(({ text, indent }) => indent + pen.measureText(text).width));
      this.measured = { shown, widest: Math.ceil(widest) + 12 };
    }
    return Math.min(Math.max(this.measured.widest, 60), Math.max(Math.round(width * 0.3), 90));
  }

  drawAxis(context, at) {
    const { from } = this.model;
    context.fillStyle = color("soft");
    context.strokeStyle = color("line");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    const about = (at.span / at.plot) * 90;
    const power = 10 ** Math.floor(Math.log10(Math.max(about, 1)));
    const every = Math.max([1, 2, 5, 10].map((n) => n * power).find((n) => n >= about) ?? 10 * power, 1);
    for (let step = Math.ceil(from / every) * every; step <= from + at.span; step += every) {
      const x = at.gutter + ((step - from) / at.span) * at.plot;
      context.fillText(step.toLocaleString("en-US"), Math.min(x, at.width - 24), AXIS / 2 - 2);
      context.beginPath();
      context.moveTo(x, AXIS - 5);
      context.lineTo(x, AXIS);
      context.stroke();
    }
    context.textAlign = "left";
    context.fillText("step", 4, AXIS / 2 - 2);
  }

  drawMarks(context, at) {
    const { marks, shown, from } = this.model;
    if (!marks?.length) return;
    const position = new Map(shown.map((node, r) => [node, r]));
    for (const mark of marks) {
      const r = position.get(mark.node);
      const x = at.gutter + ((mark.step + 0.5 - from) / at.span) * at.plot;
      if (r === undefined || r < at.first || r >= at.last || x < at.gutter || x > at.gutter + at.plot) continue;
      const y = AXIS + r * at.row - at.top;
      context.fillStyle = color("alert");
      context.strokeStyle = color("page");
      context.beginPath();
      context.moveTo(x, y + Math.max(at.row, 8));
      context.lineTo(x - 5, y - 2);
      context.lineTo(x + 5, y - 2);
      context.closePath();
      context.fill();
      context.stroke();
    }
  }

  drawCursor(context, at) {
    if (!this.cursor || document.activeElement !== this.canvas) return;
    const { r, cell } = this.cursor;
    const x = at.gutter + ((cell * at.cell - this.model.from) / at.span) * at.plot;
    context.strokeStyle = color("ink");
    context.lineWidth = 2;
    context.strokeRect(x - 1, AXIS + r * at.row - at.top - 1, Math.max((at.cell / at.span) * at.plot, 4) + 2, at.row + 2);
    context.lineWidth = 1;
  }

  /** The row and the cell under a point of the canvas; null outside. */
  under(event) {
    const at = this.drawn;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (!at || y < AXIS || y >= AXIS + at.height) return null;
    const r = Math.floor((y - AXIS + at.top) / at.row);
    if (r >= this.model.shown.length) return null;
    const step = this.model.from + ((x - at.gutter) / at.plot) * at.span;
    return { r, cell: x < at.gutter ? null : Math.floor(step / at.cell), step, x, y };
  }

  /** The first and the last step of a cell. */
  stepsOf(cell, at) {
    return this.model.rows.steps.within(cell * at.cell, (cell + 1) * at.cell);
  }

  /** What is to be said of a cell. */
  describe(r, cell) {
    const { rows, shown, stat, tensor, exact } = this.model;
    const at = this.drawn;
    const node = rows.nodes[shown[r]];
    const lines = [node.name + (rows.isPart(shown[r]) ? ` (${node.leaves} rows)` : "")];
    if (node.type || node.shape) lines.push([node.type, node.shape ? `[${node.shape.join(", ")}]` : ""].filter(Boolean).join(" "));
    if (cell === null) return lines;
    const [first, last] = this.stepsOf(cell, at);
    lines.push(stepsText([first, last]));
    if (rows.isPart(shown[r]) && this.model.isOpen(shown[r])) return lines;
    const part = this.part(shown[r], at.level, Math.floor(cell / TILE));
    const found = part && cellOf(part, cell % TILE);
    const what = `${tensor} ${stat}`;
    if (found === undefined) lines.push("loading");
    else if (!found) lines.push(`${what}: not measured`);
    else {
      const steps = first === last ? "" : (n) => ` at ${n} of these steps`;
      if (Number.isNaN(found.value)) lines.push(...(steps ? [`${what}: no finite value`] : []));
      else if (found.least === found.greatest) lines.push(`${what}: ${short(found.value)}`);
      else lines.push(`${what}: ${short(found.least)} to ${short(found.greatest)}`);
      if (found.nan) lines.push(steps ? `NaN${steps(found.nan)}` : `${what}: NaN`);
      if (found.infinite) lines.push(steps ? `infinite${steps(found.infinite)}` : `${what}: infinite`);
      if (rows.isPart(shown[r])) lines.push(exact ? "merged exactly" : "the largest of these rows");
    }
    return lines;
  }

  listen() {
    const canvas = this.canvas;
    let drag = null;
    canvas.addEventListener("pointermove", (event) => {
      if (drag) return this.dragTo(drag, event);
      const hit = this.under(event);
      this.showTip(hit, event);
    });
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("pointerdown", (event) => {
      const hit = this.under(event);
      if (!hit || event.button !== 0) return;
      drag = { ...hit, from: this.model.from, to: this.model.to, moved: false, clientX: event.clientX };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => {
      const hit = drag;
      drag = null;
      if (!hit || hit.moved) return;
      const node = this.model.shown[hit.r];
      if (hit.cell === null && this.model.rows.isPart(node)) this.on.onFold(node);
      else this.on.onPick(node, hit.cell === null ? null : this.stepsOf(hit.cell, this.drawn)[0]);
    });
    canvas.addEventListener("pointercancel", () => (drag = null));
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.under(event);
      if (hit && hit.cell !== null) this.zoom(0.5, hit.step);
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.altKey && !event.metaKey) return; // the wheel alone scrolls the rows
        event.preventDefault();
        const hit = this.under(event);
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, hit?.step);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", this.redraw);
    canvas.addEventListener("blur", this.redraw);
  }

  dragTo(drag, event) {
    const moved = event.clientX - drag.clientX;
    if (Math.abs(moved) < 4 && !drag.moved) return;
    drag.moved = true;
    this.tip.hidden = true;
    const steps = (moved / this.drawn.plot) * (drag.to - drag.from);
    this.on.onZoom(drag.from - steps, drag.to - steps);
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

  showTip(hit, event) {
    this.tip.hidden = !hit;
    if (!hit) return;
    this.tip.replaceChildren(...this.describe(hit.r, hit.cell).map((line) => h("div", {}, line)));
    const box = this.element.getBoundingClientRect();
    const [width, height] = [this.tip.offsetWidth, this.tip.offsetHeight];
    const x = event.clientX - box.left + 14;
    const y = event.clientY - box.top + 14;
    this.tip.style.left = `${Math.max(Math.min(x, box.width - width - 4), 0)}px`;
    this.tip.style.top = `${Math.max(Math.min(y, box.height - height - 4), 0)}px`;
  }

  key(event) {
    const { shown, rows } = this.model;
    const at = this.drawn;
    if (!at || !shown.length) return;
    const now = this.cursor ?? { r: at.first, cell: at.begin };
    const cursor = { ...now };
    const page = Math.max(Math.floor(at.height / at.row) - 1, 1);
    switch (event.key) {
      case "ArrowUp": cursor.r--; break;
      case "ArrowDown": cursor.r++; break;
      case "PageUp": cursor.r -= page; break;
      case "PageDown": cursor.r += page; break;
      case "ArrowLeft": if (event.shiftKey) this.pan(-0.25); else cursor.cell--; break;
      case "ArrowRight": if (event.shiftKey) this.pan(0.25); else cursor.cell++; break;
      case "Home": cursor.cell = at.begin; break;
      case "End": cursor.cell = at.end - 1; break;
      case "+": case "=": this.zoom(0.5, (cursor.cell + 0.5) * at.cell); break;
      case "-": this.zoom(2, (cursor.cell + 0.5) * at.cell); break;
      case "0": this.on.onZoom(-Infinity, Infinity); break;
      case " ": if (rows.isPart(shown[cursor.r])) this.on.onFold(shown[cursor.r]); break;
      case "Enter": this.on.onPick(shown[cursor.r], this.stepsOf(cursor.cell, at)[0], true); break;
      default: return;
    }
    event.preventDefault();
    cursor.r = Math.min(Math.max(cursor.r, 0), shown.length - 1);
    cursor.cell = Math.min(Math.max(cursor.cell, at.begin), at.end - 1);
    this.cursor = cursor;
    const [top, bottom] = [cursor.r * at.row, (cursor.r + 1) * at.row];
    if (top < at.top) this.scroll.scrollTop = top;
    else if (bottom > at.top + at.height) this.scroll.scrollTop = bottom - at.height;
    this.said.textContent = this.describe(cursor.r, cursor.cell).join(", ");
    this.redraw();
  }

  /** What is in sight, as rows of a table: name, first and last step, least, greatest, NaN, infinite. */
  visible() {
    const at = this.layout();
    const lines = [];
    this.each(at, (r, cell, least, greatest, nan, infinite) => {
      const { name } = this.model.rows.nodes[this.model.shown[r]];
      lines.push([name, ...this.stepsOf(cell, at), least, greatest, nan, infinite]);
    });
    return lines;
  }

  /** Bring a row into sight. */
  reveal(node) {
    const r = this.model.shown.indexOf(node);
    const at = this.layout();
    if (r >= 0) this.scroll.scrollTop = Math.max((r + 0.5) * at.row - at.height / 2, 0);
  }
}

/** What stands where nothing was measured. */
function hatch(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = color("page");
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = color("hatch");
  pen.beginPath();
  for (const start of [-6, 0, 6]) {
    pen.moveTo(start, 6);
    pen.lineTo(start + 6, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

/** A text that fits a width, without its beginning where it is too long: names differ at their end. */
function ending(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [least, most] = [0, text.length];
  while (least < most) {
    const middle = Math.floor((least + most) / 2);
    if (context.measureText(`…${text.slice(middle)}`).width <= width) most = middle;
    else least = middle + 1;
  }
  return `…${text.slice(least)}`;
}
