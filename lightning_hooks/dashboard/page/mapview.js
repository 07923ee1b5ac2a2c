// The view with heat maps: of one run, of several beside each other, or of their differences.

import { makeScale, scaleOf } from "./colors.js";
import { nameOf } from "./controls.js";
import { download, h, onceAFrame, several } from "./dom.js";
import { pictureOf, tableOfCells } from "./export.js";
import { HeatMap } from "./heatmap.js";
import { drawLegend } from "./legend.js";
import { widestLabel } from "./mapdraw.js";
import { describeCell } from "./mapinput.js";
import { makeTools, mapOf } from "./maptools.js";
import { filterOf } from "./patterns.js";
import { foldingOf, foldingText } from "./rows.js";
import { Cells } from "./source.js";
import { stepsText } from "./steps.js";

const LEAST_WIDTH = 520; // of a panel beside another one
const TABLES = 8; // whose cells are kept

export class MapView {
  constructor(app) {
    this.app = app;
    this.usesOther = this.usesTable = true;
    this.cells = new Map();
    this.panels = [];
    this.legend = h("div", { class: "legend" });
    this.maps = h("div", { class: "maps" });
    this.picked = h("div", { class: "picked", hidden: true });
    this.note = h("p", { class: "note", hidden: true });
    this.tools = makeTools(app, {
      zoom: (factor) => this.panels[0]?.zoom(factor),
      pan: (share) => this.panels[0]?.pan(share),
      savePicture: () => this.savePicture(),
      saveTable: () => this.saveTable(),
    });
    this.element = h("div", { class: "view map-view" }, this.tools.element, this.note, this.maps, this.legend, this.picked);
    this.recolor = onceAFrame(() => this.color());
  }

  cellsOf(run, tensor, stat, rows, unit, minus = {}) {
    const name = [run, tensor, stat, rows.key, unit, ...Object.values(minus)].join("\n");
    const found = this.cells.get(name) ?? new Cells(this.app.source, run, tensor, stat, rows, unit, minus);
    this.cells.delete(name);
    this.cells.set(name, found); // the most recently used is last
    if (this.cells.size > TABLES) this.cells.delete(this.cells.keys().next().value);
    return found;
  }

  /** A run has more steps: the cells that they change are old. */
  grown(run, step) {
    for (const cells of this.cells.values()) if (cells.run === run || cells.minus.other === run) cells.outdate(step);
  }

  async update(isCurrent) {
    const { app } = this;
    const state = app.state.copy();
    this.tools.sync();
    const rows = await app.loaded.rows(state.run, state.tensor, state.stat);
    const rowsOfOthers = await Promise.all(state.others.map((other) => app.loaded.rows(other, state.tensor, state.stat)));
    if (!isCurrent()) return;
    const { from, to, unit } = app.range();
    const folding = foldingOf(state.folded);
    const { takes, error } = filterOf(state.filter);
    this.note.hidden = true;
    if (error) this.tell(error);
    const modelOf = (run, its, marked) => {
      const isOpen = (node) => its.isOpen(node, folding);
      return {
        run,
        title: state.others.length ? nameOf(run) : "",
        rows: its,
        shown: shownOf(its, `${state.folded}\t${state.filter}`, () => (takes ? its.filtered(takes) : its.shown(isOpen))),
        flat: Boolean(takes),
        isOpen,
        cells: this.cellsOf(run, state.tensor, state.stat, its, unit),
        from,
        to,
        unit,
        tensor: state.tensor,
        stat: state.stat,
        exact: its.exact,
        map: mapOf(state),
        fit: state.fit === "1",
        marks: marked,
      };
    };
    const main = modelOf(state.run, rows, this.marks(state.run, rows));
    const models = [];
    state.others.forEach((other, i) => {
      const its = rowsOfOthers[i];
      if (!its) this.tell(`${other} has no table of ${state.tensor} ${state.stat}.`);
      else if (state.mode !== "difference") models.push(modelOf(other, its, this.marks(other, its)));
      else {
        models.push({
          ...main,
          run: `${state.run} − ${other}`,
          title: `${nameOf(state.run)} − ${nameOf(other)}`,
          exact: rows.exact && its.exact,
          isDifference: true,
          cells: this.cellsOf(state.run, state.tensor, state.stat, rows, unit, { other, other_key: its.key }),
        });
        const alone = its.nodes.filter((node) => node.row !== null && !rows.rowByName.has(node.name)).length;
        if (alone) this.tell(`Not shown: ${several(alone, "row")} that only ${other} has.`);
        if (!rows.steps.meets(its.steps)) this.tell(`${state.run} and ${other} have no step in common, so there is no difference.`);
      }
    });
    if (state.mode !== "difference" || !models.length) models.unshift(main);
    if (takes && !models[0].shown.length) this.tell(`No row matches ${state.filter}.`);
    this.showPanels(models);
    // What was picked is of these maps; of others it would say a number that they do not show.
    const maps = [state.run, state.other, state.mode, state.tensor, state.stat].join("\n\n");
    const areOther = maps !== this.pickedOf;
    this.pickedOf = maps;
    const isOther = this.revealed !== state.row;
    if (areOther || isOther) this.picked.hidden = true;
    this.revealed = state.row;
    const node = rows.rowByName.get(state.row);
    if (node !== undefined && (isOther || areOther)) {
      const isShown = models[0].shown.includes(node);
      if (isOther && !isShown && !takes) {
        [this.revealed, this.pickedOf] = [null, null];
        app.state.set({ folded: foldingText(rows.revealing(state.row, folding)) }, true);
        return app.update();
      }
      if (isOther) this.panels[0].reveal(node);
      if (isShown) this.showPicked(this.panels[0], node, state.step === "" ? null : Number(state.step));
    }
    if (state.row && !rows.rowByName.has(state.row)) this.tell(`${state.row} is not in this table.`);
  }

