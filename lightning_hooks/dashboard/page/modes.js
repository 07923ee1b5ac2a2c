// The changes of modules between training and evaluation mode, as a list with links to the steps.

import { h } from "./dom.js";

/** The list of the changes of modes; null if there was no change. */
export function modeChanges(app, changes) {
  if (!changes?.length) return null;
  const lines = changes.map(({ step, text }) => {
    if (step === null) return h("li", {}, text);
    const open = h("button", { class: "link", onclick: () => app.state.set({ view: "step", step }) }, `Step ${step.toLocaleString("en-US")}`);
    return h("li", {}, open, `: ${text}.`);
  });
  return h("div", { class: "modes" }, h("h2", {}, "Modules that changed between training and evaluation mode"), h("ul", {}, ...lines));
}
