// The rows of a table as a tree whose groups can be folded. A group is a node with rows below it.

import { Steps, countWhile } from "./steps.js";

const ENOUGH = 48; // lines that fit on a screen
const FEW = 6; // the least lines shown at first

export class Rows {
  constructor({ key, exact, positive, nodes, steps, windows, unit }) {
    this.key = key;
    this.positive = positive; // whether runs are compared by the ratio of their values
    this.unit = unit; // steps of a cell at level 0
    this.exact = exact; // true: a folded group shows the statistic of all its rows together; false: the largest value of its rows
    this.steps = new Steps(steps, windows);
    this.nodes = nodes;
    this.ends = new Int32Array(nodes.length); // for each node the index after the last node below it
    this.parents = new Int32Array(nodes.length); // for each node the group that holds it, or -1
    const open = [];
    nodes.forEach((node, i) => {
      while (open.length && nodes[open.at(-1)].depth >= node.depth) this.ends[open.pop()] = i;
      this.parents[i] = open.at(-1) ?? -1;
      open.push(i);
    });
    for (const i of open) this.ends[i] = nodes.length;
    this.rowByName = new Map(nodes.flatMap((node, i) => (node.row === null ? [] : [[node.name, i]])));
    this.openDepth = this.depthThatFits();
  }

  /** The depth above which groups are open at first: as deep as fits on a screen, but deep enough that a few lines are shown. */
  depthThatFits() {
    const deepest = Math.max(0, ...this.nodes.map((node) => node.depth));
    let fits = 0;
    for (let depth = 0; depth <= deepest; depth++) {
      const count = this.shown((i) => !this.nodes[i].closed && this.nodes[i].depth < depth).length;
      if (count > ENOUGH && this.shown((i) => !this.nodes[i].closed && this.nodes[i].depth < fits).length >= FEW) break;
      fits = depth;
    }
    return fits;
  }

  isGroup(i) {
    return this.nodes[i].row === null;
  }

  isOpen(i, folding) {
    if (!this.isGroup(i)) return false;
    const open = folding.all === "" ? !this.nodes[i].closed && this.nodes[i].depth < this.openDepth : folding.all === "+";
    return open !== folding.toggled.has(this.nodes[i].name);
  }

  /** The nodes that have a line if `isOpen` tells which groups are open: rows and folded groups. */
  shown(isOpen) {
    const shown = [];
    for (let i = 0; i < this.nodes.length; ) {
      const open = isOpen(i);
      if (!open) shown.push(i);
      i = open ? i + 1 : this.ends[i];
    }
    return shown;
  }

  /**
   * The line of a node: the index in `shown` of the node itself, of the folded group that contains it, or of the first line of an open
   * group; -1 if it is not shown.
   */
  lineOf(node, shown) {
    const r = countWhile(shown, (each) => each <= node) - 1;
    if (r >= 0 && this.ends[shown[r]] > node) return r;
    return r + 1 < shown.length && shown[r + 1] < this.ends[node] ? r + 1 : -1;
  }

  /** The open groups that begin at line `r`, the outermost first. If `all`, also those that began before and contain the line. */
  groupsAt(r, shown, all = false) {
    const groups = [];
    const before = all ? -1 : (shown[r - 1] ?? -1);
    for (let node = this.parents[shown[r]]; node > before; node = this.parents[node]) groups.unshift(node);
    return groups;
  }

  /** The rows, without groups, whose name matches a filter; all rows if the filter is null. */
  filtered(matches) {
    return this.nodes.flatMap((node, i) => (node.row !== null && (!matches || matches(node.name)) ? [i] : []));
  }

  /** The folding with the groups that contain a row opened, so that the row is shown. */
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

/**
 * Which groups are folded, as written in the address. The first line is "+" (all open), "-" (all folded) or empty (open as deep as
 * fits); the other lines are the names of the groups for which the opposite is true.
 */
export function foldingOf(text) {
  const [all, ...names] = text.split("\n");
  return { all, toggled: new Set(names) };
}

export function foldingText({ all, toggled }) {
  return all === "" && !toggled.size ? "" : [all, ...toggled].join("\n");
}
