// The strip: a curve of the run, by default its loss, above the heat map and on the overview, with the steps of the map.

import { keysOf } from "./charts.js";
import { helpButton } from "./controls.js";
import { STEP_AXIS, curveAxis, drawCurve, drawSecond, drawSteps, pieceText, stepAt, placeOf } from "./curve.js";
import { CurveField } from "./curvefield.js";
import { clamp, h, onceAFrame, penOf } from "./dom.js";
import { brokenKeys } from "./legend.js";
import { marked } from "./marks.js";
import { severityOf, signOf, worstOf } from "./severity.js";
import { MOST_SMOOTHING, smoothed } from "./smoothing.js";
import { countWhile } from "./steps.js";

const POINTS = 1200; // the most pieces of a curve
const SIGNS = 16; // pixels of the sign of a finding
const NO_CURVE = "none"; // what the field of the second curve shows if there is none
const VALIDATION_LOSS = /(^|[^a-z])val.*loss|loss.*val/i;
const SECOND_INK = 2; // the colour of the second curve of a single run, see COLORS in charts.js

/**
 * The strip of a view: a toolbar, and one curve for each column of maps. `crosshair` is that of the view, and `onFinding(finding)` is
 * called if the sign of a finding is chosen. If `hasSteps`, the steps are written below the curve.
 */
export class Strip {
  constructor(app, crosshair, onFinding, hasSteps = false) {
    Object.assign(this, { app, crosshair, onFinding, hasSteps, series: [], seconds: [], plots: [] });
    const { state } = app;
    const say = (text) => app.say(text);
    this.field = new CurveField("Curve", { tags: () => this.tags, tag: () => this.tag, choose: (tag) => state.set({ curve: tag === this.tags[0] ? "" : tag, curve_log: "" }), say });
    this.second = new CurveField("and", { tags: () => [NO_CURVE, ...this.tags], tag: () => this.secondTag || NO_CURVE, choose: (tag) => this.chooseSecond(tag), say });
    this.second.input.setAttribute("aria-label", "Second scalar");
    this.smooth = h("input", { type: "range", min: "0", max: String(MOST_SMOOTHING), step: "1", "aria-label": "Smoothing", oninput: () => state.set({ smooth: this.smooth.value }) });
    this.log = h("input", { type: "checkbox", onchange: () => state.set({ curve_log: this.log.checked ? "1" : "0" }) });
    this.logLabel = h("label", { class: "check" }, this.log, "log scale");
    this.all = h("button", { onclick: () => state.set({ from: "", to: "" }) }, "all steps");
    this.keys = h("span", { class: "strip-keys" });
    this.readout = h("output", { class: "strip-readout" });
    const help = helpButton(app, () => this.tag.slice(Math.max(this.tag.lastIndexOf("run/"), 0)), "What does this curve mean?");
    const smoothing = h("label", { class: "strip-choice" }, "Smoothing", this.smooth);
    const tools = h("div", { class: "strip-tools" }, this.field.element, help, this.second.element, smoothing, this.logLabel, this.all);
    this.columns = h("div", { class: "strip-columns" });
    this.element = h("section", { class: "strip", "aria-label": "Curve over steps", hidden: true }, tools, h("div", { class: "strip-said" }, this.readout, this.keys), this.columns);
    crosshair.followers.add((step) => this.follow(step));
    this.redraw = onceAFrame(() => this.draw());
    new ResizeObserver(() => this.redraw()).observe(this.columns);
  }

  /** The tags that can be chosen. */
  get tags() {
    return this.app.meta?.strip ?? [];
  }

  /** The tag of the curve: the chosen one if the run has it, otherwise the default of the run. */
  get tag() {
    const { curve } = this.app.state;
    return this.tags.includes(curve) ? curve : (this.tags[0] ?? "");
  }

  /** The tag of the second curve: the chosen one if the run has it, otherwise its validation loss; empty if there is none. */
  get secondTag() {
    const { curve2 } = this.app.state;
    if (curve2 === "-") return "";
    return this.tags.includes(curve2) ? curve2 : this.defaultSecond;
  }

