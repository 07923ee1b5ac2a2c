// The levels of rows: whether each row is coloured by its own median, and which biases are left out of the choice of colours.

const FAR_APART = 1e3; // the ratio of the greatest to the least level from which on each row is coloured by its own median
const ROUNDING = 1e-2; // a bias in front of a norm has at most this share of the level of its weight: what rounding leaves of 0
const OF_GRADIENTS = /(^|\/)(grad|final_grad|update|state\..*)$/; // the tensors of parameters in which such a bias is nearly 0
const NARROWEST = 4; // the factor from the median at which the last colours begin, at least: smaller changes are those of batches
const COLOURED = 0.97; // the share of values whose distance from the median has colours of its own

// The choices of `level` in the address: "" chooses by the values.
export const LEVELS = [["", "auto"], ["own", "row's median"], ["one", "one scale"]];

export const APART_TEXT = "bias in front of a norm, nearly 0";

/** The level of each line: the median magnitude of its values, without exact zeros; NaN if it has none. `lines` are those of HeatMap.summaries(). */
export function levelsOf(lines) {
  return lines.map((summaries) => medianOf(summaries.flatMap(({ sample }) => sample.map(Math.abs))));
}

function medianOf(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[sorted.length >> 1] : NaN;
}

/**
 * The names of the biases in front of a norm whose values are nearly 0 beside those of the weight of their module, or if it has no
 * level, beside the median of the other rows. `levels` holds the level of each row by its name, NaN if all its values are 0.
 */
export function apartOf(rows, tensor, levels) {
  if (!OF_GRADIENTS.test(tensor)) return new Set();
  const candidates = rows.nodes.filter(({ name, cancelled }) => cancelled && levels.has(name)).map(({ name }) => name);
  if (!candidates.length) return new Set();
  const others = new Map(levels);
  for (const name of candidates) others.delete(name);
  const usual = medianOf([...others.values()].filter((level) => level > 0));
  return new Set(
    candidates.filter((name) => {
      const beside = others.get(name.replace(/bias$/, "weight"));
      const level = levels.get(name);
      return !(level > ROUNDING * (beside > 0 ? beside : usual)) && (beside > 0 || usual > 0);
    }),
  );
}

/** Whether rows are coloured by their own medians, for the levels of the rows that count: { isOwn, least, greatest }. */
export function spreadOf(levels) {
  const known = levels.filter((level) => level > 0 && Number.isFinite(level));
  const [least, greatest] = [Math.min(...known), Math.max(...known)];
  return { least, greatest, isFar: known.length > 1 && greatest / least > FAR_APART };
}

/** The summaries of a line as multiples of its level. */
export function relative(summaries, level) {
  if (!(level > 0)) return [];
  return summaries.map(({ low, high, leastPositive, sample }) => ({ low: low / level, high: high / level, leastPositive: leastPositive / level, sample: sample.map((value) => value / level) }));
}

/**
 * The bounds of a scale of multiples of the median, the same factor below and above 1. A few values may lie beyond them: the colours
 * are for the others.
 */
export function aroundMedian(lines) {
  const factors = Float64Array.from(lines.flatMap(({ sample }) => sample), (times) => Math.abs(Math.log(Math.abs(times)))).sort();
  const factor = Math.max(NARROWEST, Math.exp(factors[Math.floor((factors.length - 1) * COLOURED)] ?? 0));
  return [1 / factor, factor];
}
