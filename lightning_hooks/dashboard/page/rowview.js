// The row view: every statistic of one row over steps, its histogram over steps, and links to its neighbours.

import { askHistograms, histogramsOf } from "./bins.js";
import { keysOf, lastText, lineChart } from "./charts.js";
import { helpButton } from "./controls.js";
import { withNames } from "./disclosure.js";
import { h, several } from "./dom.js";
import { timeSeriesOf } from "./host.js";
import { glyphOf, marked, marksOf } from "./marks.js";
import { PICKER_KEY } from "./picker.js";
import { histogramPictures } from "./ridges.js";
import { seriesOf } from "./series.js";
import { stepsText } from "./steps.js";
import { swatch } from "./textures.js";
import { cardHead, statTitle, tagOf, tensorTitle } from "./titles.js";
import { usualLegend } from "./usual.js";
import { counterpart, worstRow } from "./worst.js";

export class RowView {
  constructor(app) {
    this.app = app;
    this.usesOther = this.usesTable = true;
    this.content = h("div", {});
    this.finder = h("button", { class: "finder", "aria-haspopup": "dialog", onclick: () => app.openPicker() }, `Find a row …  ${PICKER_KEY}`);
    this.element = h("div", { class: "view" }, this.finder, this.content);
  }

  async update(isCurrent) {
    const { app } = this;
    if (!app.state.row) {
      const worst = await worstRow(app, app.tableIsChosen);
      if (!isCurrent()) return;
      if (worst) {
        app.state.settle(worst);
        app.fillControls();
      }
    }
    const state = app.state.copy();
    const [rows] = await Promise.all([state.run, ...state.others].map((run) => app.loaded.rows(run, state.tensor, state.stat)));
    if (!isCurrent()) return;
    const [first] = rows.rowByName.keys();
    const name = state.row || first;
    const node = rows.rowByName.get(name);
    if (node === undefined) return this.showMissing(name, first);
    const { type, shape } = rows.nodes[node];
    const range = app.range();
    const { from, to } = range;
    const zoomed = from > range.first || to < range.last ? rows.steps.within(from, to) : null;
    const versions = [state.run, ...state.others].map((run) => [run, app.loaded.meta(run).version]);
    const key = JSON.stringify([versions, state.tensor, state.stat, state.map, name, from, to]);
    if (key === this.shown) return;
    const stats = app.meta.tensors.find((each) => each.tensor === state.tensor).stats;
    // The chosen statistic comes first, the count last.
    const rank = (stat) => (stat === state.stat ? 0 : stat === "count" ? 2 : 1);
    const ordered = stats.toSorted((a, b) => rank(a) - rank(b));
    const cards = await Promise.all(ordered.map((stat) => this.card(state, stat, name, from, to)));
    const missing = ordered.filter((_, i) => !cards[i]);
    const [histogram, links, gaps] = await Promise.all([this.histogram(state, name), this.links(state, rows, node, zoomed), this.gaps(state, missing, name, from, to)]);
    if (!isCurrent()) return;
    this.shown = key;
    this.show(
      h("h2", {}, `${tensorTitle(state.tensor)} of ${name}`, tagOf(state.tensor)),
      h("p", {}, [type, shape ? `shape [${shape.join(", ")}]` : ""].filter(Boolean).join(", ")),
      ...marksOf(marked(app.meta), name, state.tensor).map((mark) => this.noteOf(mark)),
      links,
      ...gaps,
      keysOf([state.run, ...state.others]) ?? "",
      h("div", { class: "cards" }, ...cards.filter(Boolean)),
      histogram ?? "",
    );
  }

  /** What a mark says; of a flight record with the way to its view. */
  noteOf(mark) {
    const { step, text, record } = mark;
    const open = () => this.app.state.set({ view: "record", record });
    const said = marked(this.app.meta).filter((finding) => finding.verdict === text);
    const sentence = withNames(text, said, (part) => [part]);
    return h("p", { class: "note" }, `${glyphOf(mark)} ${record ? "In" : "Since"} ${stepsText([step, step])}: `, ...sentence, " ", record ? h("button", { class: "link", onclick: open }, "Show the calls before it") : null);
  }

  /** Replace the content. If a button with the same role had the focus before, such as the one to the next row, it has it again. */
  show(...children) {
    const role = this.content.contains(document.activeElement) ? document.activeElement.dataset.role : undefined;
    this.content.replaceChildren(...children);
    if (role) (this.content.querySelector(`[data-role="${role}"]`) ?? this.finder).focus();
  }

  showMissing(name, first) {
    this.shown = null;
    this.show(
      h("p", { class: "empty" }, name ? `${name} is not in this table.` : "This table has no rows."),
      first === undefined ? "" : h("button", { onclick: () => this.app.state.set({ row: first }) }, `first row: ${first}`),
    );
  }

  /** A sentence for each reason for which statistics of a row were not measured in the shown steps. */
  async gaps(state, stats, name, from, to) {
    const { loaded } = this.app;
    const byReason = new Map();
    for (const stat of stats) {
      const rows = await loaded.rows(state.run, state.tensor, stat);
      const node = rows.rowByName.get(name);
      if (node === undefined) continue;
      const { kind, text } = (await loaded.gaps(state.run, state.tensor, stat, rows)).reasonAt(node, from, to);
      byReason.set(text, { kind, names: [...(byReason.get(text)?.names ?? []), stat] });
    }
    return [...byReason].map(([reason, { kind, names }]) => h("p", { class: "unmeasured" }, swatch(kind), ` Not measured in these steps${reason ? ` (${reason})` : ""}: ${names.join(", ")}.`));
  }

