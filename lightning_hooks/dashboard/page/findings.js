// The findings of health rules as cards: what is wrong, what to try, the curve that shows it, and the evidence behind it.

import { STEP_AXIS, curveAxis, drawCurve, drawSteps, pieceText, placeOf } from "./curve.js";
import { disclosure, furtherNames, namesTitle, rowsInShort, withNames } from "./disclosure.js";
import { color, h, penOf, several } from "./dom.js";
import { growthFigure } from "./growth.js";
import { recordParts } from "./records.js";
import { seriesOf } from "./series.js";
import { badgeOf, severityOf, signOf, worstOf } from "./severity.js";

const SHOWN = 6; // findings of a cause, and evidence lines of a finding, that are listed at first
const LISTED = 20; // further rows of a finding that are named at first
const CONFIDENCE = {
  certain: "facts of the training say so, such as the parameters that an optimizer holds, or the operation that was recorded.",
  likely: "the measurements point to it: findings of several rules agree, or the finding hardly has another reason.",
  possible: "it explains the finding, and other reasons would too. What tells them apart stands under “What else it could be”.",
};
const [LABELS_WIDTH, CURVE_HEIGHT] = [58, 124]; // pixels of the labels beside a curve, and of the curve

/** The blocks of a run, the worst first: each a cause with the findings that it explains, or a single finding. */
export function blocksOf(findings) {
  const causes = findings.filter((each) => each.kind === "cause");
  const byNumber = new Map(findings.filter((each) => each.kind === "finding").map((each) => [each.number, each]));
  const explained = new Set(causes.flatMap((cause) => cause.numbers));
  const blocks = findings.filter((each) => !(each.kind === "finding" && explained.has(each.number))).map((main) => {
    const reasons = main.kind === "cause" ? main.numbers.map((number) => byNumber.get(number)).filter(Boolean) : [];
    return { main, reasons, isOver: reasons.length ? reasons.every(isOver) : isOver(main) };
  });
  const rank = ({ main, isOver: over }) => ["critical", "warning", "info"].indexOf(severityOf(main)) + (over ? 0.5 : 0);
  return blocks.sort((a, b) => rank(a) - rank(b));
}

/** The names of the rows of a finding; none if it is about the whole run, whose name is empty. */
const rowsOf = (finding) => (Array.isArray(finding.rows) ? finding.rows : []).filter(Boolean);
const isOver = (finding) => finding.over !== null && finding.over !== undefined;

/** One sentence on the findings of a run, with the sign of the worst. */
export function verdictOf(blocks) {
  const worse = blocks.filter(({ main }) => severityOf(main) !== "info");
  const worst = severityOf(worstOf(blocks.map(({ main }) => main)));
  const counts = ["critical", "warning", "info"].map((severity) => [severity, blocks.filter(({ main }) => severityOf(main) === severity).length]);
  const said = counts.filter(([, count]) => count).map(([severity, count]) => (severity === "info" ? several(count, "note") : `${count} ${severity}`));
  return h("p", { class: `verdict ${worse.length ? worst : "info"}` }, badgeOf(worst, worse.length ? "Not healthy" : "Notes"), `: ${said.join(", ")}${blocks.length > 1 ? ", the worst first" : ""}.`);
}

/**
 * The card of a block. `view` has the app, the crosshair, the range of steps { from, to } and linkTo(finding), which returns a link to a
 * row. If a flight record is the origin of the cause, the card holds the record too. Returns the element, with the numbers of its
 * findings in `numbers`.
 */
export function cardOf({ main, reasons }, view, record = null) {
  const severity = severityOf(main);
  const shown = main.curve ? main : reasons.find((each) => each.curve && each.name) ?? reasons.find((each) => each.curve);
  const isCause = main.kind === "cause";
  const title = h("h3", {}, badgeOf(severity), h("span", { class: "finding-name" }, main.rule ?? "Finding"), isCause ? confidenceOf(main) : null, sinceOf(main));
  const text = h(
    "div",
    { class: "finding-text" },
    title,
    h("p", {}, ...withNames(main.message ?? main.verdict ?? "", [main, ...reasons], coded)),
    record ? recordParts(view.app, record) : null,
    steps("What to do", main.next_steps ?? [main.next].filter(Boolean)),
    isCause ? more(reasons.map((each) => reasonOf(each, view)), "finding") : evidenceOf(main, view),
    main.alternatives?.length ? h("details", {}, h("summary", {}, "What else it could be"), list(main.alternatives)) : null,
  );
  const figure = record?.growth?.steps.length ? growthFigure(record) : shown ? curveOf(shown, view) : null;
  const card = h("article", { class: `finding ${severity}`, tabindex: "-1" }, text, figure);
  card.numbers = [main.number, ...reasons.map((each) => each.number)];
  card.record = record?.name;
  return card;
}

/** The word that says how sure a cause is, and what the word means. */
function confidenceOf({ confidence }) {
  const meaning = CONFIDENCE[confidence];
  return h("span", { class: "soft" }, ...(meaning ? disclosure(confidence, `: ${meaning}`, `${confidence}: ${meaning}`) : [confidence]));
}

