// The overview: global numbers, findings, rows with NaN or infinite elements, and the rows that changed most.

import { keysOf, lineChart } from "./charts.js";
import { short } from "./colors.js";
import { helpButton } from "./controls.js";
import { h, several } from "./dom.js";
import { modeChanges } from "./modes.js";

const TRANSFORM_CURVES = { transform_norm_before: "norm before", transform_norm_after: "norm after" };
const TRANSFORM_FACTS = {
  transform_acted: (share) => `Changed something at ${short(100 * share)} % of the reported steps.`,
  transform_cosine: (cosine) => `Cosine between before and after, last step: ${short(cosine)}.`,
};
const ORDER = ["loss", "grad_norm", "final_grad_norm", "update_ratio", "nonfinite", "overhead"];

export class OverviewView {
  constructor(app) {
    this.app = app;
    this.usesOther = true;
    this.usesTable = false;
    this.element = h("div", { class: "view" });
  }

  async update(isCurrent) {
    const { app } = this;
    const { state, source, meta } = app;
    const key = [state.run, ...state.others].map((run) => `${run} ${app.loaded.meta(run).version}`).join("\n");
    if (key === this.shown) return;
    const overview = await source.ask("overview", { run: state.run });
    const charts = await Promise.all(sorted(overview.hooks).map((tag) => this.chart(tag)));
    const transforms = await Promise.all([...grouped(overview.transforms)].map(([name, tags]) => this.transform(name, tags)));
    if (!isCurrent()) return;
    this.shown = key;
    const curves = [
      ...(charts.some(Boolean) ? [h("h2", {}, "Over all layers"), keysOf([state.run, ...state.others]), h("div", { class: "cards" }, ...charts.filter(Boolean))] : []),
      ...(transforms.length ? [h("h2", {}, "What the transforms do"), h("div", { class: "cards" }, ...transforms)] : []),
    ];
    const warnings = [this.findings(), this.nonfinite(overview.nonfinite)];
    // If there are findings or rows that are not finite, show them before the curves, otherwise after the curves.
    const parts = meta.findings?.length || overview.nonfinite.length ? [...warnings, ...curves] : [...curves, ...warnings];
    this.element.replaceChildren(...[this.summary(overview), this.problems(), ...parts, modeChanges(app, overview.modes), this.changed(overview.changed)].filter(Boolean));
  }

  summary(overview) {
    const { meta, state } = this.app;
    const name = state.run === "." ? "This run" : state.run;
    if (!meta.steps) return h("p", {}, `${name}: no table of lightning_hooks, so this is all that is known of it.`);
    const [first, last] = meta.steps;
    const tables = meta.tensors.reduce((sum, each) => sum + each.stats.length, 0);
    const text = `${name}: steps ${first.toLocaleString("en-US")} to ${last.toLocaleString("en-US")}, ${several(meta.tensors.length, "tensor")}, ${several(tables, "table")}.`;
    if (overview.nonfinite.length) return h("p", {}, `${text} ${several(overview.nonfinite.length, "row")} with NaN or infinite elements.`);
    const counted = meta.tensors.filter((each) => each.stats.includes("nonfinite")).map((each) => each.tensor);
    if (!counted.length) return h("p", {}, text); // the run has no statistic that tells whether elements are finite
    return h("p", {}, `${text} Every element of ${counted.length === meta.tensors.length ? "every row" : counted.join(", ")} is finite.`);
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
    return h(
      "div",
      { class: "card" },
      h("h3", {}, tag, " ", helpButton(app, () => tag.slice(tag.indexOf("hooks/"))), h("span", { class: "value" }, text(series[0].last))),
      lineChart(series, { label: tag, text, onStep: (step) => app.state.set({ view: "step", step }) }),
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

  findings() {
    const { findings } = this.app.meta;
    const title = h("h2", {}, "Findings");
    if (!findings) return h("div", {}, title, h("p", {}, "This run has no findings.jsonl: no health rule was active."));
    if (!findings.length) return h("div", {}, title, h("p", {}, "The health rules found nothing."));
    const lines = findings.map((each) => [
      each.severity ?? "",
      each.verdict ?? each.rule ?? "",
      this.linkTo(each.tensor, each.stat, each.name, each.step),
      each.why ?? "",
      each.next ?? "",
    ]);
    return h("div", {}, title, table(["severity", "what", "where", "why", "what to do"], lines));
  }

  nonfinite(rows) {
    if (!rows.length) return null;
    const shown = rows.slice(0, 10);
    const lines = shown.map((each) => [
      this.linkTo(each.tensor, "nonfinite", each.name, each.first),
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

  changed(rows) {
    if (!rows.length) return null;
    const lines = rows.map((each) => [
      this.linkTo(each.tensor, each.stat, each.name, ""),
      each.stat,
      number(each.before),
      number(each.after),
      number(each.after / each.before),
    ]);
    return h("div", {}, h("h2", {}, "The rows that changed most, from the beginning to the end"), table(["row", "statistic", "before", "after", "ratio"], lines));
  }

  /** A link to a row in the heat map, at a step if there is one; without a name only the step as text. */
  linkTo(tensor, stat, name, step) {
    const { app } = this;
    if (!name) return step === undefined || step === "" ? "" : `step ${step}`;
    const listed = app.meta.tensors.find((each) => each.tensor === tensor);
    const onclick = () => {
      app.views.map.revealed = null;
      app.state.set({
        view: "map",
        row: name,
        step: step ?? "",
        ...(listed ? { tensor, stat: listed.stats.includes(stat) ? stat : listed.stats.find((each) => each !== "count") } : {}),
        filter: "",
        low: "",
        high: "",
      });
    };
    return h("button", { class: "link", onclick }, `${tensor ? `${tensor} of ` : ""}${name}${step === "" || step === undefined ? "" : `, step ${step}`}`);
  }
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

function table(heads, lines) {
  const cell = (each) => (each?.number !== undefined ? h("td", { class: "number" }, each.number) : h("td", {}, each));
  return h(
    "div",
    { class: "table-holder" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...heads.map((text, i) => h("th", { scope: "col", class: lines[0][i]?.number === undefined ? "" : "number" }, text)))),
      h("tbody", {}, ...lines.map((line) => h("tr", {}, ...line.map(cell)))),
    ),
  );
}
