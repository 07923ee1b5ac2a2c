// Small helpers for the document. Text is never parsed as HTML, so a name that contains HTML is shown as it is.

/** Create an element: h("button", { class: "x", onclick: f }, "text", child). Children that are null are skipped. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A select with a label. An option is a value, [value, text], or { label, options } for a group of options. */
export function choice(label, options, value, onchange, attributes = {}) {
  const select = h("select", { "aria-label": label, onchange: () => onchange(select.value), ...attributes });
  const optionOf = (option) => {
    if (option.options) return h("optgroup", { label: option.label }, ...option.options.map(optionOf));
    const [key, text] = Array.isArray(option) ? option : [option, option];
    return h("option", { value: key }, text);
  };
  select.append(...options.map(optionOf));
  select.value = value;
  return h("label", { class: "choice" }, h("span", {}, label), select);
}

/** A table; a cell { number } is aligned at its right. */
export function table(heads, lines) {
  const cell = (each) => (each?.number !== undefined ? h("td", { class: "number" }, each.number) : h("td", {}, each));
  const head = (text, i) => h("th", { scope: "col", class: lines[0][i]?.number === undefined ? "" : "number" }, text);
  const named = heads.some(Boolean) ? h("thead", {}, h("tr", {}, ...heads.map(head))) : null;
  return h("div", { class: "table-holder" }, h("table", {}, named, h("tbody", {}, ...lines.map((line) => h("tr", {}, ...line.map(cell))))));
}

/** Save a blob as a file. */
export function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** "1 row", "2 rows". */
export function several(number, noun) {
  return `${number.toLocaleString("en-US")} ${noun}${number === 1 ? "" : "s"}`;
}

/** A number clipped to a range. */
export function clamp(number, least, most) {
  return Math.min(Math.max(number, least), most);
}

/** A colour of the style sheet, by the name of its custom property without `--`. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Resize a canvas, given in CSS pixels, and return its context, scaled to the resolution of the screen. */
export function penOf(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
}

/** A function that calls `call` in the next frame; further calls before that frame are ignored. */
export function onceAFrame(call) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      call();
    });
  };
}
