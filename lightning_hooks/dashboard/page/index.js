// Builds the page and keeps it up to date. The page is the same in TensorBoard, `lightning-hooks view`, a report and a notebook.

import { MOST_OTHERS, PANEL, fillControls, makeTabs, markTab } from "./controls.js";
import { clamp, h } from "./dom.js";
import { followTheme } from "./host.js";
import { keysDialog, listenToKeys } from "./keys.js";
import { Loaded } from "./loaded.js";
import { MapView } from "./mapview.js";
import { OverviewView } from "./overview.js";
import { Picker } from "./picker.js";
import { RecordView } from "./recordview.js";
import { RowView } from "./rowview.js";
import { RunListView } from "./runlist.js";
import { SheetView } from "./sheet.js";
import { skeleton } from "./skeleton.js";
import { ServerSource } from "./source.js";
import { State } from "./state.js";
import { StepView } from "./stepview.js";

const POLL = 3000; // milliseconds between two requests for new steps
const SOON = 150; // milliseconds within which a run may take the place of another without grey bars
// The first of these tables that a run has is shown first.
const FIRST = [["grad", "norm"], ["final_grad", "norm"], ["output_grad", "norm"], ["param", "norm"], ["output", "std"]];

const ADVICE = "Add a StatsMonitor to the callbacks of the Trainer and train; without a TensorBoard logger, StatsMonitor(logdir=\"…\") gives it a folder.";

/** Build the page. TensorBoard calls this function. */
export function render(source = new ServerSource()) {
  document.documentElement.lang ||= "en";
  document.title ||= "lightning_hooks";
  if (!document.querySelector("style[data-inlined]")) {
    for (const name of ["vendor/uPlot.min.css", "style.css"]) {
      document.head.append(h("link", { rel: "stylesheet", href: new URL(name, import.meta.url) }));
    }
  }
  const app = new App(source);
  document.body.replaceChildren(app.element);
  window.lightningHooks = app; // for tests and for the console of the browser
  followTheme(() => app.recolor());
  app.start();
  return app;
}

class App {
  constructor(source) {
    this.source = source;
    this.loaded = new Loaded(source);
    this.turn = 0; // number of the latest update; an earlier update that still waits for data shows nothing
    this.pending = 0; // updates that are under way
    this.state = new State(() => {
      this.say("");
      this.update();
    });
    this.views = {
      runs: new RunListView(this),
      overview: new OverviewView(this),
      map: new MapView(this),
      row: new RowView(this),
      step: new StepView(this),
      sheet: new SheetView(this),
      record: new RecordView(this),
    };
    this.tableIsChosen = Boolean(this.state.tensor); // by the user or the address; otherwise a view may choose another table
    this.picker = new Picker(this);
    this.controls = h("div", { class: "controls" });
    this.tabs = makeTabs((view) => this.state.set({ view }));
    const dialog = keysDialog();
    this.message = h("div", { class: "message", role: "status", hidden: true });
    this.panel = h("div", { id: PANEL, role: "tabpanel" });
    this.element = h(
      "div",
      { class: "app" },
      h("header", {}, h("h1", {}, "lightning_hooks"), this.tabs, this.controls),
      this.message,
      (this.main = h("main", { class: "loading", "aria-busy": "true" }, this.panel, skeleton())),
      this.picker.element,
      dialog.element,
    );
    listenToKeys(this, dialog);
  }

  async start() {
    await this.guard(() => this.loaded.list());
    if (this.loaded.runs) {
      // The first screen of a folder with several runs is their list. A folder with one run opens it at once.
      if (!this.state.run && !this.state.names("view") && this.offers("runs")) this.state.settle({ view: "runs" });
      await this.update();
    }
    if (this.source.isLive) setInterval(() => document.hidden || this.poll(), POLL);
  }

  async openPicker() {
    await this.picker.open().catch((error) => this.failed(error));
  }

