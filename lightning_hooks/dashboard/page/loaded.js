// Caches the list of runs, and for each requested run its tensors, scalars and steps and the rows of its tables.

import { Gaps } from "./gaps.js";
import { Rows } from "./rows.js";
import { Steps } from "./steps.js";

export class Loaded {
  constructor(source) {
    this.source = source;
    this.runs = null;
    this.statistics = this.ranges = null;
    this.comparisons = new Map(); // by run, other run, tensor and statistic: the versions of the runs and the answer to `comparison`
    this.entries = new Map(); // run to { meta: the answer to `run`, tables: table to Rows, gaps: table to Gaps }
  }

  /** Request the list of runs and the explanations of statistics. Resolves to whether the list of runs has changed. */
  async list() {
    const listed = () => JSON.stringify(this.runs?.map(({ name, shown }) => [name, shown]));
    const before = listed();
    const [statistics, ranges, { runs }] = await Promise.all([this.statistics ?? this.source.ask("statistics"), this.ranges ?? this.source.ask("ranges"), this.source.ask("runs")]);
    Object.assign(this, { statistics, ranges, runs });
    return listed() !== before;
  }

  /** The runs of which the page can show something. */
  shown() {
    return this.runs?.filter((run) => run.shown) ?? [];
  }

  /** How healthy each run is, by its name; empty in a report, which holds one run. */
  async health() {
    return this.source.isLive ? this.source.ask("health") : {};
  }

  /** The answer to `run` (see api.py); undefined if the run has not been requested. */
  meta(run) {
    return this.entries.get(run)?.meta;
  }

  async load(run) {
    if (!this.entries.has(run)) this.entries.set(run, { meta: await this.source.ask("run", { run }), tables: new Map(), gaps: new Map() });
    return this.entries.get(run);
  }

  /** Whether a run, which must have been loaded, has a table. */
  has(run, tensor, stat) {
    return hasTable(this.meta(run), tensor, stat);
  }

  /** The usual range of a statistic of a tensor (see ranges.py): { low, high, typical, source }; undefined if none is published. */
  usual(tensor, stat) {
    const name = tensor.slice(tensor.lastIndexOf("/") + 1); // without the prefix of a monitor
    return this.ranges?.find((each) => each.stat === stat && (!each.tensors.length || each.tensors.includes(name)));
  }

  /** The rows of a table, requested once; null if the run has no such table. */
  async rows(run, tensor, stat) {
    const { meta, tables } = await this.load(run);
    const name = `${tensor}\n${stat}`;
    if (!hasTable(meta, tensor, stat)) return null;
    if (!tables.has(name)) tables.set(name, new Rows(await this.source.ask("rows", { run, tensor, stat })));
    return tables.get(name);
  }

  /** How two runs differ in a table: the answer to `comparison`, requested once for the versions of the runs. */
  async comparison(run, other, tensor, stat) {
    const versions = [run, other].map((each) => this.meta(each).version).join();
    const key = [run, other, tensor, stat].join("\n");
    if (this.comparisons.get(key)?.versions !== versions) {
      this.comparisons.set(key, { versions, found: this.source.ask("comparison", { run, other, tensor, stat }) });
    }
    return this.comparisons.get(key).found;
  }

  /** Why rows of a table were not measured, requested once for each version of the run. `rows` are those of the table. */
  async gaps(run, tensor, stat, rows) {
    const { meta, gaps } = await this.load(run);
    const name = `${tensor}\n${stat}`;
    if (gaps.get(name)?.version !== meta.version || gaps.get(name)?.rows !== rows) {
      const found = this.source.ask("gaps", { run, tensor, stat }).then((answer) => new Gaps(answer, rows));
      gaps.set(name, { version: meta.version, rows, found });
    }
    return gaps.get(name).found;
  }

  /** The rows of a table if they have been requested; otherwise undefined. */
  knownRows(run, tensor, stat) {
    return this.entries.get(run)?.tables.get(`${tensor}\n${stat}`);
  }

  /**
   * Request what is new in a run. Resolves to the step after which its values may have changed (-1 for all steps); null if nothing
   * is new.
   */
  async follow(run) {
    const entry = await this.load(run);
    const meta = await this.source.ask("run", { run });
    if (meta.version === entry.meta.version) return null;
    for (const [name, rows] of entry.tables) {
      const [tensor, stat] = name.split("\n");
      if (!hasTable(meta, tensor, stat)) continue;
      const answer = await this.source.ask("rows", { run, tensor, stat });
      if (answer.key !== rows.key) entry.tables.set(name, new Rows(answer));
      else Object.assign(rows, { exact: answer.exact, unit: answer.unit, steps: new Steps(answer.steps, answer.windows) });
    }
    // `history` changes if a run is resumed from an earlier checkpoint, or started again. Then all steps may have changed.
    const last = meta.history === entry.meta.history ? (entry.meta.steps?.[1] ?? -1) : -1;
    entry.meta = meta;
    return last;
  }
}

function hasTable(meta, tensor, stat) {
  return meta.tensors.some((each) => each.tensor === tensor && each.stats.includes(stat));
}