  get defaultSecond() {
    return this.tags.find((tag) => VALIDATION_LOSS.test(tag) && tag !== this.tag) ?? "";
  }

  chooseSecond(tag) {
    const chosen = tag === NO_CURVE ? "-" : tag;
    this.app.state.set({ curve2: chosen === (this.defaultSecond || "-") ? "" : chosen });
  }

  /** Request the curves of each run between two steps; without steps, all of them. Resolves to the series, which show() takes. */
  async request(range) {
    const { state, loaded, source } = this.app;
    const { tag, secondTag } = this;
    if (!tag) return [];
    const runs = [state.run, ...state.others];
    const versions = runs.map((run) => loaded.meta(run).version);
    const key = JSON.stringify([tag, secondTag, runs, versions, range?.from, range?.to]);
    if (key === this.requested) return this.series;
    const bounds = range ? { first: Math.max(Math.floor(range.from), 0), last: Math.max(Math.ceil(range.to), 0) } : {};
    const ask = async (run, number, which) => {
      if (!which || !loaded.meta(run).scalars.includes(which)) return null;
      const isSecond = which !== tag;
      const ofRun = runs.length > 1 ? run : "";
      const label = isSecond ? [ofRun, which].filter(Boolean).join(" ") : ofRun;
      return { label, color: isSecond && runs.length === 1 ? SECOND_INK : number, ...(await source.ask("scalar", { run, tag: which, points: POINTS, ...bounds })) };
    };
    const [series, seconds] = await Promise.all([tag, secondTag === tag ? "" : secondTag].map((which) => Promise.all(runs.map((run, number) => ask(run, number, which)))));
    return Object.assign(series.filter(Boolean), { key, seconds: seconds.filter(Boolean) });
  }

  /** Take the height of a curve, or none if the run has no curve, before the curve arrives. */
  makeRoom() {
    this.element.hidden = !this.tag;
    this.columns.style.minHeight = `${SIGNS + this.height}px`;
  }

  /** The height of a canvas in pixels. */
  get height() {
    return heightOf() + (this.hasSteps ? STEP_AXIS : 0);
  }

  /** Show series of `request` in one plot for each of the `areas`, functions that return { left, width, from, to } of a plot. */
  show(series, areas) {
    Object.assign(this, { series, seconds: series.seconds ?? [], requested: series.key });
    this.makeRoom();
    if (!this.tag) return;
    this.field.sync();
    this.second.sync();
    this.smooth.value = this.app.state.smooth;
    this.all.hidden = this.app.state.from === "" && this.app.state.to === "";
    this.keys.replaceChildren(keysOf([this.app.state.run, ...this.app.state.others]) ?? "", this.curveKeys());
    while (this.plots.length < areas.length) this.plots.push(new Plot(this));
    this.plots.length = areas.length;
    this.plots.forEach((plot, i) => (plot.areaOf = areas[i]));
    if (this.columns.childElementCount !== areas.length) this.columns.replaceChildren(...this.plots.map((plot) => plot.element));
    this.columns.style.gridTemplateColumns = `repeat(${areas.length}, minmax(0, 1fr))`;
    this.redraw();
    this.follow(null);
  }

  /** Draw in the next frame of the page, in which the address may name a run that is not loaded yet: then the update that loads it draws. */
  draw() {
    if (!this.app.meta || !this.element.isConnected || this.element.hidden || !this.plots.length) return;
    const { curve_log: log, smooth } = this.app.state;
    const area = this.plots[0].areaOf();
    // Two losses have one axis, so that they can be compared; a loss and a learning rate have one each.
    this.hasOwnAxis = !(/loss/i.test(this.tag) && /loss/i.test(this.secondTag));
    this.axis = curveAxis(this.hasOwnAxis ? this.series : [...this.series, ...this.seconds], log, area);
    this.secondAxis = this.hasOwnAxis ? curveAxis(this.seconds, "", area) : this.axis;
    for (const [all, axis] of [[this.series, this.axis], [this.seconds, this.secondAxis]]) for (const each of all) each.smooth = smoothed(each, Number(smooth), axis.isLog);
    this.log.checked = this.axis.isLog;
    this.logLabel.hidden = !this.axis.canBeLog;
    for (const plot of this.plots) plot.draw();
    this.follow(this.crosshair.step);
  }

