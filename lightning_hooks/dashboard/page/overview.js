// The overview: what is wrong with a run and since when, its loss, rows that are not finite, and the global numbers.

import { keysOf } from "./charts.js";
import { short } from "./colors.js";
import { Crosshair } from "./crosshair.js";
import { h, several, table } from "./dom.js";
import { blocksOf, cardOf, verdictOf } from "./findings.js";
import { modeChanges } from "./modes.js";
import { chartOf, sortedTags, tagsByTransform, transformCard } from "./overviewcharts.js";
import { isQuoted, recordCard } from "./records.js";
import { runHead } from "./runhead.js";
import { badgeOf, severityOf, worstOf } from "./severity.js";
import { skeleton } from "./skeleton.js";
import { Strip } from "./strip.js";
import { unusualRows, vitalsOf } from "./vitals.js";

const RECORDS = 2; // flight records that have a card
const STRIP_LABELS = 64; // pixels of the labels beside the curve of the strip

export class OverviewView {
  constructor(app) {
    this.app = app;
    this.usesOther = true;
    this.usesTable = false;
    this.crosshair = new Crosshair();
    this.strip = new Strip(app, this.crosshair, (finding) => this.showCard(finding), true);
    this.top = h("div", {});
    this.head = h("div", {});
    this.lead = h("div", {});
    this.found = h("div", {});
    this.rest = h("div", {});
    this.element = h("div", { class: "view" }, this.top, this.head, this.lead, this.strip.element, this.found, this.rest);
    this.followers = [...this.crosshair.followers]; // the followers that belong to the strip
    this.cards = this.recordCards = [];
  }

  async update(isCurrent) {
    const { app } = this;
    const { state, source, meta } = app;
    const runs = [state.run, ...state.others];
    const blocks = meta.findings ? blocksOf(meta.findings) : [];
    if (this.run !== state.run) this.begin(blocks);
    await Promise.all(runs.map((run) => app.loaded.rows(run, state.tensor, state.stat)));
    if (!isCurrent()) return;
    const range = meta.tensors.length ? app.range() : null;
    const series = await this.strip.request(range);
    if (!isCurrent()) return;
    const steps = range ?? rangeOf(series);
    this.strip.element.classList.remove("waiting");
    this.strip.show(series, [() => ({ left: STRIP_LABELS, width: Math.max(this.strip.columns.clientWidth - STRIP_LABELS - 8, 50), from: steps.from, to: steps.to })]);
    const key = JSON.stringify([runs.map((run) => [run, app.loaded.meta(run).version]), steps.from, steps.to]);
    if (key === this.shown) return;
    const isStill = () => isCurrent() && state.run === runs[0]; // the address may name another run already, which is not loaded yet
    const records = await Promise.all(meta.records.slice(0, RECORDS).map(({ name }) => source.ask("record", { run: state.run, record: name })));
    const healthy = await this.lastHealthy();
    if (!isStill()) return;
    this.showCards(blocks, steps, records, healthy);
    const isHealthy = meta.findings && !blocks.some(({ main }) => severityOf(main) !== "info");
    const [overview, vitals] = await Promise.all([source.ask("overview", { run: state.run }), isHealthy ? source.ask("vitals", { run: state.run }) : null]);
    if (!isStill()) return;
    this.head.replaceChildren(runHead(state.run, meta, overview));
    this.lead.replaceChildren(...(vitals ? [vitalsOf(vitals)] : []));
    // Leave out the loss, because the strip shows it.
    const tags = sortedTags(overview.run).filter((tag) => !tag.endsWith("run/loss"));
    const charts = await Promise.all(tags.map((tag) => chartOf(app, tag, overview.last[tag])));
    const transforms = await Promise.all([...tagsByTransform(overview.transforms)].map(([name, names]) => transformCard(app, name, names)));
    if (!isStill()) return;
    this.shown = key;
    this.showRest(overview, vitals, charts.filter(Boolean), transforms);
  }

  /** Show at once what is known of a run, and grey bars in the place of the rest. */
  begin(blocks) {
    this.run = this.app.state.run;
    this.shown = null;
    this.strip.element.classList.add("waiting");
    this.top.replaceChildren(this.verdict(blocks));
    this.head.replaceChildren(skeleton(1));
    this.lead.replaceChildren();
    this.found.replaceChildren(skeleton(4));
    this.rest.replaceChildren(skeleton(4, "Loading the charts …", true));
  }

