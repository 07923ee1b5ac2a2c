// The heat map view: a map of one run, maps of several runs side by side, or maps of differences between runs.

import { coloringOf, useColoring } from "./coloring.js";
import { nameOf } from "./controls.js";
import { Crosshair, followOnMap } from "./crosshair.js";
import { h, onceAFrame } from "./dom.js";
import { savePicture, saveTable } from "./export.js";
import { forgottenText } from "./gaps.js";
import { HeatMap } from "./heatmap.js";
import { drawLegend } from "./legend.js";
import { describeCell } from "./mapinput.js";
import { widestLabel } from "./maplabels.js";
import { MapModels } from "./mapmodels.js";
import { makeTools } from "./maptools.js";
import { foldingOf, foldingText } from "./rows.js";
import { Strip } from "./strip.js";
import { referenceKeys, usualKeys } from "./usualmap.js";

const [LEAST_LEGEND, BELOW_LEGEND] = [38, 30]; // pixels of the legend, and between it and the end of the window
const LEAST_HEIGHT = 180; // pixels of the maps: in a lower window the legend is below the end of the window
const LEAST_WIDTH = 520; // pixels of a panel if panels are side by side

export class MapView {
  constructor(app) {
    this.app = app;
    this.usesOther = this.usesTable = true;
    this.models = new MapModels(app);
    this.panels = [];
    this.legend = h("div", { class: "legend" });
    this.maps = h("div", { class: "maps" });
    this.picked = h("div", { class: "picked", hidden: true });
    this.note = h("p", { class: "note", hidden: true });
    this.forgotten = h("div", {});
    this.compared = h("div", { "aria-live": "polite" });
    this.tools = makeTools(app, {
      zoom: (factor) => this.panels[0]?.zoom(factor),
      pan: (share) => this.panels[0]?.pan(share),
      savePicture: () => savePicture(this.panels, app.state, this.legend),
      saveTable: () => saveTable(this.panels, app.state),
    });
    this.crosshair = new Crosshair();
    this.strip = new Strip(app, this.crosshair, (finding) => this.showFinding(finding));
    this.element = h("div", { class: "view map-view" }, this.tools.element, this.strip.element, this.note, this.compared, this.forgotten, this.maps, this.legend, this.picked);
    this.recolor = onceAFrame(() => this.color());
    addEventListener("resize", () => {
      if (!this.panels.length || !this.element.isConnected) return;
      const { columns } = this;
      this.sizePanels();
      // The strip has a curve above each column.
      if (columns !== this.columns) app.update();
      else this.recolor();
    });
  }

  /** A run has new steps after `step`: mark the cells that may have changed as old. */
  grown(run, step) {
    this.models.grown(run, step);
  }

  async update(isCurrent) {
    const { app } = this;
    const state = app.state.copy();
    this.tools.sync(app.loaded.knownRows(state.run, state.tensor, state.stat)?.positive);
    const rows = await app.loaded.rows(state.run, state.tensor, state.stat);
    const rowsOfOthers = await Promise.all(state.others.map((other) => app.loaded.rows(other, state.tensor, state.stat)));
    if (!isCurrent()) return;
    this.tools.sync(rows.positive);
    // If a link leads to a step outside of the shown ones, show all steps.
    const arrived = `${state.row}\n${state.step}`;
    const range = app.range();
    if (arrived !== this.arrived && state.row && state.step !== "" && !(range.from <= Number(state.step) && Number(state.step) < range.to)) {
      app.state.set({ from: "", to: "" }, true);
    }
    this.arrived = arrived;
    const { from, to } = app.range();
    // Give the strip its height before the maps are sized, because the maps take the height that is left.
    this.strip.makeRoom();
    const showCurves = (series) => isCurrent() && this.strip.show(series, this.areas);
    this.strip.request({ from, to }).then(showCurves, (error) => isCurrent() && app.failed(error));
    const folding = foldingOf(state.folded);
    this.note.hidden = true;
    const { models, isFiltered, notes } = this.models.of(state, rows, rowsOfOthers, app.range());
    notes.forEach((text) => this.tell(text));
    if (isFiltered && !models[0].shown.length) this.tell(`No row matches ${state.filter}.`);
    this.mapsShown = [state.run, state.other, state.mode, state.change, state.map === "reference", state.tensor, state.stat].join("\n\n");
    this.showPanels(models);
    this.strip.redraw();
    this.compare(state).catch((error) => app.failed(error));
    this.explainGaps(models, state).catch((error) => app.failed(error));
    // Hide the picked cell if other maps are shown now: its numbers would not be those of the maps.
    const mapsChanged = this.mapsShown !== this.pickedOf;
    this.pickedOf = this.mapsShown;
    const rowChanged = this.revealed !== state.row;
    if (mapsChanged || rowChanged) this.picked.hidden = true;
    this.revealed = state.row;
    const node = rows.rowByName.get(state.row);
    if (node !== undefined && (rowChanged || mapsChanged)) {
      const isShown = models[0].shown.includes(node);
      if (rowChanged && !isShown && !isFiltered) {
        [this.revealed, this.pickedOf] = [null, null];
        app.state.set({ folded: foldingText(rows.revealing(state.row, folding)) }, true);
        return app.update();
      }
      if (rowChanged) this.panels[0].reveal(node);
      if (isShown) this.showPicked(this.panels[0], node, state.step === "" ? null : Number(state.step));
    }
    if (state.row && !rows.rowByName.has(state.row)) this.tell(`${state.row} is not in this table.`);
  }

