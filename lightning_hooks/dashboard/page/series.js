// Requests one row of a table over steps, reduced to at most as many pieces as a chart has pixels.

import { cellArrays } from "./source.js";

/**
 * The series of a node: { steps, ends, least, greatest, nan, infinite }, where a piece has the steps from steps[i] to ends[i]. Pieces
 * without any value are skipped.
 */
export async function seriesOf(source, { run, tensor, stat, rows, node, from, to, pieces = 800 }) {
  const { unit } = rows;
  const least = source.leastLevel({ run, tensor, stat });
  const level = Math.max(Math.ceil(Math.log2(Math.max((to - from) / unit / pieces, 1))), least);
  const cell = unit * 2 ** level;
  const [first, last] = [Math.max(Math.floor(from / cell), 0), Math.floor((to - 1) / cell) + 1];
  const buffer = await source.tile({ run, tensor, stat, key: rows.key, unit, level, first, last, nodes: String(node) });
  const values = cellArrays(buffer, last - first);
  const stepsOf = (i) => rows.steps.within((first + i) * cell, (first + i + 1) * cell);
  const measured = [...values.least.keys()].filter((i) => !Number.isNaN(values.least[i]) || values.nan[i] || values.infinite[i]);
  // A window of steps fills several cells with one value, which is one piece.
  const kept = measured.filter((i, k) => k === 0 || stepsOf(i)[0] > stepsOf(measured[k - 1])[0]);
  const steps = kept.map(stepsOf);
  const take = (array) => kept.map((i) => array[i]);
  return {
    steps: steps.map(([start]) => start),
    ends: steps.map(([, end]) => end),
    least: take(values.least),
    greatest: take(values.greatest),
    nan: take(values.nan),
    infinite: take(values.infinite),
  };
}
