// The picker of a row, as the quick-open of an editor: type some letters of a name, choose with the arrow keys, open with Enter.

import { h, several } from "./dom.js";
import { ranked } from "./fuzzy.js";
import { marked } from "./marks.js";
import { worstFirst } from "./worst.js";

export const PICKER_KEY = "/";
const MOST_OPTIONS = 60; // options in the list; typing reaches the others
const OPTIONS_SKIPPED = 10; // options that Page Up and Page Down skip
const OPTION_LIST = "picker-list";

export class Picker {
  constructor(app) {
    this.app = app;
    this.items = null; // until the rows are read
    this.input = h("input", {
      type: "text",
      role: "combobox",
      "aria-label": "Find a row",
      "aria-expanded": "true",
      "aria-controls": OPTION_LIST,
      "aria-autocomplete": "list",
      autocomplete: "off",
      spellcheck: "false",
      placeholder: "some letters of a row, such as enc0w grad",
      oninput: () => this.list(),
      onkeydown: (event) => this.press(event),
    });
    this.count = h("p", { class: "picker-count", "aria-live": "polite" });
    this.options = h("ul", { id: OPTION_LIST, role: "listbox", "aria-label": "Rows" });
    this.element = h("dialog", { class: "picker", "aria-label": "Find a row" }, this.input, this.options, this.count);
    // A click beside the content of a modal dialog is a click on the dialog itself.
    this.element.addEventListener("click", (event) => event.target === this.element && this.close());
  }

  /** Open the picker with the rows of all tensors, those of the shown tensor first. It takes letters while the rows are being read. */
  async open() {
    const { app } = this;
    const { state, meta, loaded } = app;
    if (this.element.open || !meta?.tensors.length) return;
    this.items = null;
    this.input.value = "";
    this.element.showModal();
    this.list();
    const rank = ({ tensor }) => (tensor === state.tensor ? 0 : 1);
    const tables = meta.tensors.toSorted((a, b) => rank(a) - rank(b));
    const statOf = (stats) => [state.stat, ...stats.filter((each) => each !== "count"), ...stats].find((each) => stats.includes(each));
    const rows = await Promise.all(tables.map(({ tensor, stats }) => loaded.rows(state.run, tensor, statOf(stats))));
    if (!this.element.open) return;
    const notes = noteOf(marked(meta));
    this.items = tables.flatMap(({ tensor, stats }, i) =>
      [...rows[i].rowByName.keys()].map((name) => ({ tensor, stat: statOf(stats), name, note: notes(tensor, name) })),
    );
    // Without a query the rows with a finding are first.
    this.items.sort((a, b) => Boolean(b.note) - Boolean(a.note));
    this.list();
  }

  list() {
    const found = ranked(this.input.value, this.items ?? [], ({ name, tensor }) => `${name} ${tensor}`);
    this.found = found.slice(0, MOST_OPTIONS);
    this.options.replaceChildren(...this.found.map(({ item, at }, i) => this.option(item, at, i)));
    const rest = found.length - this.found.length;
    if (!this.items) this.count.textContent = "Reading the rows.";
    else this.count.textContent = found.length ? `${several(found.length, "row")}${rest ? `; the first ${MOST_OPTIONS} are listed, type to find the others` : ""}` : "No row has these letters in this order.";
    const { state } = this.app;
    const current = this.input.value ? -1 : this.found.findIndex(({ item }) => item.name === state.row && item.tensor === state.tensor);
    this.choose(Math.max(current, 0));
  }

  option({ name, tensor, note }, at, i) {
    const onclick = () => this.pick(i);
    const title = note || null;
    return h(
      "li",
      { role: "option", id: `${OPTION_LIST}-${i}`, "aria-selected": "false", onclick, title },
      h("span", { class: "picker-name" }, ...markedText(name, at)),
      h("span", { class: "picker-tensor" }, note ? "▼ " : "", ...markedText(tensor, at.map((k) => k - name.length - 1))),
    );
  }

  /** Mark an option as the one that Enter opens. */
  choose(i) {
    this.chosen = i;
    [...this.options.children].forEach((option, k) => option.setAttribute("aria-selected", String(k === i)));
    const option = this.options.children[i];
    option?.scrollIntoView({ block: "nearest" });
    if (option) this.input.setAttribute("aria-activedescendant", option.id);
    else this.input.removeAttribute("aria-activedescendant");
  }

  /** Close the picker. The input loses the focus only when the page is drawn next; until then it would swallow the key that opens. */
  close() {
    this.element.close();
    this.input.blur();
  }

  press(event) {
    const count = this.found.length;
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const jump = { PageDown: OPTIONS_SKIPPED, PageUp: -OPTIONS_SKIPPED }[event.key];
    if (event.key === "Enter") this.pick(this.chosen);
    else if (event.key === "Escape") this.close();
    else if (move && count) this.choose((this.chosen + move + count) % count);
    else if (jump && count) this.choose(Math.min(Math.max(this.chosen + jump, 0), count - 1));
    else return;
    event.preventDefault();
  }

  pick(i) {
    const item = this.found[i]?.item;
    if (!item) return;
    this.close();
    const { state } = this.app;
    const sameTable = item.tensor === state.tensor && item.stat === state.stat;
    this.app.tableIsChosen = true;
    state.set({ view: "row", row: item.name, tensor: item.tensor, stat: item.stat, ...(sameTable ? {} : { low: "", high: "" }) });
  }
}

/** A text with some of its characters in bold, as nodes. Indices outside the text are ignored. */
function markedText(text, at) {
  const isMarked = new Set(at);
  const parts = [];
  for (let i = 0, start = 0; i < text.length; i++) {
    if (i + 1 < text.length && isMarked.has(i + 1) === isMarked.has(i)) continue;
    const part = text.slice(start, i + 1);
    parts.push(isMarked.has(i) ? h("b", {}, part) : part);
    start = i + 1;
  }
  return parts;
}

/** A function that returns what a finding says of the row of a tensor; an empty text if there is none. */
function noteOf(findings) {
  const notes = new Map();
  for (const { tensor, name, verdict, rule } of worstFirst(findings)) {
    const key = `${tensor || ""}\n${name}`;
    if (!notes.has(key)) notes.set(key, verdict ?? rule ?? "");
  }
  return (tensor, name) => notes.get(`${tensor}\n${name}`) ?? notes.get(`\n${name}`) ?? "";
}
