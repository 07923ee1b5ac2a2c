// Draws a heat map: the cells, the steps, the marks of findings, the cursor of the keyboard.

import { makeScale, tableOf } from "./colors.js";
import { clamp, color } from "./dom.js";
import { AXIS, drawLabels } from "./maplabels.js";
import { drawDisc, drawTriangle } from "./marks.js";
import { WAITING, pixelsOf, texturesOf } from "./segments.js";
import { texture } from "./textures.js";

export const LEVEL_MAP = "viridis"; // the colours of the levels of rows
const LEAST_TEXTURED = 5; // the least pixels of a cell on which a texture is drawn

/** Draw a HeatMap; `at` is its layout. */
export function drawMap(context, map, at) {
  context.fillStyle = color("page");
  context.fillRect(0, 0, at.width, at.height + AXIS);
  drawCells(context, map, at);
  drawLabels(context, map, at);
  drawAxis(context, map, at);
  drawMarks(context, map, at);
  drawCursors(context, map, at);
}

function drawCells(context, map, at) {
  const { scale, map: colors, from, levels, apart } = map.model;
  const [columns, lines] = [at.end - at.begin, at.last - at.first];
  if (lines < 1) return;
  const x = at.gutter + ((at.begin * at.cell - from) / at.span) * at.plot;
  const width = ((columns * at.cell) / at.span) * at.plot;
  const y = AXIS + at.first * at.row - at.top;
  context.save();
  context.beginPath();
  context.rect(at.gutter, AXIS, at.plot, at.height);
  context.clip();
  drawGaps(context, map, at);
  const image = context.createImageData(columns, lines);
  const pixels = new Uint32Array(image.data.buffer);
  map.segments(at, (r, begin, first, last, segment) => {
    const start = (r - at.first) * columns + begin - at.begin;
    if (segment === undefined) pixels.fill(WAITING, start + first, start + last);
    else if (segment && !scale) pixels.fill(WAITING, start + first, start + last);
    else if (segment) pixels.set(pixelsOf(segment, scale, colors, levels?.[r] || 1, apart[r] === 1).subarray(first, last), start + first);
  });
  map.image.width = columns;
  map.image.height = lines;
  map.image.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(map.image, x, y, width, lines * at.row);
  if (at.row >= LEAST_TEXTURED) drawTextures(context, map, at);
  drawGroupLines(context, map, at);
  context.restore();
  if (levels) drawLevels(context, map, at);
}

/** Draw the level of each row beside its cells, in the colours of one scale for all rows. */
function drawLevels(context, map, at) {
  const { levels, spread } = map.model;
  const table = tableOf(LEVEL_MAP);
  const scale = makeScale("log", spread.least, spread.greatest, spread.least, false);
  for (let r = at.first; r < at.last; r++) {
    if (!(levels[r] > 0) || map.model.apart[r]) continue;
    const i = 3 * scale.index(levels[r]);
    context.fillStyle = `rgb(${table[i]}, ${table[i + 1]}, ${table[i + 2]})`;
    const y = Math.max(AXIS + r * at.row - at.top, AXIS);
    context.fillRect(at.gutter - 7, y, 5, Math.min(AXIS + (r + 1) * at.row - at.top, AXIS + at.height) - y);
  }
}

/** Draw the textures of cells that were not measured. Cells that were measured are drawn over them later. */
function drawGaps(context, map, at) {
  const { gaps, shown, from } = map.model;
  const patterns = {};
  const fill = (kind, x, y, width, height) => {
    context.fillStyle = patterns[kind] ??= texture(context, kind);
    context.fillRect(x, y, width, height);
  };
  const usual = gaps?.otherwise.kind ?? "gap";
  fill(usual, at.gutter, AXIS, at.plot, at.height);
  if (!gaps) return;
  const xAt = (step) => at.gutter + clamp((step - from) / at.span, 0, 1) * at.plot;
  for (let r = at.first; r < at.last; r++) {
    const stripes = gaps.stripesOf(shown[r]);
    stripes.forEach(({ since, kind }, i) => {
      const [x, end] = [xAt(since), xAt(stripes[i + 1]?.since ?? Infinity)];
      if (kind !== usual && end > x) fill(kind, x, AXIS + r * at.row - at.top, end - x, at.row);
    });
  }
}