/** A finding under its cause: one line, which unfolds to the evidence. */
function reasonOf(finding, view) {
  const said = finding.evidence?.[0]?.text ?? finding.message ?? "";
  const rows = Array.isArray(finding.rows) ? finding.rows : [];
  const where = rowsInShort(rows) && ` in ${rowsInShort(rows)}`;
  const title = rows.length > 1 ? namesTitle(rows) : null;
  const details = h("details", { class: "reason" });
  details.append(
    h("summary", {}, signOf(severityOf(finding)), h("span", { class: "visually-hidden" }, severityOf(finding)), h("strong", {}, finding.rule), h("span", { title }, where), `, since step ${asText(finding.step)}: ${said}${isOver(finding) ? ` (over since step ${asText(finding.over)})` : ""}`),
    h("div", {}, h("p", {}, ...withNames(finding.message ?? "", [finding], coded)), evidenceList(finding, view), steps("What to do", finding.next_steps ?? [])),
  );
  return details;
}

/** The evidence of a finding, folded. */
function evidenceOf(finding, view) {
  const [link, listed] = [finding.name ? h("p", {}, view.linkTo(finding)) : null, evidenceList(finding, view)];
  if (!finding.evidence?.length) return h("div", {}, finding.why ? h("p", { class: "soft" }, finding.why) : null, link);
  return h("div", {}, link, h("details", {}, h("summary", {}, `Evidence: ${several(finding.evidence.length, "measurement")}`), listed));
}

function evidenceList(finding, view) {
  const lines = (finding.evidence ?? []).map(({ row, step, text }) => h("li", {}, row ? view.linkTo({ ...finding, name: row, step }) : `step ${asText(step)}`, `: ${text}`));
  const unlisted = rowsOf(finding).filter((row) => !finding.evidence?.some((each) => each.row === row));
  return h(
    "div",
    {},
    lines.length ? more(lines, "measurement", "ul") : null,
    unlisted.length ? alsoOf(unlisted) : null,
    finding.source ? h("p", { class: "soft" }, `Where the threshold is from: ${finding.source}.`) : null,
  );
}

/** The rows of a finding of which no measurement is listed. */
function alsoOf(rows) {
  return h("p", { class: "soft" }, `Also ${rows.slice(0, LISTED).join(", ")}`, ...furtherNames(rows, LISTED), ".");
}

/** Some elements in a list, of which the later ones are folded. */
function more(elements, noun, tag = "div") {
  const [first, rest] = [elements.slice(0, SHOWN), elements.slice(SHOWN)];
  if (!rest.length) return h(tag, {}, ...first);
  return h("div", {}, h(tag, {}, ...first), h("details", {}, h("summary", {}, `and ${several(rest.length, noun)} more`.replace(/(s?) more$/, "$1 more")), h(tag, {}, ...rest)));
}

function steps(title, texts) {
  return texts.length ? h("div", { class: "next" }, h("strong", {}, title), list(texts)) : null;
}

const list = (texts) => h("ul", {}, ...texts.map((text) => h("li", {}, ...coded(text))));
const asText = (step) => Number(step).toLocaleString("en-US");

function sinceOf(finding) {
  if (!Number.isFinite(Number(finding.step ?? NaN))) return null;
  return h("span", { class: "soft" }, `since step ${asText(finding.step)}${isOver(finding) ? `, over since step ${asText(finding.over)}` : ""}`);
}

/** A text in which `code` between backticks is set as code. */
function coded(text) {
  return String(text).split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** The curve that shows a finding, with a mark at its step. It is requested when it comes into sight. */
function curveOf(finding, { app, crosshair, range, linkTo }) {
  const { curve, name } = finding;
  const what = curve.tag ?? `${curve.tensor} ${curve.stat} of ${curve.row}`;
  const canvas = h("canvas", {});
  const line = h("div", { class: "crosshair", hidden: true });
  const readout = h("span", { class: "curve-value" });
  const holder = h("div", { class: "curve-holder", role: "img", "aria-label": `${what}, with a mark at step ${finding.step}` }, canvas, line);
  const figure = h("figure", { class: "finding-curve" }, h("figcaption", {}, name ? linkTo({ ...finding, ...curve, name: curve.row ?? name }, what) : what), holder, readout);
  let [series, drawnWidth, why] = [null, 0, ""];
  const area = () => ({ left: LABELS_WIDTH, width: Math.max(holder.clientWidth - LABELS_WIDTH - 8, 40), top: 12, height: CURVE_HEIGHT - 14 - STEP_AXIS, ...range });
  const draw = () => {
    if (!series || !holder.clientWidth) return;
    drawnWidth = holder.clientWidth;
    const pen = penOf(canvas, drawnWidth, CURVE_HEIGHT);
    const axis = curveAxis(series, "", range);
    holder.hidden = axis.isEmpty;
    if (axis.isEmpty) readout.textContent = `not measured in these steps${why ? `: ${why}` : ""}`;
    else drawCurve(pen, series, axis, area());
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
    readout.textContent = pieceText(series[0], at);
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
    } catch (error) {
      // Show the error beside the curve only: the rest of the page does not depend on the curve.
      readout.textContent = error.message;
    }
    draw();
  });
  sight.observe(holder);
  return figure;
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