  /** The keys of what the strip draws beside a single line: the second curve, and the pieces of several steps. */
  curveKeys() {
    const { series, seconds } = this;
    const isDashed = seconds.length && h("span", {}, h("i", { class: "dashed", style: seconds.length === 1 ? "color: var(--third)" : "" }), `${this.secondTag}${/loss/i.test(this.tag) && /loss/i.test(this.secondTag) ? "" : " (right axis)"}`);
    const most = Math.max(0, ...series.map(({ steps, ends }) => Math.max(0, ...steps.map((step, i) => ends[i] - step))));
    const isSeveral = most > 0 && series.some(({ mean }) => mean) && h("span", { class: "piece-keys" }, `each point joins up to ${most + 1} steps: `, h("i", { class: "fine" }), "max ", h("i", { class: "thick" }), "mean ", h("i", { class: "fine" }), "min");
    return h("p", { class: "keys" }, ...[isDashed, isSeveral, ...brokenKeys([...series, ...seconds])].filter(Boolean));
  }

  follow(step) {
    const at = step ?? (this.plots[0]?.areaOf().to ?? 1) - 1;
    this.readout.textContent = [...this.series, ...this.seconds].map((each) => pieceText(each, at)).filter(Boolean).join("; ") || "no value in these steps";
    for (const plot of this.plots) plot.follow(step);
  }
}

const heightOf = () => (window.innerHeight < 700 ? 58 : 84); // pixels of a curve

/** One plot of a strip. Its keys are those of a slider over the measured steps, and those of the map for zooming. */
class Plot {
  constructor(strip) {
    this.strip = strip;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.line = h("div", { class: "crosshair", hidden: true });
    this.signs = h("div", { class: "strip-signs" });
    this.pad = h("div", { class: "strip-pad", role: "slider", tabindex: "0", "aria-valuemin": "0" }, this.canvas, this.line);
    this.element = h("div", { class: "strip-plot" }, this.signs, this.pad);
    this.listen();
  }

  /** The area of the curve on the canvas. */
  area() {
    return { ...this.areaOf(), top: 2, height: heightOf() - 4 };
  }

  draw() {
    const { strip } = this;
    const width = Math.max(this.element.clientWidth, 80);
    const area = this.area();
    const pen = penOf(this.canvas, width, strip.height);
    drawCurve(pen, strip.series, strip.axis, area);
    if (strip.seconds.length) drawSecond(pen, strip.seconds, strip.secondAxis, area, strip.hasOwnAxis);
    if (strip.hasSteps) drawSteps(pen, area);
    this.showSigns(area);
    this.pad.setAttribute("aria-label", `${strip.tag} over steps`);
    this.pad.setAttribute("aria-valuemin", Math.floor(area.from));
    this.pad.setAttribute("aria-valuemax", Math.ceil(area.to));
    this.describe(strip.crosshair.step ?? null);
  }

  /** One sign for the findings of nearly the same step: that of a flight record if there is one, otherwise that of the worst. */
  showSigns(area) {
    const { app, onFinding } = this.strip;
    const found = marked(app.meta)
      .filter(({ kind, step }) => kind !== "cause" && Number.isFinite(Number(step ?? NaN)))
      .map((finding) => ({ finding, x: placeOf(Number(finding.step), area) }))
      .filter(({ x }) => x >= area.left && x <= area.left + area.width)
      .sort((one, other) => one.x - other.x);
    const places = [];
    for (const { finding, x } of found) {
      if (places.length && x - places.at(-1).x < SIGNS) places.at(-1).findings.push(finding);
      else places.push({ x, findings: [finding] });
    }
    const key = JSON.stringify([places, app.meta.version, area.left, area.width]);
    if (key === this.signed) return;
    this.signed = key;
    this.signs.replaceChildren(
      ...places.map(({ findings }) => {
        const record = findings.find((each) => each.kind === "record");
        const worst = record ?? worstOf(findings);
        const said = findings.map((each) => `${each.severity ?? ""} ${each.rule ?? each.verdict ?? ""}, since step ${each.step}`.trim()).join("; ");
        const style = `left: ${placeOf(Number(worst.step), area)}px`;
        return h("button", { class: "sign-button", style, "aria-label": said, title: said, onclick: () => onFinding(worst) }, signOf(record ? "record" : severityOf(worst)));
      }),
    );
  }