  showCards(blocks, range, records, healthy) {
    const view = {
      app: this.app,
      crosshair: this.crosshair,
      range: { from: range.from, to: range.to },
      healthy,
      linkTo: (finding, text) => this.linkTo(finding, text),
      hasMap: (finding) => this.tableFor(finding) !== undefined,
      openMap: (finding, other) => this.openMap(finding, other),
    };
    // Drop the followers of the cards that are replaced below, and keep those of the strip.
    this.crosshair.followers = new Set(this.followers);
    // Each record is told once: in the card of the first cause that quotes it, otherwise in a card of its own.
    const left = [...records];
    const quotedBy = ({ main }) => {
      const at = left.findIndex((record) => isQuoted(record, main));
      return at < 0 ? null : left.splice(at, 1)[0];
    };
    this.cards = blocks.map((block) => cardOf(block, view, quotedBy(block)));
    this.recordCards = left.map((record) => recordCard(this.app, record));
    this.top.replaceChildren(this.verdict(blocks));
    // The diagnosis comes first, unless a record is worse.
    const worst = worstOf(left);
    const before = blocks.filter(({ main }) => worstOf([main, worst].filter(Boolean)) === main).length;
    this.found.replaceChildren(...[...this.cards.slice(0, before), ...this.recordCards, this.furtherRecords(), ...this.cards.slice(before)].filter(Boolean));
  }

  showRest(overview, vitals, charts, transforms) {
    const parts = [
      vitals ? unusualRows(vitals, (row, text) => this.linkTo(row, text)) : null,
      this.nonfinite(overview.nonfinite),
      this.problems(),
      modeChanges(this.app, overview.modes),
      this.checks(),
      this.earlierFit(),
      ...(charts.length ? [h("h2", {}, "Over all layers"), keysOf([this.app.state.run, ...this.app.state.others]), h("div", { class: "cards" }, ...charts)] : []),
      ...(transforms.length ? [h("h2", {}, "What the transforms do"), h("div", { class: "cards" }, ...transforms)] : []),
    ];
    this.rest.replaceChildren(...parts.filter(Boolean));
  }

  /** The last other run without a finding above a note, as { name }; { reason } if no other run serves, null if there is no other run. */
  async lastHealthy() {
    const { loaded, source, state } = this.app;
    if (!source.isLive) return null;
    const others = loaded.shown().filter((run) => run.name !== state.run);
    if (!others.length) return null;
    const healths = await loaded.health();
    const healthy = others.filter((run) => healths[run.name]?.serves);
    if (!healthy.length) return { reason: "no other run here is healthy" };
    return { name: healthy.reduce((a, b) => (b.modified > a.modified ? b : a)).name };
  }

  /** The verdict in one sentence: what is wrong, that no rule has found anything, or that no rule ran and how to run the rules now. */
  verdict(blocks) {
    const { findings, checks, doctor } = this.app.meta;
    if (!findings) return unexamined(doctor);
    if (blocks.length) return verdictOf(blocks);
    if (!checks) return h("p", { class: "verdict fine" }, badgeOf("fine", "Nothing found so far"), ": the training goes on, or was ended from outside.");
    const looked = `: ${several(checks.ran.length, "rule")} found nothing in ${several(checks.steps, "step")}`;
    // Only a loss that has fallen shows that a training is healthy.
    const course = checks.course && !checks.has_learned ? `; ${checks.course}` : "";
    return h("p", { class: "verdict fine" }, badgeOf("fine", checks.has_learned ? "Healthy" : "No problem found"), `${looked}${course}.`);
  }

  /** A link to the records that have no card; null if each has one. */
  furtherRecords() {
    const further = this.app.meta.records.slice(RECORDS);
    if (!further.length) return null;
    return h("p", {}, h("button", { class: "link", onclick: () => this.app.state.set({ view: "record", record: further[0].name }) }, `and ${several(further.length, "flight record")} more`));
  }

  /** Which rules ran, and which could not run and why, folded. */
  checks() {
    const { checks } = this.app.meta;
    if (!checks) return null;
    const reasons = Object.entries({ ...checks.could_not_run, ...checks.failed });
    const ends = [["error", "The training ended with"], ["stopped", "The rules stopped after"]].filter(([name]) => checks[name]);
    return h(
      "details",
      { class: "checks" },
      h("summary", {}, `Checked by ${several(checks.ran.length, "health rule")}${reasons.length ? `; ${reasons.length} more could not check this run` : ""}`),
      ...ends.map(([name, text]) => h("p", {}, `${text} ${checks[name]}.`)),
      h("ul", { class: "chips" }, ...checks.ran.map((name) => h("li", {}, name))),
      reasons.length ? h("p", {}, "Could not check this run:") : null,
      h("ul", {}, ...reasons.map(([name, why]) => h("li", {}, h("strong", {}, name), `: ${why}`))),
      checks.accepted.length ? h("p", {}, `Accepted, so not told: ${checks.accepted.join(", ")}.`) : null,
    );
  }

