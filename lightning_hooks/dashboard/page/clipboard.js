// Copies text, also where the browser has no clipboard for a page, as for one of another machine without HTTPS.

import { h } from "./dom.js";

/** Copy a text; resolves to whether it was copied. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { class: "visually-hidden" });
    field.value = text;
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }
}

/** A button that copies what `textOf` returns, and says for a moment whether it did. */
export function copyButton(label, textOf, title = label) {
  const button = h("button", { title, onclick: async () => {
    const focused = document.activeElement;
    const isCopied = await copied(textOf());
    focused?.focus();
    said.textContent = isCopied ? "Copied" : "The browser does not let the page copy";
    setTimeout(() => (said.textContent = ""), 2500);
  } }, label);
  const said = h("span", { class: "soft", role: "status" });
  return h("span", { class: "copy" }, button, said);
}
