// The overview: what is wrong with a run and since when, its loss, rows that are not finite, and the global numbers.

import { keysOf, lineChart } from "./charts.js";
import { short } from "./colors.js";
import { helpButton } from "./controls.js";
import { Crosshair } from "./crosshair.js";
import { h, several, table } from "./dom.js";
import { blocksOf, cardOf, verdictOf } from "./findings.js";
import { modeChanges } from "./modes.js";
import { isOrigin, recordCard } from "./records.js";
import { badgeOf } from "./severity.js";
import { Strip } from "./strip.js";
import { usualLegend } from "./usual.js";

const RECORDS = 2; // flight records that have a card
const STRIP_LABELS = 64; // pixels of the labels beside the curve of the strip
const TRANSFORM_CURVES = { transform_norm_before: "norm before", transform_norm_after: "norm after" };
const TRANSFORM_FACTS = {
  transform_acted: (share) => `Changed something at ${short(100 * share)} % of the reported steps.`,
  transform_cosine: (cosine) => `Cosine between before and after, last step: ${short(cosine)}.`,
};
const ORDER = ["grad_norm", "final_grad_norm", "update_ratio", "nonfinite", "overhead"];

export class OverviewView {
  constructor(app) {
    this.app = app;
    this.usesOther = true;
    this.usesTable = false;
    this.crosshair = new Crosshair();
    this.strip = new Strip(app, this.crosshair, (finding) => this.showCard(finding), true);
    this.lead = h("div", {});
    this.rest = h("div", {});
    this.element = h("div", { class: "view" }, this.lead, this.strip.element, this.rest);
    this.followers = [...this.crosshair.followers]; // the followers that belong to the strip
  }

  async update(isCurrent) {
    const { app } = this;
    const { state, source, meta } = app;
    const runs = [state.run, ...state.others];
    await Promise.all(runs.map((run) => app.loaded.rows(run, state.tensor, state.stat)));
    if (!isCurrent()) return;
    const range = meta.tensors.length ? app.range() : null;
    const series = await this.strip.request(range);
    if (!isCurrent()) return;
    const steps = range ?? rangeOf(series);
    const key = JSON.stringify([runs.map((run) => [run, app.loaded.meta(run).version]), steps.from, steps.to]);
    if (key !== this.shown) {
      const overview = await source.ask("overview", { run: state.run });
      // Leave out the loss, because the strip shows it.
      const tags = sorted(overview.run).filter((tag) => !tag.endsWith("run/loss"));
      const charts = await Promise.all(tags.map((tag) => this.chart(tag)));
      const transforms = await Promise.all([...grouped(overview.transforms)].map(([name, names]) => this.transform(name, names)));
      const records = await Promise.all(meta.records.slice(0, RECORDS).map(({ name }) => source.ask("record", { run: state.run, record: name })));
      if (!isCurrent() || state.run !== runs[0]) return; // the address may name another run already, which is not loaded yet
      this.shown = key;
      this.showParts(overview, charts.filter(Boolean), transforms, steps, records);
    }
    this.strip.show(series, [() => ({ left: STRIP_LABELS, width: Math.max(this.strip.columns.clientWidth - STRIP_LABELS - 8, 50), from: steps.from, to: steps.to })]);
  }

