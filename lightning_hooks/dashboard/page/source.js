// Requests data from the server that sent the page, and caches cells. For a report, inline.js replaces the server.

export const TILE = 128; // cells of a tile, the unit of requests
const MOST_NODES = 1 << 14; // nodes of one request
const MOST_SEGMENTS = 20_000; // cached segments of a table, about 2 KB each

/** Sends requests to the server. All paths are relative to this module, so the host may add a prefix. */
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

/** Replace { float: "nan" } and so on, which stand for numbers that JSON does not have, by these numbers. */
export function reviveNumbers(value) {
  if (Array.isArray(value)) return value.map(reviveNumbers);
  if (!value || typeof value !== "object") return value;
  if (SPECIAL.has(value.float)) return SPECIAL.get(value.float);
  for (const key of Object.keys(value)) value[key] = reviveNumbers(value[key]);
  return value;
}
const SPECIAL = new Map([["nan", NaN], ["inf", Infinity], ["-inf", -Infinity]]);

/**
 * A cache of the cells of one table of one run, which fills as cells arrive. If `minus` is { other, other_key }, the cells are those
 * of the difference between the run and another run.
 */
export class Cells {
  constructor(source, run, tensor, stat, rows, unit, minus = {}) {
    Object.assign(this, { source, run, tensor, stat, key: rows.key, unit, minus, tiles: new Map(), pending: new Map(), arrivals: new Map() });
  }

  /** The segments of one tile that have arrived: a map from node to segment. */
  tile(level, tile) {
    return this.tiles.get(`${level}/${tile}`);
  }

  /** Mark the segments with steps after `step` as old. They are requested again, and shown until the new ones arrive. */
  outdate(step) {
    for (const [name, segments] of this.tiles) {
      const [level, tile] = name.split("/").map(Number);
      if ((tile + 1) * TILE * this.unit * 2 ** level > step) for (const segment of segments.values()) segment.isOld = true;
    }
  }

  /**
   * Request the missing and the old segments of these nodes in a range of tiles. Resolves to whether there were any requests. `used` is
   * the number of tiles that are in use besides these.
   */
  async load({ level, firstTile, lastTile }, nodes, used) {
    const requests = [];
    for (let tile = firstTile; tile <= lastTile; tile++) {
      const name = `${level}/${tile}`;
      const segments = this.tiles.get(name) ?? new Map();
      // Move the tile to the end of the map: the most recently used tile is last.
      if (this.tiles.delete(name) || segments.size === 0) this.tiles.set(name, segments)
      const missing = nodes.filter((node) => segments.get(node)?.isOld !== false && !this.pending.has(`${name}/${node}`));
      for (let i = 0; i < missing.length; i += MOST_NODES) requests.push(this.request(level, tile, missing.slice(i, i + MOST_NODES)));
      if (!this.pending.size) continue;
      const waiting = nodes.map((node) => this.pending.get(`${name}/${node}`)).filter(Boolean);
      requests.push(...new Set(waiting));
    }
    await Promise.all(requests);
    this.forget(lastTile - firstTile + 1 + used);
    return requests.length > 0;
  }

  /** Drop the tiles that were used longest ago, but keep the `used` tiles of the current view. */
  forget(used) {
    let total = 0;
    for (const segments of this.tiles.values()) total += segments.size;
    for (const [name, segments] of this.tiles) {
      if (total <= MOST_SEGMENTS || this.tiles.size <= used) break;
      total -= segments.size;
      this.tiles.delete(name);
    }
  }

  request(level, tile, nodes) {
    const name = `${level}/${tile}`;
    const args = { run: this.run, tensor: this.tensor, stat: this.stat, key: this.key, unit: this.unit, level, ...this.minus };
    const arrival = this.source
      .tile({ ...args, first: tile * TILE, last: (tile + 1) * TILE, nodes: ranges(nodes) })
      .then((buffer) => {
        const cells = nodes.length * TILE;
        const { least, greatest, nan, infinite, fromZero } = cellArrays(buffer, cells);
        const segments = this.tiles.get(name) ?? new Map();
        this.tiles.set(name, segments);
        this.arrivals.set(level, (this.arrivals.get(level) ?? 0) + 1);
        [...nodes].sort((a, b) => a - b).forEach((node, i) => {
          const cut = (array) => array.slice(i * TILE, (i + 1) * TILE);
          segments.set(node, { least: cut(least), greatest: cut(greatest), nan: cut(nan), infinite: cut(infinite), fromZero: cut(fromZero), isOld: false });
        });
      })
      .finally(() => nodes.forEach((node) => this.pending.delete(`${name}/${node}`)));
    nodes.forEach((node) => this.pending.set(`${name}/${node}`, arrival));
    return arrival;
  }
}

/** The bytes of a cell in an answer of the server. */
export const CELL_BYTES = 14;

/** The five arrays in an answer of the server, each of `cells` cells; see Tile in tiles.py. */
export function cellArrays(buffer, cells) {
  return {
    least: new Float32Array(buffer, 0, cells),
    greatest: new Float32Array(buffer, 4 * cells, cells),
    nan: new Uint16Array(buffer, 8 * cells, cells),
    infinite: new Uint16Array(buffer, 10 * cells, cells),
    fromZero: new Uint16Array(buffer, 12 * cells, cells),
  };
}

/** Numbers as ascending ranges, such as `0-11,15`. */
export function ranges(numbers) {
  const intervals = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = intervals.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else intervals.push([n, n]);
  }
  return intervals.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}
