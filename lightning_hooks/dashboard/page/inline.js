// The entry point of a report: answers the requests of the page from the data in the page, instead of a server.

import { render } from "./index.js";
import { CELL_BYTES, cellArrays, reviveNumbers } from "./source.js";

class InlineSource {
  constructor(data, tables) {
    this.data = data;
    this.tables = tables; // by table: [level, first cell, cell after the last, compressed cells]
    this.isLive = false;
    this.cells = new Map();
  }

  leastLevel({ tensor, stat }) {
    return this.tables[`${tensor}\n${stat}`]?.[0] ?? 0;
  }

  async ask(route, { tensor, stat, tag, tags, record } = {}) {
    const { data } = this;
    if (route === "histograms") return expand(tags).map((i) => structuredClone(data.histograms[data.run.histograms[i]]));
    const answer = { scalar: data.scalars[tag], rows: data.rows[`${tensor}\n${stat}`], gaps: data.gaps[`${tensor}\n${stat}`], record: data.records[record] }[route];
    return structuredClone(answer ?? data[route]);
  }

  /** The cells of a tile, as the server sends them. The level must be at least as coarse as that of the report. */
  async tile({ tensor, stat, level, first, last, nodes }) {
    const name = `${tensor}\n${stat}`;
    const [base, begin, end] = this.tables[name];
    const all = await this.table(name);
    const chosen = expand(nodes);
    const [shift, columns, width] = [level - base, last - first, end - begin];
    const buffer = new ArrayBuffer(CELL_BYTES * chosen.length * columns);
    const cells = chosen.length * columns;
    const out = cellArrays(buffer, cells);
    out.least.fill(NaN);
    out.greatest.fill(NaN);
    chosen.forEach((node, line) => {
      for (let x = Math.max(begin, first * 2 ** shift); x < Math.min(end, last * 2 ** shift); x++) {
        const [from, to] = [node * width + x - begin, line * columns + Math.floor(x / 2 ** shift) - first];
        // `least` and `greatest` of a cell are NaN as long as none of its values is finite. Any number replaces NaN.
        if (Number.isNaN(out.least[to]) || all.least[from] < out.least[to]) out.least[to] = all.least[from];
        if (Number.isNaN(out.greatest[to]) || all.greatest[from] > out.greatest[to]) out.greatest[to] = all.greatest[from];
        out.nan[to] = Math.min(out.nan[to] + all.nan[from], 65535);
        out.infinite[to] = Math.min(out.infinite[to] + all.infinite[from], 65535);
        out.fromZero[to] = Math.min(out.fromZero[to] + all.fromZero[from], 65535);
      }
    });
    return buffer;
  }

  async table(name) {
    if (!this.cells.has(name)) {
      const buffer = await inflate(this.tables[name][3]);
      const cells = cellArrays(buffer, buffer.byteLength / CELL_BYTES);
      // The report stores the bits of `greatest` XOR those of `least`, see report.py.
      const [least, greatest] = [new Uint32Array(buffer, 0, cells.least.length), new Uint32Array(buffer, 4 * cells.least.length, cells.least.length)];
      for (let i = 0; i < least.length; i++) greatest[i] ^= least[i];
      this.cells.set(name, cells);
    }
    return this.cells.get(name);
  }
}

function expand(text) {
  return text.split(",").flatMap((part) => {
    const [a, b = a] = part.split("-").map(Number);
    return Array.from({ length: b - a + 1 }, (_, i) => a + i);
  });
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

async function open() {
  const content = await inflate(document.getElementById("data").textContent);
  const data = reviveNumbers(JSON.parse(new TextDecoder().decode(content)));
  document.title = `${data.name}: lightning_hooks`;
  render(new InlineSource(data, JSON.parse(document.getElementById("tables").textContent)));
}

open();
