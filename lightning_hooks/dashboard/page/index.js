// The page: the same in TensorBoard, in `lightning-hooks view`, in a report and in a notebook.

import { choice, h } from "./dom.js";
import { followTheme } from "./host.js";
import { MapView } from "./mapview.js";
import { OverviewView } from "./overview.js";
import { RowView } from "./rowview.js";
import { Rows } from "./rows.js";
import { ServerSource } from "./source.js";
import { State } from "./state.js";
import { Steps } from "./steps.js";
import { StepView } from "./stepview.js";

const POLL = 3000; // milliseconds between two questions for new steps
const VIEWS = [["overview", "Overview"], ["map", "Heat map"], ["row", "Row"], ["step", "Step"]];
const MOST_OTHERS = 3; // runs to compare with
const FIRST = [["grad", "norm"], ["final_grad", "norm"], ["output_grad", "norm"], ["param", "norm"], ["output", "std"]];

/** Build the page; TensorBoard calls this. */
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
  window.lightningHooks = app; // for tests and for the curious
  followTheme(() => app.recolor());
  app.start();
  return app;
}

class App {
  constructor(source) {
    this.source = source;
    this.runs = null;
    this.loaded = new Map(); // by run: { meta, rows by table }
    this.statistics = null;
    this.turn = 0; // of updates; what an earlier one still waits for is not shown
    this.pending = 0; // updates
    this.state = new State(() => {
      this.say("");
      this.update();
    });
    this.views = {
      overview: new OverviewView(this),
      map: new MapView(this),
      row: new RowView(this),
      step: new StepView(this),
    };
    this.controls = h("div", { class: "controls" });
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
    this.message = h("div", { class: "message", role: "status", hidden: true });
    this.main = h("main", { id: "main" });
    this.element = h(
      "div",
      { class: "app" },
      h("header", {}, h("h1", {}, "lightning_hooks"), this.tabs, this.controls),
      this.message,
      this.main,
    );
    addEventListener("keydown", (event) => {
      if (event.target.closest("input, select, textarea, [role=application]") || event.ctrlKey || event.metaKey) return;
      const at = Number(event.key) - 1;
      if (VIEWS[at]) this.state.set({ view: VIEWS[at][0] });
    });
  }

  async start() {
    await this.guard(async () => {
      [this.statistics] = await Promise.all([this.source.ask("statistics"), this.listRuns()]);
    });
    if (this.runs) await this.choose();
    if (this.source.isLive) setInterval(() => document.hidden || this.poll(), POLL);
  }

  async listRuns() {
    this.runs = (await this.source.ask("runs")).runs;
  }

