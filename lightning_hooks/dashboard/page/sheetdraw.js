// Draws the histograms of a row over steps as a map: x is the step, y the signed magnitude, the colour the share of the elements.

import { apart, sharesOf } from "./bins.js";
import { tableOf } from "./colors.js";
import { color, h, penOf } from "./dom.js";

export const LEAST_SHARE = 1e-5; // shares up to this one have the first colour
const PLOT_LEFT = 46; // pixels of the labels of the axis
const FOOT = 16; // pixels of the labels of the steps

/** The index of the colour of a share, from 0 to 255; the scale is logarithmic. */
export function shadeOf(share) {
  return Math.round(255 * Math.min(Math.max(1 - Math.log10(share) / Math.log10(LEAST_SHARE), 0), 1));
}

/** The colour map of shares. Viridis replaces the maps whose colours have no order from small to large. */
export const shareMap = (map) => (["viridis", "cividis"].includes(map) ? map : "viridis");

/**
 * Draw the map of a histogram on a canvas of a size in pixels. Returns the function that finds what is at a place in the canvas:
 * { t, line }, the index of the step and the line of the axis; null outside the plot.
 */
export function drawHistograms(canvas, { width, height, histogram, axis, map, from, to, marked = null }) {
  const pen = penOf(canvas, width, height);
  const { steps } = histogram;
  const [plot, tall] = [width - PLOT_LEFT - 4, height - FOOT - 4];
  const image = pixels(histogram, axis, shareMap(map));
  // Each histogram reaches from its step to the next one, and the last one as far as the one before.
  const ends = steps.map((step, t) => steps[t + 1] ?? step + (t ? step - steps[t - 1] : Math.max(to - step, 1)));
  const x = (step) => PLOT_LEFT + ((Math.min(step, to) - from) / Math.max(to - from, 1)) * plot;
  pen.imageSmoothingEnabled = false;
  steps.forEach((step, t) => pen.drawImage(image, t, 0, 1, axis.lines, x(step), 2, Math.max(x(ends[t]) - x(step), 1), tall));
  const y = (line) => 2 + (1 - line / axis.lines) * tall;
  pen.strokeStyle = color("line");
  pen.strokeRect(PLOT_LEFT - 0.5, 1.5, plot + 1, tall + 1);
  pen.fillStyle = color("soft");
  pen.font = "10px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const middle = (at) => Math.min(Math.max(y(at), 6), tall - 2);
  for (const { center, text } of apart(axis.ticks, middle, () => 11)) pen.fillText(text, PLOT_LEFT - 4, center);
  pen.textAlign = "left";
  pen.fillText(from.toLocaleString("en-US"), PLOT_LEFT, height - FOOT / 2);
  pen.textAlign = "right";
  pen.fillText(`step ${(to - 1).toLocaleString("en-US")}`, PLOT_LEFT + plot, height - FOOT / 2);
  if (marked !== null && steps[marked] !== undefined) {
    pen.strokeStyle = color("ink");
    pen.lineWidth = 2;
    pen.strokeRect(x(steps[marked]) - 1, 2, Math.max(x(ends[marked]) - x(steps[marked]), 2) + 2, tall);
  }
  return (left, top) => {
    const step = from + ((left - PLOT_LEFT) / plot) * (to - from);
    const t = steps.findIndex((each, i) => each <= step && step < ends[i]);
    const line = Math.floor((1 - (top - 2) / tall) * axis.lines);
    return t < 0 || line < 0 || line >= axis.lines ? null : { t, line };
  };
}

/** The map as an image: a column for each step, a line for each line of the axis, the greatest numbers on top. */
function pixels(histogram, axis, map) {
  const columns = histogram.steps.length;
  const image = h("canvas", { width: Math.max(columns, 1), height: axis.lines });
  const context = image.getContext("2d");
  const data = context.createImageData(Math.max(columns, 1), axis.lines);
  const table = tableOf(map);
  for (let t = 0; t < columns; t++) {
    sharesOf(histogram, axis, t).forEach((share, line) => {
      if (!share) return;
      const shade = 3 * shadeOf(share);
      data.data.set([table[shade], table[shade + 1], table[shade + 2], 255], 4 * ((axis.lines - 1 - line) * columns + t));
    });
  }
  context.putImageData(data, 0, 0);
  return image;
}

/** The legend of the maps: the colours of shares, and what has no colour. */
export function shareLegend(map) {
  const bar = h("canvas", { width: "256", height: "12", class: "bar", role: "img", "aria-label": `Colours of shares from ${LEAST_SHARE} to 1` });
  const context = bar.getContext("2d");
  const table = tableOf(shareMap(map));
  for (let x = 0; x < 256; x++) {
    context.fillStyle = `rgb(${table[3 * x]}, ${table[3 * x + 1]}, ${table[3 * x + 2]})`;
    context.fillRect(x, 0, 1, 12);
  }
  const ticks = ["≤ 0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"].map((text) => h("span", {}, text));
  return [
    h("span", { class: "legend-title" }, "Share of the elements of a step (log)"),
    h("span", { class: "bar-holder" }, bar, h("span", { class: "ticks" }, ...ticks)),
    h("span", {}, h("i", { class: "blank" }), " no element"),
  ];
}
