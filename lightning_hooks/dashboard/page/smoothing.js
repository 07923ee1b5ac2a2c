// Smooths a curve: each value becomes the mean of its neighbourhood, which reaches equally far to both sides, so nothing is shifted.

// How far the neighbourhood reaches to each side, as a share of the shown pieces, for each step of the slider.
const REACHES = [0, 0.01, 0.03, 0.1];
export const MOST_SMOOTHING = REACHES.length - 1;

/** The middle of each piece of a series. */
const middleOf = ({ least, greatest, mean }, i) => mean?.[i] ?? (least[i] + greatest[i]) / 2;

/**
 * The smoothed values of a series, NaN where a value is not finite; null if `strength`, from 0 to MOST_SMOOTHING, is 0. If `isLog`, the
 * means are geometric, as the eye takes them from a logarithmic axis.
 */
export function smoothed(series, strength, isLog) {
  const reach = strength ? Math.max(Math.round(REACHES[strength] * series.steps.length), 1) : 0;
  if (!reach) return null;
  const [sums, counts] = [[0], [0]]; // of the finite values before each piece
  for (let i = 0; i < series.steps.length; i++) {
    const value = isLog ? Math.log(middleOf(series, i)) : middleOf(series, i);
    const isFinite = Number.isFinite(value);
    sums.push(sums[i] + (isFinite ? value : 0));
    counts.push(counts[i] + (isFinite ? 1 : 0));
  }
  return series.steps.map((_, i) => {
    if (counts[i + 1] === counts[i]) return NaN;
    // At the ends the neighbourhood is smaller on both sides: a one-sided mean would bend the curve.
    const side = Math.min(reach, i, series.steps.length - 1 - i);
    const [from, to] = [i - side, i + side + 1];
    const mean = (sums[to] - sums[from]) / (counts[to] - counts[from]);
    return isLog ? Math.exp(mean) : mean;
  });
}
