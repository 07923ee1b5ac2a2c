// The titles of tensors and statistics for people: "Gradient norm after clipping" for final_grad norm.

import { h } from "./dom.js";

// Each tensor: what it is, and what is said behind the statistic.
const TENSOR_TITLES = {
  grad: ["gradient"],
  final_grad: ["gradient", " after clipping"],
  update: ["update"],
  param: ["parameter"],
  output: ["output"],
  input: ["input"],
  output_grad: ["gradient of the output"],
  input_grad: ["gradient of the input"],
  inner_output_grad: ["inner gradient of the output"],
  inner_input_grad: ["inner gradient of the input"],
};
const STAGES = { val: " in validation", test: " in testing", predict: " in prediction" };
// Statistics whose title stands behind that of a tensor.
const SHORT_TITLES = { norm: "norm", mean: "mean", std: "standard deviation", rms: "root mean square" };
// Statistics whose title stands before that of a tensor.
const LONG_TITLES = {
  abs_mean: "mean magnitude",
  min: "least element",
  max: "greatest element",
  abs_max: "largest magnitude",
  zero_fraction: "share of zeros",
  underflow_fraction: "share of underflow",
  nonfinite: "NaN and infinite elements",
  count: "number of elements",
  cosine: "cosine to the step before",
  micro_cosine: "agreement of micro-batches",
  noise_scale: "noise scale",
  dead_units: "share of dead units",
  outlier_units: "number of outlier units",
  unit_max_over_median: "largest unit over the median",
  load_cv: "unevenness of the load",
  effective_units: "effective number of units",
  top_unit: "largest unit",
  busiest_unit: "busiest unit",
  unit_variation: "variation of units",
};
// The numbers of the whole run, by the end of their tags.
const RUN_TITLES = {
  loss: "Loss",
  grad_norm: "Gradient norm",
  final_grad_norm: "Gradient norm after clipping",
  param_norm: "Parameter norm",
  update_ratio: "Relative size of updates",
  nonfinite: "NaN and infinite elements",
  noise_scale: "Noise scale",
  skipped_steps: "Skipped steps",
  overhead: "Share of time for watching",
};
const COMMON_TENSORS = ["grad", "final_grad", "update", "param", "output", "output_grad"];
const COMMON_STATS = ["norm", "std", "ratio", "mean", "abs_max", "zero_fraction", "nonfinite"];

const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

/** What a tensor is, and what is said behind its statistic, such as a path, a stage of the training or the prefix of a monitor. */
function partsOf(tensor) {
  const units = /^(?:.*\/)?units of (.*)$/s.exec(tensor);
  if (units) {
    const at = units[1].indexOf("/");
    return at < 0 ? [`units of ${units[1]}`, ""] : [`units of the ${partsOf(units[1].slice(0, at))[0]}`, ` of ${units[1].slice(at + 1)}`];
  }
  const prefix = tensor.slice(0, tensor.lastIndexOf("/") + 1).replace(/\/$/, "");
  const name = tensor.slice(tensor.lastIndexOf("/") + 1);
  const [, stage = "", base, path] = /^(?:(val|test|predict)_)?([^.[]*)(.*)$/s.exec(name);
  const state = base === "state" && path ? `optimizer state ${path.slice(1)}` : null;
  const [noun, suffix = ""] = state ? [state] : (TENSOR_TITLES[base] ?? [name]);
  const isKnown = state || TENSOR_TITLES[base];
  return [noun + (isKnown && !state && path ? ` ${path}` : ""), suffix + (isKnown && stage ? STAGES[stage] : "") + (prefix ? ` (${prefix})` : "")];
}

/** The title of a tensor: "Gradient after clipping". */
export function tensorTitle(tensor) {
  const [noun, suffix] = partsOf(tensor);
  return capital(noun) + suffix;
}

/** The title of a statistic: "Largest magnitude". */
export function statTitle(stat) {
  if (stat === "ratio") return "Ratio to the parameter";
  const quantile = /^p(\d+(?:\.\d+)?)$/.exec(stat);
  if (quantile) return quantile[1] === "50" ? "Median" : `Percentile ${quantile[1]}`;
  return capital(SHORT_TITLES[stat] ?? LONG_TITLES[stat] ?? stat);
}

/** The title of a statistic of a tensor: "Gradient norm after clipping", "Largest magnitude of the output". */
export function titleOf(tensor, stat) {
  const [noun, suffix] = partsOf(tensor);
  if (stat === "ratio") return `${capital(noun)} relative to the parameter${suffix}`;
  if (SHORT_TITLES[stat]) return `${capital(noun)} ${SHORT_TITLES[stat]}${suffix}`;
  return `${statTitle(stat)} of ${/^(units|optimizer)/.test(noun) ? "" : "the "}${noun}${suffix}`;
}

/** The title of a number of the whole run, such as watch/run/grad_norm: "Gradient norm"; null if there is none. */
export function runTitle(tag) {
  const [, name] = /(?:^|\/)run\/([^/]*)$/.exec(tag) ?? [];
  return RUN_TITLES[name] ?? null;
}

/** A tag in small letters beside a title. */
export const tagOf = (...words) => h("span", { class: "tag" }, ` ${words.filter(Boolean).join(" ")}`);

/** The head of a card: a title with its help and a value in one line, and below it the tag, so that the heads of all cards are equally tall. */
export function cardHead(title, tag, help, value) {
  return h("h3", {}, h("span", { class: "card-title" }, `${title} `, help), h("span", { class: "value" }, value), tagOf(tag === title.toLowerCase() || tag === title ? "\u00a0" : tag));
}

/** The options of a select for tensors or statistics: the common ones first, all others below "More". */
function groupedOptions(names, isCommon, rank, title) {
  const option = (name) => [name, title(name) === capital(name) ? title(name) : `${title(name)} · ${name}`];
  const common = names.filter(isCommon).toSorted((a, b) => rank(a) - rank(b));
  const more = names.filter((name) => !isCommon(name));
  if (!common.length || !more.length) return names.map(option);
  return [...common.map(option), { label: "More", options: more.map(option) }];
}

export const tensorOptions = (tensors) => groupedOptions(tensors, (name) => COMMON_TENSORS.includes(name), (name) => COMMON_TENSORS.indexOf(name), tensorTitle);
export const statOptions = (stats) => groupedOptions(stats, (name) => COMMON_STATS.includes(name), (name) => COMMON_STATS.indexOf(name), statTitle);
