// Chooses the colours of the heat maps of a view: one scale for all rows, or each row by its own median, and which rows have none.

import { makeScale, scaleOf } from "./colors.js";
import { apartOf, aroundMedian, levelsOf, relative, spreadOf } from "./levels.js";
import { referenceScale, usualScale } from "./usualmap.js";

/**
 * The colours of some panels, from their summaries: { scale, map, spread, isOwn, panels }. `spread` is that of the levels of the rows,
 * and `isOwn` says that each row is coloured by its own median. `panels` holds for each panel the levels by the keys of lines, and
 * the keys of the lines that stand apart. `usual` is the usual range of the statistic, or null.
 */
export function coloringOf(models, summaries, { kind, fixed, level, usual, stat }) {
  const [{ map, tensor, rows, isDifference, isReference }] = models;
  const panels = models.map((model, i) => {
    const levels = new Map(levelsOf(summaries[i]).map((each, r) => [lineKey(model, r), each]));
    return { levels, apart: isDifference ? new Set() : apartOf(model.rows, tensor, levels) };
  });
  const counted = models.map((model, i) => summaries[i].map((line, r) => [line, lineKey(model, r)]).filter(([, key]) => !panels[i].apart.has(key)));
  const hasLevels = rows.positive && !isDifference && !isReference && !usual;
  const spread = spreadOf(counted.flatMap((lines, i) => lines.map(([, key]) => panels[i].levels.get(key))));
  const isFixed = fixed.some((bound) => bound !== null);
  const isOwn = hasLevels && (level === "own" || (level === "" && !isFixed && spread.isFar));
  const made = { spread, isOwn, panels, hasApart: panels.some(({ apart }) => apart.size > 0) };
  if (isReference) return { ...made, map, scale: referenceScale() };
  if (usual) return { ...made, map, scale: usualScale(usual) };
  if (!isOwn) return { ...made, map, scale: scaleOf(counted.flat().flatMap(([line]) => line), scaleKindOf(kind, stat), fixed, map, isDifference) };
  // Rows of other runs have the level of the row of the first run, so that what differs between runs has different colours.
  for (const { levels } of panels.slice(1)) for (const [key, own] of panels[0].levels) if (levels.has(key) && own > 0) levels.set(key, own);
  const lines = counted.flatMap((each, i) => each.flatMap(([line, key]) => relative(line, panels[i].levels.get(key))));
  return { ...made, map: map === "viridis" ? "diverging" : map, scale: scaleAroundMedian(lines, kind, fixed) };
}

/** The key of a line: a module can be a row and a group of rows under one name. */
export function lineKey({ rows, shown }, r) {
  const { name, row } = rows.nodes[shown[r]];
  return row === null ? `${name}\n` : name;
}

/** Let a model be drawn with a coloring of coloringOf(), null before one is known; `panel` is the index of its panel. */
export function useColoring(model, coloring, panel) {
  const { levels, apart } = coloring?.panels[panel] ?? { apart: new Set() };
  model.scale = coloring?.scale ?? null;
  if (coloring) model.map = coloring.map;
  const known = (r) => levels.get(lineKey(model, r));
  model.levels = coloring?.isOwn ? Float64Array.from(model.shown, (_, r) => known(r) ?? NaN) : null;
  model.spread = coloring?.isOwn ? coloring.spread : null;
  model.apart = Uint8Array.from(model.shown, (_, r) => apart.has(lineKey(model, r)));
}

const scaleKindOf = (kind, stat) => (kind === "auto" && /_fraction$|cosine$/.test(stat) ? "linear" : kind);

function scaleAroundMedian(lines, kind, fixed) {
  const [low, high] = aroundMedian(lines);
  const chosen = [fixed[0] ?? low, fixed[1] ?? high];
  const scale = makeScale(kind === "auto" ? "log" : kind, ...chosen, chosen[0], false);
  const [least, greatest] = [Math.min(...lines.map((each) => each.low)), Math.max(...lines.map((each) => each.high))];
  return Object.assign(scale, { hasZero: true, beyond: [least < scale.low ? least : null, greatest > scale.high ? greatest : null] });
}
