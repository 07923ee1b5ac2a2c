// Finds the row to look at: the row of the worst finding, else the first row with NaN, else the first row of the table.

import { marked } from "./marks.js";

const SEVERITIES = ["critical", "error", "warning", "info"];

/** The findings that name a row: flight records, which name the first bad number, then the worst first; those of one severity keep their order. */
export function worstFirst(findings) {
  const rank = ({ severity, kind }) => (kind === "record" ? -1 : SEVERITIES.includes(severity) ? SEVERITIES.indexOf(severity) : SEVERITIES.length);
  return (findings ?? []).filter((each) => each.name).toSorted((a, b) => rank(a) - rank(b));
}

/**
 * The row to look at: { tensor, stat, row }; null if the table has no rows. With `stays` the row is one of the shown table. Otherwise
 * another table may be chosen, where the worst is.
 */
export async function worstRow(app, stays) {
  const { state, source, meta } = app;
  const { run, tensor, stat } = state;
  const findings = worstFirst(marked(meta)).map((each) => ({ tensor: each.tensor || tensor, stat: each.stat, name: each.name }));
  const found = await firstIn(app, findings, stays);
  if (found) return found;
  const { nonfinite } = await source.ask("overview", { run });
  const broken = await firstIn(app, nonfinite ?? [], stays);
  if (broken) return broken;
  const { nodes } = await app.loaded.rows(run, tensor, stat);
  const first = nodes.find((node) => node.row !== null);
  return first ? { tensor, stat, row: first.name } : null;
}

/** The first { tensor, stat, name } of a list that is a row of the run. If `stays`, the row of the shown table that belongs to the same module counts. */
async function firstIn(app, candidates, stays) {
  const { state, meta } = app;
  for (const { tensor, stat, name } of candidates) {
    const listed = meta.tensors.find((each) => each.tensor === (stays ? state.tensor : tensor));
    if (!listed) continue;
    const known = (each) => listed.stats.includes(each);
    const chosen = stays ? state.stat : [stat, state.stat, ...listed.stats.filter((each) => each !== "count"), listed.stats[0]].find(known);
    const row = await nearest(app, listed.tensor, chosen, name);
    if (row !== null) return { tensor: listed.tensor, stat: chosen, row };
  }
  return null;
}

/** The row of a table that belongs to the name of a row of another tensor: of this name, or of the module of the parameter; null if there is none. */
export async function counterpart(app, tensor, stat, name) {
  const rows = await app.loaded.rows(app.state.run, tensor, stat);
  if (!rows || !name) return null;
  const module = name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : name;
  return [name, module].find((each) => rows.rowByName.has(each)) ?? null;
}

/** The counterpart of a row, or the first row inside the module of this name; null if there is none. */
export async function nearest(app, tensor, stat, name) {
  const found = await counterpart(app, tensor, stat, name);
  if (found !== null || !name) return found;
  const rows = await app.loaded.rows(app.state.run, tensor, stat);
  return [...rows.rowByName.keys()].find((each) => each.startsWith(`${name}.`)) ?? null;
}
