// The marks of findings: which rows of a map and which curves a finding concerns, whatever tensor they show.

import { color } from "./dom.js";

const OF_PARAMETERS = /(^|\/)(param|grad|final_grad|update|state\.[^/]*)$/; // the tensors whose rows are parameters

const moduleOf = (name) => name.slice(0, Math.max(name.lastIndexOf("."), 0));
const textOf = (finding) => finding.verdict ?? finding.rule ?? "finding";

/** What is marked of a run: its findings, and its flight records, which look like findings on the row that made the first bad number. */
export function marked({ findings, records }) {
  const text = ({ title, message }) => `Flight record, ${title}: ${message}`;
  const ofRecord = (each) => ({ kind: "record", record: each.name, severity: each.severity, rule: "Flight record", verdict: text(each), step: each.step, rows: [each.module], name: each.module, tensor: each.tensor });
  return [...(findings ?? []), ...(records ?? []).map(ofRecord)];
}

/** What the page calls a tensor of a flight record. The loss is a row that belongs to no module. */
export const tensorText = (tensor, name) => (tensor === name ? `the ${name}` : `${tensor} of ${name || "the model"}`);

/** The sign of a mark in texts. */
export const glyphOf = ({ record, isNote }) => (record ? "●" : isNote ? "▽" : "▼");

/** The names of the rows of a finding; an empty name stands for the whole run. */
function namesOf(finding) {
  const names = Array.isArray(finding.rows) ? finding.rows : [finding.name];
  return names.filter((name) => typeof name === "string");
}

/**
 * The marks of findings on the curves of a row: [{ step, text }]. A finding on a module concerns the parameters of the module, and a
 * finding on a parameter concerns its module. `tensor` is the tensor of the row.
 */
export function marksOf(findings, name, tensor) {
  const showsParameters = OF_PARAMETERS.test(tensor);
  return dated(findings).flatMap(({ finding, step }) => {
    const isConcerned = namesOf(finding).some((each) => each !== "" && (each === name || (showsParameters ? holds(finding, each) === moduleOf(name) : heldBy(finding, each) === name)));
    return isConcerned ? [markOf(finding, { step })] : [];
  });
}

/**
 * The marks of findings on the map of a tensor: [{ node, step, text }]. If the map has neither the row of a finding nor its module or
 * its parameters, the innermost group around the row is marked. The node is null if the finding concerns the whole run.
 */
export function marksOn(findings, rows, tensor) {
  const { nodeOf, groupOf, nodesOfModule } = indexOf(rows);
  const showsParameters = OF_PARAMETERS.test(tensor);
  const nodesFor = (finding, name) => {
    if (name === "") return [null];
    if (nodeOf.has(name)) return [nodeOf.get(name)];
    const related = showsParameters ? nodesOfModule.get(holds(finding, name)) : [nodeOf.get(heldBy(finding, name))].filter((node) => node !== undefined);
    if (related?.length) return related;
    for (let part = name; part; part = moduleOf(part)) if (groupOf.has(part)) return [groupOf.get(part)];
    return [];
  };
  return dated(findings).flatMap(({ finding, step }) => {
    const nodes = new Set(namesOf(finding).flatMap((name) => nodesFor(finding, name)));
    return [...nodes].map((node) => markOf(finding, { node, step }));
  });
}

const markOf = (finding, where) => ({ ...where, text: textOf(finding), ...(finding.record ? { record: finding.record } : {}), ...(finding.severity === "info" ? { isNote: true } : {}) });

/** The module that a finding names; null if it names a parameter. */
const holds = (finding, name) => (finding.tensor && OF_PARAMETERS.test(finding.tensor) ? null : name);

/** The module of the parameter that a finding names; null if it names a module. A finding without a tensor may name either. */
const heldBy = (finding, name) => (!finding.tensor || OF_PARAMETERS.test(finding.tensor) ? moduleOf(name) || null : null);

function dated(findings) {
  return (findings ?? []).map((finding) => ({ finding, step: Number(finding.step ?? NaN) })).filter(({ step }) => Number.isFinite(step));
}

/** The nodes of a table by the names of rows, of groups, and of the modules that hold the rows. Computed once for each table. */
function indexOf(rows) {
  if (rows.markIndex) return rows.markIndex;
  const [groupOf, nodesOfModule] = [new Map(), new Map()];
  rows.nodes.forEach((node, i) => {
    if (node.row === null) return groupOf.set(node.name, i);
    const module = moduleOf(node.name);
    nodesOfModule.has(module) ? nodesOfModule.get(module).push(i) : nodesOfModule.set(module, [i]);
  });
  return (rows.markIndex = { nodeOf: rows.rowByName, groupOf, nodesOfModule });
}

/** Draw marks on a chart of uPlot: a triangle, hollow for a note, above the curve, a disc for a flight record, and a thin line at the step. */
export function drawChartMarks(chart, marks) {
  const { ctx: pen, bbox } = chart;
  const ratio = window.devicePixelRatio || 1;
  pen.save();
  pen.fillStyle = pen.strokeStyle = color("alert");
  pen.lineWidth = ratio;
  pen.setLineDash([3 * ratio, 3 * ratio]);
  for (const mark of marks) {
    const { step, record } = mark;
    const x = chart.valToPos(step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    pen.beginPath();
    pen.moveTo(x, bbox.top);
    pen.lineTo(x, bbox.top + bbox.height);
    pen.stroke();
    record ? drawDisc(pen, x, bbox.top + 5 * ratio, 5 * ratio) : drawTriangle(pen, x, bbox.top, 5 * ratio, mark);
  }
  pen.restore();
}

/** Draw a triangle that points down, hollow if its mark is a note; `y` is its upper edge, and `size` half of its width. */
export function drawTriangle(pen, x, y, size, { isNote = false } = {}) {
  pen.save();
  if (isNote) [pen.fillStyle, pen.strokeStyle] = [color("page"), color("alert")];
  if (isNote) pen.setLineDash([]);
  pen.beginPath();
  pen.moveTo(x, y + 2 * size);
  pen.lineTo(x - size, y);
  pen.lineTo(x + size, y);
  pen.closePath();
  pen.fill();
  if (isNote) pen.stroke();
  pen.restore();
}

/** Fill a disc, the mark of a flight record. */
export function drawDisc(pen, x, y, size) {
  pen.beginPath();
  pen.arc(x, y, size, 0, 2 * Math.PI);
  pen.fill();
}
