// The toolbar above the heat maps. It filters and folds rows, chooses the colours, zooms and pans over steps, and saves a picture or
// a table.

import { MAPS, SCALES } from "./colors.js";
import { choice, h } from "./dom.js";
import { LEVELS } from "./levels.js";

const [ROOMY, ROOMY_COMPARED] = [1240, 1370]; // pixels of the toolbar with all choices in one line; with those of a comparison
const AGAINST = { usual: "against usual", reference: "against a run" };

/**
 * The `element` of the toolbar, and `sync(hasRatio)`, which makes its inputs show the state of the page; `hasRatio`
 * says whether the statistic can be compared by ratios. `act` holds the callbacks zoom(factor),
 * pan(share), savePicture() and saveTable().
 */
export function makeTools(app, act) {
  const { state } = app;
  const button = (text, label, onclick) => h("button", { "aria-label": label, title: label, onclick }, text);
  const group = (...children) => h("span", { class: "group" }, ...children);
  const filter = h("input", {
    type: "search",
    placeholder: "encoder.*  !*.bias  re:.*[02]",
    "aria-label": "Show only rows whose name matches these patterns",
    oninput: () => state.set({ filter: filter.value }),
  });
  const bound = (name, label) => {
    const input = h("input", { type: "text", inputmode: "decimal", size: "6", "aria-label": label, placeholder: "auto" });
    input.addEventListener("change", () => {
      const number = input.value === "" ? "" : Number(input.value);
      if (Number.isNaN(number)) app.say(`${input.value} is not a number`, "error");
      else state.set({ [name]: number });
      const [low, high] = [state.low, state.high];
      if (low !== "" && high !== "" && !(Number(low) < Number(high))) app.say(`The colours go from a lesser to a greater value, not from ${low} to ${high}.`, "error");
    });
    return input;
  };
  const bounds = { low: bound("low", "Least value of the colours"), high: bound("high", "Greatest value of the colours") };
  const modes = [["beside", "side by side"], ["difference", "difference"]];
  const choices = {
    mode: choice("Comparison", modes, state.mode, (mode) => state.set({ mode, low: "", high: "" })),
    change: choice("Difference as", [["", "ratio (log₂)"], ["linear", "a − b"]], state.change, (change) => state.set({ change, low: "", high: "" })),
    level: choice("Colours by", LEVELS, state.level, (level) => state.set({ level })),
    scale: choice("Scale", SCALES, state.scale, (scale) => state.set({ scale })),
    map: choice("Colours", MAPS.map((map) => [map, AGAINST[map] ?? map]), state.map, (map) => state.set({ map })),
  };
  // In a narrow window a button shows and hides the choices of colours.
  const colors = h(
    "div",
    { class: "color-choices", id: "color-choices" },
    ...Object.values(choices),
    h("span", { class: "choice" }, h("span", {}, "Colours from … to"), group(bounds.low, "to", bounds.high)),
  );
  const toggleColors = () => showColors.setAttribute("aria-expanded", String(colors.classList.toggle("is-open")));
  const showColors = h("button", { class: "show-colors", "aria-expanded": "false", "aria-controls": colors.id, onclick: toggleColors }, "Colours …");
  const fit = h("input", { type: "checkbox", onchange: () => state.set({ fit: fit.checked ? "" : "0" }) });
  const element = h(
    "div",
    { class: "tools", role: "toolbar", "aria-label": "Heat map" },
    h("label", { class: "choice rows" }, h("span", {}, "Rows"), filter),
    h("span", { class: "colors-holder" }, showColors, colors),
    group(
      button("Unfold", "Unfold all parts", () => state.set({ folded: "+" })),
      button("Fold", "Fold all parts", () => state.set({ folded: "-" })),
    ),
    h("label", { class: "check" }, fit, "fit the window"),
    group(
      button("◀", "Earlier steps", () => act.pan(-0.25)),
      button("−", "Show more steps", () => act.zoom(2)),
      button("All", "Show all steps", () => state.set({ from: "", to: "" })),
      button("+", "Show fewer steps", () => act.zoom(0.5)),
      button("▶", "Later steps", () => act.pan(0.25)),
    ),
    group(button("PNG", "Save the picture", act.savePicture), button("CSV", "Save what is visible as a table", act.saveTable)),
  );
  const fold = () => element.classList.toggle("is-narrow", element.clientWidth < (state.others.length ? ROOMY_COMPARED : ROOMY));
  new ResizeObserver(fold).observe(element);
  const sync = (hasRatio) => {
    fold();
    if (filter.value !== state.filter) filter.value = state.filter;
    for (const [name, input] of Object.entries(bounds)) if (document.activeElement !== input) input.value = state[name];
    for (const [name, label] of Object.entries(choices)) label.querySelector("select").value = name === "map" && !AGAINST[state.map] ? mapOf(state) : state[name];
    fit.checked = state.fit !== "0";
    const isReference = state.map === "reference" && hasRatio; // such a map is always one of ratios
    choices.level.hidden = !hasRatio || Boolean(AGAINST[state.map]) || (state.others.length > 0 && state.mode === "difference");
    choices.mode.hidden = !state.others.length || isReference;
    choices.change.hidden = choices.mode.hidden || state.mode !== "difference" || !hasRatio;
  };
  return { element, sync };
}

/**
 * The name of the colour map. A difference has the diverging map in place of the default map (viridis), and of the maps against
 * something. A map against something that does not exist, such as a usual range, is the default map.
 */
export function mapOf(state, usual) {
  const isDifference = state.others.length && state.mode === "difference";
  if (AGAINST[state.map]) return isDifference ? "diverging" : state.map === "usual" && usual ? "usual" : "viridis";
  return isDifference && state.map === "viridis" ? "diverging" : state.map;
}