  showParts(overview, charts, transforms, range, records) {
    const { findings } = this.app.meta;
    const blocks = findings ? blocksOf(findings) : [];
    const view = { app: this.app, crosshair: this.crosshair, range: { from: range.from, to: range.to }, linkTo: (finding, text) => this.linkTo(finding, text) };
    // Drop the followers of the cards that are replaced below, and keep those of the strip.
    this.crosshair.followers = new Set(this.followers);
    const originOf = (block) => records.find((record) => isOrigin(record, block.main)) ?? null;
    const origins = blocks.map(originOf);
    this.cards = blocks.map((block, i) => cardOf(block, view, origins[i]));
    this.recordCards = records.filter((record) => !origins.includes(record)).map((record) => recordCard(this.app, record));
    this.lead.replaceChildren(...[this.verdict(blocks), this.summary(overview), ...this.recordCards, this.furtherRecords()].filter(Boolean));
    const parts = [
      ...this.cards,
      this.nonfinite(overview.nonfinite),
      this.problems(),
      modeChanges(this.app, overview.modes),
      this.checks(blocks),
      this.earlierFit(),
      ...(charts.length ? [h("h2", {}, "Over all layers"), keysOf([this.app.state.run, ...this.app.state.others]), h("div", { class: "cards" }, ...charts)] : []),
      ...(transforms.length ? [h("h2", {}, "What the transforms do"), h("div", { class: "cards" }, ...transforms)] : []),
    ];
    this.rest.replaceChildren(...parts.filter(Boolean));
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

  /** Which rules ran, and which could not run and why; unfolded if nothing was found. */
  checks(blocks) {
    const { checks } = this.app.meta;
    if (!checks) return null;
    const reasons = Object.entries({ ...checks.could_not_run, ...checks.failed });
    const ends = [["error", "The training ended with"], ["stopped", "The rules stopped after"]].filter(([name]) => checks[name]);
    return h(
      "details",
      { class: "checks", open: !blocks.length },
      h("summary", {}, `${several(checks.ran.length, "rule")} looked${reasons.length ? `, ${reasons.length} could not: which, and why` : ""}`),
      ...ends.map(([name, text]) => h("p", {}, `${text} ${checks[name]}.`)),
      h("ul", { class: "chips" }, ...checks.ran.map((name) => h("li", {}, name))),
      reasons.length ? h("p", {}, "Could not look:") : null,
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

  summary(overview) {
    const { meta, state } = this.app;
    const name = state.run === "." ? "This run" : state.run;
    if (!meta.steps) return h("p", { class: "run-summary" }, `${name}: no table of lightning_hooks, so this is all that is known of it.`);
    const [first, last] = meta.steps;
    const tables = meta.tensors.reduce((sum, each) => sum + each.stats.length, 0);
    const text = `${name}: steps ${first.toLocaleString("en-US")} to ${last.toLocaleString("en-US")}, ${several(meta.tensors.length, "tensor")}, ${several(tables, "table")}.`;
    if (overview.nonfinite.length) return h("p", { class: "run-summary" }, `${text} ${several(overview.nonfinite.length, "row")} with NaN or infinite elements.`);
    const counted = meta.tensors.filter((each) => each.stats.includes("nonfinite")).map((each) => each.tensor);
    // If the run has no statistic that tells whether elements are finite, say nothing about them.
    if (!counted.length) return h("p", { class: "run-summary" }, text);
    return h("p", { class: "run-summary" }, `${text} Every element of ${counted.length === meta.tensors.length ? "every row" : counted.join(", ")} is finite.`);
  }

  /** The list of the parts of the run that could not be read; null if all was read. */
  problems() {
    const { problems } = this.app.meta;
    if (!problems?.length) return null;
    return h("div", { class: "problems" }, h("h2", {}, "What could not be read"), h("ul", {}, ...problems.map((each) => h("li", {}, each))));
  }

  async chart(tag) {
    const { app } = this;
    const { state, source } = app;
    const runs = [state.run, ...state.others];
    const requests = runs.map(async (run, color) => {
      if (!app.loaded.meta(run).scalars.includes(tag)) return null;
      return { label: runs.length > 1 ? run : "", color, ...(await source.ask("scalar", { run, tag, points: 600 })) };
    });
    const series = (await Promise.all(requests)).filter(Boolean);
    if (!series[0]?.steps.length) return null;
    const text = tag.endsWith("overhead") ? percent : short;
    const name = tag.slice(tag.lastIndexOf("run/"));
    const usual = app.loaded.usual("", name) ?? null;
    return h(
      "div",
      { class: "card" },
      h("h3", {}, tag, " ", helpButton(app, () => name), h("span", { class: "value" }, text(series[0].last))),
      lineChart(series, { usual, label: tag, text, onStep: (step) => app.state.set({ view: "step", step }) }),
      usual ? usualLegend(usual) : null,
    );
  }

  /** A card for one transform: the norms before and after it, how often it changed the gradient, and the cosine of the change. */
  async transform(name, tags) {
    const { state, source } = this.app;
    const kinds = Object.keys(TRANSFORM_CURVES).filter((kind) => tags.has(kind));
    const ask = (kind) => source.ask("scalar", { run: state.run, tag: tags.get(kind), points: 600 });
    const series = await Promise.all(kinds.map(async (kind) => ({ label: TRANSFORM_CURVES[kind], ...(await ask(kind)) })));
    const facts = await Promise.all(
      [...tags.keys()].filter((kind) => !kinds.includes(kind)).map(async (kind) => {
        const scalar = await ask(kind);
        const text = (TRANSFORM_FACTS[kind] ?? ((value) => `${kind}: ${short(value)}`))(scalar.last);
        return h("p", { class: "fact" }, text);
      }),
    );
    return h(
      "div",
      { class: "card" },
      h("h3", {}, name),
      keysOf(series.map((each) => each.label)),
      series.length ? lineChart(series, { label: `norms of ${name}` }) : null,
      ...facts,
    );
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
  linkTo({ tensor, stat, name, step, curve }, text) {
    const { app } = this;
    const hasStep = step !== undefined && step !== null && step !== "";
    const tableOf = (each) => app.meta.tensors.find((listed) => listed.tensor === each);
    // A finding on a fact, such as a module that was never called, names no tensor. Open the table of its curve.
    const listed = tableOf(tensor) ?? tableOf(curve?.tensor);
    const onclick = () => {
      app.views.map.revealed = null;
      app.state.set({
        view: "map",
        row: name,
        step: hasStep ? step : "",
        ...(listed ? { tensor: listed.tensor, stat: listed.stats.includes(stat) ? stat : listed.stats.find((each) => each !== "count") } : {}),
        filter: "",
        low: "",
        high: "",
      });
    };
    return h("button", { class: "link", onclick }, text ?? `${tensor ? `${tensor} of ` : ""}${name}${hasStep ? `, step ${step}` : ""}`);
  }
}

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

function sorted(tags) {
  const rank = (tag) => (ORDER.indexOf(tag.split("/").at(-1)) + 1 || 99);
  return [...tags].sort((a, b) => rank(a) - rank(b));
}

/** The tags of each transform by kind of report: transform_norm_before/0_Clip is the tag of kind transform_norm_before of 0_Clip. */
function grouped(tags) {
  const transforms = new Map();
  for (const tag of tags) {
    const begin = tag.indexOf("transform_");
    const end = tag.indexOf("/", begin);
    const name = tag.slice(0, begin) + tag.slice(end + 1);
    if (!transforms.has(name)) transforms.set(name, new Map());
    transforms.get(name).set(tag.slice(begin, end), tag);
  }
  return transforms;
}

/** A share as a percentage. */
function percent(value) {
  return Number.isFinite(value) ? `${short(100 * value)} %` : short(value);
}

function number(value) {
  return { number: short(value) };
}
