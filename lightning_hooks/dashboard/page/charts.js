// Line charts, drawn by uPlot: a value over steps, with a band from least to greatest if several steps share a pixel.

import uPlot from "./vendor/uPlot.esm.js";
import { short } from "./colors.js";
import { color, h, several } from "./dom.js";
import { drawChartMarks } from "./marks.js";
import { stepsText } from "./steps.js";
import { tickTexts } from "./ticks.js";
import { drawUsual, withTypical } from "./usual.js";

// The distances that ticks of the axis of steps may have. They are whole numbers, because steps are.
const WHOLE = Array.from({ length: 16 }, (_, i) => [1, 2, 5].map((n) => n * 10 ** i)).flat();
const PADDING = [8, 14, 0, 0]; // pixels above, to the right of, below and to the left of the axes and the plot
export const COLORS = ["accent", "alert", "third", "fourth"];

/** The legend of a chart with several lines; null if there is a single line. */
export function keysOf(labels) {
  if (labels.length < 2) return null;
  const key = (label, i) => h("span", {}, h("i", { style: `background: var(--${COLORS[i % COLORS.length]})` }), label);
  return h("p", { class: "keys" }, ...labels.map(key));
}

/**
 * A chart of one value over steps, with a line for each series: { label, color, steps, ends, least, greatest }. `text` formats a value,
 * onStep(step) is called for a click, `marks` are those of findings, see
 * marksOf() in marks.js, and `usual` is the usual range of the statistic, see Loaded.usual().
 */
export function lineChart(series, { height = 130, label = "", onStep = null, text = short, marks = [], usual = null } = {}) {
  const holder = h("div", { class: "chart", role: "img", "aria-label": describe(label, series, text) });
  const [x, ...columns] = align(series);
  const ends = new Map(series.flatMap((each) => Array.from(each.steps, (step, i) => [step, each.ends[i]])));
  const positive = columns.flat().filter((value) => value > 0);
  const all = columns.flat().filter((value) => value !== null && value !== undefined);
  const least = Math.min(...positive);
  // The axis shows the typical value too, so it counts in the choice between a linear and a logarithmic axis.
  if (usual?.typical > 0 && positive.length) positive.push(usual.typical);
  const isLog = positive.length > 0 && all.every((value) => value >= 0) && Math.max(...positive) / Math.min(...positive) > 100;
  const isZero = all.every((value) => value === 0);
  // A logarithmic axis has no zero. Draw zeros at half the least positive value, at the bottom.
  const shown = isLog ? columns.map((column) => column.map((value) => (value === 0 ? least / 2 : value))) : columns;
  const colors = series.map((each, i) => COLORS[(each.color ?? i) % COLORS.length]);
  const fitted = (chart, low, high) => (isLog ? uPlot.rangeLog(...withTypical([low, high], usual, true), 10, false) : uPlot.rangeNum(...withTypical([low, high], usual, false), 0.1, true));
  const yRange = isZero && !usual ? [0, 1] : usual && all.length ? fitted : null;
  const make = () => {
    const options = {
      width: Math.max(holder.clientWidth, 120),
      height,
      padding: PADDING,
      legend: { show: false },
      cursor: { y: false, points: { size: 5 } },
      scales: { x: { time: false }, y: { ...(isLog ? { distr: 3 } : {}), ...(yRange ? { range: yRange } : {}) } },
      axes: [axis({ size: 26, incrs: WHOLE }), axis({ size: room, space: 24, ...(isLog ? { splits: decades } : {}), values: (_, values) => tickTexts(values, text) })],
      series: [{}, ...colors.flatMap((name) => [line(name), line(name)])],
      bands: colors.map((name, i) => ({ series: [2 * i + 2, 2 * i + 1], fill: `${color(name)}44` })),
      hooks: { setCursor: [(chart) => tell(chart)], drawClear: usual ? [(chart) => drawUsual(chart, usual, isLog)] : [], draw: [(chart) => drawChartMarks(chart, marks)] },
    };
    const chart = new uPlot(options, [x, ...shown], holder);
    holder.append(value);
    if (onStep) chart.over.addEventListener("click", () => chart.cursor.idx !== null && onStep(x[chart.cursor.idx]));
    return chart;
  };
  const value = h("div", { class: "chart-value", "aria-hidden": "true" });
  const tell = (chart) => {
    const i = chart.cursor.idx;
    const parts = i === null || i === undefined ? [] : series.map((each, s) => range(columns[2 * s][i], columns[2 * s + 1][i], each.label, text));
    const found = parts.length ? marks.filter(({ step }) => x[i] <= step && step <= ends.get(x[i])).map((mark) => ` ▼ ${mark.text}`) : [];
    value.textContent = parts.length ? `${stepsText([x[i], ends.get(x[i])])}: ${parts.join("; ")}${found.join("")}` : "";
  };
  let [chart, width] = [null, 0];
  // A holder that is removed from the document gets the width 0. Destroy its chart then: the window holds a reference to each chart.
  new ResizeObserver(() => {
    if (holder.clientWidth === width) return;
    width = holder.clientWidth;
    chart?.destroy();
    chart = width ? make() : null;
  }).observe(holder);
  return holder;
}

