// The step view: a bar for every row at one step, in the order of the layers or reversed, with a second step and other runs to compare with.

import { COLORS } from "./charts.js";
import { nameOf } from "./controls.js";
import { makeScale, short } from "./colors.js";
import { choice, clamp, color, h, onceAFrame, several } from "./dom.js";
import { gapKeys, keyOfTexture, specialKeys, quantity } from "./legend.js";
import { APART_TEXT, apartOf } from "./levels.js";
import { filterOf } from "./patterns.js";
import { Player } from "./player.js";
import { farther } from "./segments.js";
import { cellArrays, ranges } from "./source.js";
import { LEFT, drawBars } from "./stepbars.js";
import { stepsText } from "./steps.js";
import { tagOf, titleOf } from "./titles.js";
import { usualLegend, withTypical } from "./usual.js";

const SECOND = "ink"; // the colour of the step that is compared with (the input "compare with step")
const KIND_INKS = ["kind0", "kind1", "kind2", "kind3", "kind4"]; // the colours of bars by the type of the module, the most frequent type first
const OTHER_KIND = "soft";
const BELOW_BARS = 34; // pixels between the legend and the end of the window
const HINT = "Point at a bar, or move over the bars with the arrow keys, to read its name and value here.";

export class StepView {
  constructor(app) {
    this.app = app;
    this.usesOther = this.usesTable = true;
    this.backwards = null; // whether the last layer comes first; null: only for gradients
    const { state } = app;
    this.slider = h("input", { type: "range", "aria-label": "Step", class: "slider", oninput: () => state.set({ step: this.steps.at(Number(this.slider.value)) }) });
    this.second = h("input", {
      type: "text",
      inputmode: "numeric",
      size: "8",
      placeholder: "none",
      "aria-label": "Second step, to compare with",
      onchange: () => (/^\d*$/.test(this.second.value) ? state.set({ step2: this.second.value }) : app.say(`${this.second.value} is not a step`, "error")),
    });
    this.direction = choice("Order", [["forward", "first to last layer"], ["backward", "last to first layer"]], "forward", (value) => {
      this.backwards = value === "backward";
      app.update();
    });
    this.player = new Player({
      count: () => this.steps?.count ?? 0,
      index: () => Number(this.slider.value),
      show: (index) => this.showStep(index),
      isShown: () => this.element.isConnected,
    });
    this.readout = h("output", { class: "readout bar-readout", "aria-live": "polite" });
    this.note = h("p", { class: "note", hidden: true });
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Bars of all rows. Arrow keys move over the rows, Enter shows the row in the heat map." });
    this.holder = h("div", { class: "bars" }, this.canvas);
    this.title = h("h2", {});
    this.quantity = h("span", { class: "legend-title" });
    this.legend = h("div", { class: "legend" });
    this.usualKey = h("div", {});
    this.element = h(
      "div",
      { class: "view" },
      h("div", { class: "tools" }, this.player.element, h("label", { class: "choice grow" }, h("span", {}, "Step"), this.slider), h("label", { class: "choice" }, h("span", {}, "Compare with step"), this.second), this.direction),
      this.title,
      this.note,
      this.readout,
      this.holder,
      this.legend,
      this.usualKey,
    );
    this.redraw = onceAFrame(() => this.draw());
    new ResizeObserver(() => this.redraw()).observe(this.holder);
    addEventListener("resize", this.redraw);
    const point = (event) => this.select(Math.floor(((event.offsetX - LEFT) / this.plot) * this.bars.length));
    this.canvas.addEventListener("pointermove", point);
    this.canvas.addEventListener("click", (event) => {
      point(event); // on a touch screen no move event comes before the click
      this.open();
    });
    this.canvas.addEventListener("keydown", (event) => this.keyPressed(event));
  }