  /** Take a turn: the call is told how to ask whether it is still the latest. An error is shown instead of failing without a word. */
  async guard(call) {
    const turn = ++this.turn;
    const isCurrent = () => turn === this.turn;
    this.pending++;
    try {
      await call(isCurrent);
    } catch (error) {
      if (isCurrent()) this.fail(error);
    } finally {
      this.pending--;
    }
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

  /** Choose a run and a table where the address names none, or one that is not there; then show them. */
  async choose() {
    let isChosen = false;
    await this.guard(async (isCurrent) => (isChosen = await this.chooseFor(isCurrent)));
    if (isChosen) await this.update();
  }

  async chooseFor(isCurrent) {
    const { state } = this;
    const withTables = this.runs.filter((run) => run.tables);
    if (!this.runs.length) return this.empty("There is no event file in this log directory yet.");
    if (!withTables.length) {
      return this.empty("No run here has a table of lightning_hooks. Add a StatsMonitor to the callbacks of the Trainer and train.");
    }
    const names = this.runs.map((run) => run.name);
    if (!names.includes(state.run)) {
      if (state.run) this.say(`There is no run ${state.run} any more; this is another one.`);
      state.set({ run: withTables.reduce((a, b) => (b.modified > a.modified ? b : a)).name }, true);
    }
    const others = state.others.filter((name) => name !== state.run && names.includes(name));
    state.set({ other: others.slice(0, MOST_OTHERS).join("\n") }, true);
    await this.load(state.run);
    for (const other of state.others) await this.load(other);
    if (!isCurrent()) return false;
    const { tensors } = this.meta;
    if (!tensors.length) return this.empty("This run has no table of lightning_hooks.");
    if (!this.has(state.run, state.tensor, state.stat)) {
      const first = FIRST.find(([tensor, stat]) => this.has(state.run, tensor, stat));
      const { tensor, stats } = tensors[0];
      const [chosen, stat] = first ?? [tensor, stats.find((each) => each !== "count") ?? stats[0]];
      state.set({ tensor: chosen, stat }, true);
    }
    return true;
  }

  /** Whether a run that is loaded has a table. */
  has(run, tensor, stat) {
    return this.loaded.get(run).meta.tensors.some((each) => each.tensor === tensor && each.stats.includes(stat));
  }

  empty(text) {
    this.main.replaceChildren(h("p", { class: "empty" }, text));
    this.fillTabs();
    return false;
  }

  get meta() {
    return this.loaded.get(this.state.run)?.meta;
  }

  async load(run) {
    if (!this.loaded.has(run)) this.loaded.set(run, { meta: await this.source.ask("run", { run }), tables: new Map() });
    return this.loaded.get(run);
  }

  /** The rows of a table, asked for once. */
  async rows(run, tensor, stat) {
    const { tables } = await this.load(run);
    const name = `${tensor}\n${stat}`;
    if (!this.has(run, tensor, stat)) return null;
    if (!tables.has(name)) tables.set(name, new Rows(await this.source.ask("rows", { run, tensor, stat })));
    return tables.get(name);
  }

  /** The steps shown: those of the address, else all of the runs shown, in whole cells. */
  range() {
    const { state } = this;
    const known = [state.run, ...state.others].map((run) => this.loaded.get(run)?.meta).filter((meta) => meta?.steps);
    const unit = Math.max(...known.map((meta) => meta.unit));
    const first = Math.floor(Math.min(...known.map((meta) => meta.steps[0])) / unit) * unit;
    const last = (Math.floor(Math.max(...known.map((meta) => meta.steps[1])) / unit) + 1) * unit;
    const [from, to] = [state.from === "" ? first : Number(state.from), state.to === "" ? last : Number(state.to)];
    return { first, last, unit, from: Number.isFinite(from) ? from : first, to: to > from ? to : last };
  }

  /** Show other steps; bounded by what there is. */
  zoomTo(from, to) {
    const { first, last, unit } = this.range();
    const span = Math.min(Math.max(to - from, 4 * unit), last - first);
    const start = Math.min(Math.max(Number.isFinite(from) ? from : first, first), last - span);
    const all = !(span < last - first);
    this.state.set(all ? { from: "", to: "" } : { from: Math.round(start), to: Math.round(start + span) });
  }

  /** Light has become dark: everything is drawn again. */
  recolor() {
    for (const view of Object.values(this.views)) view.shown = null;
    this.update();
  }

  /** Ask for what is new: runs, and steps of the runs shown. */
  async poll() {
    if (this.polling || this.pending) return;
    this.polling = true;
    try {
      this.statistics ??= await this.source.ask("statistics");
      const listed = () => JSON.stringify(this.runs?.map(({ name, tables }) => [name, tables]));
      const before = listed();
      await this.listRuns();
      if (!this.loaded.has(this.state.run) || !this.runs.some((run) => run.name === this.state.run)) return await this.choose();
      let changed = listed() !== before;
      for (const run of [this.state.run, ...this.state.others]) changed = (await this.follow(run)) || changed;
      if (changed && !this.pending) await this.update();
      if (this.lost === this.message.textContent) this.say("");
    } catch (error) {
      this.fail(error);
      this.lost = error.message;
    } finally {
      this.polling = false;
    }
  }

  /** Take in what a run has more than before; whether it has any. */
  async follow(run) {
    const known = await this.load(run);
    const meta = await this.source.ask("run", { run });
    if (meta.version === known.meta.version) return false;
    const tables = new Map(known.tables);
    for (const name of known.tables.keys()) {
      const [tensor, stat] = name.split("\n");
      if (!meta.tensors.some((each) => each.tensor === tensor && each.stats.includes(stat))) continue;
      const answer = await this.source.ask("rows", { run, tensor, stat });
      if (answer.key !== known.tables.get(name).key) tables.set(name, new Rows(answer));
      else Object.assign(tables.get(name), { exact: answer.exact, steps: new Steps(answer.steps) });
    }
    // Another file may hold steps again that were there before, as after a resume from an earlier checkpoint.
    const last = meta.files === known.meta.files ? (known.meta.steps?.[1] ?? -1) : -1;
    for (const [name, rows] of tables) known.tables.set(name, rows);
    known.meta = meta;
    this.views.map.grown(run, last);
    return true;
  }

  async update() {
    const { state } = this;
    if (!this.runs) return;
    if (!this.loaded.has(state.run) || state.others.some((other) => !this.runs.some((run) => run.name === other))) return this.choose();
    if (!this.has(state.run, state.tensor, state.stat)) return this.choose();
    await this.guard(async (isCurrent) => {
      for (const other of state.others) await this.load(other);
      if (!isCurrent()) return;
      const view = this.views[state.view] ?? this.views.overview;
      this.fillTabs();
      this.fillControls(view);
      if (this.main.firstChild !== view.element) this.main.replaceChildren(view.element);
      await view.update(isCurrent);
    });
  }

  fillTabs() {
    const current = this.views[this.state.view] ? this.state.view : "overview";
    if (this.tabs.childElementCount) {
      for (const tab of this.tabs.children) tab.setAttribute("aria-selected", String(tab.dataset.view === current));
      return;
    }
    const show = (view) => this.state.set({ view });
    for (const [view, text] of VIEWS) {
      const onkeydown = (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!move) return;
        const at = VIEWS.findIndex(([each]) => each === view);
        const next = VIEWS[(at + move + VIEWS.length) % VIEWS.length][0];
        show(next);
        this.tabs.querySelector(`[data-view=${next}]`).focus();
      };
      const selected = String(view === current);
      this.tabs.append(
        h("button", { role: "tab", "data-view": view, "aria-selected": selected, onclick: () => show(view), onkeydown }, text),
      );
    }
  }

