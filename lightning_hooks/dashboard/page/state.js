// What is shown, kept in the address, so that a view can be sent as a link. In TensorBoard the address is that of the outer page.

import { MAPS, SCALES } from "./colors.js";
import { VIEWS } from "./controls.js";
import { tensorBoard } from "./host.js";

const KEY = "p.lightning_hooks.view";

const DEFAULTS = {
  view: "overview",
  run: "",
  other: "", // runs to compare with, a line each
  mode: "beside", // or "difference"
  tensor: "",
  stat: "",
  filter: "",
  scale: "auto",
  map: "viridis",
  low: "", // bounds of the colours, where they are fixed
  high: "",
  from: "", // first step shown
  to: "", // the step after the last one shown
  folded: "", // which parts of the tree are folded
  row: "",
  step: "",
  step2: "", // to compare with
  fit: "",
};

// What some of it is chosen from; an address may say anything.
const CHOICES = { view: VIEWS.map(([view]) => view), mode: ["beside", "difference"], scale: SCALES, map: MAPS };

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

  /** Change some of it; the address follows, and what is drawn. The browser goes back to another view, or another row in its view. */
  set(values, quietly = false) {
    const before = this.page;
    for (const [name, value] of Object.entries(values)) this[name] = String(value ?? "");
    this.write(this.page !== before);
    if (!quietly) this.changed();
  }

  /** What the browser goes back to. */
  get page() {
    return this.view === "row" ? `row ${this.row}` : this.view;
  }

  /** The runs to compare with. */
  get others() {
    return this.other.split("\n").filter(Boolean);
  }

  /** What it is now, for who waits for answers while it may change. */
  copy() {
    return { ...Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, this[name]])), others: this.others };
  }

  read() {
    const text = outer() === window ? location.hash.slice(1) : inner(outer().location.hash);
    const params = new URLSearchParams(text);
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
      // The history of TensorBoard is its own.
      if (isNew && view === window) view.history.pushState(null, "", `#${hash}`);
      else view.history.replaceState(view.history.state, "", `#${hash}`);
    } catch {
      // A page in a notebook has no address of its own.
    }
  }
}

/** The window whose address counts: the outer one in TensorBoard. */
function outer() {
  return tensorBoard() ?? window;
}

function inner(hash) {
  const part = hash.slice(1).split("&").find((each) => each.startsWith(`${KEY}=`));
  return part ? decodeURIComponent(part.slice(KEY.length + 1)) : "";
}
