// Draws a curve over steps whose x-axis is that of the heat map: a step has the same place in both.

import { short } from "./colors.js";
import { clamp, color } from "./dom.js";
import { countWhile, stepsText } from "./steps.js";
import { texture } from "./textures.js";
import { oneStyle } from "./ticks.js";
import { drawBand } from "./usual.js";

const INKS = ["accent", "alert", "third", "fourth"]; // the colours of keysOf() in charts.js, in the same order
const TICKS = 4; // the most ticks of the y-axis
const LOG_FROM = 1000; // the ratio of greatest to least value above which positive values get a logarithmic axis

/** Whether some series have at least two finite values, so that there is a curve to draw. */
export function hasCurve(series) {
  return series.reduce((count, { least }) => count + least.filter(Number.isFinite).length, 0) > 1;
}

/** The middle of a step, in pixels; `area` is { left, width, from, to } with the steps at both ends. */
export function placeOf(step, { left, width, from, to }) {
  return left + ((step + 0.5 - from) / (to - from)) * width;
}

/** The step at a position in pixels. */
export function stepAt(x, { left, width, from, to }) {
  return from + ((x - left) / width) * (to - from);
}

/** The index of the piece of a series that holds a step, or of the nearest piece; -1 if the series has no pieces. */
export function pieceAt({ steps, ends }, step) {
  const next = countWhile(steps, (first) => first <= step);
  if (!next) return steps.length ? 0 : -1;
  const isNextNearer = step > ends[next - 1] && next < steps.length && steps[next] - step < step - ends[next - 1];
  return isNextNearer ? next : next - 1;
}

/** A piece in words: its steps and its value. */
export function pieceText(series, step) {
  const i = pieceAt(series, step);
  if (i < 0) return "";
  const [least, greatest, mean] = [series.least[i], series.greatest[i], series.mean?.[i]];
  const several = mean === undefined ? `${short(least)} to ${short(greatest)}` : `min ${short(least)}, mean ${short(mean)}, max ${short(greatest)}`;
  const smooth = series.smooth && Number.isFinite(series.smooth[i]) ? ` (smoothed ${short(series.smooth[i])})` : "";
  const value = (Number.isNaN(least) || least === greatest ? short(least) : several) + smooth;
  const label = series.label ? `${series.label} ` : "";
  return `${stepsText([series.steps[i], series.ends[i]])}: ${label}${value}`;
}

/**
 * The y-axis of some series: { low, high, isLog, canBeLog, y(value) from 0 at the bottom to 1 }. `log` is "1" or "0" if the user has
 * chosen, otherwise empty: then it is logarithmic if positive values differ by a large factor.
 */
export function curveAxis(series, log, { from, to }) {
  let [low, high, leastPositive] = [Infinity, -Infinity, Infinity];
  for (const { steps, ends, least, greatest } of series) {
    for (let i = 0; i < steps.length; i++) {
      if (ends[i] < from || steps[i] >= to) continue;
      for (const value of [least[i], greatest[i]]) {
        if (!Number.isFinite(value)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
        if (value > 0 && value < leastPositive) leastPositive = value;
      }
    }
  }
  if (low > high) return { low: 0, high: 1, isLog: false, canBeLog: false, isEmpty: true, y: () => 0 };
  const canBeLog = low > 0;
  const isLog = canBeLog && (log === "1" || (log !== "0" && high / low > LOG_FROM));
  const forward = isLog ? Math.log10 : (value) => value;
  const [a, b] = [forward(low), forward(high)];
  const margin = (b - a) * 0.06 || Math.abs(a) * 0.05 || 0.5;
  const [bottom, top] = [a - margin, b + margin];
  return { low, high, isLog, canBeLog, y: (value) => (forward(value) - bottom) / (top - bottom), backward: (share) => (isLog ? 10 ** (bottom + share * (top - bottom)) : bottom + share * (top - bottom)) };
}

/** Up to about `most` round numbers on an axis with texts that differ: [value, text]. */
export function curveTicks(axis, most) {
  if (axis.isEmpty) return [];
  const [bottom, top] = [axis.backward(0), axis.backward(1)];
  if (axis.isLog && Math.log10(top / bottom) >= 2) {
    const [first, last] = [Math.ceil(Math.log10(bottom)), Math.floor(Math.log10(top))];
    const interval = Math.max(Math.ceil((last - first + 1) / most), 1);
    const powers = Array.from({ length: Math.floor((last - first) / interval) + 1 }, (_, i) => first + i * interval);
    const texts = oneStyle(powers.map((power) => Number(`1e${power}`)));
    return powers.map((power, i) => [10 ** power, texts[i]]);
  }
  const least = (top - bottom) / most;
  const power = 10 ** Math.floor(Math.log10(least));
  const interval = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least * 0.999);
  const values = [];
  for (let i = Math.ceil(bottom / interval); i * interval <= top && values.length < 12; i++) values.push(i * interval);
  const decimals = Math.max(-Math.floor(Math.log10(interval) + 1e-9), 0);
  const size = Math.max(Math.abs(bottom), Math.abs(top));
  // Plain numbers have as many decimals as the others, so that 0.0, 0.5 and 1.0 are of one style too.
  const texts = size < 1e5 && decimals <= 4 ? values.map((value) => value.toFixed(decimals).replace("-", "−")) : oneStyle(values);
  return values.map((value, i) => [value, texts[i]]);
}

