// One crosshair for the strip, the maps and the curves of a view: all show the step to which the pointer or a key has moved.

import { short } from "./colors.js";
import { clamp, h } from "./dom.js";
import { AXIS } from "./maplabels.js";
import { cellOf } from "./segments.js";
import { TILE } from "./source.js";

export class Crosshair {
  constructor() {
    this.step = null; // the step that is pointed at
    this.followers = new Set(); // functions that are called with each new step, and with null if no step is pointed at
  }

  /** Show a step in all followers; null to show none. */
  move(step) {
    if (step === this.step) return;
    this.step = step;
    for (const follow of this.followers) follow(step);
  }
}

/**
 * Let a heat map move a crosshair and draw it. `chosen()` returns the node of a row, or undefined. While another part of the page moves
 * the crosshair, the value of this row stands beside the step.
 */
export function followOnMap(map, crosshair, chosen) {
  const label = h("span", { class: "crosshair-step" });
  const line = h("div", { class: "crosshair", hidden: true, "aria-hidden": "true" }, label);
  map.canvas.parentElement.append(line);
  let isLeading = false;
  const lead = (step) => {
    isLeading = true;
    crosshair.move(step);
    isLeading = false;
  };
  const inside = (event) => {
    const { drawn, model } = map;
    const x = event.clientX - map.canvas.getBoundingClientRect().left - (drawn?.gutter ?? 0);
    return drawn && x >= 0 && x < drawn.plot ? Math.floor(model.from + (x / drawn.plot) * drawn.span) : null;
  };
  map.canvas.addEventListener("pointermove", (event) => lead(inside(event)));
  map.canvas.addEventListener("pointerleave", () => lead(null));
  map.canvas.addEventListener("keydown", () => map.cursor && lead(map.cursor.step));
  map.canvas.addEventListener("blur", () => lead(null));
  crosshair.followers.add((step) => {
    const at = map.drawn;
    const share = at && step !== null ? (step + 0.5 - map.model.from) / at.span : -1;
    line.hidden = !(share >= 0 && share <= 1);
    if (line.hidden) return;
    label.textContent = `${step.toLocaleString("en-US")}${isLeading ? "" : valueAt(map, chosen(), step)}`;
    const x = at.gutter + share * at.plot;
    Object.assign(line.style, { left: `${x}px`, height: `${AXIS + at.height}px` });
    label.style.translate = `${clamp(-label.offsetWidth / 2, -x, at.width - x - label.offsetWidth)}px`;
  });
}

/** The value of a row at a step, as text; empty if the row is not shown or its cell has not arrived. */
function valueAt(map, node, step) {
  if (node === undefined || !map.model.shown.includes(node)) return "";
  const { cell, level } = map.drawn;
  const i = Math.floor(step / cell);
  const segment = map.model.cells.tile(level, Math.floor(i / TILE))?.get(node);
  const values = segment && cellOf(segment, i % TILE);
  if (!values) return "";
  const text = values.nan ? "NaN" : values.infinite ? "infinite" : Number.isNaN(values.value) ? "no ratio" : short(values.value);
  return `  ${map.model.rows.nodes[node].name}: ${text}`;
}
