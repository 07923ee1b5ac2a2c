// Why rows of a table were not measured, from the answer to `gaps` (see api.py).

import { furtherNames } from "./disclosure.js";
import { h, several } from "./dom.js";

const MOST_NAMES = 3; // the most parameters without an optimizer that a note names

export const GAP_TEXTS = {
  gap: "not measured",
  frozen: "frozen",
  forgotten: "in no optimizer",
  uncalled: "not called",
  schedule: "not due",
  failed: "no longer measured",
  fromZero: "no ratio: the parameter was 0",
};

export class Gaps {
  constructor(answer, rows) {
    this.rows = rows;
    this.reasons = answer.reasons;
    this.otherwise = answer.reasons[answer.otherwise];
    this.between = answer.reasons[answer.between];
    this.ended = answer.ended && { after: answer.ended.after, ...answer.reasons[answer.ended.reason] };
    this.entries = answer.rows;
    this.forgotten = answer.forgotten;
  }

  /** The kinds of reasons that rows of the table have, for a legend. */
  get kinds() {
    const kinds = new Set([this.otherwise.kind, this.ended?.kind]);
    for (const { reasons, schedules } of Object.values(this.entries)) for (const i of [...reasons.map(([, each]) => each), ...schedules]) kinds.add(this.reasons[i].kind);
    return Object.keys(GAP_TEXTS).filter((kind) => kinds.has(kind));
  }

  /** Why a node has no value in the steps from `from` to `to - 1`: { kind, text }. */
  reasonAt(node, from, to) {
    const { steps } = this.rows;
    if (!steps.meetsRange(from, to)) return this.ended && from > this.ended.after ? this.ended : this.between;
    const found = this.leavesOf(node).map((row) => this.reasonOfRow(row, from, to));
    return found.every((each) => each === found[0]) ? found[0] : { kind: "gap", text: "for several reasons" };
  }

  reasonOfRow(row, from, to) {
    const entry = this.entries[row];
    if (!entry) return this.otherwise;
    const current = entry.reasons.findLast(([since]) => since < to);
    if (current && this.reasons[current[1]].kind !== "gap") return this.reasons[current[1]];
    const planned = entry.schedules.map((i) => this.reasons[i]);
    return planned.length && !planned.some(({ schedule }) => isDue(schedule, from, to)) ? planned[0] : this.otherwise;
  }

  /** How the gaps of a node are drawn, over the steps of the run: [{ since, kind }], ascending. */
  stripesOf(node) {
    this.stripes ??= new Map();
    if (!this.stripes.has(node)) this.stripes.set(node, this.makeStripes(node));
    return this.stripes.get(node);
  }

  makeStripes(node) {
    const leaves = this.leavesOf(node);
    const kindAt = (row, step) => {
      const entry = this.entries[row];
      const current = entry?.reasons.findLast(([since]) => since <= step);
      const kind = current && this.reasons[current[1]].kind;
      return kind && kind !== "gap" ? kind : entry?.schedules.length ? "schedule" : this.otherwise.kind;
    };
    const starts = [...new Set([-Infinity, ...leaves.flatMap((row) => (this.entries[row]?.reasons ?? []).map(([since]) => since))])].sort((a, b) => a - b);
    const stripes = starts.map((since) => {
      const kinds = new Set(leaves.map((row) => kindAt(row, since)));
      return { since, kind: kinds.size === 1 ? [...kinds][0] : "gap" };
    });
    if (this.ended) stripes.push({ since: this.ended.after + 1, kind: "failed" });
    return stripes;
  }

  /** The rows of a node, as indices into the rows of the table. */
  leavesOf(node) {
    const { nodes, ends } = this.rows;
    const leaves = [];
    for (let i = node; i < ends[node]; i++) if (nodes[i].row !== null) leaves.push(nodes[i].row);
    return leaves;
  }
}

/** Whether a schedule has a step from `from` to `to - 1`. A step is due if (step + 1) is a multiple of `every`, as Lightning counts. */
function isDue({ every, first, last, steps }, from, to) {
  if (steps) return steps.some((step) => from <= step && step < to);
  const start = Math.max(from, first);
  const next = Math.ceil((start + 1) / every) * every - 1;
  return next < to && (last === null || next <= last);
}

/** A sentence that names the parameters that are in no optimizer; null if there are none. */
export function forgottenText(names, title) {
  if (!names.length) return null;
  const are = names.length === 1 ? "is in no optimizer and gets no update" : "are in no optimizer and get no update";
  return h("p", { class: "note" }, `${title ? `${title}: ` : ""}${several(names.length, "parameter")} ${are}: ${names.slice(0, MOST_NAMES).join(", ")}`, ...furtherNames(names, MOST_NAMES), ".");
}
