// The usual range of a statistic in a chart: a band, a line at the typical value, and what they are from.

import { short } from "./colors.js";
import { question } from "./disclosure.js";
import { clamp, color, h } from "./dom.js";

/** The axis of a chart reaches to the typical value, so that its line is in sight: the bounds of uPlot, widened. */
export function withTypical([low, high], usual, isLog) {
  const { typical } = usual;
  if (typical === null || (isLog && typical <= 0)) return [low, high];
  return [Math.min(low, isLog ? typical / 1.5 : typical), Math.max(high, isLog ? typical * 1.5 : typical)];
}

/** Draw the usual range below the curves of a chart of uPlot. */
export function drawUsual(chart, usual, isLog) {
  const { ctx: pen, bbox } = chart;
  const bottom = bbox.top + bbox.height;
  drawBand(pen, usual, bbox, (value) => (isLog && value <= 0 ? bottom : chart.valToPos(value, "y", true)), window.devicePixelRatio || 1);
}

/** Draw the usual range into `area`, { left, top, width, height }; yOf(value) is a height, and `ratio` the pixels of a CSS pixel. */
export function drawBand(pen, { low, high, typical }, { left, top, width, height }, yOf, ratio = 1) {
  const y = (value) => clamp(yOf(value), top, top + height);
  pen.save();
  pen.fillStyle = color("third");
  pen.globalAlpha = 0.14;
  pen.fillRect(left, y(high), width, y(low) - y(high));
  pen.globalAlpha = 1;
  if (typical !== null) {
    pen.strokeStyle = color("third");
    pen.lineWidth = 1.5 * ratio;
    pen.setLineDash([6 * ratio, 4 * ratio]);
    pen.beginPath();
    pen.moveTo(left, y(typical));
    pen.lineTo(left + width, y(typical));
    pen.stroke();
  }
  pen.restore();
}

// A bound as the cards of the overview write it: 0.0001, and not 1.00e-4.
const rangeText = (bound) => (bound >= 1e-6 && bound < 1e-3 ? String(Number(bound.toPrecision(3))) : short(bound));

/** The legend of a usual range. */
export function usualLegend({ low, high, typical, source }) {
  const line = typical === null ? [] : [h("i", { class: "usual-line" }), `often ${short(typical)}, `];
  const from = question("Where is the usual range from?", () => [h("p", { class: "source" }, `Where the usual range is from: ${source}.`)]);
  return h("p", { class: "fact usual" }, ...line, h("i", { class: "usual-band" }), `usual ${rangeText(low)} `, h("span", { class: "together" }, `to ${rangeText(high)} `, from));
}
