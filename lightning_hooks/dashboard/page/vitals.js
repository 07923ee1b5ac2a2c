// What the overview shows of a healthy run: four numbers, each with a mark and what it is judged by, and the most unusual rows.

import { short } from "./colors.js";
import { question } from "./disclosure.js";
import { h, several, table } from "./dom.js";
import { signOf } from "./severity.js";

const MARKS = { fine: "as usual", info: "not as usual", unknown: "not known" };

/** The numbers of the answer to `vitals` (see api.py). */
export function vitalsOf({ numbers }) {
  const tile = ({ name, state, text, judged, source }) => h(
    "li",
    { class: `vital ${state}` },
    h("h3", {}, signOf(state), h("span", { class: "visually-hidden" }, `${MARKS[state]}: `), name),
    h("p", { class: "vital-text" }, text),
    h("p", { class: "fact judged" }, judged, " ", source ? question("Where is this from?", () => [h("p", { class: "source" }, `Where this is from: ${source}.`)]) : null),
  );
  return h("ul", { class: "vitals" }, ...numbers.map(tile));
}

/** The rows that differ most from the others of their table; null if no table has rows to compare. `linkTo` makes a link to a row. */
export function unusualRows({ rows }, linkTo) {
  if (!rows.length) return null;
  const lines = rows.map((each) => [linkTo(each, `${each.tensor} ${each.stat} of ${each.name}`), { number: short(each.value) }, { number: short(each.median) }, { number: factorText(each.factor) }]);
  const title = `The ${rows.length > 1 ? `${several(rows.length, "row")}` : "row"} farthest from the others`;
  return h("div", { class: "unusual" }, h("h2", {}, title), h("p", { class: "fact" }, "Medians over the last steps, compared with the median row of the same table. That a row differs is no fault by itself."), table(["row", "value", "median row", "differs"], lines));
}

/** A factor in words. */
function factorText(factor) {
  return factor >= 1 ? `${short(factor)} times as large` : `${short(1 / factor)} times smaller`;
}
