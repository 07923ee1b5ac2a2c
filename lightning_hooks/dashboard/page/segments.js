// A segment: the cells of one row in one tile. Its summary and its pixels are cached in the segment, so panning computes nothing
// twice.

import { APART, FROM_ZERO, INFINITE, NAN, ZERO, tableOf } from "./colors.js";

const SAMPLES = 16; // the most values of a segment in its summary

/** The value by which a cell is coloured: the one of least and greatest that is farther from zero. */
export function farther(least, greatest) {
  return Math.abs(least) > Math.abs(greatest) ? least : greatest;
}

/** A cell: { value, least, greatest, nan, infinite, fromZero }; null if it was not measured. */
export function cellOf(segment, i) {
  const [least, greatest, nan, infinite, fromZero] = [segment.least[i], segment.greatest[i], segment.nan[i], segment.infinite[i], segment.fromZero[i]];
  if (least !== least && !nan && !infinite && !fromZero) return null;
  return { value: farther(least, greatest), least, greatest, nan, infinite, fromZero };
}

/**
 * The summary of a range of cells of a segment that a scale needs: { low, high, leastPositive, sample }. `sample` has values of evenly spaced cells. Exact
 * zeros are not part of it, since they have a colour of their own.
 */
export function summaryOf(segment, from, to) {
  const known = segment.summary;
  if (known?.from === from && known.to === to) return known;
  let [low, high, leastPositive] = [Infinity, -Infinity, Infinity];
  const values = [];
  for (let i = from; i < to; i++) {
    const [least, greatest] = [segment.least[i], segment.greatest[i]];
    const value = farther(least, greatest);
    if (!value) continue; // 0, or NaN if no value is finite
    const [bottom, top] = [least || value, greatest || value];
    if (bottom < low) low = bottom;
    if (top > high) high = top;
    const size = least > 0 ? least : Math.abs(value);
    if (size < leastPositive) leastPositive = size;
    values.push(value);
  }
  const stride = Math.max(values.length / SAMPLES, 1);
  const sample = Array.from({ length: Math.min(SAMPLES, values.length) }, (_, i) => values[Math.floor((i + 0.5) * stride)]);
  segment.summary = { from, to, low, high, leastPositive, sample };
  return segment.summary;
}

// An ImageData holds bytes in the order r, g, b, a; as a number of 32 bits this depends on the byte order of the machine.
const isLittleEndian = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
const packed = (r, g, b) => (isLittleEndian ? (255 << 24) | (b << 16) | (g << 8) | r : (r << 24) | (g << 16) | (b << 8) | 255) >>> 0;
const palettes = new Map();

function paletteOf(map) {
  if (!palettes.has(map)) {
    const table = tableOf(map);
    palettes.set(map, Uint32Array.from({ length: 256 }, (_, i) => packed(table[3 * i], table[3 * i + 1], table[3 * i + 2])));
  }
  return palettes.get(map);
}

// Cells without a colour on the scale hold NaN, an infinity or zero, or their row stands apart (see levels.js). TEXTURE_OF names the
// texture of each kind.
const [IS_NAN, IS_INFINITE, IS_ZERO, IS_APART, IS_FROM_ZERO] = [1, 2, 3, 4, 5];
const TEXTURE_OF = [null, "nan", "infinite", "zero", "apart", "fromZero"];

/**
 * The pixels of a segment, one for each cell; a cell that was not measured is transparent. Values are divided by `level` first, and if
 * `isApart` all finite values have one colour.
 */
export function pixelsOf(segment, scale, map, level = 1, isApart = false) {
  if (segment.scale === scale && segment.map === map && segment.level === level && segment.isApart === isApart) return segment.pixels;
  const palette = paletteOf(map);
  const colors = [0, packed(...NAN), packed(...INFINITE), packed(...ZERO), packed(...APART), packed(...FROM_ZERO)];
  segment.pixels ??= new Uint32Array(segment.least.length);
  segment.kinds ??= new Uint8Array(segment.least.length);
  segment.hasKinds = false;
  const { pixels, kinds, least, greatest } = segment;
  for (let i = 0; i < pixels.length; i++) {
    if (segment.nan[i]) kinds[i] = IS_NAN;
    else if (segment.infinite[i]) kinds[i] = IS_INFINITE;
    else if (segment.fromZero[i] && least[i] !== least[i]) kinds[i] = IS_FROM_ZERO; // no step of the cell has a ratio
    else if (isApart && least[i] === least[i]) kinds[i] = IS_APART;
    else if (scale.hasZero && least[i] === 0 && greatest[i] === 0) kinds[i] = IS_ZERO; // every step of the cell is zero
    else kinds[i] = 0;
    if (kinds[i]) segment.hasKinds = true;
    pixels[i] = kinds[i] ? colors[kinds[i]] : least[i] !== least[i] ? 0 : palette[scale.index(farther(least[i], greatest[i]) / level)];
  }
  Object.assign(segment, { scale, map, level, isApart });
  return pixels;
}

/** Call a function with the name of a texture and its first and last cell, for each run of cells in a range that have a texture. */
export function texturesOf(segment, from, to, call) {
  if (!segment.hasKinds) return;
  const { kinds } = segment;
  for (let i = from; i < to; ) {
    const start = i;
    while (i < to && kinds[i] === kinds[start]) i++;
    if (kinds[start]) call(TEXTURE_OF[kinds[start]], start, i);
  }
}

/** The pixel of a cell that has not arrived. */
export const WAITING = isLittleEndian ? 0x28808080 : 0x80808028;
