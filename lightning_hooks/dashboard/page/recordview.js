// The view of a flight record: what happened, the calls before it, how its row grew, what was read, and what is known of the training.

import { short } from "./colors.js";
import { h, several, table } from "./dom.js";
import { growthFigure, hasGrowth } from "./growth.js";
import { tensorText } from "./marks.js";
import { factsOf, inputsTitle, nonfiniteText } from "./records.js";
import { badgeOf } from "./severity.js";
import { Trail } from "./trail.js";

const TRAIL = "Each bar is one call of a module, or one tensor of a parameter, from the earliest to the last. A click, or Enter, shows its row.";
const GROWTH = 190; // pixels, the height of the curve

export class RecordView {
  constructor(app) {
    this.app = app;
    this.usesTable = false;
    this.element = h("div", { class: "view record-view" });
  }

  /** Whether the shown run has a record. */
  get isOffered() {
    return Boolean(this.app.meta?.records?.length);
  }

  async update(isCurrent) {
    const { app } = this;
    const { state, meta } = app;
    const { name } = meta.records.find((each) => each.name === state.record) ?? meta.records[0];
    const key = JSON.stringify([state.run, meta.version, name]);
    if (key === this.shown) return;
    const record = await app.source.ask("record", { run: state.run, record: name });
    if (!isCurrent()) return;
    this.shown = key;
    this.element.replaceChildren(...this.parts(record).filter(Boolean));
  }

  parts(record) {
    const { trail, inputs, context, notes, failure } = record;
    const titled = (title, ...children) => h("section", {}, h("h2", {}, title), ...children);
    return [
      this.others(record),
      h("h2", {}, `Flight record of step ${record.step.toLocaleString("en-US")}`),
      h("p", { class: `verdict ${record.severity}` }, badgeOf(record.severity, record.title), ": ", record.message),
      factsOf(record),
      trail.length ? titled(`The last ${several(trail.length, "call")} in order of execution`, h("p", { class: "soft" }, TRAIL), new Trail(record, (entry) => this.open(entry)).element) : null,
      hasGrowth(record) ? titled("How it grew", growthFigure(record, GROWTH)) : null,
      inputs.length ? titled(inputsTitle(record), table(["tensor", "shape", "dtype", "least", "greatest", "least magnitude", "headroom", "not finite"], inputs.map(inputLine))) : null,
      failure?.traceback ? titled("Traceback", h("pre", { class: "traceback", tabindex: "0" }, failure.traceback)) : null,
      notes.length ? titled("Notes", h("ul", {}, ...notes.map((each) => h("li", {}, each)))) : null,
      context.length ? titled("The training", table(["", ""], context)) : null,
    ];
  }

  /** A button for each record of the run; null if it has only one. */
  others({ name }) {
    const { records } = this.app.meta;
    if (records.length < 2) return null;
    const button = (each) => h("button", { "aria-pressed": String(each.name === name), onclick: () => this.app.state.set({ record: each.name }) }, `step ${each.step.toLocaleString("en-US")}: ${each.title}`);
    return h("div", { class: "tools", role: "group", "aria-label": "Flight records of this run" }, ...records.map(button));
  }

  /** Show the row of a call, at its step. */
  async open({ name, tensor, step }) {
    const { app } = this;
    const { tensors } = app.meta;
    const listed = tensors.find((each) => each.tensor === tensor) ?? tensors.find((each) => each.tensor.endsWith(`/${tensor}`));
    const stat = listed && (["abs_max", "max", "norm"].find((each) => listed.stats.includes(each)) ?? listed.stats[0]);
    const rows = listed && (await app.loaded.rows(app.state.run, listed.tensor, stat));
    if (!rows?.rowByName.has(name)) return app.say(`This run has no row for ${tensorText(tensor, name)}: no monitor watched it.`);
    app.tableIsChosen = true;
    app.state.set({ view: "row", tensor: listed.tensor, stat, row: name, step });
  }
}

/** A line of the table of tensors. */
function inputLine(tensor) {
  const numeric = (text) => ({ number: text });
  const headroom = tensor.headroom === null ? "" : `× ${short(tensor.headroom)}`;
  return [tensor.name, tensor.shape.join(" × ") || "scalar", tensor.dtype, numeric(short(tensor.minimum)), numeric(short(tensor.maximum)), numeric(short(tensor.abs_min)), numeric(headroom), nonfiniteText(tensor)];
}
