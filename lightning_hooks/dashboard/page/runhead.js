// The head of a run: optimizer, rate, batch, precision, parameters and duration, its steps, and whether numbers are finite.

import { nameOf } from "./controls.js";
import { h, several } from "./dom.js";
import { tensorTitle } from "./titles.js";

/** What is known of a run, in two lines. `overview` is the answer to `overview` (see api.py), `meta` that to `run`. */
export function runHead(run, meta, overview) {
  const facts = overview.head.map(({ term, text, note }) => h("div", { title: note }, h("dt", {}, term), h("dd", {}, text)));
  return h("div", {}, facts.length ? h("dl", { class: "run-head" }, ...facts) : null, h("p", { class: "run-summary" }, measuredOf(run, meta, overview)));
}

const inText = (title) => title.slice(0, 1).toLowerCase() + title.slice(1);

function measuredOf(run, meta, overview) {
  const name = run === "." ? "This run" : nameOf(run);
  if (!meta.steps) return `${name}: no table of lightning_hooks, so this is all that is known of it.`;
  const [first, last] = meta.steps;
  const text = `${name}: steps ${first.toLocaleString("en-US")} to ${last.toLocaleString("en-US")}.`;
  const { nonfinite } = overview;
  if (nonfinite.length) return `${text} NaN or infinite numbers in ${several(nonfinite.length, "tensor")}, the first at step ${nonfinite[0].first.toLocaleString("en-US")}.`;
  const counted = meta.tensors.filter((each) => each.stats.includes("nonfinite")).map((each) => inText(tensorTitle(each.tensor)));
  // If the run has no statistic that tells whether elements are finite, say nothing about them.
  return counted.length ? `${text} No NaN or infinite number in: ${counted.join(", ")}.` : text;
}
