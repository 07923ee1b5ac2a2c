// What is known of the runs: their list, and of each run that was asked for what it has and the rows of its tables.

import { Rows } from "./rows.js";
import { Steps } from "./steps.js";

export class Loaded {
  constructor(source) {
    this.source = source;
    this.runs = null;
    this.statistics = null;
    this.known = new Map(); // by run: { meta, tables: rows by table }
  }

  /** Ask for what does not depend on a run; whether the list of runs has changed. */
  async list() {
    const listed = () => JSON.stringify(this.runs?.map(({ name, shown }) => [name, shown]));
    const before = listed();
    const [statistics, { runs }] = await Promise.all([this.statistics ?? this.source.ask("statistics"), this.source.ask("runs")]);
    Object.assign(this, { statistics, runs });
    return listed() !== before;
  }

  /** What a run has, as `run` is answered; undefined where it has not been asked for. */
  meta(run) {
    return this.known.get(run)?.meta;
  }

  async load(run) {
    if (!this.known.has(run)) this.known.set(run, { meta: await this.source.ask("run", { run }), tables: new Map() });
    return this.known.get(run);
  }

  /** Whether a run that is known has a table. */
  has(run, tensor, stat) {
    return hasTable(this.meta(run), tensor, stat);
  }

  /** The rows of a table, asked for once; null where a run has no such table. */
  async rows(run, tensor, stat) {
    const { meta, tables } = await this.load(run);
    const name = `${tensor}\n${stat}`;
    if (!hasTable(meta, tensor, stat)) return null;
    if (!tables.has(name)) tables.set(name, new Rows(await this.source.ask("rows", { run, tensor, stat })));
    return tables.get(name);
  }

  /** The same where it is known. */
  knownRows(run, tensor, stat) {
    return this.known.get(run)?.tables.get(`${tensor}\n${stat}`);
  }

  /** Take in what a run has more than before: the step after which it may differ; null where it has nothing new. */
  async follow(run) {
    const known = await this.load(run);
    const meta = await this.source.ask("run", { run });
    if (meta.version === known.meta.version) return null;
    for (const [name, rows] of known.tables) {
      const [tensor, stat] = name.split("\n");
      if (!hasTable(meta, tensor, stat)) continue;
      const answer = await this.source.ask("rows", { run, tensor, stat });
      if (answer.key !== rows.key) known.tables.set(name, new Rows(answer));
      else Object.assign(rows, { exact: answer.exact, unit: answer.unit, steps: new Steps(answer.steps) });
    }
    // Known steps change after a resume from an earlier checkpoint, and when a run is started again.
    const last = meta.history === known.meta.history ? (known.meta.steps?.[1] ?? -1) : -1;
    known.meta = meta;
    return last;
  }
}

function hasTable(meta, tensor, stat) {
  return meta.tensors.some((each) => each.tensor === tensor && each.stats.includes(stat));
}
