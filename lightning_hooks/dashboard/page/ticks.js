// The ticks of an axis: round numbers, and texts that differ where the numbers do.

import { short } from "./colors.js";

const MOST_TICKS = 6;
const MOST_DIGITS = 17; // with so many digits any two numbers of JavaScript differ

/**
 * The texts of ticks; a tick that is null has no text. If two different numbers would have the same text, all numbers get as many digits as are needed to tell them
 * apart. `text(value, form)` formats a value; it may use `form`, which formats a number, for the digits.
 */
export function tickTexts(values, text = short) {
  let texts = values.map((value) => (value === null ? "" : withoutZeros(text(value))));
  for (let digits = 5; digits <= MOST_DIGITS && haveSameText(values, texts); digits++) {
    const form = (value) => withDigits(value, digits);
    texts = values.map((value) => (value === null ? "" : text === short ? form(value) : text(value, form)));
  }
  return text === short && areMixed(texts) ? oneStyle(values) : texts;
}

const areMixed = (texts) => texts.some((each) => each.includes("e")) && texts.some((each) => each && each !== "0" && !each.includes("e"));

/** The texts of round numbers in one style: 0.0005 and 0.001 if all are of a moderate size, otherwise 1e-5 and 1e3. A null has no text. */
export function oneStyle(values) {
  const numbers = values.map((value) => value && Number(value.toPrecision(12)));
  const isPlain = numbers.every((value) => !value || (Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6));
  const textOf = (value) => (value === 0 || isPlain ? String(value) : value.toExponential()).replace(/^-/, "−").replace("e+", "e");
  return numbers.map((value) => (value === null ? "" : textOf(value)));
}

/** At most six round numbers between the bounds of a scale, see makeScale(); powers of ten where a logarithmic scale holds two of them. */
export function roundTicks({ kind, low, high }) {
  if (kind === "symlog" || !(high > low)) return [...new Set([low, 0, high])];
  const [first, last] = kind === "log" ? [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))] : [0, 0];
  if (last > first) return multiples(Math.ceil((last - first + 1) / MOST_TICKS), first, last).map((exponent) => Number(`1e${exponent}`));
  const size = 10 ** Math.floor(Math.log10((high - low) / MOST_TICKS));
  return [1, 2, 5, 10].map((factor) => multiples(factor * size, low, high)).find((each) => each.length <= MOST_TICKS);
}

/** The multiples of a step between two bounds, which count, without what binary fractions leave. */
function multiples(step, low, high) {
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// 1e-4 in place of 1.00e-4: a tick is a round number.
const withoutZeros = (text) => text.replace(/\.?0+e/, "e");

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
