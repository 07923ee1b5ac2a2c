// Makes the models of the heat maps that the address asks for (see heatmap.js): one for each run, or one for each difference between runs.

import { nameOf } from "./controls.js";
import { several } from "./dom.js";
import { mapOf } from "./maptools.js";
import { marked, marksOn } from "./marks.js";
import { filterOf } from "./patterns.js";
import { foldingOf } from "./rows.js";
import { Cells } from "./source.js";

const TABLES = 8; // tables whose cells are cached

export class MapModels {
  constructor(app) {
    this.app = app;
    this.cells = new Map();
    this.gapsOf = new WeakMap(); // from the Rows of a table to its Gaps
  }

  /**
   * The models for a state: { models, isFiltered, notes }, where `isFiltered` says that patterns choose the rows, and `notes` say what
   * cannot be shown. `rowsOfOthers` holds the Rows of each run to compare with, null if the run lacks the table.
   */
  of(state, rows, rowsOfOthers, range) {
    const notes = [];
    const { matches, error } = filterOf(state.filter);
    if (state.map === "usual" && !this.app.loaded.usual(state.tensor, state.stat)) notes.push(`No usual range of ${state.tensor} ${state.stat} is published, so its own colours are shown.`);
    if (error) notes.push(error);
    const isReference = state.map === "reference" && rows.positive && state.others.length > 0;
    if (state.map === "reference" && !isReference) notes.push(noReference(state));
    const isDifference = isReference || state.mode === "difference";
    const main = this.modelOf(state.run, rows, state, range, matches);
    const models = [];
    state.others.forEach((other, i) => {
      const otherRows = rowsOfOthers[i];
      if (!otherRows) notes.push(`${other} has no table of ${state.tensor} ${state.stat}.`);
      else if (!isDifference) models.push(this.modelOf(other, otherRows, state, range, matches));
      else {
        models.push(this.differenceOf(main, state, other, otherRows, range, isReference));
        const missing = otherRows.nodes.filter((node) => node.row !== null && !rows.rowByName.has(node.name)).length;
        if (missing) notes.push(`Not shown: ${several(missing, "row")} that only ${other} has.`);
        if (!rows.steps.meets(otherRows.steps)) notes.push(`${state.run} and ${other} have no step in common, so there is no difference.`);
      }
    });
    if (!isDifference || !models.length) models.unshift(main);
    return { models, isFiltered: Boolean(matches), notes };
  }

  modelOf(run, rows, state, { from, to, unit }, matches) {
    const { loaded } = this.app;
    const folding = foldingOf(state.folded);
    return {
      run,
      title: state.others.length ? nameOf(run) : "",
      rows,
      shown: shownOf(rows, `${state.folded}\t${state.filter}`, () => (matches ? rows.filtered(matches) : rows.shown((node) => rows.isOpen(node, folding)))),
      flat: Boolean(matches),
      cells: this.cellsOf(run, state.tensor, state.stat, rows, unit),
      from,
      to,
      unit,
      tensor: state.tensor,
      stat: state.stat,
      exact: rows.exact,
      map: mapOf(state, loaded.usual(state.tensor, state.stat)),
      fit: state.fit !== "0",
      marks: marksOn(marked(loaded.meta(run)), rows, state.tensor),
      gaps: this.gapsOf.get(rows) ?? null,
      selected: selectedOf(rows, state),
    };
  }

  /** The model of the difference between the run of the model `main` and another run. */
  differenceOf(main, state, other, otherRows, { unit }, isReference) {
    const { run, rows } = main;
    const isRatio = rows.positive && (isReference || state.change !== "linear");
    const sign = isRatio ? "/" : "−";
    return {
      ...main,
      run: `${run} ${sign} ${other}`,
      title: isReference ? `${nameOf(run)} against ${nameOf(other)}` : `${isRatio ? "log₂ of " : ""}${nameOf(run)} ${sign} ${nameOf(other)}`,
      exact: rows.exact && otherRows.exact,
      isDifference: true,
      isRatio,
      isReference,
      ...(isReference ? { map: "usual" } : {}),
      gaps: null,
      cells: this.cellsOf(run, state.tensor, state.stat, rows, unit, { other, other_key: otherRows.key, ...(isRatio ? { as: "ratio" } : {}) }),
    };
  }

  cellsOf(run, tensor, stat, rows, unit, minus = {}) {
    const name = [run, tensor, stat, rows.key, unit, ...Object.values(minus)].join("\n");
    const cells = this.cells.get(name) ?? new Cells(this.app.source, run, tensor, stat, rows, unit, minus);
    this.cells.delete(name);
    this.cells.set(name, cells); // the most recently used is last
    if (this.cells.size > TABLES) this.cells.delete(this.cells.keys().next().value);
    return cells;
  }

  /** A run has new steps after `step`: mark the cells that may have changed as old. */
  grown(run, step) {
    for (const cells of this.cells.values()) if (cells.run === run || cells.minus.other === run) cells.outdate(step);
  }
}

/** Why a map cannot be coloured against other runs. */
function noReference({ others, tensor, stat }) {
  if (!others.length) return "No run to compare with is chosen, so the default colours are shown: choose a run under “Compare with”.";
  return `Values of ${tensor} ${stat} can be negative, so they have no ratio to those of another run, and the default colours are shown.`;
}

/** The outlined cell: that of the row and the step in the address; null if the address has none, or the table lacks the row. */
function selectedOf(rows, { row, step }) {
  const node = rows.rowByName.get(row);
  return node === undefined || step === "" || !Number.isFinite(Number(step)) ? null : { node, step: Number(step) };
}

/** The shown nodes: the same array as long as `key` is the same, so that later caches can compare it by identity. */
function shownOf(rows, key, make) {
  if (rows.shownFor?.key !== key) rows.shownFor = { key, nodes: make() };
  return rows.shownFor.nodes;
}
