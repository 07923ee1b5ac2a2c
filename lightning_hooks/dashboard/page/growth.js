// The growth of a flight record: the largest magnitude of its row over the last steps, up to the largest number of the dtype.

import { short } from "./colors.js";
import { STEP_AXIS, curveAxis, drawCurve, drawSteps, hasCurve, pieceText, placeOf, stepAt } from "./curve.js";
import { clamp, color, h, penOf } from "./dom.js";
import { brokenKeys } from "./legend.js";
import { drawDisc, tensorText } from "./marks.js";
import { countWhile } from "./steps.js";

const [LABELS, TALL] = [58, 124]; // pixels of the labels beside the curve, and of the curve
const IN_SIGHT = 1e6; // the largest number of the dtype is drawn if it is at most this many times the largest value

/** Whether a record has a growth that is a curve: at least two finite values. */
export const hasGrowth = ({ growth }) => Boolean(growth) && hasCurve([{ least: growth.abs_max }]);

/** The curve of a record that has a growth, as a figure. Its keys are those of a slider over the steps. */
export function growthFigure({ growth, step, severity }, height = TALL) {
  const { name, tensor, steps, abs_max: values, dtype, largest } = growth;
  const series = { color: 0, steps, ends: steps, least: values, greatest: values };
  const highest = Math.max(...values.filter(Number.isFinite), 0);
  const range = { from: Math.min(steps[0], step), to: Math.max(steps.at(-1), step) + 1 };
  const isNear = largest && highest && largest / highest <= IN_SIGHT;
  const bound = isNear ? [{ steps: [range.from], ends: [range.to], least: [largest], greatest: [largest] }] : [];
  const axis = curveAxis([series, ...bound], "1", range);
  const canvas = h("canvas", { "aria-hidden": "true" });
  const line = h("div", { class: "crosshair", hidden: true });
  const what = `largest magnitude of ${tensorText(tensor, name)}`;
  const holder = h("div", { class: "curve-holder", role: "slider", tabindex: "0", "aria-label": `${what} over the last steps`, "aria-valuemin": range.from, "aria-valuemax": range.to - 1 }, canvas, line);
  const readout = h("span", { class: "curve-value" });
  const factor = isNear ? `${short(largest / highest)} times the largest finite value` : "far above all these values";
  const headroom = largest && highest ? h("p", { class: "soft" }, `The largest ${dtype}, ${short(largest)}, is ${factor}.`) : null;
  const figure = h("figure", { class: "finding-curve growth" }, h("figcaption", {}, what), holder, readout, h("p", { class: "keys" }, ...brokenKeys([series])), headroom);
  const area = () => ({ left: LABELS, width: Math.max(holder.clientWidth - LABELS - 8, 40), top: 12, height: height - 14 - STEP_AXIS, ...range });
  let [drawnWidth, at] = [0, null];
  const follow = (where) => {
    at = where;
    line.hidden = at === null;
    Object.assign(line.style, { left: `${placeOf(at ?? 0, area())}px`, height: `${height - STEP_AXIS}px` });
    readout.textContent = `${at === null ? "At the end, " : ""}${pieceText(series, at ?? steps.at(-1))}`;
    holder.setAttribute("aria-valuenow", at ?? steps.at(-1));
    holder.setAttribute("aria-valuetext", readout.textContent);
  };
  const draw = () => {
    if (!holder.clientWidth || holder.clientWidth === drawnWidth) return;
    drawnWidth = holder.clientWidth;
    const pen = penOf(canvas, drawnWidth, height);
    drawCurve(pen, [series], axis, area());
    if (isNear) drawBound(pen, axis, area(), `largest ${dtype}`, largest);
    drawSteps(pen, area());
    drawStep(pen, placeOf(step, area()), area(), color(severity));
    follow(at);
  };
  holder.addEventListener("pointermove", (event) => {
    const where = Math.floor(stepAt(event.clientX - holder.getBoundingClientRect().left, area()));
    follow(where >= range.from && where < range.to ? where : null);
  });
  for (const leaving of ["pointerleave", "blur"]) holder.addEventListener(leaving, () => follow(null));
  holder.addEventListener("keydown", (event) => {
    const current = countWhile(steps, (each) => each < (at ?? range.to));
    const next = { ArrowLeft: current - 1, ArrowRight: current + (at === null ? 0 : 1), Home: 0, End: steps.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    follow(steps[clamp(next, 0, steps.length - 1)]);
  });
  new ResizeObserver(draw).observe(holder);
  return figure;
}

/** A dashed line at the step of a record, and its mark. */
function drawStep(pen, x, { top, height }, ink) {
  pen.strokeStyle = pen.fillStyle = ink;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  pen.moveTo(x, top);
  pen.lineTo(x, top + height);
  pen.stroke();
  pen.setLineDash([]);
  drawDisc(pen, x, top - 6, 5);
}

/** A dashed line at the largest number of a dtype. */
function drawBound(pen, axis, { left, top, width, height }, text, value) {
  const y = Math.round(top + height * (1 - axis.y(value))) + 0.5;
  pen.strokeStyle = pen.fillStyle = color("alert");
  pen.setLineDash([6, 4]);
  pen.beginPath();
  pen.moveTo(left, y);
  pen.lineTo(left + width, y);
  pen.stroke();
  pen.setLineDash([]);
  pen.fillText(text, left + 5, y + 8);
}
