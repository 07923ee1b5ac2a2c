// The state of the page: which run, table, rows and steps are shown. It is kept in the fragment of the address, so that a view can
// be sent as a link. In TensorBoard this is the address of the outer page.

import { MAPS, SCALES } from "./colors.js";
import { VIEWS } from "./controls.js";
import { tensorBoard } from "./host.js";
import { LEVELS } from "./levels.js";

const KEY = "p.lightning_hooks.view";

const DEFAULTS = {
  view: "overview",
  run: "",
  other: "", // names of the runs to compare with, separated by line feeds
  mode: "beside", // or "difference"
  change: "", // what a difference shows: "" the logarithm of the ratio if the statistic is a size, "linear" a minus b
  tensor: "",
  stat: "",
  filter: "",
  level: "", // "own": each row is coloured by its own median, "one": one scale for all rows; empty: as suits the levels
  scale: "auto",
  map: "viridis",
  low: "", // bounds of the colour scale; empty: chosen from the values of all rows in the shown steps
  high: "",
  from: "", // first step shown
  to: "", // the step after the last one shown
  folded: "", // which groups of rows are folded, see foldingOf() in rows.js
  row: "",
  step: "",
  step2: "", // the step to compare with
  curve: "", // the tag of the curve in the strip; empty: the default of the run
  curve2: "", // the tag of the second curve, "-" for none; empty: the validation loss of the run
  smooth: "0", // how much the curves are smoothed, see smoothing.js
  curve_log: "", // "1" or "0": whether the strip is logarithmic; empty: as suits the values
  sheet: "", // "layers": the histograms of all rows at one step, "steps": a map over steps for each row; empty: as suits their number
  record: "", // the flight record, by the name of its folder; empty: the first one
  fit: "", // "0": rows are as high as text, and scroll; otherwise all rows fit into the window
  order: "health", // the column by which the list of runs is sorted; with a minus the other way round
  find: "", // the text by which the list of runs is filtered
};

// The valid values of some fields. Other values in an address are ignored.
const CHOICES = {
  view: VIEWS.map(([view]) => view),
  mode: ["beside", "difference"],
  change: ["", "linear"],
  scale: SCALES,
  map: MAPS,
  level: LEVELS.map(([level]) => level),
  smooth: ["0", "1", "2", "3"],
  sheet: ["", "layers", "steps"],
  order: ["health", "name", "loss", "steps", "rate", "date"].flatMap((each) => [each, `-${each}`]),
};

export class State {
  constructor(changed) {
    Object.assign(this, DEFAULTS);
    this.changed = changed;
    this.read();
    addEventListener("hashchange", () => {
      if (outer() !== window) return;
      this.read();
      changed();
    });
  }

  /**
   * Change fields of the state, write the address, and update the page unless `quietly` is set. A change of the view, of the row in
   * the row view, or of the shown flight record adds an entry to the history of the browser.
   */
  set(values, quietly = false) {
    const before = this.page;
    for (const [name, value] of Object.entries(values)) this[name] = String(value ?? "");
    this.write(this.page !== before);
    if (!quietly) this.changed();
  }

  /** Fill in fields that the address left open: the page is not updated, and the history of the browser gets no entry. */
  settle(values) {
    Object.assign(this, values);
    this.write(false);
  }

  /** The identity of an entry in the history of the browser. */
  get page() {
    return { row: `row ${this.row}`, record: `record ${this.record}` }[this.view] ?? this.view;
  }

  /** The runs to compare with. */
  get others() {
    return this.other.split("\n").filter(Boolean);
  }

  /** A copy of the state, for a view that waits for answers while the state may change. */
  copy() {
    return { ...Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, this[name]])), others: this.others };
  }

  read() {
    const text = outer() === window ? location.hash.slice(1) : inner(outer().location.hash);
    const params = new URLSearchParams(text);
    this.names = (field) => params.has(field); // whether the address, as it was read last, names a field
    for (const [name, value] of Object.entries(DEFAULTS)) {
      const given = params.get(name) ?? value;
      this[name] = CHOICES[name]?.includes(given) === false ? value : given;
    }
  }

  write(isNew) {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(DEFAULTS)) if (this[name] !== value) params.set(name, this[name]);
    const view = outer();
    let hash = params.toString();
    if (view !== window) {
      const parts = view.location.hash.slice(1).split("&").filter((part) => part && !part.startsWith(`${KEY}=`));
      hash = [...(parts.length ? parts : ["lightning_hooks"]), `${KEY}=${encodeURIComponent(hash)}`].join("&");
    }
    try {
      // In TensorBoard, add no entry to the history, which belongs to TensorBoard.
      if (isNew && view === window) view.history.pushState(null, "", `#${hash}`);
      else view.history.replaceState(view.history.state, "", `#${hash}`);
    } catch {
      // A page in a notebook has no address of its own.
    }
  }
}

/** The window whose address holds the state: TensorBoard's window if the page is embedded in TensorBoard. */
function outer() {
  return tensorBoard() ?? window;
}

function inner(hash) {
  const part = hash.slice(1).split("&").find((each) => each.startsWith(`${KEY}=`));
  return part ? decodeURIComponent(part.slice(KEY.length + 1)) : "";
}
