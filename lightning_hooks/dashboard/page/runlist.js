// The list of runs, the first screen of a folder: how healthy each run is, the worst sentence, its loss, steps, rate and date.

import { short } from "./colors.js";
import { MOST_OTHERS, nameOf } from "./controls.js";
import { h, several } from "./dom.js";
import { RANKS, badgeOf } from "./severity.js";
import { skeleton } from "./skeleton.js";
import { sparkline } from "./sparkline.js";

const AT_ONCE = 3; // requests for glimpses under way
const RESORT = 400; // milliseconds between two sorts by what arrives

// The columns by which the list can be sorted: the title, what is compared, and whether the largest comes first.
const COLUMNS = {
  health: ["Health", ({ health }) => RANKS.indexOf(health?.severity ?? "unknown"), true],
  name: ["Run", ({ name }) => name, false],
  loss: ["Loss", ({ glimpse }) => (Number.isFinite(glimpse?.values?.at(-1)) ? glimpse.values.at(-1) : null), false],
  steps: ["Last step", ({ glimpse }) => glimpse?.last_step ?? null, true],
  rate: ["Rate", ({ glimpse }) => glimpse?.rate ?? null, true],
  date: ["Date", ({ modified }) => modified, true],
};
const OF_GLIMPSE = ["loss", "steps", "rate"];

export class RunListView {
  constructor(app) {
    this.app = app;
    this.usesTable = false;
    this.entries = new Map(); // name to { name, modified, health, glimpse, line }
    this.ticked = new Set();
    this.filter = h("input", { type: "search", placeholder: "name or finding", "aria-label": "Filter runs", oninput: () => this.refilter() });
    this.compare = h("button", { class: "compare-runs", onclick: () => this.openTicked() });
    this.summary = h("span", { class: "soft", role: "status" });
    this.heads = h("tr", {});
    this.body = h("tbody", {});
    this.table = h("div", { class: "table-holder", hidden: true }, h("table", { class: "run-list" }, h("thead", {}, this.heads), this.body));
    this.blank = h("p", { class: "empty", hidden: true });
    this.waiting = skeleton(6, "Loading the list of runs …");
    this.element = h("div", { class: "view" }, h("div", { class: "tools" }, this.filter, this.compare, this.summary), this.waiting, this.table, this.blank);
  }

  /** Whether there is more than one run to choose from. */
  get isOffered() {
    return Boolean(this.app.source.isLive) && this.app.loaded.shown().length > 1;
  }

  async update(isCurrent) {
    const { app } = this;
    if (this.filter.value !== app.state.find) this.filter.value = app.state.find;
    const healths = await app.loaded.health();
    if (!isCurrent()) return;
    const shown = app.loaded.shown();
    const names = new Set(shown.map((run) => run.name));
    for (const name of this.entries.keys()) if (!names.has(name)) this.entries.delete(name);
    for (const name of this.ticked) if (!names.has(name)) this.ticked.delete(name);
    for (const { name, modified } of shown) {
      const entry = this.entries.get(name) ?? { name, glimpse: null, read: null };
      Object.assign(entry, { modified, health: healths[name] ?? entry.glimpse?.health ?? null });
      this.entries.set(name, entry);
      this.fill(entry);
    }
    this.waiting.remove();
    this.show();
    this.read(); // without waiting: glimpses fill their lines when they arrive
  }

