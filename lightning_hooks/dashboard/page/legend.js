// The legend of the heat maps: the meaning of their colours.

import { short, tableOf } from "./colors.js";
import { h } from "./dom.js";
import { GAP_TEXTS } from "./gaps.js";
import { APART_TEXT } from "./levels.js";
import { LEVEL_MAP } from "./mapdraw.js";
import { glyphOf } from "./marks.js";
import { swatch } from "./textures.js";
import { titleOf } from "./titles.js";

const OF_THE_TENSOR = /^(mean|std|rms|norm|abs_mean|min|max|abs_max|p\d+(\.\d+)?)$/;

/** Fill an element with the legend of a heat map: quantity, colour bar with ticks or `keys` in its place, outliers, special colours, findings. */
export function drawLegend(element, { tensor, stat, map, isDifference, isRatio, isReference, marks, gapKinds = ["gap"], keys = null, coloring = {}, level, choose, ofRun = "" }, scale) {
  const { isOwn } = coloring;
  // If all values are equal, they have one colour.
  const bar = colorBar(map, `Colours from ${short(scale.low)} to ${short(scale.high)}`, "bar", (x) => (scale.low === scale.high ? scale.index(scale.low) : x));
  const [below, above] = scale.beyond ?? [null, null];
  const ticks = (scale.low === scale.high ? [0] : [0, 0.5, 1]).map((at) => h("span", {}, short(scale.at(at))));
  // Ratios are easier to read as factors: 2³ is 8 times as large.
  if (isOwn) ticks.forEach((tick, i) => (tick.textContent = timesText(scale.at(i / 2))));
  if (isRatio) ticks.forEach((tick, i) => tick.append(` (×${short(2 ** scale.at(i / 2))})`));
  if (below !== null) ticks[0].prepend("≤ ");
  if (above !== null) ticks.at(-1).prepend("≥ ");
  const reachText = isOwn ? timesText : short;
  const reach = [below === null ? null : `down to ${reachText(below)}`, above === null ? null : `up to ${reachText(above)}`].filter(Boolean);
  element.replaceChildren(
    h("strong", {}, titleOf(tensor, stat)),
    h("span", { class: "legend-title" }, isReference ? `${tensor} ${stat}` : isRatio ? `log₂ of the ratio of ${tensor} ${stat}` : `${isDifference ? "difference of " : ""}${isOwn ? `${tensor} ${stat} as a multiple of the median of its row${ofRun ? ` in ${ofRun}` : ""} (${scale.kind})` : quantity(tensor, stat, scale)}`),
    ...(keys ?? [h("span", { class: "bar-holder" }, bar, h("span", { class: "ticks" }, ...ticks))]),
    ...(reach.length ? [h("span", { class: "beyond" }, `few values go ${reach.join(" and ")}`)] : []),
    ...(isOwn ? levelKeys(coloring, level, choose) : []),
    ...specialKeys(true, true, scale.hasZero, isRatio ? "0 or infinite in one run" : "infinite"),
    ...(stat === "ratio" && !isDifference && !isReference ? gapKeys(["fromZero"]) : []),
    ...(coloring.hasApart ? [keyOfTexture("apart", APART_TEXT)] : []),
    ...gapKeys(gapKinds),
    ...markKeys(marks).map(([sign, text]) => h("span", {}, h("span", { class: "mark" }, sign), ` ${text}`)),
  );
}

/** The colours of a map from left to right, 256 pixels; `indexAt(x)` is the index of a colour. */
function colorBar(map, label, name, indexAt = (x) => x) {
  const bar = h("canvas", { width: "256", height: "12", class: name, role: "img", "aria-label": label });
  const context = bar.getContext("2d");
  const table = tableOf(map);
  for (let x = 0; x < 256; x++) {
    const i = 3 * indexAt(x);
    context.fillStyle = `rgb(${table[i]}, ${table[i + 1]}, ${table[i + 2]})`;
    context.fillRect(x, 0, 1, 12);
  }
  return bar;
}

const timesText = (times) => (times === 1 ? "median" : times > 1 || !(times > 0) ? `×${short(Number(times.toPrecision(3)))}` : `÷${short(Number((1 / times).toPrecision(3)))}`);

/** The levels of the rows, why each row is coloured by its own, and the way to one scale. */
function levelKeys({ spread: { least, greatest } }, level, choose) {
  const bar = colorBar(LEVEL_MAP, `Levels of the rows from ${short(least)} to ${short(greatest)}`, "level-bar");
  const times = Number((greatest / least).toPrecision(2));
  const why = level === "" ? `Medians differ by a factor of ${times < 1e7 ? times.toLocaleString("en-US") : short(times)}, so each row has its own colours. ` : "";
  return [
    h("span", { class: "level-key" }, `median of a row, beside the cells: ${short(least)} `, bar, ` ${short(greatest)}`),
    h("span", { class: "level-why" }, why, h("button", { class: "link", onclick: () => choose("one") }, "One scale for all rows")),
  ];
}

/** The kinds of marks that there are: [sign, what it stands for]. */
export function markKeys(marks) {
  return [...new Set(marks.map(glyphOf))].sort().map((sign) => [sign, { "▼": "finding", "▽": "note", "●": "flight record" }[sign]]);
}

/** The quantity that a scale shows, with its unit, such as "grad norm (units of the tensor, log)". */
export function quantity(tensor, stat, scale) {
  const details = [unitOf(stat), ["linear", "usual"].includes(scale.kind) ? "" : scale.kind].filter(Boolean).join(", ");
  return `${tensor} ${stat}${details ? ` (${details})` : ""}`;
}

/** The keys of the textures of cells with values: NaN, infinite and exactly 0, each only if its argument is true. */
export function specialKeys(hasNan, hasInfinite, hasZero = false, infinite = "infinite") {
  const keys = [[hasNan, "nan", "NaN"], [hasInfinite, "infinite", infinite], [hasZero, "zero", "exactly 0"]];
  return keys.filter(([has]) => has).map(([, name, text]) => keyOfTexture(name, text));
}

/** The keys of the marks of a curve that is NaN or infinite at some steps; none if it is finite. */
export function brokenKeys(series) {
  const hasNan = series.some(({ least, nan }) => nan?.length || least.some(Number.isNaN));
  const hasInfinite = series.some(({ least, greatest }) => [...least, ...greatest].some((value) => Math.abs(value) === Infinity));
  return specialKeys(hasNan, hasInfinite);
}

/** The keys of the textures of what was not measured, by the kinds of the reasons. */
export const gapKeys = (kinds) => [...new Set(kinds)].map((kind) => keyOfTexture(kind, GAP_TEXTS[kind]));

export const keyOfTexture = (name, text) => h("span", { class: "special", "data-texture": name }, swatch(name), ` ${text}`);

/** The unit of a statistic; empty for a statistic of the user's own. */
function unitOf(stat) {
  if (stat === "zero_fraction" || stat === "underflow_fraction") return "share from 0 to 1";
  if (stat === "nonfinite" || stat === "count") return "elements";
  if (stat === "ratio") return "update to parameter";
  if (stat === "cosine" || stat === "micro_cosine") return "from −1 to 1";
  if (stat === "noise_scale") return "micro-batches";
  return OF_THE_TENSOR.test(stat) ? "units of the tensor" : "";
}
