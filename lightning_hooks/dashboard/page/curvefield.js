// A field to choose a curve of the strip: type a part of its tag, or take it from the list.

import { h } from "./dom.js";

let fields = 0; // the number of fields that were made; it gives the list of each an id of its own

/**
 * A field with a `label`. `tags()` are the tags that can be chosen, `tag()` is the chosen one, and `choose(tag)` and `say(text)` are
 * called with a new choice and with a message.
 */
export class CurveField {
  constructor(label, { tags, tag, choose, say }) {
    Object.assign(this, { tags, tag, choose, say });
    this.options = h("datalist", { id: `curves-${++fields}` });
    this.input = h("input", { type: "search", list: this.options.id, "aria-label": label, autocomplete: "off", spellcheck: "false" });
    // Empty the field while it has the focus, because the list shows only the options that match its text.
    this.input.addEventListener("focus", () => this.empty());
    this.input.addEventListener("pointerdown", () => this.empty());
    this.input.addEventListener("blur", () => (this.input.value = this.tag()));
    this.input.addEventListener("input", () => this.tags().includes(this.input.value) && this.take(this.input.value));
    this.input.addEventListener("keydown", (event) => this.keyPressed(event));
    this.element = h("label", { class: "strip-choice" }, label, this.input, this.options);
  }

  empty() {
    this.input.placeholder = this.tag();
    if (this.input.value === this.tag()) this.input.value = "";
  }

  /** Choose a tag, and give the focus back to the page, whose keys then act on the view. */
  take(tag) {
    this.input.blur();
    this.choose(tag);
  }

  /** With Enter choose the first tag that contains the typed text; with Escape none. */
  keyPressed(event) {
    const typed = this.input.value.toLowerCase();
    const found = this.tags().find((tag) => tag.toLowerCase().includes(typed));
    if (event.key === "Enter" && typed && !found) this.say(`No curve of this run contains ${this.input.value}.`);
    if (event.key === "Enter" || event.key === "Escape") this.input.value = "";
    if (event.key === "Enter" && typed && found) this.take(found);
  }

  /** Show the chosen tag and the tags of the run. */
  sync() {
    if (document.activeElement !== this.input) this.input.value = this.tag();
    const tags = this.tags();
    const listed = tags.join("\n");
    if (this.listed !== listed) this.options.replaceChildren(...tags.map((tag) => h("option", { value: tag })));
    this.listed = listed;
  }
}
