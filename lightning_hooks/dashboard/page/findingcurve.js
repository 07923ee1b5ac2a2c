// The curve beside the card of a finding: that of its row or of a global number, with a mark at the step of the finding.

import { STEP_AXIS, curveAxis, drawCurve, drawSteps, hasCurve, pieceText, placeOf } from "./curve.js";
import { color, h, penOf } from "./dom.js";
import { brokenKeys } from "./legend.js";
import { seriesOf } from "./series.js";
import { severityOf } from "./severity.js";
import { usualLegend } from "./usual.js";

const [LABELS_WIDTH, CURVE_HEIGHT] = [58, 124]; // pixels of the labels beside a curve, and of the curve

/** The curve that shows a finding, with a mark at its step. It is requested when it comes into sight. */
export function curveOf(finding, { app, crosshair, range, linkTo }) {
  const { curve, name } = finding;
  const what = curve.tag ?? `${curve.tensor} ${curve.stat} of ${curve.row}`;
  const canvas = h("canvas", {});
  const line = h("div", { class: "crosshair", hidden: true });
  const readout = h("span", { class: "curve-value" });
  const holder = h("div", { class: "curve-holder", role: "img", "aria-label": `${what}, with a mark at step ${finding.step}` }, canvas, line);
  const keys = h("p", { class: "keys" });
  const usual = (curve.tag ? app.loaded.usual("", curve.tag.slice(Math.max(curve.tag.lastIndexOf("run/"), 0))) : app.loaded.usual(curve.tensor, curve.stat)) ?? null;
  const figure = h("figure", { class: "finding-curve" }, h("figcaption", {}, name ? linkTo({ ...finding, ...curve, name: curve.row ?? name }, what) : what), holder, readout, keys);
  let [series, drawnWidth, why] = [null, 0, ""];
  const area = () => ({ left: LABELS_WIDTH, width: Math.max(holder.clientWidth - LABELS_WIDTH - 8, 40), top: 12, height: CURVE_HEIGHT - 14 - STEP_AXIS, ...range });
  const draw = () => {
    if (!series || !holder.clientWidth) return;
    drawnWidth = holder.clientWidth;
    const pen = penOf(canvas, drawnWidth, CURVE_HEIGHT);
    const axis = curveAxis([...series, ...typicalOf(usual, range)], "", range);
    holder.hidden = !series[0]?.steps.length;
    if (holder.hidden) readout.textContent = `not measured in these steps${why ? `: ${why}` : ""}`;
    else drawCurve(pen, series, axis, area(), usual);
    drawSteps(pen, area());
    drawMark(pen, Number(finding.step), area(), color(severityOf(finding)));
    follow(crosshair.step);
  };
  const follow = (step) => {
    if (!series?.[0]?.steps.length || holder.hidden) return;
    const at = step ?? Number(finding.step);
    const x = step === null ? -1 : placeOf(step, area());
    line.hidden = !(x >= LABELS_WIDTH && x <= LABELS_WIDTH + area().width);
    Object.assign(line.style, { left: `${x}px`, height: `${CURVE_HEIGHT - STEP_AXIS}px` });
    readout.textContent = `${step === null ? "At the mark, " : ""}${pieceText(series[0], at)}`;
  };
  canvas.addEventListener("pointermove", (event) => {
    const { left, width, from, to } = area();
    const step = Math.floor(from + ((event.offsetX - left) / width) * (to - from));
    crosshair.move(step >= from && step < to ? step : null);
  });
  canvas.addEventListener("pointerleave", () => crosshair.move(null));
  crosshair.followers.add(follow);
  new ResizeObserver(() => holder.clientWidth !== drawnWidth && draw()).observe(holder);
  const sight = new IntersectionObserver(async (entries) => {
    if (!entries.some((each) => each.isIntersecting)) return;
    sight.disconnect();
    try {
      series = await requested(app, finding, range);
      why = series[0]?.steps.length ? "" : await reasonOfAbsence(app, finding, range);
      // A single finite value is no curve, and the card says what it was.
      if (series[0]?.steps.length && !hasCurve(series)) return figure.remove();
      keys.replaceChildren(...brokenKeys(series));
      if (usual && series[0]?.steps.length) keys.after(usualLegend(usual));
    } catch (error) {
      // Show the error beside the curve only: the rest of the page does not depend on the curve.
      readout.textContent = error.message;
    }
    draw();
  });
  sight.observe(holder);
  return figure;
}

/** A point at the typical value of a usual range, so that the axis of a curve reaches to it. */
function typicalOf(usual, { from, to }) {
  return usual && usual.typical !== null ? [{ steps: [from], ends: [to], least: [usual.typical], greatest: [usual.typical] }] : [];
}

async function requested(app, { curve }, { from, to }) {
  const { source, state, loaded } = app;
  const { run } = state;
  if (curve.tag) return [{ color: 0, ...(await source.ask("scalar", { run, tag: curve.tag, points: 400, first: Math.max(Math.floor(from), 0), last: Math.max(Math.ceil(to), 0) })) }];
  const rows = await loaded.rows(run, curve.tensor, curve.stat);
  const node = rows?.rowByName.get(curve.row);
  if (node === undefined) return [];
  const series = await seriesOf(source, { run, tensor: curve.tensor, stat: curve.stat, rows, node, from: Math.max(from, 0), to: Math.max(to, 1), pieces: 400 });
  const nan = [...series.nan.keys()].filter((i) => series.nan[i]);
  // If no value of a cell is finite, its bounds are NaN. Replace them by infinity if `infinite` counts any.
  const values = (array) => array.map((value, i) => (series.infinite[i] && !Number.isFinite(value) ? Infinity : value));
  return [{ color: 0, ...series, least: values(series.least), greatest: values(series.greatest), nan }];
}

/** Why the curve of a finding has no value: for a parameter that an optimizer forgot this is what the finding says. */
async function reasonOfAbsence(app, { curve }, { from, to }) {
  if (curve.tag) return "";
  const { run } = app.state;
  const rows = await app.loaded.rows(run, curve.tensor, curve.stat);
  const node = rows?.rowByName.get(curve.row);
  return node === undefined ? "" : (await app.loaded.gaps(run, curve.tensor, curve.stat, rows)).reasonAt(node, from, to).text;
}

/** A dashed line at the step of a finding, with a triangle above it. */
function drawMark(pen, step, area, ink) {
  const x = Math.round(placeOf(step, area));
  if (!(x >= area.left && x <= area.left + area.width)) return;
  pen.strokeStyle = pen.fillStyle = ink;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  pen.moveTo(x + 0.5, area.top);
  pen.lineTo(x + 0.5, area.top + area.height);
  pen.stroke();
  pen.setLineDash([]);
  pen.beginPath();
  pen.moveTo(x + 0.5, area.top);
  pen.lineTo(x - 5, area.top - 9);
  pen.lineTo(x + 6, area.top - 9);
  pen.closePath();
  pen.fill();
}
