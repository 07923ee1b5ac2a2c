// The head of a run: optimizer, rate, batch, precision, parameters and duration, and how much was measured.

import { nameOf } from "./controls.js";
import { h, several } from "./dom.js";

/** What is known of a run, in two lines. `overview` is the answer to `overview` (see api.py), `meta` that to `run`. */
export function runHead(run, meta, overview) {
  const facts = overview.head.map(({ term, text, note }) => h("div", { title: note }, h("dt", {}, term), h("dd", {}, text)));
  return h("div", {}, facts.length ? h("dl", { class: "run-head" }, ...facts) : null, h("p", { class: "run-summary" }, measuredOf(run, meta, overview)));
}

function measuredOf(run, meta, overview) {
  const name = run === "." ? "This run" : nameOf(run);
  if (!meta.steps) return `${name}: no table of lightning_hooks, so this is all that is known of it.`;
  const [first, last] = meta.steps;
  const tables = meta.tensors.reduce((sum, each) => sum + each.stats.length, 0);
  const text = `${name}: steps ${first.toLocaleString("en-US")} to ${last.toLocaleString("en-US")}, ${several(meta.tensors.length, "tensor")}, ${several(tables, "table")}.`;
  if (overview.nonfinite.length) return `${text} ${several(overview.nonfinite.length, "row")} with NaN or infinite elements.`;
  const counted = meta.tensors.filter((each) => each.stats.includes("nonfinite")).map((each) => each.tensor);
  // If the run has no statistic that tells whether elements are finite, say nothing about them.
  if (!counted.length) return text;
  return `${text} Every element of ${counted.length === meta.tensors.length ? "every row" : counted.join(", ")} is finite.`;
}
