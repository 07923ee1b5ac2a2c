// A flight record on the page: its mark among those of findings, and the card that says what happened, where and from what.

import { short } from "./colors.js";
import { h } from "./dom.js";
import { growthFigure, hasGrowth } from "./growth.js";
import { signOf } from "./severity.js";

const INPUTS = 4; // tensors that a card lists

/** The step as it is written everywhere. */
const stepText = (step) => Number(step).toLocaleString("en-US");

/** The card of a record on the overview. `record` is the answer to `record` (see api.py). */
export function recordCard(app, record) {
  const figure = hasGrowth(record) ? growthFigure(record) : null;
  const text = h("div", { class: "finding-text" }, h("h3", {}, ...headOf(record), h("span", { class: "soft" }, `in step ${stepText(record.step)}`)), figure, h("p", {}, record.message), bodyOf(app, record));
  const card = h("article", { class: `finding ${record.severity}`, tabindex: "-1" }, text);
  card.record = record.name;
  return card;
}

/** What the card of a cause holds of the record that the cause quotes: all but the sentence, which the cause says too. */
export function recordParts(app, record, cause) {
  const when = Number(cause.step) === record.step ? null : h("span", { class: "soft" }, `in step ${stepText(record.step)}`);
  return h("div", { class: "of-record" }, h("h4", {}, ...headOf(record), when), bodyOf(app, record));
}

/** Whether a cause says what a record says: the record is the cause, or the cause quotes it. */
export function isQuoted(record, cause) {
  return cause.kind === "cause" && record.message !== "" && String(cause.message ?? "").includes(record.message);
}

const headOf = (record) => [h("span", { class: `badge as-is ${record.severity}` }, signOf("record"), "Flight record"), h("span", { class: "finding-name" }, record.title)];

function bodyOf(app, record) {
  const open = h("button", { class: "open-record", onclick: () => app.state.set({ view: "record", record: record.name }) }, "Show the calls before it");
  return h("div", {}, factsOf(record, INPUTS), open);
}

/** What is known of the place, the operation and its inputs, as a list of terms; the `inputs` first of them. */
export function factsOf(record, inputs = 0) {
  const { place, operation, failure } = record;
  const facts = [];
  const add = (term, ...parts) => facts.push(h("dt", {}, term), h("dd", {}, ...parts));
  if (place) add("Where", ...placeTexts(place));
  if (operation) add("Operation", h("code", {}, operation.name), operation.node ? `, backward of ${operation.node}` : "");
  if (operation?.source) add("Line", operation.source, operation.line.trim() ? h("code", { class: "source-line" }, operation.line.trim()) : "");
  if (failure) add("Ended with", `${failure.type}: ${failure.message}`, failure.module ? `, innermost module ${failure.module}` : "");
  if (inputs && record.inputs.length) {
    const more = record.inputs.length - inputs;
    add(inputsTitle(record), ...record.inputs.slice(0, inputs).map((each) => h("div", {}, inputText(each))), more > 0 ? `and ${more} more` : "");
  }
  if (record.reproduced !== null) add("Run again", record.reproduced ? "at once, in place: it gave the same" : "at once, in place: it gave finite numbers");
  add("Replay", record.replay ? h("code", { class: "command" }, record.replay) : "not possible: the batch was not kept");
  return h("dl", { class: "facts" }, ...facts);
}

/** What the tensors of a record are. */
export function inputsTitle({ verdict }) {
  return { batch: "The batch", weights: "Bad parameters" }[verdict] ?? "What it read";
}

function placeTexts({ module, module_text: text, type, tensor, direction, call, micro_batch: batch, rank, world_size: ranks, result, gap, found }) {
  const isLoss = tensor === "loss" && ["", "loss"].includes(gap?.at ?? text);
  const name = isLoss ? "the loss" : gap ? gap.at || "the model itself" : text;
  const passed = tensor ? (isLoss ? `, ${direction}` : `: ${tensor}, ${direction}`) : "";
  const where = `${gap ? "first noticed at " : ""}${name}${type && (!gap || gap.at === module) ? ` (${type})` : ""}${passed}`;
  const which = `${tensor ? `call ${call + 1}, ` : ""}batch ${batch + 1} of the step${ranks > 1 ? `, rank ${rank} of ${ranks}` : ""}`;
  const bad = result ? nonfiniteText(result) : found && `not finite in the ${found}`;
  return [`${where}; ${which}`, bad ? h("div", {}, bad) : ""];
}

/** How many elements of a tensor are no numbers, and where the first one is; empty if all are finite. */
export function nonfiniteText({ nan, positive_infinite: above, negative_infinite: below, shape, first }) {
  const counts = [[nan, "NaN"], [above, "+Inf"], [below, "−Inf"]].filter(([count]) => count).map(([count, name]) => `${count.toLocaleString("en-US")} ${name}`);
  if (!counts.length) return "";
  const size = shape.reduce((product, each) => product * each, 1);
  return `${counts.join(", ")} of ${size.toLocaleString("en-US")} elements${first ? `, the first at [${first.join(", ")}]` : ""}`;
}

function inputText(tensor) {
  const range = tensor.minimum === null ? "no finite element" : `${short(tensor.minimum)} to ${short(tensor.maximum)}`;
  const bad = nonfiniteText(tensor);
  return `${tensor.name} [${tensor.shape.join(", ")}] ${tensor.dtype}: ${range}${bad ? `; ${bad}` : ""}`;
}