  /** Say in a sentence for each of the other runs how the statistic differs. */
  async compare({ run, others, tensor, stat }) {
    const { loaded } = this.app;
    const maps = this.mapsShown;
    const found = await Promise.all(others.map((other) => (loaded.has(other, tensor, stat) ? loaded.comparison(run, other, tensor, stat) : null)));
    if (maps !== this.mapsShown) return;
    const texts = found.map((each) => each?.text).filter(Boolean);
    if (texts.join() === this.compared.textContent) return;
    this.compared.replaceChildren(...texts.map((text) => h("p", { class: "compared" }, text)));
    this.sizePanels();
    this.recolor();
  }

  /** Request why cells of the maps were not measured, and name the parameters that are in no optimizer. */
  async explainGaps(models, { tensor, stat }) {
    const explained = models.filter((model) => !model.isDifference);
    const found = await Promise.all(explained.map((model) => this.app.loaded.gaps(model.run, tensor, stat, model.rows)));
    if (!explained.some((model) => this.panels.some((panel) => panel.model === model))) return;
    const texts = explained.map((model, i) => forgottenText(found[i].forgotten, model.title)).filter(Boolean);
    const isSaid = texts.map((each) => each.textContent).join() === [...this.forgotten.children].map((each) => each.textContent).join();
    // While a person moves through a run the reasons stay the same, so do not draw the maps a second time.
    if (isSaid && explained.every((model, i) => model.gaps === found[i])) return;
    explained.forEach((model, i) => {
      model.gaps = found[i];
      this.models.gapsOf.set(model.rows, found[i]);
    });
    this.forgotten.replaceChildren(...texts);
    this.sizePanels();
    this.color();
  }

  /** The area of the curve above each column of maps: a step has the place that it has in the maps. */
  get areas() {
    return this.panels.slice(0, this.columns ?? 1).map((panel) => () => {
      const { gutter, plot } = panel.layout();
      return { left: gutter, width: plot, from: panel.model.from, to: panel.model.to };
    });
  }

  /** Lead to the row of a finding, or if it has none to its step. */
  showFinding(finding) {
    const { app } = this;
    this.revealed = null;
    app.state.set(finding.name ? { row: finding.name, step: finding.step } : { view: "step", step: finding.step });
  }

  /** Use a key while no other element uses it: the keys of the map work without a click on it. */
  pressed(event) {
    const isOfMap = event.key.startsWith("Arrow") || ["+", "=", "-", "0", "Home", "End", "PageUp", "PageDown"].includes(event.key);
    if (!isOfMap || !this.panels.length) return false;
    this.panels[0].canvas.focus({ preventScroll: true });
    this.panels[0].press(event);
    return true;
  }

  tell(text) {
    this.note.textContent = text;
    this.note.hidden = false;
  }

  showPanels(models) {
    const { app } = this;
    while (this.panels.length < models.length) {
      const panel = new HeatMap({
        onZoom: (from, to) => app.zoomTo(from, to),
        onFold: (node) => this.toggle(panel.model.rows.nodes[node].name),
        onPick: (node, step, opens) => this.pick(panel, node, step, opens),
        onScroll: (top) => this.panels.forEach((other) => other !== panel && other.follow(top)),
        onArrival: () => this.recolor(),
        onError: (error) => app.failed(error),
      });
      followOnMap(panel, this.crosshair, () => panel.model.rows.rowByName.get(app.state.row));
      this.panels.push(panel);
    }
    this.panels.length = models.length;
    if (this.maps.childElementCount !== models.length) this.maps.replaceChildren(...this.panels.map((panel) => panel.element));
    models.forEach((model, i) => this.panels[i].show(model));
    const labels = Math.max(...models.map(widestLabel));
    models.forEach((model, i) => {
      model.labels = labels; // equal in all panels, so that a step has the same position
      model.baseMap = model.map;
      useColoring(model, this.currentColoring, i);
    });
    this.sizePanels();
    this.recolor();
  }

  /** Put the panels side by side if there is room, otherwise below one another, and divide the height of the window among them. */
  sizePanels() {
    const { length } = this.panels;
    const columns = Math.min(length, Math.max(Math.floor(this.maps.clientWidth / LEAST_WIDTH), 1));
    this.maps.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    this.columns = columns;
    const lines = Math.ceil(length / columns);
    const below = Math.max(this.legend.offsetHeight, LEAST_LEGEND) + BELOW_LEGEND;
    const room = Math.max(window.innerHeight - (this.maps.getBoundingClientRect().top + window.scrollY) - below, LEAST_HEIGHT);
    for (const { model } of this.panels) model.height = Math.max(room / lines - (length > 1 ? 28 : 0), 160);
  }