  /** Show the next run of the list, or with -1 the one before. */
  stepRun(by) {
    const names = (this.loaded.runs ?? []).filter((run) => run.shown || run.name === this.state.run).map(({ name }) => name);
    const next = names[names.indexOf(this.state.run) + by];
    if (next === undefined) return this.say(by > 0 ? "This is the last run." : "This is the first run.");
    this.say("");
    this.state.set({ run: next, from: "", to: "" }, true);
    this.choose();
  }

  /** Run an update. `call` gets a function that tells whether it is still the latest update. An error of the latest is shown. */
  async guard(call) {
    const turn = ++this.turn;
    const isCurrent = () => turn === this.turn;
    let error = null;
    this.pending++;
    try {
      await call(isCurrent);
    } catch (caught) {
      if (isCurrent()) error = caught;
    } finally {
      this.pending--;
      if (!this.pending && (this.panel.firstChild || error)) this.setLoading(false);
    }
    if (error) await this.failed(error);
  }

  /** While a view loads that was not shown before, a skeleton stands in place of its content. */
  setLoading(isLoading) {
    this.main.classList.toggle("loading", isLoading);
    this.main.setAttribute("aria-busy", String(isLoading));
  }

  /** Show an error. If the requested rows have changed or are gone (status 400 or 404), poll first: an update replaces the error. */
  async failed(error) {
    if (![400, 404].includes(error.status) || !(await this.poll())) this.fail(error);
  }

  fail(error) {
    console.error(error);
    this.say(error.message, "error");
  }

  say(text, kind = "info") {
    this.message.hidden = !text;
    this.message.className = `message ${kind}`;
    this.message.textContent = text;
  }

  /** If the address names no run or table, or a missing one, choose one; then show it. */
  async choose() {
    let isChosen = false;
    await this.guard(async (isCurrent) => (isChosen = await this.chooseFor(isCurrent)));
    if (isChosen) await this.update();
  }

  async chooseFor(isCurrent) {
    const { state, loaded } = this;
    const shown = loaded.shown();
    if (!loaded.runs.length) return this.empty("There is no event file in this log directory yet.");
    if (!shown.length) {
      return this.empty(`No run here has a table of lightning_hooks. ${ADVICE}`);
    }
    const names = loaded.runs.map((run) => run.name);
    if (!names.includes(state.run)) {
      if (state.run) this.say(`There is no run ${state.run} any more; this is another one.`);
      state.set({ run: shown.reduce((a, b) => (b.modified > a.modified ? b : a)).name }, true);
    }
    const others = state.others.filter((name) => name !== state.run && names.includes(name));
    state.set({ other: others.slice(0, MOST_OTHERS).join("\n") }, true);
    // The event files may be large. A run that is read at once takes the place of the one before without grey bars between them.
    const waiting = this.meta ? null : setTimeout(() => isCurrent() && this.panel.replaceChildren(skeleton(6, "Reading the run …")), SOON);
    await Promise.all([state.run, ...state.others].map((run) => loaded.load(run))).finally(() => clearTimeout(waiting));
    if (!isCurrent()) return false;
    const { tensors } = this.meta;
    if (tensors.length && !loaded.has(state.run, state.tensor, state.stat)) {
      // If the address names a tensor, but no statistic that it has, keep the tensor.
      const named = tensors.find((each) => each.tensor === state.tensor);
      const first = named ? undefined : FIRST.find(([tensor, stat]) => loaded.has(state.run, tensor, stat));
      const { tensor, stats } = named ?? tensors[0];
      const [chosen, stat] = first ?? [tensor, stats.find((each) => each !== "count") ?? stats[0]];
      state.set({ tensor: chosen, stat }, true);
    }
    return true;
  }

  empty(text) {
    this.panel.replaceChildren(h("p", { class: "empty" }, text));
    this.markTab();
    return false;
  }

  markTab() {
    markTab(this.tabs, this.panel, this.state.view, (view) => this.offers(view));
  }

  /** Whether the shown run has what a view shows. */
  offers(view) {
    return this.views[view].isOffered ?? true;
  }

  fillControls() {
    fillControls(this, this.controls, this.views[this.state.view]);
  }

  /** The answer to `run` (see api.py) for the shown run. */
  get meta() {
    return this.loaded.meta(this.state.run);
  }