  tell(text) {
    this.note.textContent = text;
    this.note.hidden = false;
  }

  /** The findings of health rules, where they are in the map. */
  marks(run, rows) {
    const { state } = this.app;
    const findings = this.app.loaded.meta(run).findings ?? [];
    return findings.flatMap((finding) => {
      const node = rows.rowByName.get(finding.name);
      const step = Number(finding.step);
      const mine = !finding.tensor || finding.tensor === state.tensor;
      return node === undefined || !Number.isFinite(step) || !mine ? [] : [{ node, step, text: finding.verdict ?? finding.rule }];
    });
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
      this.panels.push(panel);
    }
    this.panels.length = models.length;
    if (this.maps.childElementCount !== models.length) this.maps.replaceChildren(...this.panels.map((panel) => panel.element));
    // Beside each other where there is room, else below one another.
    const columns = Math.min(models.length, Math.max(Math.floor(this.maps.clientWidth / LEAST_WIDTH), 1));
    this.maps.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    const lines = Math.ceil(models.length / columns);
    const room = Math.max(window.innerHeight - this.maps.getBoundingClientRect().top - 96, 240);
    models.forEach((model, i) => this.panels[i].show(model));
    const labels = Math.max(...this.panels.map(widestLabel));
    models.forEach((model, i) => {
      model.labels = labels; // as wide in all panels, so that a step is at the same place
      model.height = Math.max(room / lines - (models.length > 1 ? 28 : 0), 160);
      model.scale = this.scale ?? makeScale("linear", 0, 1, 1, false);
    });
    this.recolor();
  }

  /** One scale for all panels: of what is in sight, or as the address says. */
  color() {
    const { state } = this.app;
    if (!this.panels.length || !this.element.isConnected) return;
    const { map, stat, isDifference } = this.panels[0].model;
    const fixed = [state.low, state.high].map((bound) => (bound === "" ? null : Number(bound)));
    const kind = state.scale === "auto" && /_fraction$|cosine$/.test(stat) ? "linear" : state.scale;
    const sight = [kind, ...fixed, map, isDifference, this.panels.some((panel) => panel.model.marks.length), ...this.panels.flatMap((panel) => panel.sight())];
    // While panning within the same segments, the scale stays.
    if (!this.scale || sight.length !== this.sight.length || sight.some((each, i) => each !== this.sight[i])) {
      this.sight = sight;
      const scale = scaleOf(this.panels.flatMap((panel) => panel.summaries()), kind, fixed, map, isDifference);
      const same = ["kind", "low", "high"].every((key) => this.scale?.[key] === scale[key]);
      this.scale = same ? Object.assign(this.scale, { beyond: scale.beyond }) : scale; // segments keep their pixels for the same scale
      const marks = this.panels.flatMap((panel) => panel.model.marks);
      drawLegend(this.legend, { ...this.panels[0].model, marks }, this.scale);
    }
    for (const panel of this.panels) {
      panel.model.scale = this.scale;
      panel.draw();
    }
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
    app.state.set({ row: this.revealed, step: step ?? app.state.step, view: opens && isRow ? "row" : app.state.view }, true);
    if (opens && isRow) app.update();
    else this.showPicked(panel, node, step);
  }

  /** Say below the maps what there is of a row, or of a row at a step. */
  async showPicked(panel, node, step) {
    const { model } = panel;
    const { name, row } = model.rows.nodes[node];
    const link = (text, values) => h("button", { onclick: () => this.app.state.set(values) }, text);
    const mine = (this.picking = {});
    panel.draw();
    await panel.load().catch(panel.on.onError);
    if (panel.model !== model || this.picking !== mine) return; // something else was picked since
    const cell = step === null ? null : Math.floor(step / panel.drawn.cell);
    const hit = describeCell(panel, model.shown.indexOf(node), cell).slice(1);
    this.picked.hidden = false;
    this.picked.replaceChildren(
      h("strong", {}, name),
      ...(model.title ? [h("span", {}, model.title)] : []),
      ...hit.map((line) => h("span", {}, line)),
      ...(row === null ? [] : [link("This row", { view: "row", row: name })]),
      ...(step === null ? [] : [link("This step", { view: "step", step })]),
    );
  }

  async savePicture() {
    const { state } = this.app;
    const { rows, from, to } = this.panels[0].model;
    // Several panels have the names of their runs above them.
    const title = `${state.others.length ? "" : `${nameOf(state.run)}: `}${state.tensor} ${state.stat}, ${stepsText(rows.steps.within(from, to))}`;
    const blob = await pictureOf(this.panels, title, this.legend);
    download(`${state.tensor}_${state.stat}.png`, blob);
  }

  saveTable() {
    const { state } = this.app;
    download(`${state.tensor}_${state.stat}.csv`, new Blob([tableOfCells(this.panels)], { type: "text/csv" }));
  }
}

/** The nodes shown, the same array as long as nothing changes. */
function shownOf(rows, key, make) {
  if (rows.shownFor?.key !== key) rows.shownFor = { key, nodes: make() };
  return rows.shownFor.nodes;
}
