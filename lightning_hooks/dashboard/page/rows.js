// The rows of a table as a foldable tree, and which of them are shown.

import { Steps, countWhile } from "./steps.js";

const ENOUGH = 48;
const FEW = 6;

export class Rows {
  constructor({ key, exact, nodes, steps, unit }) {
    this.key = key;
    this.unit = unit; // steps of a cell at level 0
    this.exact = exact; // whether a folded part shows the statistic of all its rows, or the largest of theirs
    this.steps = new Steps(steps);
    this.nodes = nodes;
    this.ends = new Int32Array(nodes.length); // the node after the last one below
    const open = [];
    nodes.forEach((node, i) => {
      while (open.length && nodes[open.at(-1)].depth >= node.depth) this.ends[open.pop()] = i;
      open.push(i);
    });
    for (const i of open) this.ends[i] = nodes.length;
    this.rowByName = new Map(nodes.flatMap((node, i) => (node.row === null ? [] : [[node.name, i]])));
    this.openDepth = this.depthThatFits();
  }

  /** Parts above this depth are open at first: as deep as fits a screen, but never so that almost nothing is shown. */
  depthThatFits() {
    const deepest = Math.max(0, ...this.nodes.map((node) => node.depth));
    let fits = 0;
    for (let depth = 0; depth <= deepest; depth++) {
      const count = this.shown((i) => this.nodes[i].depth < depth).length;
      if (count > ENOUGH && this.shown((i) => this.nodes[i].depth < fits).length >= FEW) break;
      fits = depth;
    }
    return fits;
  }

  isPart(i) {
    return this.nodes[i].row === null;
  }

  isOpen(i, folding) {
    if (!this.isPart(i)) return false;
    const open = folding.all === "" ? this.nodes[i].depth < this.openDepth : folding.all === "+";
    return open !== folding.toggled.has(this.nodes[i].name);
  }

  /** The nodes that are shown where these parts are open. */
  shown(isOpen) {
    const found = [];
    for (let i = 0; i < this.nodes.length; ) {
      found.push(i);
      i = isOpen(i) ? i + 1 : this.ends[i];
    }
    return found;
  }

  /** The index among shown nodes of the one that shows a node: itself, or the folded part that it is in; -1 where none does. */
  placeOf(node, shown) {
    const r = countWhile(shown, (each) => each <= node) - 1;
    return r >= 0 && this.ends[shown[r]] > node ? r : -1;
  }

  /** The rows whose name a filter takes, without parts; all without a filter. */
  filtered(takes) {
    return this.nodes.flatMap((node, i) => (node.row !== null && (!takes || takes(node.name)) ? [i] : []));
  }

  /** The folding in which a row is shown. */
  revealing(name, folding) {
    const target = this.rowByName.get(name);
    const toggled = new Set(folding.toggled);
    this.nodes.forEach((node, i) => {
      if (i < target && target < this.ends[i] && !this.isOpen(i, { all: folding.all, toggled })) {
        if (!toggled.delete(node.name)) toggled.add(node.name);
      }
    });
    return { all: folding.all, toggled };
  }
}

/** Which parts are folded, from the address: all open (+), all folded (-) or as many as fit, and the names of exceptions. */
export function foldingOf(text) {
  const [all, ...names] = text.split("\n");
  return { all, toggled: new Set(names) };
}

export function foldingText({ all, toggled }) {
  return all === "" && !toggled.size ? "" : [all, ...toggled].join("\n");
}