  /** How to read what was found in an earlier fit of the same folder. */
  earlierFit() {
    const { earlier_fit: command } = this.app.meta;
    return command ? h("p", {}, "An earlier fit wrote into the same folder. Its findings: ", h("code", { class: "command" }, command)) : null;
  }

  /** Lead to the card of a finding, of its cause, or of a flight record. */
  showCard(finding) {
    const ofRecord = finding.record ? [...this.recordCards, ...this.cards].find((each) => each.record === finding.record) : null;
    const card = ofRecord ?? this.cards.find((each) => each.numbers.includes(finding.number)) ?? this.cards[0];
    card?.scrollIntoView({ block: "center" });
    card?.focus();
  }

  /** The list of the parts of the run that could not be read; null if all was read. */
  problems() {
    const { problems } = this.app.meta;
    if (!problems?.length) return null;
    return h("div", { class: "problems" }, h("h2", {}, "What could not be read"), h("ul", {}, ...problems.map((each) => h("li", {}, each))));
  }

  nonfinite(rows) {
    if (!rows.length) return null;
    const shown = rows.slice(0, 10);
    const lines = shown.map((each) => [
      this.linkTo({ ...each, stat: "nonfinite", step: each.first }),
      number(each.first),
      number(each.steps),
      number(each.most),
    ]);
    return h(
      "div",
      {},
      h("h2", {}, "NaN and infinite elements, earliest first"),
      table(["row", "since step", "steps", "most elements"], lines),
      rows.length > shown.length ? h("p", {}, `and ${several(rows.length - shown.length, "row")} more`) : null,
    );
  }

  /** A link to the row of a finding in the heat map, at its step if it has one. */
  linkTo(finding, text) {
    const { tensor, name, step } = finding;
    return h("button", { class: "link", onclick: () => this.openMap(finding) }, text ?? `${tensor ? `${tensor} of ` : ""}${name}${hasStep(finding) ? `, step ${step}` : ""}`);
  }

  /** The table of a finding. A finding on a fact, such as a module that was never called, names no tensor: then that of its curve. */
  tableFor({ tensor, curve }) {
    const tableOf = (each) => this.app.meta.tensors.find((listed) => listed.tensor === each);
    return tableOf(tensor) ?? tableOf(curve?.tensor);
  }

  /** Open the row of a finding in the heat map, at its step; with `other`, compared with that run. */
  async openMap(finding, other = null) {
    const { app } = this;
    const { stat, curve, name, step } = finding;
    const listed = this.tableFor(finding);
    const table = listed ? { tensor: listed.tensor, stat: [stat, curve?.stat].find((each) => listed.stats.includes(each)) ?? listed.stats.find((each) => each !== "count") } : {};
    app.views.map.revealed = null;
    const compared = other === null ? {} : { other, mode: "beside" };
    if (other !== null && listed) {
      // Sizes are coloured by how far they are from those of the other run.
      const rows = await app.loaded.rows(app.state.run, table.tensor, table.stat);
      if (rows?.positive) compared.map = "reference";
    }
    app.state.set({ view: "map", row: name, step: hasStep(finding) ? step : "", ...table, filter: "", low: "", high: "", ...compared });
  }
}

const hasStep = ({ step }) => step !== undefined && step !== null && step !== "";

/** What is shown of a run without findings: it was trained without a HealthMonitor, and a command looks now. */
function unexamined(doctor) {
  const command = doctor ? [" To have what it has logged examined now: ", h("code", { class: "command" }, doctor)] : [" Copy its event file to this machine to have it examined: ", h("code", { class: "command" }, "lightning-hooks doctor COPY")];
  return h("p", { class: "verdict unknown" }, badgeOf("unknown", "Not examined"), ": this run has no findings of a HealthMonitor.", ...command);
}

/** The range of steps of some series, for a run without tables, of which only series are known. */
function rangeOf(series) {
  const ends = series.flatMap(({ steps, ends: last }) => [steps[0], last.at(-1)]).filter((step) => step !== undefined);
  return ends.length ? { from: Math.min(...ends), to: Math.max(...ends) + 1 } : { from: 0, to: 1 };
}

function number(value) {
  return { number: short(value) };
}