  /** Choose one colour scale for all panels, from all their rows or as fixed in the address, and draw the panels. */
  color() {
    const { state } = this.app;
    if (!this.panels.length || !this.element.isConnected) return;
    const { baseMap: map, stat, isDifference, isReference } = this.panels[0].model;
    const fixed = [state.low, state.high].map((bound) => (bound === "" ? null : Number(bound)));
    const { scale: kind, level } = state;
    const marks = this.panels.flatMap((panel) => panel.model.marks);
    const gapKinds = new Set(this.panels.flatMap((panel) => panel.model.gaps?.kinds ?? ["gap"]));
    const parts = [kind, level, ...fixed, map, isDifference, isReference ? state.other : "", marks.length > 0, [...gapKinds].join(), ...this.panels.flatMap((panel) => panel.coarseKey())];
    // Keep the scale while the coarse cells and the choices of the user are the same.
    if (parts.length !== this.scaleParts?.length || parts.some((each, i) => each !== this.scaleParts[i])) {
      const summaries = this.panels.map((panel) => panel.summaries());
      if (summaries.every(Boolean)) {
        this.scaleParts = parts;
        const usual = map === "usual" && !isDifference ? this.app.loaded.usual(state.tensor, stat) : null;
        const models = this.panels.map(({ model }) => ({ ...model, map }));
        const coloring = coloringOf(models, summaries, { kind, fixed, level, usual, stat });
        const same = ["kind", "low", "high", "hasZero"].every((key) => this.scale?.[key] === coloring.scale[key]);
        // Keep the scale object if the scale is the same: segments cache their pixels for the object.
        if (same) coloring.scale = Object.assign(this.scale, { beyond: coloring.scale.beyond });
        [this.coloring, this.coloredMaps] = [coloring, this.mapsShown];
        const keys = isReference ? referenceKeys(state.others.map(nameOf)) : usual ? usualKeys(usual) : null;
        drawLegend(this.legend, { ...this.panels[0].model, map: coloring.map, marks, gapKinds, keys, coloring, level, ofRun: this.panels.length > 1 ? nameOf(state.run) : "", choose: (chosen) => state.set({ level: chosen }) }, coloring.scale);
        this.sizePanels(); // the legend may have more or fewer lines than before
      }
    }
    this.panels.forEach((panel, i) => {
      useColoring(panel.model, this.currentColoring, i);
      panel.draw();
      panel.loadCoarse().then((hasArrived) => hasArrived && this.recolor(), (error) => this.app.failed(error));
    });
  }

  /** The colours of the shown maps; null until they are known. */
  get currentColoring() {
    return this.coloredMaps === this.mapsShown ? this.coloring : null;
  }

  /** The scale of the newest colours; undefined before there are any. */
  get scale() {
    return this.coloring?.scale;
  }

  toggle(name) {
    const folding = foldingOf(this.app.state.folded);
    if (!folding.toggled.delete(name)) folding.toggled.add(name);
    this.app.state.set({ folded: foldingText(folding) });
  }

  pick(panel, node, step, opens) {
    const { app } = this;
    const { name, row } = panel.model.rows.nodes[node];
    const isRow = row !== null;
    this.revealed = isRow ? name : app.state.row;
    for (const { model } of this.panels) {
      const picked = isRow ? model.rows.rowByName.get(name) : model.rows.nodes.findIndex((each) => each.row === null && each.name === name);
      model.selected = step === null || !(picked >= 0) ? null : { node: picked, step };
    }
    app.state.set({ row: this.revealed, step: step ?? app.state.step, view: opens && isRow ? "row" : app.state.view }, true);
    if (opens && isRow) app.update();
    else this.showPicked(panel, node, step);
    this.arrived = `${app.state.row}\n${app.state.step}`;
  }

  /** Describe a row, or a row at a step, below the maps. */
  async showPicked(panel, node, step) {
    const { model } = panel;
    const { name, row } = model.rows.nodes[node];
    const link = (text, values) => h("button", { onclick: () => this.app.state.set(values) }, text);
    const token = (this.picking = {}); // tells whether another cell is picked while this one loads
    this.panels.forEach((each) => each.draw());
    const { tensor, stat, rows, run, isDifference } = model;
    const gaps = isDifference ? null : this.app.loaded.gaps(run, tensor, stat, rows);
    [, model.gaps] = await Promise.all([panel.load(), gaps]).catch((error) => [panel.on.onError(error), model.gaps]);
    if (panel.model !== model || this.picking !== token) return;
    const cell = step === null ? null : Math.floor(step / panel.drawn.cell);
    const hit = describeCell(panel, node, cell).slice(1);
    this.picked.hidden = false;
    this.picked.replaceChildren(
      h("strong", {}, name),
      ...(model.title ? [h("span", {}, model.title)] : []),
      ...hit.map((line) => h("span", {}, line)),
      ...(row === null ? [] : [link("This row", { view: "row", row: name })]),
      ...(step === null ? [] : [link("This step", { view: "step", step })]),
    );
  }
}
