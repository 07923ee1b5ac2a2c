// The texts of the ticks of an axis: different numbers get different texts.

import { short } from "./colors.js";

const MOST_DIGITS = 17; // with so many digits any two numbers of JavaScript differ

/**
 * The texts of ticks; a tick that is null has no text. If two different numbers would have the same text, all numbers get as many digits as are needed to tell them
 * apart. `text(value, form)` formats a value; it may use `form`, which formats a number, for the digits.
 */
export function tickTexts(values, text = short) {
  let texts = values.map((value) => (value === null ? "" : text(value)));
  for (let digits = 5; digits <= MOST_DIGITS && haveSameText(values, texts); digits++) {
    const form = (value) => withDigits(value, digits);
    texts = values.map((value) => (value === null ? "" : text === short ? form(value) : text(value, form)));
  }
  return texts;
}

function haveSameText(values, texts) {
  const byText = new Map();
  return values.some((value, i) => {
    const before = byText.get(texts[i]);
    byText.set(texts[i], value);
    return before !== undefined && before !== value;
  });
}

/** A number with so many significant digits, in the form of short(). */
function withDigits(value, digits) {
  if (!Number.isFinite(value) || value === 0) return short(value);
  const size = Math.abs(value);
  const text = size >= 1e7 || size < 1e-3 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−").replace("e−", "e-").replace("e+", "e");
}
