// The charts at the end of the overview: the global numbers, and what each transform does.

import { keysOf, lineChart } from "./charts.js";
import { short } from "./colors.js";
import { helpButton } from "./controls.js";
import { h } from "./dom.js";
import { cardHead, runTitle } from "./titles.js";
import { usualLegend } from "./usual.js";

const TRANSFORM_CURVES = { transform_norm_before: "norm before", transform_norm_after: "norm after" };
const TRANSFORM_FACTS = {
  transform_acted: (share) => `Changed something at ${short(100 * share)} % of the reported steps.`,
  transform_cosine: (cosine) => `Cosine between before and after, last step: ${short(cosine)}.`,
};
const ORDER = ["grad_norm", "final_grad_norm", "update_ratio", "nonfinite", "overhead"];

/**
 * The card of a global number, of all compared runs; null if the shown run has no value of it. `last` is the value in its head,
 * { step, value }, in place of the last one.
 */
export async function chartOf(app, tag, last = null) {
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
  const value = last ? `step ${last.step.toLocaleString("en-US")}: ${text(last.value)}` : text(series[0].last);
  return h(
    "div",
    { class: "card" },
    cardHead(runTitle(tag) ?? tag, tag, helpButton(app, () => name), value),
    lineChart(series, { usual, label: tag, text, onStep: (step) => app.state.set({ view: "step", step }) }),
    usual ? usualLegend(usual) : null,
  );
}

/** A card for one transform: the norms before and after it, how often it changed the gradient, and the cosine of the change. */
export async function transformCard({ state, source }, name, tags) {
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

/** Tags of global numbers in the order of their charts. */
export function sortedTags(tags) {
  const rank = (tag) => (ORDER.indexOf(tag.split("/").at(-1)) + 1 || 99);
  return [...tags].sort((a, b) => rank(a) - rank(b));
}

/** The tags of each transform by kind of report: transform_norm_before/0_Clip is the tag of kind transform_norm_before of 0_Clip. */
export function tagsByTransform(tags) {
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