  fillControls(view) {
    const { state } = this;
    const runs = this.runs.filter((run) => run.tables).map((run) => [run.name, run.name === "." ? "this folder" : run.name]);
    const tensors = this.meta.tensors.map((each) => each.tensor);
    const stats = this.meta.tensors.find((each) => each.tensor === state.tensor)?.stats ?? [];
    const key = JSON.stringify([runs, tensors, stats, state.view, state.run, state.other, state.mode, state.tensor, state.stat]);
    if (key === this.controlsKey) return;
    this.controlsKey = key;
    const chooseTensor = (tensor) => {
      const has = this.meta.tensors.find((each) => each.tensor === tensor).stats;
      state.set({ tensor, stat: has.includes(state.stat) ? state.stat : has[0], row: "", low: "", high: "" });
    };
    const focused = document.activeElement?.getAttribute?.("aria-label");
    this.controls.replaceChildren(
      choice("Run", runs, state.run, (run) => {
        state.set({ run, from: "", to: "" }, true);
        this.choose();
      }),
      ...(view.usesOther ? this.otherChoices(runs) : []),
      ...(view.usesTable
        ? [
            choice("Tensor", tensors, state.tensor, chooseTensor),
            h(
              "span",
              { class: "with-help" },
              choice("Statistic", stats, state.stat, (stat) => state.set({ stat, low: "", high: "" })),
              this.helpButton(() => state.stat),
            ),
          ]
        : []),
    );
    if (focused) this.controls.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  /** A choice for every run to compare with, and one for another. */
  otherChoices(runs) {
    const { state } = this;
    const others = state.others;
    return [...others, ""].slice(0, MOST_OTHERS).map((current, i) => {
      const free = runs.filter(([name]) => name !== state.run && (name === current || !others.includes(name)));
      if (i && !free.length) return null;
      const choose = (name) => state.set({ other: others.toSpliced(i, 1, name).filter(Boolean).join("\n") });
      return choice(i ? "and with" : "Compare with", [["", i ? "no further run" : "no other run"], ...free], current, choose, { "data-other": i });
    }).filter(Boolean);
  }

  /** A question mark that explains a statistic. */
  helpButton(which) {
    const panel = h("div", { class: "help", hidden: true, role: "note" });
    const button = h("button", { class: "question", "aria-label": "What does this statistic mean?", "aria-expanded": "false" }, "?");
    button.addEventListener("click", () => {
      panel.hidden = !panel.hidden;
      button.setAttribute("aria-expanded", String(!panel.hidden));
      const stat = which();
      const known = this.statistics?.[/^p\d+(\.\d+)?$/.test(stat) ? "quantile" : stat];
      panel.replaceChildren(
        h("strong", {}, stat),
        ...(known
          ? [["What it is", known.what], ["What is usual", known.usual], ["What to do", known.do]].map(([title, text]) =>
              h("p", {}, h("em", {}, `${title}: `), text),
            )
          : [h("p", {}, "A statistic of your own.")]),
      );
    });
    button.addEventListener("keydown", (event) => event.key === "Escape" && !panel.hidden && button.click());
    return h("span", { class: "help-holder" }, button, panel);
  }
}
