// The colours of a heat map against the usual range of its statistic: green inside, red outside, as people with every kind of colour
// vision can tell them apart; the legend has a sign for each.

import { short, tableOf } from "./colors.js";
import { h } from "./dom.js";

const FAR = 3; // powers of ten from the range at which the colour is the last one
// The places in the 256 colours of the map "usual": below the range, inside, above.
const [BELOW, INSIDE, ABOVE] = [[0, 80], [96, 160], [176, 255]];

/** The scale of a map against a usual range, as makeScale() returns scales. */
export function usualScale({ low, high }) {
  const distance = (near, far) => Math.min(Math.abs(Math.log10(far / near)) / FAR, 1) || 0;
  const index = (x) => {
    if (x < low) return Math.round(BELOW[1] - (x > 0 ? distance(low, x) : 1) * (BELOW[1] - BELOW[0]));
    if (x > high) return Math.round(ABOVE[0] + distance(high, x) * (ABOVE[1] - ABOVE[0]));
    return Math.round((INSIDE[0] + INSIDE[1]) / 2);
  };
  return { kind: "usual", low, high, index, at: (fraction) => low + (high - low) * fraction, hasZero: true };
}

/** The keys of the legend: what is above, inside and below the range, and who published it. */
export function usualKeys({ low, high, source }) {
  const table = tableOf("usual");
  const key = (at, text) => h("span", { class: "usual-key" }, h("i", { class: "blank", style: `background: rgb(${[...table.subarray(3 * at, 3 * at + 3)].join(", ")})` }), ` ${text}`);
  return [
    key(ABOVE[0] + 30, `▲ above ${short(high)}`),
    key(128, `✓ usual, ${short(low)} to ${short(high)}`),
    ...(low > 0 ? [key(BELOW[1] - 30, `▼ below ${short(low)}`)] : []),
    h("span", { class: "source" }, source),
  ];
}
