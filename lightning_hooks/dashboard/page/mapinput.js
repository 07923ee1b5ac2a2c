// Handles the pointer and the keyboard on a heat map, and describes the cell under the pointer or the cursor.

import { short } from "./colors.js";
import { clamp, h, several } from "./dom.js";
import { xOf } from "./mapdraw.js";
import { AXIS } from "./maplabels.js";
import { glyphOf } from "./marks.js";
import { cellOf } from "./segments.js";
import { TILE } from "./source.js";
import { stepsText } from "./steps.js";

/** Add the listeners for the pointer and the keyboard to a HeatMap. */
export function listenTo(map) {
  const { canvas } = map;
  let drag = null;
  canvas.addEventListener("pointermove", (event) => (drag ? dragTo(map, drag, event) : showTip(map, described(map, event), event)));
  canvas.addEventListener("pointerleave", () => (map.tip.hidden = true));
  canvas.addEventListener("pointerdown", (event) => {
    const hit = under(map, event);
    if (!hit || event.button !== 0) return;
    drag = { ...hit, from: map.model.from, to: map.model.to, moved: false, clientX: event.clientX };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    const hit = drag;
    drag = null;
    if (!hit || hit.moved) return;
    const { node } = hit;
    if (hit.cell === null && map.model.rows.isGroup(node)) map.on.onFold(node);
    else map.on.onPick(node, hit.cell === null ? null : map.stepsOf(hit.cell, map.drawn)[0]);
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("dblclick", (event) => {
    const hit = under(map, event);
    if (hit && hit.cell !== null) map.zoom(0.5, hit.step);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.altKey && !event.metaKey) return; // without a modifier key the wheel scrolls the rows
      event.preventDefault();
      map.zoom(event.deltaY > 0 ? 1.25 : 0.8, under(map, event)?.step);
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => keyPressed(map, event));
  canvas.addEventListener("focus", map.redraw);
  canvas.addEventListener("blur", map.redraw);
}

/**
 * The line, its node, the cell and the step under the pointer; null outside the map. Over the labels the cell is null, and the node is
 * that of the label: an open group has a label, but no line of its own.
 */
function under(map, event) {
  const at = map.drawn;
  const box = map.canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  if (!at || y < AXIS || y >= AXIS + at.height) return null;
  const r = Math.floor((y - AXIS + at.top) / at.row);
  if (r >= map.model.shown.length) return null;
  const step = map.model.from + ((x - at.gutter) / at.plot) * at.span;
  if (x >= at.gutter) return { node: map.model.shown[r], cell: Math.floor(step / at.cell), step };
  const label = map.boxes.find((each) => Math.abs(each.y - y) <= each.height / 2 && each.x <= x && x < each.x + each.width);
  return { node: label?.node ?? map.model.shown[r], cell: null, step };
}

/** The lines that describe what is under the pointer: a cell, a row, or findings on the whole run, which are marked above the cells. */
function described(map, event) {
  const hit = under(map, event);
  if (hit) return describeCell(map, hit.node, hit.cell);
  const box = map.canvas.getBoundingClientRect();
  if (!map.drawn || event.clientY - box.top >= AXIS) return [];
  return markLines(map.model.marks.filter((mark) => mark.node === null && Math.abs(xOf(map.drawn, map.model, mark) - (event.clientX - box.left)) < 8));
}

/** The lines that describe a cell of a node; if `cell` is null, those that describe the node. */
export function describeCell(map, index, cell) {
  const { rows, shown, stat, tensor, exact, isDifference, isRatio } = map.model;
  const node = rows.nodes[index];
  const isGroup = rows.isGroup(index);
  const r = rows.lineOf(index, shown);
  const lines = [node.name + (isGroup ? ` (${several(node.leaves, "row")})` : "")];
  if (node.detail && !node.shape) lines.push(node.detail);
  else if (node.type || node.shape) lines.push([node.type, node.shape ? `[${node.shape.join(", ")}]` : ""].filter(Boolean).join(" "));
  if (cell === null) return [...lines, ...gapLines(map.model.gaps, index), ...markLines(map.marksIn(r))];
  const [first, last] = map.stepsOf(cell, map.drawn);
  lines.push(stepsText([first, last]), ...windowLines(rows.steps.windowsIn(first, last + 1), stat), ...markLines(map.marksIn(r, [first, last])));
  const segment = map.model.cells.tile(map.drawn.level, Math.floor(cell / TILE))?.get(index);
  const values = segment && cellOf(segment, cell % TILE);
  const quantity = `${isRatio ? "ratio of " : isDifference ? "difference of " : ""}${tensor} ${stat}`;
  const text = (value) => (isRatio ? `${short(2 ** value)} times (log₂ ${short(value)})` : short(value));
  if (values === undefined) return [...lines, "loading"];
  if (!values) {
    const why = map.model.gaps?.reasonAt(index, cell * map.drawn.cell, (cell + 1) * map.drawn.cell).text;
    return [...lines, `${quantity}: not measured${why ? ` (${why})` : ""}`];
  }
  const steps = first === last ? "" : (n) => ` at ${n} of these steps`;
  if (values.fromZero) lines.push(`${quantity}: none${steps ? steps(values.fromZero) : ""}, since the parameter was 0 before the update`);
  if (values.fromZero && Number.isNaN(values.value) && !values.nan && !values.infinite) return isGroup ? [...lines, "merged exactly"] : lines;
  if (Number.isNaN(values.value)) lines.push(...(steps ? [`${quantity}: no finite value`] : []));
  else if (values.least === values.greatest) lines.push(`${quantity}: ${text(values.value)}`);
  else lines.push(`${quantity}: ${text(values.least)} to ${text(values.greatest)}`);
  if (values.nan) lines.push(steps ? `NaN${steps(values.nan)}` : `${quantity}: NaN`);
  if (values.infinite && isRatio) lines.push(`${quantity}: one of the two is 0 or infinite${steps ? steps(values.infinite) : ""}`);
  else if (values.infinite) lines.push(steps ? `infinite${steps(values.infinite)}` : `${quantity}: infinite`);
  const level = map.model.levels?.[r];
  if (level > 0 && Number.isFinite(values.value) && !map.model.apart[r]) lines.push(`${short(values.value / level)} times the median of the row, ${short(level)}`);
  if (map.model.apart?.[r]) lines.push("The norm behind this bias takes it away: its gradient is 0, or what rounding left of 0.");
  if (isGroup) lines.push(exact ? "merged exactly" : "the largest of these rows");
  return lines;
}

/** What the values of windows of steps are, as lines; none if every step was written. */
function windowLines(windows, stat) {
  if (!windows.length) return [];
  const held = windows.length > 1 ? `${several(windows.length, "window")} of steps` : "one window of steps";
  const what = { norm: "a norm is the root mean square over a window", nonfinite: "a count is the total of a window", count: "a count is that of one step" }[stat];
  return [`in ${held}, each merged exactly${what ? `; ${what}` : ""}`];
}

/** Why a node has gaps at the end of the run, as lines; none if only the general meaning of a gap is known. */
function gapLines(gaps, node) {
  if (!gaps) return [];
  const reasons = new Set(gaps.leavesOf(node).map((row) => gaps.reasonOfRow(row, -1, Infinity)));
  const [only] = reasons;
  return reasons.size === 1 && only !== gaps.otherwise ? [only.text] : [];
}

const MOST_TEXTS = 6; // findings that a description lists
const markLines = (marks) => {
  const texts = [...new Set(marks.map((mark) => `${glyphOf(mark)} ${mark.text}`))];
  return texts.length > MOST_TEXTS ? [...texts.slice(0, MOST_TEXTS), `▼ and ${several(texts.length - MOST_TEXTS, "finding")} more`] : texts;
};

function dragTo(map, drag, event) {
  const moved = event.clientX - drag.clientX;
  if (Math.abs(moved) < 4 && !drag.moved) return;
  drag.moved = true;
  map.tip.hidden = true;
  const steps = (moved / map.drawn.plot) * (drag.to - drag.from);
  map.on.onZoom(drag.from - steps, drag.to - steps);
}

function showTip(map, lines, event) {
  const { tip } = map;
  tip.hidden = !lines.length;
  if (!lines.length) return;
  tip.replaceChildren(...lines.map((line) => h("div", {}, line)));
  const box = map.element.getBoundingClientRect();
  const x = event.clientX - box.left + 14;
  const y = event.clientY - box.top + 14;
  tip.style.left = `${Math.max(Math.min(x, box.width - tip.offsetWidth - 4), 0)}px`;
  tip.style.top = `${Math.max(Math.min(y, box.height - tip.offsetHeight - 4), 0)}px`;
}

/** Fold or unfold a group, and move the cursor to the line of the group, which both states have. */
function fold(map, cursor, group) {
  if (group < 0 || map.model.flat) return;
  cursor.r = map.model.rows.lineOf(group, map.model.shown);
  map.on.onFold(group);
}

/** Move the cursor, zoom or fold by a key. */
export function keyPressed(map, event) {
  const { shown, rows } = map.model;
  const at = map.drawn;
  if (!at || !shown.length) return;
  const previous = map.cursor ?? { r: at.first, step: at.begin * at.cell };
  const cursor = { r: Math.min(previous.r, shown.length - 1), cell: Math.floor(previous.step / at.cell) };
  const page = Math.max(Math.floor(at.height / at.row) - 1, 1);
  switch (event.key) {
    case "ArrowUp": cursor.r--; break;
    case "ArrowDown": cursor.r++; break;
    case "PageUp": cursor.r -= page; break;
    case "PageDown": cursor.r += page; break;
    case "ArrowLeft": if (event.shiftKey) map.pan(-0.25); else cursor.cell--; break;
    case "ArrowRight": if (event.shiftKey) map.pan(0.25); else cursor.cell++; break;
    case "Home": cursor.cell = at.begin; break;
    case "End": cursor.cell = at.end - 1; break;
    case "+": case "=": map.zoom(0.5, (cursor.cell + 0.5) * at.cell); break;
    case "-": map.zoom(2, (cursor.cell + 0.5) * at.cell); break;
    case "0": map.on.onZoom(-Infinity, Infinity); break;
    case " ": fold(map, cursor, rows.isGroup(shown[cursor.r]) ? shown[cursor.r] : rows.parents[shown[cursor.r]]); break;
    case "Backspace": fold(map, cursor, rows.parents[shown[cursor.r]]); break;
    case "Enter": map.on.onPick(shown[cursor.r], map.stepsOf(cursor.cell, at)[0], true); break;
    default: return;
  }
  event.preventDefault();
  cursor.r = clamp(cursor.r, 0, shown.length - 1);
  cursor.cell = clamp(cursor.cell, at.begin, at.end - 1);
  // Keep the step instead of the cell, because the width of cells changes with the zoom.
  map.cursor = { r: cursor.r, step: cursor.cell * at.cell };
  const [top, bottom] = [cursor.r * at.row, (cursor.r + 1) * at.row];
  if (top < at.top) map.scroll.scrollTop = top;
  else if (bottom > at.top + at.height) map.scroll.scrollTop = bottom - at.height;
  map.spoken.textContent = describeCell(map, shown[cursor.r], cursor.cell).join(", ");
  map.redraw();
}