/** The hatching of cells that were not measured. */
export const hatch = (context) => texture(context, "gap");

/** Draw textures over the cells that are NaN, infinite or zero, where neighbours of one kind are wide enough. */
function drawTextures(context, map, at) {
  const patterns = {};
  const width = (at.cell / at.span) * at.plot;
  map.segments(at, (r, begin, first, last, segment) => {
    if (!segment) return;
    texturesOf(segment, first, last, (name, start, end) => {
      if ((end - start) * width < LEAST_TEXTURED) return;
      context.fillStyle = patterns[name] ??= texture(context, name, false);
      const x = at.gutter + (((begin + start) * at.cell - map.model.from) / at.span) * at.plot;
      context.fillRect(x, AXIS + r * at.row - at.top, (end - start) * width, at.row);
    });
  });
}

/** A thin line above the first row of each open group, where the rows are tall enough. */
function drawGroupLines(context, map, at) {
  const { rows, shown, flat } = map.model;
  if (flat || at.row < LEAST_TEXTURED) return;
  context.fillStyle = color("page");
  for (let r = Math.max(at.first, 1); r < at.last; r++) {
    // Draw a line if a group begins at this row, or if the row before was the last one of another group.
    const begins = rows.parents[shown[r]] > shown[r - 1];
    if (begins || rows.parents[shown[r]] !== rows.parents[shown[r - 1]]) context.fillRect(at.gutter, AXIS + r * at.row - at.top - 1, at.plot, 1);
  }
}

function drawAxis(context, map, at) {
  const { from } = map.model;
  context.fillStyle = color("soft");
  context.strokeStyle = color("line");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "center";
  const least = (at.span / at.plot) * 90;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  const interval = Math.max([1, 2, 5, 10].map((n) => n * power).find((n) => n >= least) ?? 10 * power, 1);
  for (let step = Math.ceil(from / interval) * interval; step <= from + at.span; step += interval) {
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

/** The position of a mark on the axis of steps, in pixels; `at` is the layout. */
export function xOf(at, { from }, mark) {
  return at.gutter + ((mark.step + 0.5 - from) / at.span) * at.plot;
}

function drawMarks(context, map, at) {
  context.fillStyle = color("alert");
  context.strokeStyle = color("page");
  for (const mark of map.model.marks) {
    const r = map.lineOf(mark);
    const x = xOf(at, map.model, mark);
    const isOfRun = mark.node === null;
    if ((!isOfRun && (r < at.first || r >= at.last)) || x < at.gutter || x > at.gutter + at.plot) continue;
    // A finding on the whole run has no row: its mark stands above the cells.
    const y = isOfRun ? AXIS - 10 : AXIS + r * at.row - at.top - 2;
    mark.record ? drawDisc(context, x, y + 5, 5) : drawTriangle(context, x, y, 5, mark);
    if (!mark.isNote) context.stroke();
  }
}

/** Outline the selected cell, and that under the cursor of the keyboard while the map has the focus. */
function drawCursors(context, map, at) {
  context.save();
  context.beginPath();
  context.rect(at.gutter - 4, AXIS - 4, at.plot + 8, at.height + 8);
  context.clip();
  const { selected, rows, shown } = map.model;
  if (selected) drawOutline(context, map, at, rows.lineOf(selected.node, shown), selected.step);
  if (map.cursor && document.activeElement === map.canvas) drawOutline(context, map, at, map.cursor.r, map.cursor.step);
  context.restore();
}

/** An outline in black and white, which is visible on every colour. It is larger than a small cell, so that the cell can be found. */
function drawOutline(context, map, at, r, step) {
  if (r < 0) return;
  const cell = (at.cell / at.span) * at.plot;
  const [width, height] = [Math.max(cell, 6), Math.max(at.row, 6)];
  const x = at.gutter + ((Math.floor(step / at.cell) * at.cell - map.model.from) / at.span) * at.plot + (cell - width) / 2;
  const y = AXIS + (r + 0.5) * at.row - at.top - height / 2;
  for (const [ink, line, by] of [["#000", 1.5, 3], ["#fff", 2, 1.5], ["#000", 1, 0.5]]) {
    context.strokeStyle = ink;
    context.lineWidth = line;
    context.strokeRect(x - by, y - by, width + 2 * by, height + 2 * by);
  }
}