/**
 * Draw series, each { color, steps, ends, least, greatest }, into `area`, { left, top, width, height, from, to }. A band joins least
 * and greatest where a piece has several steps, with a line at their `mean` if the series has it. The values of `smooth` are drawn over
 * a paler curve. NaN is marked at the bottom and infinity at the top, with the colours and the textures of the map. `usual` is the usual
 * range of the statistic, see Loaded.usual().
 */
export function drawCurve(pen, series, axis, area, usual = null) {
  const { left, top, width, height } = area;
  const yOf = (value) => top + height * (1 - axis.y(value));
  if (usual) drawBand(pen, usual, area, (value) => (axis.isLog && value <= 0 ? top + height : yOf(value)));
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const [value, text] of curveTicks(axis, TICKS)) {
    const y = Math.round(yOf(value)) + 0.5;
    pen.strokeStyle = color("line");
    pen.beginPath();
    pen.moveTo(left, y);
    pen.lineTo(left + width, y);
    pen.stroke();
    pen.fillStyle = color("soft");
    pen.fillText(text, left - 5, clamp(y, top + 5, top + height - 4));
  }
  pen.textAlign = "left";
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  const xOf = (each) => (i) => placeOf((each.steps[i] + each.ends[i]) / 2, area);
  for (const each of series) drawSeries(pen, each, xOf(each), yOf);
  for (const each of series) markNonfinite(pen, each, area);
  pen.restore();
  pen.strokeStyle = color("line");
  pen.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
  // Draw points over the frame: half of one at the first or the last step would be hidden by it.
  for (const each of series) drawPoints(pen, each, xOf(each), yOf, area);
}

/**
 * Draw second curves, dashed, on the axis of drawCurve() or on one of their own, whose numbers then stand at the right inside of the
 * area.
 */
export function drawSecond(pen, series, axis, area, hasOwnAxis) {
  const { left, top, width, height } = area;
  const yOf = (value) => top + height * (1 - axis.y(value));
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  pen.setLineDash([5, 3]);
  const xOf = (each) => (i) => placeOf((each.steps[i] + each.ends[i]) / 2, area);
  for (const each of series) drawSeries(pen, each, xOf(each), yOf);
  pen.setLineDash([]);
  for (const each of series) drawPoints(pen, each, xOf(each), yOf, area);
  for (const each of series) markNonfinite(pen, each, area);
  pen.restore();
  if (!hasOwnAxis) return;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  for (const [value, text] of curveTicks(axis, TICKS - 1)) {
    const y = clamp(yOf(value), top + 7, top + height - 6);
    pen.strokeStyle = color("page");
    pen.strokeText(text, left + width - 5, y);
    pen.fillStyle = inkOf(series[0].color);
    pen.fillText(text, left + width - 5, y);
  }
  pen.lineWidth = 1;
  pen.textAlign = "left";
}

const inkOf = (number) => color(INKS[number % INKS.length]);

