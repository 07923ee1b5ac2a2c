// The steps of a table as arithmetic progressions. A cell of the map holds the steps from one multiple of its width to the next, and
// these multiples need not be steps: the steps 9, 19, 29 lie in the cells 0 to 9, 10 to 19, and 20 to 29.

export class Steps {
  /** `progressions` are [first, last, distance]; a single one if all steps are evenly spaced. */
  constructor(progressions) {
    this.progressions = progressions;
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

  /** The first and the last step in a range that excludes `to`; if the range has no step, [from, to - 1]. */
  within(from, to) {
    const [a, b] = [this.below(from), this.below(to)];
    return a < b ? [this.at(a), this.at(b - 1)] : [from, to - 1];
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
