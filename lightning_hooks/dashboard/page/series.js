// One row of a table over steps, reduced to at most as many pieces as a chart has pixels.

/** { steps, least, greatest, nan, infinite } of a node; a piece without any value is skipped. */
export async function seriesOf(source, { run, tensor, stat, key, node, from, to, unit, pieces = 800 }) {
  const least = source.leastLevel({ run, tensor, stat });
  const level = Math.max(Math.ceil(Math.log2(Math.max((to - from) / unit / pieces, 1))), least);
  const cell = unit * 2 ** level;
  const [first, last] = [Math.max(Math.floor(from / cell), 0), Math.floor((to - 1) / cell) + 1];
  const buffer = await source.tile({ run, tensor, stat, key, unit, level, first, last, nodes: String(node) });
  const cells = last - first;
  const values = {
    least: new Float32Array(buffer, 0, cells),
    greatest: new Float32Array(buffer, 4 * cells, cells),
    nan: new Uint16Array(buffer, 8 * cells, cells),
    infinite: new Uint16Array(buffer, 10 * cells, cells),
  };
  const kept = [...Array(cells).keys()].filter((i) => !Number.isNaN(values.least[i]) || values.nan[i] || values.infinite[i]);
  const take = (array) => kept.map((i) => array[i]);
  return {
    steps: kept.map((i) => (first + i) * cell),
    least: take(values.least),
    greatest: take(values.greatest),
    nan: take(values.nan),
    infinite: take(values.infinite),
  };
}