function drawSeries(pen, { color: name, steps, least, greatest, mean, smooth }, x, yOf) {
  pen.strokeStyle = pen.fillStyle = inkOf(name);
  const strength = smooth ? PALE : 1;
  for (let i = 0; i < steps.length; ) {
    if (!Number.isFinite(least[i]) || !Number.isFinite(greatest[i])) {
      i++;
      continue;
    }
    let end = i + 1;
    while (end < steps.length && Number.isFinite(least[end]) && Number.isFinite(greatest[end])) end++;
    const path = (values) => {
      for (let j = i; j < end; j++) pen[j === i ? "moveTo" : "lineTo"](x(j), yOf(values[j]));
    };
    pen.globalAlpha = strength;
    pen.beginPath();
    path(greatest);
    for (let j = end - 1; j >= i; j--) pen.lineTo(x(j), yOf(least[j]));
    pen.globalAlpha = 0.25 * strength;
    pen.fill();
    // The bounds of pieces with a mean are finer than the line of the mean.
    for (const [values, share, thick] of mean ? [[greatest, BOUND, 0.75], [least, BOUND, 0.75], [mean, 1, 1.5]] : [[greatest, 1, 1.5], [least, 1, 1.5]]) {
      pen.globalAlpha = share * strength;
      pen.lineWidth = thick;
      pen.beginPath();
      path(values);
      pen.stroke();
    }
    pen.globalAlpha = 1;
    if (smooth) {
      pen.lineWidth = 2.25;
      pen.beginPath();
      path(smooth);
      pen.stroke();
    }
    i = end;
  }
  pen.lineWidth = 1;
}

/** Draw the pieces without a neighbour to which a line could be drawn. */
function drawPoints(pen, { color: name, steps, least, greatest }, xOf, yOf, { left, width }) {
  const isFinite = (i) => Number.isFinite(least[i]) && Number.isFinite(greatest[i]);
  pen.fillStyle = inkOf(name);
  for (let i = 0; i < steps.length; i++) {
    const x = xOf(i);
    if (!isFinite(i) || isFinite(i - 1) || isFinite(i + 1) || x < left || x > left + width) continue;
    pen.fillRect(x - 2, yOf(greatest[i]) - 2, 4, 4 + yOf(least[i]) - yOf(greatest[i]));
  }
}

const PALE = 0.4; // the strength of a curve behind its smoothed one
const BOUND = 0.55; // the strength of the least and the greatest value of pieces

const MARKED = 8; // pixels of the mark of values that are not finite

function markNonfinite(pen, { steps, ends, least, greatest, nan }, area) {
  const textures = {};
  const hasNan = new Set(nan ?? []);
  for (let i = 0; i < steps.length; i++) {
    const isInfinite = [least[i], greatest[i]].some((value) => Math.abs(value) === Infinity);
    const isNan = Number.isNaN(least[i]) || hasNan.has(i);
    if (!isNan && !isInfinite) continue;
    // Draw up to the next piece, so that the marks of neighbouring pieces touch.
    const next = i + 1 < steps.length ? steps[i + 1] : ends[i] + 1;
    const from = Math.floor(placeOf(steps[i] - 0.5, area));
    const width = Math.max(Math.ceil(placeOf(next - 0.5, area)) - from, 2);
    const name = isNan ? "nan" : "infinite";
    pen.fillStyle = textures[name] ??= texture(pen, name);
    pen.fillRect(from, isNan ? area.top + area.height - MARKED : area.top, width, MARKED);
  }
}

export const STEP_AXIS = 16; // pixels below a curve that has an axis of steps

/** Draw the numbers of the steps below a curve. */
export function drawSteps(pen, area) {
  const { left, top, width, height, from, to } = area;
  const least = ((to - from) / width) * 80;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  const interval = Math.max([1, 2, 5, 10].map((n) => n * power).find((n) => n >= least) ?? 10 * power, 1);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "center";
  pen.fillStyle = color("soft");
  for (let step = Math.ceil(from / interval) * interval; step < to; step += interval) {
    const text = step.toLocaleString("en-US");
    pen.fillText(text, clamp(placeOf(step, area), left + 3 * text.length, left + width - 3 * text.length), top + height + STEP_AXIS / 2 + 1);
  }
  pen.textAlign = "right";
  pen.fillText("step", left - 9, top + height + STEP_AXIS / 2 + 1);
  pen.textAlign = "left";
}