/** About five powers of ten, or fewer, between two numbers. */
function decades(chart, axisIndex, low, high) {
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  const interval = Math.max(Math.ceil((last - first) / 4), 1);
  return Array.from({ length: Math.max(Math.floor((last - first) / interval) + 1, 0) }, (_, i) => 10 ** (first + i * interval));
}

/** The width of an axis that shows these labels in full. */
const room = (_, labels) => Math.max(36, 14 + 7 * Math.max(0, ...(labels ?? []).map((label) => label.length)));
const axis = (more) => ({ stroke: () => color("soft"), grid: { stroke: () => color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", ...more });
const line = (name) => ({ stroke: () => color(name), width: 1, points: { show: false, size: 5, fill: () => color(name), filter: (chart, i) => isolated(chart.data[i]) } });

/** The indices of values without a neighbour to which a line could be drawn. uPlot draws these values as points. */
function isolated(column) {
  const indices = [...column.keys()].filter((i) => column[i] !== undefined);
  const isGap = (i) => i === undefined || column[i] === null;
  return indices.filter((i, at) => !isGap(i) && isGap(indices[at - 1]) && isGap(indices[at + 1]));
}

/**
 * The series on a common x-axis, as uPlot expects them: [steps, greatest, least, greatest, least, …]. A value is null if it is not
 * finite, and the line has a gap there. A value is undefined at a step of other series only, and the line continues over it.
 */
function align(series) {
  const steps = [...new Set(series.flatMap((each) => Array.from(each.steps)))].sort((a, b) => a - b);
  const at = new Map(steps.map((step, i) => [step, i]));
  const columns = series.flatMap((each) =>
    [each.greatest, each.least].map((values) => {
      const column = new Array(steps.length).fill(undefined);
      Array.from(each.steps).forEach((step, i) => (column[at.get(step)] = Number.isFinite(values[i]) ? values[i] : null));
      return column;
    }),
  );
  return [steps, ...columns];
}

/** The last value of a series as text; a range if its last piece joins several steps. */
export function lastText({ least, greatest, nan, infinite }) {
  if (nan.at(-1)) return "NaN";
  return infinite.at(-1) ? "infinite" : range(greatest.at(-1), least.at(-1));
}

function range(greatest, least, label, text = short) {
  const formatted = !Number.isFinite(greatest) ? "–" : greatest === least ? text(least) : `${text(least)} to ${text(greatest)}`;
  return label ? `${label} ${formatted}` : formatted;
}

function describe(label, series, text) {
  const parts = series.map((each) => {
    const last = Array.from(each.greatest).findLast((value) => Number.isFinite(value));
    return `${each.label ? `${each.label}: ` : ""}${several(each.steps.length, "point")}, last ${text(last)}`;
  });
  return `${label}: ${parts.join("; ")}`;
}