  /** The range of shown steps: that of the address, or else all steps of the runs that have the shown table, in whole cells. */
  range() {
    const { state, loaded } = this;
    const tableOf = (run) => loaded.has(run, state.tensor, state.stat) && loaded.knownRows(run, state.tensor, state.stat);
    const runs = [state.run, ...state.others].filter((run) => loaded.meta(run)?.steps && tableOf(run));
    const metas = runs.map((run) => loaded.meta(run));
    const unit = Math.max(...runs.map((run) => tableOf(run).unit));
    const first = Math.floor(Math.min(...metas.map((meta) => meta.steps[0])) / unit) * unit;
    const last = (Math.floor(Math.max(...metas.map((meta) => meta.steps[1])) / unit) + 1) * unit;
    const bounded = (text, otherwise) => (text === "" || Number.isNaN(Number(text)) ? otherwise : clamp(Number(text), first, last));
    const [start, end] = [bounded(state.from, first), bounded(state.to, last)];
    // The address may contain any numbers. If its range begins behind the last step, begin at the first one.
    const from = start < last ? start : first;
    return { first, last, unit, from, to: end > from ? end : last };
  }

  /** Show the steps between two bounds, clipped to the range of the runs. */
  zoomTo(from, to) {
    const { first, last, unit } = this.range();
    const span = Math.min(Math.max(to - from, 4 * unit), last - first);
    const start = clamp(Number.isFinite(from) ? from : first, first, last - span);
    const showsAll = !(span < last - first);
    this.state.set(showsAll ? { from: "", to: "" } : { from: Math.round(start), to: Math.round(start + span) });
  }

  /** Draw everything again after a change between the light and the dark theme. */
  recolor() {
    for (const view of Object.values(this.views)) view.shown = null;
    this.update();
  }

  /** Request new runs, and new steps of the shown runs. Resolves to false if it is certain that nothing is new. */
  async poll() {
    if (this.polling || this.pending) return true;
    this.polling = true;
    const { state, loaded } = this;
    try {
      let changed = await loaded.list();
      if (state.view === "runs") {
        if (!this.pending) await this.update();
        return true;
      }
      if (!this.meta || !loaded.runs.some((run) => run.name === state.run)) {
        await this.choose();
        return true;
      }
      for (const run of [state.run, ...state.others]) {
        const last = await loaded.follow(run);
        if (last === null) continue;
        changed = true;
        this.views.map.grown(run, last);
      }
      if (changed && !this.pending) await this.update();
      if (this.pollError === this.message.textContent) this.say("");
      return changed;
    } catch (error) {
      this.fail(error);
      this.pollError = error.message;
      return true;
    } finally {
      this.polling = false;
    }
  }

  /** Show the list of runs, which needs no run to be loaded. */
  async showRuns() {
    const { runs } = this.views;
    this.markTab();
    delete this.controls.dataset.filledFor;
    this.controls.replaceChildren();
    if (this.panel.firstChild !== runs.element) this.panel.replaceChildren(runs.element);
    await this.guard((isCurrent) => runs.update(isCurrent));
  }

  /** Show the view that the address describes. */
  async update() {
    const { state, loaded } = this;
    if (!loaded.runs) return;
    if (state.view === "runs" && this.offers("runs")) return this.showRuns();
    const isListed = (name) => loaded.runs.some((run) => run.name === name);
    if (!this.meta || (this.meta.tensors.length && !loaded.has(state.run, state.tensor, state.stat)) || !state.others.every(isListed)) return this.choose();
    await this.guard(async (isCurrent) => {
      await Promise.all(state.others.map((other) => loaded.load(other)));
      if (!isCurrent()) return;
      if (!this.offers(state.view)) state.settle({ view: "overview" });
      const view = this.views[state.view];
      this.markTab();
      this.fillControls();
      if (view.usesTable && !this.meta.tensors.length) return this.empty(`This run has no table of lightning_hooks, which this view shows. ${ADVICE}`);
      if (this.panel.firstChild !== view.element) {
        this.setLoading(true);
        this.panel.replaceChildren(view.element);
      }
      await view.update(isCurrent);
    });
  }
}