  keyPressed(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Enter") this.open();
    if (!move) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true }); // so that Enter opens the bar
    this.select(clamp((this.selected ?? -1) + move, 0, this.bars.length - 1));
  }

  /** Show the step at an index of the table, and resolve when it is drawn. */
  async showStep(index) {
    const { state } = this.app;
    if (!this.element.isConnected) return;
    state.set({ step: this.steps.at(clamp(index, 0, this.steps.count - 1)) }, true);
    await this.app.update();
  }

  /** Use a key while no other element uses it. */
  pressed(event) {
    const { key } = event;
    const by = { ",": -1, ".": 1 }[key];
    if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(key)) this.keyPressed(event);
    else if (key === "k") this.player.toggle();
    else if (by && this.steps) this.showStep(Number(this.slider.value) + by);
    else return false;
    return true;
  }

  async update(isCurrent) {
    const { app } = this;
    const state = app.state.copy();
    if (document.activeElement !== this.second) this.second.value = state.step2;
    const backwards = this.backwards ?? state.tensor.includes("grad");
    this.direction.querySelector("select").value = backwards ? "backward" : "forward";
    const [rows, ...rowsOfOthers] = await Promise.all([state.run, ...state.others].map((run) => app.loaded.rows(run, state.tensor, state.stat)));
    if (!isCurrent()) return;
    const { steps } = rows;
    const index = stepIndex(steps, state.step === "" ? Infinity : Number(state.step));
    const step = steps.at(index);
    this.steps = steps;
    this.slider.max = steps.count - 1;
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", `step ${step}`);
    const { matches, error } = filterOf(state.filter);
    const leaves = rows.filtered(matches);
    const names = leaves.map((node) => rows.nodes[node].name);
    const second = state.step2 === "" ? null : steps.at(stepIndex(steps, Number(state.step2)));
    const [now, then, ...others] = await Promise.all([
      this.read(state.run, state, rows, names, step),
      second === null ? null : this.read(state.run, state, rows, names, second),
      // If another run does not have this step, show the last one before it.
      ...rowsOfOthers.map((each, i) => each && this.read(state.others[i], state, each, names, each.steps.at(stepIndex(each.steps, step)))),
    ]);
    if (!isCurrent()) return;
    // Over the bars are drawn the second step, and the other runs in the colours that they have in the curves.
    this.compared = [
      ...(then ? [{ ...then, label: then.text, color: SECOND }] : []),
      ...others.flatMap((other, i) => {
        if (!other) return [];
        const label = other.text === now.text ? nameOf(state.others[i]) : `${nameOf(state.others[i])}, ${other.text}`;
        return [{ ...other, label, color: COLORS[(i + 1) % COLORS.length] }];
      }),
    ];
    const chosen = this.bars?.[this.selected]?.name ?? state.row;
    const apart = apartOf(rows, state.tensor, new Map(names.map((name) => [name, Math.abs(now.values.get(name)) || NaN])));
    this.kinds = kindsOf(leaves.map((node) => rows.nodes[node].type));
    this.bars = leaves.map((node) => {
      const { name, type } = rows.nodes[node];
      const ink = this.kinds.get(type) ?? (this.kinds.size ? OTHER_KIND : KIND_INKS[0]);
      return { name, now: now.values.get(name), compared: this.compared.map((each) => each.values.get(name)), ink, isApart: apart.has(name) };
    });
    this.usual = app.loaded.usual(state.tensor, state.stat) ?? null;
    this.usualKey.replaceChildren(...(this.usual ? [usualLegend(this.usual)] : []));
    await this.explain(state, rows, now);
    if (!isCurrent()) return;
    if (backwards) this.bars.reverse();
    const title = `${titleOf(state.tensor, state.stat)} at ${now.text}${then ? `, compared with ${then.text}` : ""}${state.filter ? `, rows ${state.filter}` : ""}`;
    this.title.replaceChildren(title, tagOf(state.tensor, state.stat));
    this.shown = state;
    this.showNote([error, ...missing(state, rows, rowsOfOthers, matches), leaves.length || error ? "" : `No row matches ${state.filter}.`]);
    this.showLegend(state);
    this.selected = null;
    const at = this.bars.findIndex((bar) => bar.name === chosen);
    if (at >= 0) this.select(at);
    else this.readout.textContent = this.bars.length ? HINT : "";
    this.redraw();
  }

  /** Add to each bar without a value why its row was not measured, as `why`: { kind, text }. */
  async explain({ run, tensor, stat }, rows, { from, to, withoutRatio }) {
    for (const bar of this.bars) if (withoutRatio.has(bar.name)) bar.why = { kind: "fromZero", text: "the parameter was 0 before the update" };
    const empty = this.bars.filter((bar) => bar.now === null && !bar.why);
    if (!empty.length) return;
    const gaps = await this.app.loaded.gaps(run, tensor, stat, rows);
    for (const bar of empty) bar.why = gaps.reasonAt(rows.rowByName.get(bar.name), from, to);
  }

  showNote(texts) {
    this.note.textContent = texts.filter(Boolean).join(" ");
    this.note.hidden = !this.note.textContent;
  }

  showLegend({ run }) {
    const has = (is) => this.bars.some((bar) => is(bar.now));
    const key = (name, text) => h("span", {}, h("i", { class: "line-key", style: `background: var(--${name})` }), text);
    const keys = this.compared.length ? [key(COLORS[0], `bars: ${nameOf(run)}`), ...this.compared.map((each) => key(each.color, `line: ${each.label}`))] : [];
    const special = specialKeys(has(Number.isNaN), has((value) => value === Infinity), this.bars.some((bar) => bar.now === 0 && !bar.isApart));
    const kinds = [...this.kinds].map(([kind, ink]) => h("span", { class: "kind-key" }, h("i", { style: `background: var(--${ink})` }), kind));
    if (this.bars.some((bar) => this.kinds.size && bar.ink === OTHER_KIND)) kinds.push(h("span", { class: "kind-key" }, h("i", { style: `background: var(--${OTHER_KIND})` }), "other modules"));
    const apart = this.bars.some((bar) => bar.isApart) ? [keyOfTexture("apart", APART_TEXT)] : [];
    this.legend.replaceChildren(this.quantity, ...kinds, ...keys, ...special, ...apart, ...gapKeys(this.bars.map((bar) => bar.why?.kind).filter(Boolean)));
  }

  /**
   * The values of a run at a step by the names of rows (null if a row was not measured, no entry if the run does not have the row), and
   * the step as text: { values, text, from, to }. In a report these may be several steps, which were joined.
   */
  async read(run, { tensor, stat }, rows, names, step) {
    const { source } = this.app;
    const level = source.leastLevel({ run, tensor, stat });
    const unit = source.isLive ? 1 : rows.unit;
    const width = unit * 2 ** level;
    const cell = Math.floor(step / width);
    const [from, to] = [cell * width, (cell + 1) * width];
    const text = stepsText(rows.steps.within(from, to));
    const nodes = names.map((name) => rows.rowByName.get(name)).filter((node) => node !== undefined).sort((a, b) => a - b);
    if (!nodes.length) return { values: new Map(), withoutRatio: new Set(), text, from, to };
    const buffer = await source.tile({ run, tensor, stat, key: rows.key, unit, level, first: cell, last: cell + 1, nodes: ranges(nodes) });
    const { least, greatest, nan, infinite, fromZero } = cellArrays(buffer, nodes.length);
    const values = nodes.map((_, i) => {
      if (nan[i]) return NaN;
      if (infinite[i]) return Infinity;
      return Number.isNaN(least[i]) ? null : farther(least[i], greatest[i]);
    });
    const found = nodes.map((node) => rows.nodes[node].name);
    const withoutRatio = new Set(found.filter((_, i) => values[i] === null && fromZero[i]));
    return { values: new Map(found.map((name, i) => [name, values[i]])), withoutRatio, text, from, to };
  }

  draw() {
    if (!this.bars || !this.element.isConnected) return;
    const width = Math.max(this.holder.clientWidth, 200);
    const bounds = this.scaleOfBars();
    this.quantity.textContent = `Height: ${quantity(this.shown.tensor, this.shown.stat, bounds)}`;
    const below = this.legend.offsetHeight + this.usualKey.offsetHeight + BELOW_BARS;
    const height = window.innerHeight - (this.holder.getBoundingClientRect().top + window.scrollY) - below;
    const { plot, foot } = drawBars(this.canvas, width, height, {
      bars: this.bars,
      selected: this.selected,
      scale: bounds,
      colors: this.compared.map((each) => color(each.color)),
      usual: this.usual,
    });
    Object.assign(this, { plot, foot });
  }

  /** The scale of the axis. While steps are played its bounds only widen, so that bars can be compared from step to step. */
  scaleOfBars() {
    const { usual, player } = this;
    const values = this.bars.flatMap((bar) => [...(bar.isApart ? [] : [bar.now]), ...bar.compared]).filter((value) => Number.isFinite(value));
    const seen = player.isPlaying ? [...(this.playedBounds ?? []), ...values] : values;
    const sizes = seen.map(Math.abs).filter((value) => value > 0);
    this.playedBounds = [Math.min(...seen), Math.max(...seen), Math.min(...sizes), Math.max(...sizes)].filter(Number.isFinite);
    const all = usual && seen.length ? [...seen, ...[usual.typical].filter((value) => value !== null)] : seen;
    const leastPositive = Math.min(...all.map(Math.abs).filter((value) => value > 0));
    const scale = makeScale("auto", Math.min(0, ...all), Math.max(...all, 0), leastPositive, false);
    if (scale.kind !== "log") return scale;
    // Begin a logarithmic axis at a tenth of the least bar, so that this bar is visible.
    const [low, high] = usual ? withTypical([leastPositive / 10, scale.high], usual, true) : [leastPositive / 10, scale.high];
    return makeScale("log", low, high, low, false);
  }

  select(i) {
    const bar = this.bars?.[i];
    if (!bar || i === this.selected) return;
    this.selected = i;
    const compared = this.compared.map(({ label }, k) => `; ${label}: ${valueText(bar.compared[k])}`);
    this.readout.textContent = `${bar.name}: ${bar.why?.kind === "fromZero" ? "no ratio" : valueText(bar.now)}${bar.why?.text ? ` (${bar.why.text})` : ""}${compared.join("")}`;
    this.redraw();
  }

  open() {
    const bar = this.bars?.[this.selected];
    if (bar) this.app.state.set({ view: "map", row: bar.name, step: this.steps.at(Number(this.slider.value)) });
  }
}

