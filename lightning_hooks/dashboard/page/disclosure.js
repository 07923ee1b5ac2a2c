// A word in a sentence that shows more when it is chosen: all names behind "then 3 more", what "likely" means.

import { h } from "./dom.js";

const TITLED = 20; // names in a tooltip

/** A button that shows or hides a text behind itself; the text is its tooltip too. Returns both, for a sentence. */
export function disclosure(label, text, title = text) {
  const more = h("span", { class: "disclosed", hidden: true }, text);
  const toggle = () => {
    more.hidden = !more.hidden;
    button.setAttribute("aria-expanded", String(!more.hidden));
  };
  const button = h("button", { class: "disclosure", "aria-expanded": "false", title, onclick: toggle }, label);
  return [button, more];
}

/**
 * A question mark that shows and hides a panel; Escape hides it too. `fill` is called when the panel is shown, and returns what stands in it.
 */
export function question(label, fill) {
  const panel = h("span", { class: "help", hidden: true, role: "note" });
  const toggle = () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    panel.style.translate = "";
    if (panel.hidden) return;
    panel.replaceChildren(...fill());
    // Move the panel so that all of it is inside the window.
    const { left, right } = panel.getBoundingClientRect();
    const room = document.documentElement.clientWidth - 8;
    panel.style.translate = `${left < 8 ? 8 - left : Math.min(room - right, 0)}px`;
  };
  const button = h("button", { class: "question", "aria-label": label, "aria-expanded": "false", onclick: toggle }, "?");
  button.addEventListener("keydown", (event) => event.key === "Escape" && !panel.hidden && toggle());
  return h("span", { class: "help-holder" }, button, panel);
}

/** The name of a row among others. The row without a name is the loss. */
const named = (row) => row || "the loss";

/** The rows of a finding in a sentence, as the health rules write them; empty if the finding is about the whole run. */
export const rowsInShort = (rows) => (rows.length > 1 ? `${named(rows[0])}, then ${rows.length - 1} more` : (rows[0] ?? ""));

/** The names of rows as one text, at most `most` of them. */
export function namesText(rows, most = Infinity) {
  const more = rows.length - most;
  return `${rows.slice(0, most).map(named).join(", ")}${more > 0 ? ` and ${more.toLocaleString("en-US")} more` : ""}`;
}

/** The names of rows for a tooltip. */
export const namesTitle = (rows) => namesText(rows, TITLED);

/** The end of a list of names that shows the first `most`: a disclosure of the further names; nothing if there are none. */
export function furtherNames(names, most) {
  const further = names.slice(most);
  return further.length ? [" ", ...disclosure(`and ${further.length.toLocaleString("en-US")} more`, `: ${namesText(further)}`, namesTitle(further))] : [];
}

/**
 * A sentence in parts. If it names the rows of one of the findings as "NAME, then 3 more", the parts are the text before "then", a
 * disclosure of the other names, and the text behind. `set` makes elements of a text.
 */
export function withNames(text, findings, set) {
  for (const { rows } of findings) {
    if (!Array.isArray(rows) || rows.length < 2) continue;
    const short = `then ${rows.length - 1} more`;
    const at = text.toLowerCase().indexOf(rowsInShort(rows).toLowerCase());
    if (at < 0) continue;
    const begin = at + named(rows[0]).length + 2;
    return [...set(text.slice(0, begin)), ...disclosure(short, ` (${namesText(rows.slice(1))})`, namesTitle(rows.slice(1))), ...set(text.slice(begin + short.length))];
  }
  return set(text);
}