  /** The card of a statistic; null if no run has measured it in these steps. */
  async card(state, stat, name, from, to) {
    const { app } = this;
    const { source } = app;
    const series = [];
    for (const [color, run] of [state.run, ...state.others].entries()) {
      const rows = await app.loaded.rows(run, state.tensor, stat);
      const node = rows?.rowByName.get(name);
      if (node === undefined) continue;
      const values = await seriesOf(source, { run, tensor: state.tensor, stat, rows, node, from, to });
      series.push({ label: state.others.length ? run : "", color, ...values });
    }
    if (!series.some((each) => each.steps.length)) return null;
    const usual = app.loaded.usual(state.tensor, stat) ?? null;
    return h(
      "div",
      { class: "card" },
      cardHead(statTitle(stat), stat, helpButton(app, () => stat), lastText(series[0])),
      lineChart(series, { usual, marks: marksOf(marked(app.meta), name, state.tensor), label: `${state.tensor} ${stat} of ${name}`, onStep: (step) => app.state.set({ view: "step", step, stat }) }),
      usual ? usualLegend(usual) : null,
      ...series.map(nonfiniteNote),
    );
  }

  async histogram(state, name) {
    const { app } = this;
    const { source, meta } = app;
    const { index } = histogramsOf(meta, state.tensor).find((each) => each.name === name) ?? {};
    if (index === undefined && meta.left_out) return h("p", {}, `This report holds the histograms of ${several(meta.histograms.length, "row")}, and none of this one.`);
    if (index === undefined) return h("p", {}, "No histogram of this row: ask for the statistic 'histogram' in a rule to see one.");
    const histogram = (await askHistograms(source, state.run, [index], String(index))).get(index);
    if (!histogram.steps.length) return null;
    const [from, to] = [histogram.steps[0], histogram.steps.at(-1) + 1];
    const all = h("button", { onclick: () => app.state.set({ view: "sheet" }) }, "of all rows");
    return h("div", {}, h("h2", {}, "Histogram over steps ", helpButton(app, () => "histogram"), " ", all), histogramPictures(histogram, name, state.map, { from, to }));
  }

  /**
   * Links to the rows before and after, to rows of the same module, and to the same row of other tensors. If `zoomed` is the range of
   * the shown steps, also a link to all steps; null if all steps are shown.
   */
  async links(state, rows, node, zoomed) {
    const { app } = this;
    const leaves = rows.nodes.flatMap((each, i) => (each.row === null ? [] : [i]));
    const at = leaves.indexOf(node);
    const { name } = rows.nodes[node];
    const to = (text, values, role) => h("button", { "data-role": role, onclick: () => app.state.set({ row: name, ...values }) }, text);
    const near = [["◀ before: ", leaves[at - 1], "before"], ["after ▶: ", leaves[at + 1], "after"]].filter(([, i]) => i !== undefined);
    const module = name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : name;
    const siblings = leaves.filter((i) => i !== node && rows.nodes[i].name.startsWith(`${module}.`) && !near.some(([, j]) => j === i)).slice(0, 6);
    const others = await Promise.all(app.meta.tensors.filter((each) => each.tensor !== state.tensor && !isRepeated(each, app.meta.tensors, state.tensor)).map((each) => this.rowOf(state, each, name)));
    const chart = timeSeriesOf(app.meta.scalars, state.tensor, name);
    return h(
      "div",
      { class: "tools" },
      ...near.map(([text, i, role]) => to(text + rows.nodes[i].name, { row: rows.nodes[i].name }, role)),
      ...siblings.map((i) => to(rows.nodes[i].name, { row: rows.nodes[i].name })),
      ...others.filter(Boolean).slice(0, 8).map((each) => to(`its ${each.tensor}`, each)),
      to("in the heat map", { view: "map" }),
      zoomed ? to(`only ${stepsText(zoomed)}: show all`, { from: "", to: "" }) : null,
      chart ? h("button", { onclick: chart }, "in Time Series") : null,
    );
  }

  /** The row of another tensor that belongs to a name: { tensor, stat, row }; null if there is none. */
  async rowOf(state, { tensor, stats }, name) {
    const stat = stats.includes(state.stat) ? state.stat : stats[0];
    const row = await counterpart(this.app, tensor, stat, name);
    return row === null ? null : { tensor, stat, row };
  }
}

/**
 * Whether the link to a tensor of a second monitor, such as health/grad, can be left out because another monitor measures the same tensor:
 * the page then links to that. The link is kept if the other tensor is the shown one and lacks some statistics of the second monitor.
 */
function isRepeated({ tensor, stats }, tensors, shown) {
  const others = tensors.filter((each) => tensor.endsWith(`/${each.tensor}`));
  return others.some((each) => each.tensor !== shown || stats.every((stat) => each.stats.includes(stat)));
}

/** A note about the steps at which a series is NaN or infinite; null if it is finite. */
function nonfiniteNote({ label, steps, ends, nan, infinite }) {
  const first = nan.findIndex((n, i) => n || infinite[i]);
  if (first < 0) return null;
  const sum = (counts) => counts.reduce((a, b) => a + b, 0);
  const counted = [["NaN", sum(nan)], ["infinite", sum(infinite)]].filter(([, count]) => count);
  const since = `${steps[first] === ends[first] ? "" : "one of the "}${stepsText([steps[first], ends[first]])}`;
  return h("p", { class: "note" }, `${label ? `${label}: ` : ""}${counted.map(([what, count]) => `${what} at ${several(count, "step")}`).join(", ")}, from ${since} on`);
}