/** The colour of each type of module, by the type, of the most frequent types; empty if there is a single type. */
function kindsOf(types) {
  const counts = new Map();
  for (const type of types) if (type) counts.set(type, (counts.get(type) ?? 0) + 1);
  if (counts.size < 2) return new Map();
  const frequent = [...counts].toSorted(([, a], [, b]) => b - a).slice(0, KIND_INKS.length);
  return new Map(frequent.map(([type], i) => [type, KIND_INKS[i]]));
}

/** The index of the last step up to a number; 0 if all steps are later. */
function stepIndex(steps, number) {
  return Number.isFinite(number) ? Math.max(steps.below(number + 1) - 1, 0) : steps.count - 1;
}

function valueText(value) {
  if (value === undefined) return "no such row";
  return value === null ? "not measured" : short(value);
}

/** What the other runs lack or have in addition, as sentences. */
function missing({ tensor, stat, others }, rows, rowsOfOthers, matches) {
  return rowsOfOthers.map((each, i) => {
    if (!each) return `${nameOf(others[i])} has no table of ${tensor} ${stat}.`;
    const more = each.filtered(matches).filter((node) => !rows.rowByName.has(each.nodes[node].name)).length;
    return more ? `Not shown: ${several(more, "row")} that only ${nameOf(others[i])} has.` : "";
  });
}
