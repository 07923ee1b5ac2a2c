// Asks for data: from the server that sent this page, or from a report, whose data is in the page.

export const TILE = 128; // cells of one request
const MOST_NODES = 1 << 14; // of one request
const KEPT = 20_000; // segments of a table, about 2 KB each

/** Asks the server. All paths are relative to this module, so a prefix of the host does not matter. */
export class ServerSource {
  constructor() {
    this.isLive = true;
    this.leastLevel = () => 0;
  }

  async ask(route, args = {}) {
    const response = await this.get(route, args);
    return reviveNumbers(await response.json());
  }

  async tile(args) {
    const response = await this.get("tile", args);
    return response.arrayBuffer();
  }

  async get(route, args) {
    const url = new URL(`../data/${route}`, import.meta.url);
    for (const [name, value] of Object.entries(args)) url.searchParams.set(name, value);
    let response;
    try {
      response = await fetch(url);
    } catch {
      throw new Error("The server does not answer. Is it still running?");
    }
    if (!response.ok) {
      const answer = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
      throw Object.assign(new Error(answer.error), { status: response.status });
    }
    return response;
  }
}

/** JSON has no NaN and no infinity: they come as { float: "nan" }. */
export function reviveNumbers(value) {
  if (Array.isArray(value)) return value.map(reviveNumbers);
  if (!value || typeof value !== "object") return value;
  if (SPECIAL.has(value.float)) return SPECIAL.get(value.float);
  for (const key of Object.keys(value)) value[key] = reviveNumbers(value[key]);
  return value;
}
const SPECIAL = new Map([["nan", NaN], ["inf", Infinity], ["-inf", -Infinity]]);

/** The cells of one table of one run, kept as they arrive; where `minus` is { other, other_key }, of its differences from another run. */
export class Cells {
  constructor(source, run, tensor, stat, rows, unit, minus = {}) {
    Object.assign(this, { source, run, tensor, stat, key: rows.key, unit, minus, kept: new Map(), asked: new Map(), arrivals: 0 });
  }

  /** The segments of nodes in one tile, as far as they have arrived. */
  tile(level, tile) {
    return this.kept.get(`${level}/${tile}`);
  }

  /** The cells that new steps may have changed are asked for again; until they arrive, the old ones are shown. */
  outdate(step) {
    for (const [name, here] of this.kept) {
      const [level, tile] = name.split("/").map(Number);
      if ((tile + 1) * TILE * this.unit * 2 ** level > step) for (const segment of here.values()) segment.isOld = true;
    }
  }

  /** Ask for what is missing of these nodes; resolves to whether anything arrived. */
  async load(level, firstTile, lastTile, nodes) {
    const requests = [];
    for (let tile = firstTile; tile <= lastTile; tile++) {
      const name = `${level}/${tile}`;
      const here = this.kept.get(name) ?? new Map();
      if (this.kept.delete(name) || here.size === 0) this.kept.set(name, here); // the most recently used is last
      const missing = nodes.filter((node) => here.get(node)?.isOld !== false && !this.asked.has(`${name}/${node}`));
      for (let i = 0; i < missing.length; i += MOST_NODES) requests.push(this.request(level, tile, missing.slice(i, i + MOST_NODES)));
      if (!this.asked.size) continue;
      const waiting = nodes.map((node) => this.asked.get(`${name}/${node}`)).filter(Boolean);
      requests.push(...new Set(waiting));
    }
    await Promise.all(requests);
    this.forget(lastTile - firstTile + 1);
    return requests.length > 0;
  }

  /** Drop the tiles that were used longest ago, but none of so many that are in use. */
  forget(used) {
    let segments = 0;
    for (const here of this.kept.values()) segments += here.size;
    for (const [name, here] of this.kept) {
      if (segments <= KEPT || this.kept.size <= used) break;
      segments -= here.size;
      this.kept.delete(name);
    }
  }

  request(level, tile, nodes) {
    const name = `${level}/${tile}`;
    const args = { run: this.run, tensor: this.tensor, stat: this.stat, key: this.key, unit: this.unit, level, ...this.minus };
    const asked = this.source
      .tile({ ...args, first: tile * TILE, last: (tile + 1) * TILE, nodes: ranges(nodes) })
      .then((buffer) => {
        const cells = nodes.length * TILE;
        const { least, greatest, nan, infinite } = cellArrays(buffer, cells);
        const here = this.kept.get(name) ?? new Map();
        this.kept.set(name, here);
        this.arrivals++;
        [...nodes].sort((a, b) => a - b).forEach((node, i) => {
          const cut = (array) => array.slice(i * TILE, (i + 1) * TILE);
          here.set(node, { least: cut(least), greatest: cut(greatest), nan: cut(nan), infinite: cut(infinite), isOld: false });
        });
      })
      .finally(() => nodes.forEach((node) => this.asked.delete(`${name}/${node}`)));
    nodes.forEach((node) => this.asked.set(`${name}/${node}`, asked));
    return asked;
  }
}

/** The arrays of so many cells. */
export function cellArrays(buffer, cells) {
  return {
    least: new Float32Array(buffer, 0, cells),
    greatest: new Float32Array(buffer, 4 * cells, cells),
    nan: new Uint16Array(buffer, 8 * cells, cells),
    infinite: new Uint16Array(buffer, 10 * cells, cells),
  };
}

/** Numbers as `0-11,15`. */
export function ranges(numbers) {
  const found = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else found.push([n, n]);
  }
  return found.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}
