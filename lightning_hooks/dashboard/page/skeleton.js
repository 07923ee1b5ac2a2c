// What stands in the place of a view, or of a part of it, while its data is on the way: grey bars where text and pictures will be.

import { h } from "./dom.js";

const BONE_WIDTHS = [38, 72, 64, 80, 55, 69]; // of the bars, as percentages

/** Some bars of text, or with `tall` the places of as many pictures. Screen readers hear `text`. */
export function skeleton(count = 4, text = "Loading …", tall = false) {
  const bars = Array.from({ length: count }, (_, i) => h("div", { class: `bone${tall ? " tall" : ""}`, style: tall ? null : `width: ${BONE_WIDTHS[i % BONE_WIDTHS.length]}%` }));
  return h("div", { class: `skeleton${tall ? " cards" : ""}`, role: "status", "aria-busy": "true" }, h("span", { class: "visually-hidden" }, text), ...bars);
}
