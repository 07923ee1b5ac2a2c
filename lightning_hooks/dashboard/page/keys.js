// The keys of the page: they work wherever the focus is, unless a person types, and `?` shows all of them.

import { VIEWS } from "./controls.js";
import { h } from "./dom.js";
import { PICKER_KEY } from "./picker.js";

const HELP_KEY = "?";
// The keys and what they do, for the list that `?` shows.
const KEY_LIST = [
  ["Everywhere", [
    [["1", "…", String(VIEWS.length - 1)], "show a view"],
    [["n", "p"], "the next run, the one before"],
    [[PICKER_KEY], "find a row"],
    [[HELP_KEY], "show these keys"],
    [["Esc"], "close a dialog"],
  ]],
  ["Heat map and curve above it", [
    [["←", "→", "↑", "↓"], "move over steps and rows"],
    [["Page Up", "Page Down", "Home", "End"], "move further"],
    [["+", "−"], "show fewer, show more steps"],
    [["0"], "show all steps"],
    [["Shift ←", "Shift →"], "earlier, later steps"],
    [["Enter"], "show the row, or from the curve the step"],
    [["Space", "Backspace"], "fold or unfold a part, fold the part around"],
  ]],
  ["Step", [
    [[",", "."], "the step before, the step after"],
    [["k"], "play or pause"],
    [["←", "→", "Home", "End"], "move over the bars"],
    [["Enter"], "show the row at this step in the heat map"],
  ]],
  ["Histograms", [
    [["←", "→", "↑", "↓"], "move over rows"],
    [["Shift ←", "Shift →"], "move over steps"],
    [["Enter"], "show the row"],
  ]],
];

/** The dialog with all keys: { element, open() }. */
export function keysDialog() {
  const lines = (keys) => keys.flatMap(([names, text]) => [h("dt", {}, ...names.flatMap((name) => (name === "…" ? [" … "] : [h("kbd", {}, name), " "]))), h("dd", {}, text)]);
  const groups = KEY_LIST.map(([title, keys]) => h("section", {}, h("h2", {}, title), h("dl", {}, ...lines(keys))));
  const close = h("button", { onclick: () => element.close() }, "Close");
  const element = h("dialog", { class: "key-list", "aria-label": "Keys" }, h("div", { class: "key-groups" }, ...groups), close);
  element.addEventListener("click", (event) => event.target === element && element.close());
  element.addEventListener("keydown", (event) => event.key === HELP_KEY && element.close());
  return { element, open: () => element.open || element.showModal() };
}

const elementOf = ({ target }) => (target instanceof Element ? target : document.body);

/** Whether an element takes the keys that a person types. */
const takesText = (element) => Boolean(element.closest("textarea, [contenteditable], input:not([type=checkbox], [type=range], [type=radio])"));

/**
 * Handle the keys of the whole page. A view may have `pressed(event)`, which gets the keys that no element with the focus uses, and
 * returns whether it used the key.
 */
export function listenToKeys(app, dialog) {
  let byPointer = false; // whether the newest input came from a pointer
  addEventListener("pointerdown", () => (byPointer = true), true);
  addEventListener("keydown", () => (byPointer = false), true);
  // After a choice in a list with the pointer, no list holds the focus, so that the keys act on the view again.
  addEventListener("change", ({ target }) => byPointer && target.matches("select, input[type=checkbox]") && target.blur(), true);
  addEventListener("keydown", (event) => {
    const { key } = event;
    const target = elementOf(event);
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || takesText(target) || target.closest("dialog")) return;
    if (key === PICKER_KEY) app.openPicker();
    else if (key === HELP_KEY) dialog.open();
    else if (key === "n" || key === "p") app.stepRun(key === "n" ? 1 : -1);
    else if (!showView(app, key) && !viewUses(app, event)) return;
    event.preventDefault();
  });
}

function showView(app, key) {
  // The list of runs comes first and has no digit: 0 shows all steps of a map.
  const [view] = (/^[1-9]$/.test(key) && VIEWS[Number(key)]) || [];
  if (!view || !app.offers(view)) return false;
  app.state.set({ view });
  return true;
}

/** Let the shown view use a key that an element with the focus has no use for: a select moves over its options with arrow keys. */
function viewUses(app, event) {
  const { key } = event;
  const target = elementOf(event);
  const isOfElement = key.startsWith("Arrow") || ["Home", "End", "PageUp", "PageDown", "Enter", " "].includes(key);
  if (isOfElement && target.closest("select, input, button, summary, a, [role=tab], [role=application], [role=slider]")) return false;
  return app.views[app.state.view].pressed?.(event) ?? false;
}
