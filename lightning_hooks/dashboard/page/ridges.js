// Ridgelines: the histograms of a row at some steps, one behind another, the last step in front.

import { apart, axisOf, extentOf, sharesOf } from "./bins.js";
import { short, tableOf } from "./colors.js";
import { clamp, color, h, penOf, several } from "./dom.js";
import { histogramText } from "./sheet.js";
import { drawHistograms, shareLegend, shareMap } from "./sheetdraw.js";

const MOST_RIDGES = 24; // steps
const RIDGE_HEIGHT = 70; // pixels of the highest ridge
const RIDGE_GAP = 9; // pixels between the feet of two ridges
const AXIS_HEIGHT = 34; // pixels
const RIDGE_MARGIN = 14; // pixels at the left and the right
const MAP_TALL = 260; // pixels of the map of all steps

/** The histograms of a row: ridgelines with their legend, and the map of all steps. `map` is the name of the colour map. */
export function histogramPictures(histogram, name, map, { from, to }) {
  const axis = axisOf(extentOf([histogram]));
  const readout = h("output", { class: "readout bar-readout", "aria-live": "polite" }, "Point at a ridge, or choose one with the arrow keys, to read it here.");
  const tell = (t, line = null) => (readout.textContent = histogramText(histogram, axis, t, line));
  const { steps } = histogram;
  const few = several(steps.length, "step");
  const canvas = h("canvas", { class: "histogram", role: "img", "aria-label": `Histogram at ${few} from ${steps[0]} to ${steps.at(-1)}; ${histogramText(histogram, axis, steps.length - 1, null)}` });
  const holder = h("div", { class: "histogram-map" }, canvas);
  let find = null;
  onWidth(holder, (width) => (find = drawHistograms(canvas, { width, height: MAP_TALL, histogram, axis, map, from, to })));
  canvas.addEventListener("pointermove", (event) => {
    const hit = find?.(event.offsetX, event.offsetY);
    if (hit) tell(hit.t, hit.line);
  });
  return h(
    "div",
    {},
    readout,
    h("div", { class: "pictures" }, ridgelines(histogram, axis, name, map, tell), h("div", { class: "picture" }, holder, h("div", { class: "legend" }, ...shareLegend(map)))),
  );
}

function ridgelines(histogram, axis, name, map, tell) {
  const { steps } = histogram;
  const count = Math.min(steps.length, MOST_RIDGES);
  const chosen = [...new Set(Array.from({ length: count }, (_, i) => Math.round((i * (steps.length - 1)) / Math.max(count - 1, 1))))];
  const shares = chosen.map((t) => sharesOf(histogram, axis, t));
  const highest = Math.max(...shares.map((each) => Math.max(...each)), 1e-12);
  const label = `Ridgelines of ${name} at ${several(chosen.length, "step")}. The arrow keys choose a step.`;
  const canvas = h("canvas", { class: "ridges", tabindex: "0", role: "application", "aria-label": label });
  const holder = h("div", { class: "picture" }, canvas, ridgeLegend(steps[chosen[0]], steps[chosen.at(-1)], highest, map));
  let [selected, width] = [null, 0];
  const draw = () => width && drawRidges(canvas, width, { shares, axis, highest, selected, map });
  const select = (i) => {
    if (i === selected || chosen[i] === undefined) return;
    selected = i;
    tell(chosen[i]);
    draw();
  };
  onWidth(holder, (now) => {
    width = now;
    draw();
  });
  canvas.addEventListener("pointermove", (event) => select(clamp(Math.round((event.offsetY - RIDGE_HEIGHT) / RIDGE_GAP), 0, chosen.length - 1)));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!move) return;
    event.preventDefault();
    select(clamp((selected ?? -1) + move, 0, chosen.length - 1));
  });
  return holder;
}

function drawRidges(canvas, width, { shares, axis, highest, selected, map }) {
  const foot = (i) => RIDGE_HEIGHT + i * RIDGE_GAP;
  const bottom = foot(shares.length - 1);
  const pen = penOf(canvas, width, bottom + AXIS_HEIGHT);
  const plot = width - 2 * RIDGE_MARGIN;
  const x = (line) => RIDGE_MARGIN + (line / axis.lines) * plot;
  const table = tableOf(shareMap(map));
  drawTicks(pen, axis, x, bottom, width);
  shares.forEach((each, i) => {
    const shade = 3 * Math.round((i / Math.max(shares.length - 1, 1)) * 230);
    pen.beginPath();
    pen.moveTo(x(0), foot(i));
    each.forEach((share, line) => {
      const y = foot(i) - (share / highest) * (RIDGE_HEIGHT - 4);
      pen.lineTo(x(line), y);
      pen.lineTo(x(line + 1), y);
    });
    pen.lineTo(x(axis.lines), foot(i));
    pen.fillStyle = color("page");
    pen.globalAlpha = 0.8;
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = i === selected ? color("ink") : `rgb(${table[shade]}, ${table[shade + 1]}, ${table[shade + 2]})`;
    pen.lineWidth = i === selected ? 2.5 : 1.3;
    pen.stroke();
  });
}

function drawTicks(pen, axis, x, bottom, width) {
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.strokeStyle = color("line");
  pen.fillStyle = color("soft");
  pen.lineWidth = 1;
  const widthOf = (text) => pen.measureText(text).width + 6;
  const inside = (at) => clamp(x(at), 20, width - 20);
  for (const { at, text, center } of apart(axis.ticks, inside, widthOf)) {
    pen.beginPath();
    pen.moveTo(x(at), 2);
    pen.lineTo(x(at), bottom + 5);
    pen.stroke();
    pen.fillText(text, center, bottom + 12);
  }
  pen.fillText("value (powers of two on both sides of 0)", width / 2, bottom + 27);
}

function ridgeLegend(first, last, highest, map) {
  const bar = h("canvas", { width: "231", height: "12", class: "bar", role: "img", "aria-label": `Colours from step ${first} to step ${last}` });
  const context = bar.getContext("2d");
  const table = tableOf(shareMap(map));
  for (let i = 0; i < 231; i++) {
    context.fillStyle = `rgb(${table[3 * i]}, ${table[3 * i + 1]}, ${table[3 * i + 2]})`;
    context.fillRect(i, 0, 1, 12);
  }
  const ticks = [first, last].map((step) => h("span", {}, `step ${step.toLocaleString("en-US")}`));
  return h(
    "div",
    { class: "legend" },
    h("span", { class: "legend-title" }, "Share of the elements of a step"),
    h("span", { class: "bar-holder" }, bar, h("span", { class: "ticks" }, ...ticks)),
    h("span", {}, `highest ridge: ${short(Number((100 * highest).toPrecision(3)))} %`),
  );
}

/** Call `draw` with the width of an element, now and whenever it changes. */
function onWidth(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (!element.clientWidth || element.clientWidth === width) return;
    width = element.clientWidth;
    draw(width);
  }).observe(element);
}