  follow(step) {
    const area = this.area();
    const x = step === null ? -1 : placeOf(step, area);
    this.line.hidden = !(x >= area.left && x <= area.left + area.width);
    this.line.style.left = `${x}px`;
    this.line.style.height = `${heightOf()}px`;
    this.describe(step);
  }

  describe(step) {
    this.pad.setAttribute("aria-valuenow", String(step ?? Math.floor(this.areaOf().from)));
    this.pad.setAttribute("aria-valuetext", this.strip.readout.textContent);
  }

  listen() {
    const { pad } = this;
    const { app, crosshair } = this.strip;
    const stepUnder = (event) => Math.floor(stepAt(event.clientX - pad.getBoundingClientRect().left, this.area()));
    const isInside = (step) => step >= this.areaOf().from && step < this.areaOf().to;
    let drag = null;
    pad.addEventListener("pointermove", (event) => {
      const step = stepUnder(event);
      if (!drag) return crosshair.move(isInside(step) ? step : null);
      if (Math.abs(event.clientX - drag.x) < 4 && !drag.moved) return;
      drag.moved = true;
      const { width } = this.area();
      const steps = ((event.clientX - drag.x) / width) * (drag.to - drag.from);
      app.zoomTo(drag.from - steps, drag.to - steps);
    });
    pad.addEventListener("pointerleave", () => drag || crosshair.move(null));
    pad.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { x: event.clientX, moved: false, ...this.areaOf() };
      pad.setPointerCapture(event.pointerId);
    });
    pad.addEventListener("pointerup", () => (drag = null));
    pad.addEventListener("pointercancel", () => (drag = null));
    pad.addEventListener("blur", () => crosshair.move(null));
    pad.addEventListener("dblclick", (event) => this.zoom(0.5, stepUnder(event)));
    pad.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.altKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, stepUnder(event));
      },
      { passive: false },
    );
    pad.addEventListener("keydown", (event) => this.keyPressed(event));
  }

  zoom(factor, around) {
    const { from, to } = this.areaOf();
    this.strip.app.zoomTo(around - (around - from) * factor, around + (to - around) * factor);
  }

  keyPressed(event) {
    const { app, crosshair, series } = this.strip;
    const { from, to } = this.areaOf();
    const steps = (series[0]?.steps ?? []).filter((step) => step >= from && step < to);
    const step = crosshair.step ?? (event.key === "ArrowLeft" ? to : from - 1);
    const at = (i) => crosshair.move(steps[clamp(i, 0, steps.length - 1)] ?? null);
    const page = Math.max(Math.floor(steps.length / 10), 1);
    switch (event.key) {
      case "ArrowLeft": if (event.shiftKey) app.zoomTo(from - (to - from) / 4, to - (to - from) / 4); else at(countWhile(steps, (each) => each < step) - 1); break;
      case "ArrowRight": if (event.shiftKey) app.zoomTo(from + (to - from) / 4, to + (to - from) / 4); else at(countWhile(steps, (each) => each <= step)); break;
      case "PageDown": at(countWhile(steps, (each) => each <= step) + page - 1); break;
      case "PageUp": at(countWhile(steps, (each) => each < step) - page); break;
      case "Home": at(0); break;
      case "End": at(steps.length - 1); break;
      case "+": case "=": this.zoom(0.5, crosshair.step ?? (from + to) / 2); break;
      case "-": this.zoom(2, crosshair.step ?? (from + to) / 2); break;
      case "0": app.zoomTo(-Infinity, Infinity); break;
      case "Enter": if (crosshair.step !== null && app.meta?.tensors.length) app.state.set({ view: "step", step: crosshair.step }); break;
      default: return;
    }
    event.preventDefault();
  }
}
