// The steps of a table as arithmetic progressions. A cell of the map holds the steps from one multiple of its width to the next, and
// these multiples need not be steps: the steps 9, 19, 29 lie in the cells 0 to 9, 10 to 19, and 20 to 29.

export class Steps {
  /**
   * `progressions` are [first, last, distance]; a single one if all steps are evenly spaced. `windows` are [first, last] of the steps that
   * stand for several, ascending.
   */
  constructor(progressions, windows = []) {
    this.progressions = progressions;
    this.windows = windows;
    this.counts = [0]; // the number of steps before each progression, then the number of all steps
    for (const [first, last, distance] of progressions) this.counts.push(this.count + (last - first) / distance + 1);
  }

  get count() {
    return this.counts.at(-1);
  }

  /** The step at an index. */
  at(index) {
    const p = countWhile(this.counts, (count) => count <= index) - 1;
    const [first, , distance] = this.progressions[p];
    return first + (index - this.counts[p]) * distance;
  }

  /** The number of steps less than a number. */
  below(number) {
    const p = countWhile(this.progressions, ([first]) => first < number) - 1;
    if (p < 0) return 0;
    const [first, last, distance] = this.progressions[p];
    return this.counts[p] + Math.ceil((Math.min(number, last + 1) - first) / distance);
  }

  /** Whether two tables have a step in common. */
  meets(others) {
    if (this.count > others.count) return others.meets(this);
    for (let i = 0; i < this.count; i++) {
      const [step, at] = [this.at(i), others.below(this.at(i))];
      if (at < others.count && others.at(at) === step) return true;
    }
    return false;
  }

  /** The windows of steps that a range has steps of; the range excludes `to`. */
  windowsIn(from, to) {
    const a = countWhile(this.windows, ([, last]) => last < from);
    return this.windows.slice(a, countWhile(this.windows, ([first]) => first < to));
  }

  /** Whether a range that excludes `to` has a step, or a part of a window. */
  meetsRange(from, to) {
    return this.below(from) < this.below(to) || this.windowsIn(from, to).length > 0;
  }

  /** The first and the last step in a range that excludes `to`, with the whole windows at its ends; if it has no step, [from, to - 1]. */
  within(from, to) {
    const [a, b] = [this.below(from), this.below(to)];
    const steps = a < b ? [this.at(a), this.at(b - 1)] : [from, to - 1];
    const windows = this.windowsIn(from, to);
    if (!windows.length) return steps;
    const [first, last] = [windows[0][0], windows.at(-1)[1]];
    return a < b ? [Math.min(first, steps[0]), Math.max(last, steps[1])] : [first, last];
  }
}

/** The number of leading elements for which `holds` is true, in an array in which it is true for a leading part only. */
export function countWhile(sorted, holds) {
  let [least, most] = [0, sorted.length];
  while (least < most) {
    const middle = (least + most) >> 1;
    if (holds(sorted[middle])) least = middle + 1;
    else most = middle;
  }
  return least;
}

/** Steps as text: "step 3" or "steps 3 to 5". */
export function stepsText([first, last]) {
  return first === last ? `step ${first.toLocaleString("en-US")}` : `steps ${first.toLocaleString("en-US")} to ${last.toLocaleString("en-US")}`;
}
