// The colours of a heat map against a range: green inside, red above, orange below, as people with every kind of colour vision can tell
// them apart; the legend has a sign for each. The range is the usual one of a statistic, or that around the values of another run.

import { short, tableOf } from "./colors.js";
import { h } from "./dom.js";

const FAR = 3; // powers of ten from the range at which the colour is the last one
const NEAR = 2; // the factor within which a value counts as that of the other run
// The places in the 256 colours of the map "usual": below the range, inside, above.
const [BELOW, INSIDE, ABOVE] = [[0, 80], [96, 160], [176, 255]];

/** The scale of a map against a usual range, as makeScale() returns scales. */
export function usualScale({ low, high }) {
  const decades = (near, far) => (far / near > 0 ? Math.abs(Math.log10(far / near)) : FAR);
  return rangeScale("usual", low, high, decades, true);
}

/** The scale of a map of ratios to another run, whose values are logarithms to base 2. */
export function referenceScale() {
  const decades = (near, far) => Math.abs(far - near) * Math.log10(2);
  return rangeScale("reference", -Math.log2(NEAR), Math.log2(NEAR), decades, false);
}

function rangeScale(kind, low, high, decades, hasZero) {
  const distance = (near, far) => Math.min(decades(near, far) / FAR, 1);
  const index = (x) => {
    if (x < low) return Math.round(BELOW[1] - distance(low, x) * (BELOW[1] - BELOW[0]));
    if (x > high) return Math.round(ABOVE[0] + distance(high, x) * (ABOVE[1] - ABOVE[0]));
    return Math.round((INSIDE[0] + INSIDE[1]) / 2);
  };
  return { kind, low, high, index, at: (fraction) => low + (high - low) * fraction, hasZero };
}

/** The keys of the legend: what is above, inside and below the usual range, and who published it. */
export function usualKeys({ low, high, source }) {
  const inside = `usual, ${short(low)} to ${short(high)}`;
  return [...keys(`above ${short(high)}`, inside, low > 0 ? `below ${short(low)}` : null), h("span", { class: "source" }, source)];
}

/** The keys of the legend of a map against other runs, which have these names. */
export function referenceKeys(names) {
  const inside = `as in ${names.length === 1 ? names[0] : "the other run"}, within a factor of ${NEAR}`;
  return keys(`more than ${NEAR} times as large`, inside, "less than half as large");
}

function keys(above, inside, below) {
  const table = tableOf("usual");
  const key = (at, text) => h("span", { class: "usual-key" }, h("i", { class: "blank", style: `background: rgb(${[...table.subarray(3 * at, 3 * at + 3)].join(", ")})` }), ` ${text}`);
  return [key(ABOVE[0] + 30, `▲ ${above}`), key(128, `✓ ${inside}`), ...(below ? [key(BELOW[1] - 30, `▼ ${below}`)] : [])];
}
