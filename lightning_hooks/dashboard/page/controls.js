// The header of the page: the tabs of the views, the selects for runs and for a table, and the explanations of statistics.

import { question } from "./disclosure.js";
import { choice, h } from "./dom.js";
import { statOptions, tensorOptions } from "./titles.js";
import { nearest } from "./worst.js";

export const VIEWS = [["runs", "Runs"], ["overview", "Overview"], ["map", "Heat map"], ["row", "Row"], ["step", "Step"], ["sheet", "Histograms"], ["record", "Flight record"]];
export const MOST_OTHERS = 3; // runs to compare with
export const PANEL = "panel"; // the id of the element that shows a view

/** The tabs; `show` is called with the name of a view. */
export function makeTabs(show) {
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
  VIEWS.forEach(([view, text]) => {
    const onkeydown = (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const offered = VIEWS.filter(([each]) => !tabs.querySelector(`[data-view=${each}]`).hidden);
      const place = offered.findIndex(([each]) => each === view);
      const [next] = offered[(place + move + offered.length) % offered.length];
      show(next);
      tabs.querySelector(`[data-view=${next}]`).focus();
    };
    tabs.append(h("button", { role: "tab", id: tabOf(view), "data-view": view, "aria-controls": PANEL, onclick: () => show(view), onkeydown }, text));
  });
  return tabs;
}

/** Mark the tab of the shown view, and hide those of views that are not offered. Only the marked one can be reached with the Tab key. */
export function markTab(tabs, panel, view, isOffered) {
  for (const tab of tabs.children) {
    tab.hidden = !isOffered(tab.dataset.view);
    tab.setAttribute("aria-selected", String(tab.dataset.view === view));
    tab.tabIndex = tab.dataset.view === view ? 0 : -1;
  }
  panel.setAttribute("aria-labelledby", tabOf(view));
}

const tabOf = (view) => `tab-${view}`;

/** Fill an element with the selects that a view uses. They are built again only if their options or values have changed. */
export function fillControls(app, element, view) {
  const { state, meta } = app;
  const runs = app.loaded.runs.filter((run) => run.shown || run.name === state.run).map((run) => [run.name, nameOf(run.name)]);
  const tensors = meta.tensors.map((each) => each.tensor);
  const stats = meta.tensors.find((each) => each.tensor === state.tensor)?.stats ?? [];
  const key = JSON.stringify([runs, tensors, stats, state.view, state.run, state.other, state.tensor, state.stat]);
  if (key === element.dataset.filledFor) return;
  element.dataset.filledFor = key;
  const chooseTensor = async (tensor) => {
    const available = meta.tensors.find((each) => each.tensor === tensor).stats;
    const stat = available.includes(state.stat) ? state.stat : available[0];
    const row = state.view === "row" ? await nearest(app, tensor, stat, state.row) : "";
    app.tableIsChosen = true;
    state.set({ tensor, stat, row: row ?? "", low: "", high: "" });
  };
  const chooseRun = (run) => {
    app.say("");
    state.set({ run, from: "", to: "" }, true);
    app.choose();
  };
  const chooseStat = (stat) => {
    app.tableIsChosen = true;
    state.set({ stat, low: "", high: "" });
  };
  const explained = () => h("span", { class: "with-help" }, choice("Statistic", statOptions(stats), state.stat, chooseStat), helpButton(app, () => state.stat));
  const focused = document.activeElement?.getAttribute?.("aria-label");
  element.replaceChildren(
    choice("Run", runs, state.run, chooseRun),
    ...(view.usesOther ? otherChoices(state, runs) : []),
    ...(view.usesTable && tensors.length ? [choice("Tensor", tensorOptions(tensors), state.tensor, chooseTensor), ...(view.usesStat === false ? [] : [explained()])] : []),
  );
  if (focused) element.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

/** A select for each run to compare with, and one to add another run. */
function otherChoices(state, runs) {
  const { others } = state;
  return [...others, ""].slice(0, MOST_OTHERS).map((current, i) => {
    const free = runs.filter(([name]) => name !== state.run && (name === current || !others.includes(name)));
    if (i && !free.length) return null;
    const choose = (name) => state.set({ other: others.toSpliced(i, 1, name).filter(Boolean).join("\n") });
    return choice(i ? "and with" : "Compare with", [["", i ? "no further run" : "no other run"], ...free], current, choose, { "data-other": i });
  }).filter(Boolean);
}

/** The name of a run as the page shows it. */
export function nameOf(run) {
  return run === "." ? "this folder" : run;
}

/** A button with a question mark that explains a statistic. `which` is called at each click and returns the statistic. */
export function helpButton(app, which, label = "What does this statistic mean?") {
  return question(label, () => {
    const stat = which();
    const explanation = app.loaded.statistics?.[/^p\d+(\.\d+)?$/.test(stat) ? "quantile" : stat];
    if (!explanation) return [h("strong", {}, stat), h("p", {}, "A statistic of your own.")];
    const parts = [["What it is", explanation.what], ["What is usual", explanation.usual], ["What to do", explanation.do]];
    return [h("strong", {}, stat), ...parts.map(([title, text]) => h("p", {}, h("em", {}, `${title}: `), text))];
  });
}