  /** Request the glimpses that are missing or old, in the order of the list, and fill the lines with them. */
  async read() {
    if (this.isReading) return;
    this.isReading = true;
    const missing = () => this.sorted().find((entry) => entry.read !== entry.modified);
    let sorted = performance.now();
    const work = async () => {
      for (let entry = missing(); entry && this.app.state.view === "runs"; entry = missing()) {
        entry.read = entry.modified;
        entry.glimpse = await this.app.source.ask("glimpse", { run: entry.name }).catch(() => entry.glimpse ?? {});
        if (entry.glimpse?.health) entry.health = entry.glimpse.health;
        this.fill(entry);
        if (performance.now() - sorted < RESORT) continue;
        sorted = performance.now();
        this.show();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    this.isReading = false;
    this.show();
  }

  /** The entries that the filter leaves, in the chosen order. Those without a value are last. */
  sorted() {
    const { order, find } = this.app.state;
    const key = order.replace("-", "");
    const [, valueOf, isDescending] = COLUMNS[key];
    const sign = (isDescending ? -1 : 1) * (order.startsWith("-") ? -1 : 1);
    const words = find.toLowerCase().split(/\s+/).filter(Boolean);
    const text = ({ name, health }) => `${nameOf(name)} ${health?.word ?? ""} ${health?.sentence ?? ""}`.toLowerCase();
    const left = [...this.entries.values()].filter((entry) => words.every((word) => text(entry).includes(word)));
    return left.sort((a, b) => {
      const [x, y] = [valueOf(a), valueOf(b)];
      if (x === y) return b.modified - a.modified;
      if (x === null || y === null) return x === null ? 1 : -1;
      return sign * (x < y ? -1 : 1);
    });
  }

  /** Put the lines into the chosen order, and say how many there are. */
  show() {
    const shown = this.sorted();
    const lines = shown.map((entry) => entry.line);
    if (lines.length !== this.body.children.length || lines.some((line, i) => this.body.children[i] !== line)) {
      const focused = document.activeElement;
      this.body.replaceChildren(...lines);
      if (this.body.contains(focused)) focused.focus();
    }
    this.fillHeads();
    this.table.hidden = !shown.length;
    this.blank.hidden = shown.length > 0;
    this.blank.replaceChildren(`No run matches “${this.app.state.find}”. `, h("button", { onclick: () => this.clearFilter() }, "Show all runs"));
    const all = [...this.entries.values()];
    const counts = Map.groupBy(all, ({ health }) => health?.severity ?? "unknown");
    const said = [...RANKS].reverse().filter((rank) => counts.has(rank)).map((rank) => `${counts.get(rank).length.toLocaleString("en-US")} ${COUNTED[rank](counts.get(rank).length)}`);
    this.summary.textContent = `${shown.length < all.length ? `${shown.length.toLocaleString("en-US")} of ` : ""}${several(all.length, "run")}: ${said.join(", ")}`;
    this.showTicked();
  }

  fillHeads() {
    const { order } = this.app.state;
    if (this.heads.dataset.order === order) return;
    this.heads.dataset.order = order;
    const head = (key) => {
      const [title, , isDescending] = COLUMNS[key];
      const isChosen = order.replace("-", "") === key;
      const isDown = isDescending !== order.startsWith("-");
      const onclick = () => this.sortBy(isChosen && !order.startsWith("-") ? `-${key}` : key);
      const sort = isChosen ? (isDown ? "descending" : "ascending") : null;
      return h("th", { scope: "col", class: key, "aria-sort": sort }, h("button", { class: "sort", "data-sort": key, onclick }, title, h("span", { "aria-hidden": "true" }, isChosen ? (isDown ? " ↓" : " ↑") : "")));
    };
    const focused = this.heads.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    this.heads.replaceChildren(h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Compare")), ...Object.keys(COLUMNS).map(head));
    if (focused) this.heads.querySelector(`[data-sort="${focused}"]`).focus();
  }

  /** Write what is known of a run into its line. */
  fill(entry) {
    const { name, health, glimpse, modified } = entry;
    const key = JSON.stringify([health, modified, entry.read, glimpse]);
    if (entry.filled === key) return;
    entry.filled = key;
    const severity = health?.severity ?? "unknown";
    if (!entry.line) {
      entry.tick = h("input", { type: "checkbox", "aria-label": `Compare ${nameOf(name)}`, onchange: () => this.tick(name, entry.tick.checked) });
      entry.cells = h("td", { class: "tick" }, h("label", {}, entry.tick));
      entry.line = h("tr", { "data-run": name, onclick: (event) => event.target.closest("input, label, button") || this.open(name) });
    }
    const others = health?.others ? ` And ${several(health.others, "other")}.` : "";
    const sentence = health?.sentence ? h("div", { class: "sentence", title: health.sentence }, `${health.sentence}${others}`) : null;
    const loss = glimpse?.values?.at(-1);
    const isOnTheWay = entry.read === null;
    const waiting = () => (isOnTheWay ? h("span", { class: "bone", "aria-hidden": "true" }) : h("span", { class: "soft" }, "–"));
    const curve = glimpse?.values?.length ? h("div", { class: "loss" }, sparkline(glimpse), h("span", {}, short(loss))) : waiting();
    const isFocused = entry.line.contains(document.activeElement) && document.activeElement !== entry.tick;
    entry.line.replaceChildren(
      entry.cells,
      h("td", { class: "health" }, badgeOf(severity, health?.word ?? "Not known here")),
      h("td", { class: "run-name" }, h("button", { class: "link", onclick: () => this.open(name) }, nameOf(name)), sentence),
      h("td", { class: "loss" }, curve),
      h("td", { class: "number" }, Number.isFinite(glimpse?.last_step) ? glimpse.last_step.toLocaleString("en-US") : waiting()),
      h("td", { class: "number" }, Number.isFinite(glimpse?.rate) ? short(glimpse.rate) : waiting()),
      h("td", { class: "date" }, ...dateOf(modified)),
    );
    if (isFocused) entry.line.querySelector(".link").focus();
  }

  sortBy(order) {
    this.app.state.settle({ order });
    this.show();
    if (OF_GLIMPSE.includes(order.replace("-", ""))) this.read();
  }

  refilter() {
    this.app.state.settle({ find: this.filter.value });
    this.show();
  }

  clearFilter() {
    this.filter.value = "";
    this.refilter();
    this.filter.focus();
  }

  tick(name, isTicked) {
    if (isTicked) this.ticked.add(name);
    else this.ticked.delete(name);
    this.showTicked();
  }

  showTicked() {
    const { size } = this.ticked;
    const isFull = size > MOST_OTHERS;
    for (const { name, tick } of this.entries.values()) {
      tick.checked = this.ticked.has(name);
      tick.disabled = isFull && !tick.checked;
      tick.title = tick.disabled ? `At most ${MOST_OTHERS + 1} runs are compared` : "";
    }
    this.compare.disabled = size < 2;
    this.compare.textContent = size < 2 ? "Tick runs to compare them" : `Compare ${several(size, "run")}`;
  }

  /** Show the first ticked run of the list beside the others. */
  openTicked() {
    const [run, ...others] = [...this.sorted().map(({ name }) => name), ...this.ticked].filter((name, i, all) => this.ticked.has(name) && all.indexOf(name) === i);
    this.open(run, others);
  }

  open(run, others = []) {
    this.app.state.set({ view: "overview", run, other: others.join("\n"), from: "", to: "", row: "", step: "", record: "" });
  }
}

// The nouns of how many runs are of which severity.
const COUNTED = {
  critical: () => "critical",
  warning: (count) => (count === 1 ? "warning" : "warnings"),
  info: () => "with notes",
  unknown: () => "not examined",
  fine: () => "without findings",
};

/** A time in seconds since 1970 as the day and the time, which narrow windows leave out. */
function dateOf(seconds) {
  if (!seconds) return [];
  const date = new Date(1000 * seconds);
  const two = (number) => String(number).padStart(2, "0");
  return [`${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`, h("span", { class: "time" }, ` ${two(date.getHours())}:${two(date.getMinutes())}`)];
}
