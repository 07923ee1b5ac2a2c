// Histograms of a row over steps: their counts by signed powers of two, and the axis on which they are drawn.

import { beginningsOf } from "./host.js";

const LOWEST = 126; // bin b holds magnitudes from 2^(|b| - 1 - LOWEST) to 2^(|b| - LOWEST), see sheets.py
const NEGLIGIBLE = 1e-3; // the share of a row's elements, nearest to zero, that is joined into the least power of two shown
const WIDE = 32; // the most powers of two on each side of zero; the lowest one shown also holds all smaller magnitudes
const STEPS = 60; // the most steps of each histogram in an answer

/** The tags of the histograms of a tensor: [{ name, index }], where `index` is the place of the tag in `meta.histograms`. */
export function histogramsOf(meta, tensor) {
  const prefixes = beginningsOf(tensor).map((each) => `${each}histogram/`);
  return meta.histograms.flatMap((tag, index) => {
    const prefix = prefixes.find((each) => tag.startsWith(each));
    return prefix ? [{ name: tag.slice(prefix.length), index }] : [];
  });
}

/** Request histograms by their indices: a map from index to { steps, low, bins, counts, totals }. */
export async function askHistograms(source, run, indices, tags) {
  const answer = await source.ask("histograms", { run, tags, steps: STEPS });
  return new Map(answer.map((each, i) => [indices[i], unpacked(each)]));
}

/** Histograms as numbers: `counts` holds [steps][bins], `totals` the elements of each step. */
function unpacked({ steps, totals, low, bins, counts }) {
  const bytes = Uint8Array.from(atob(counts), (c) => c.charCodeAt(0));
  const numbers = Float64Array.from(new Uint16Array(bytes.buffer), (code) => Math.round(2 ** (code / 1000) - 1));
  return { steps, low, bins, counts: numbers, totals };
}

/** The least and the greatest magnitude of histograms as bins, and which signs they have; bins of a negligible share are left out. */
export function extentOf(histograms) {
  let [least, most, negative, positive] = [Infinity, 1, false, false];
  for (const { steps, low, bins, counts } of histograms) {
    const sizes = new Map(); // elements by |bin|
    for (let k = 0; k < bins; k++) {
      const bin = low + k;
      if (!bin) continue;
      let sum = 0;
      for (let t = 0; t < steps.length; t++) sum += counts[t * bins + k];
      if (!sum) continue;
      sizes.set(Math.abs(bin), (sizes.get(Math.abs(bin)) ?? 0) + sum);
      if (bin < 0) negative = true;
      else positive = true;
      most = Math.max(most, Math.abs(bin));
    }
    const ascending = [...sizes].sort(([a], [b]) => a - b);
    const all = ascending.reduce((sum, [, count]) => sum + count, 0);
    let below = 0;
    for (const [bin, count] of ascending) {
      below += count;
      if (below <= NEGLIGIBLE * all) continue;
      least = Math.min(least, bin);
      break;
    }
  }
  if (least > most) least = most;
  return { least: Math.max(least, most - WIDE + 1), most, negative, positive: positive || !negative };
}

/**
 * The axis of a histogram: signed powers of two around zero. Line 0 is the most negative one. `line(bin)` is the line of a bin,
 * `at(value)` the place of a number in lines, `bounds(line)` the least and the greatest number of a line.
 */
export function axisOf({ least, most, negative, positive }) {
  const side = most - least + 1;
  const zero = negative ? side : 0;
  const lines = zero + 1 + (positive ? side : 0);
  const line = (bin) => {
    if (bin === 0) return zero;
    const distance = Math.max(Math.abs(bin) - least, 0) + 1;
    return Math.min(Math.max(zero + Math.sign(bin) * distance, 0), lines - 1);
  };
  const at = (value) => {
    if (value === 0) return zero + 0.5;
    const distance = Math.log2(Math.abs(value)) + LOWEST - (least - 1);
    return zero + 0.5 + Math.sign(value) * (distance + 0.5);
  };
  const bounds = (i) => {
    if (i === zero) return [0, 0];
    const bin = Math.abs(i - zero) - 1 + least;
    const [small, large] = [Math.abs(i - zero) === 1 ? 0 : 2 ** (bin - 1 - LOWEST), 2 ** (bin - LOWEST)];
    return i > zero ? [small, large] : [-large, -small];
  };
  return { lines, zero, line, at, bounds, ticks: ticksOf({ least, most, negative, positive }, at) };
}

/** Ticks at zero and at powers of ten, at most four on each side: [{ at, text }]. The one at zero is the first. */
function ticksOf({ least, most, negative, positive }, at) {
  const [first, last] = [Math.ceil((least - 1 - LOWEST) * Math.log10(2)), Math.floor((most - LOWEST) * Math.log10(2))];
  const interval = Math.max(Math.ceil((last - first + 1) / 4), 1);
  const ticks = [{ at: at(0), text: "0" }];
  for (let power = last; power >= first; power -= interval) {
    const text = Math.abs(power) > 3 ? `1e${power}` : String(10 ** power);
    if (positive) ticks.push({ at: at(10 ** power), text });
    if (negative) ticks.push({ at: at(-(10 ** power)), text: `−${text}` });
  }
  return ticks;
}

/** The ticks whose labels do not overlap, earlier ones first; a label at `place(at)` takes `size(text)` pixels. */
export function apart(ticks, place, size) {
  const kept = [];
  for (const tick of ticks) {
    const [center, half] = [place(tick.at), size(tick.text) / 2];
    if (kept.every((each) => Math.abs(each.center - center) >= each.half + half)) kept.push({ ...tick, center, half });
  }
  return kept;
}

/** The shares of the elements of a step by the lines of an axis. */
export function sharesOf({ low, bins, counts, totals }, axis, t) {
  const shares = new Float64Array(axis.lines);
  if (totals[t]) for (let k = 0; k < bins; k++) shares[axis.line(low + k)] += counts[t * bins + k] / totals[t];
  return shares;
}
