// The steps of a table. A cell holds those between two bounds, which need not be steps themselves: a run may have 9, 19, 29.

export class Steps {
  /** From progressions [first, last, distance], one where all steps are evenly spaced. */
  constructor(progressions) {
    this.progressions = progressions;
    this.counts = [0]; // before each progression, and of all
    for (const [first, last, distance] of progressions) this.counts.push(this.count + (last - first) / distance + 1);
  }

  get count() {
    return this.counts.at(-1);
  }

  /** The step at an index. */
  at(index) {
    const found = countWhile(this.counts, (count) => count <= index) - 1;
    const [first, , distance] = this.progressions[found];
    return first + (index - this.counts[found]) * distance;
  }

  /** How many are less than a number. */
  below(number) {
    const found = countWhile(this.progressions, ([first]) => first < number) - 1;
    if (found < 0) return 0;
    const [first, last, distance] = this.progressions[found];
    return this.counts[found] + Math.ceil((Math.min(number, last + 1) - first) / distance);
  }

  /** Whether any step is also one of others. */
  meets(others) {
    if (this.count > others.count) return others.meets(this);
    for (let i = 0; i < this.count; i++) {
      const [step, at] = [this.at(i), others.below(this.at(i))];
      if (at < others.count && others.at(at) === step) return true;
    }
    return false;
  }

  /** The first and the last from one number on and before another; where there is none, the numbers themselves. */
  within(from, to) {
    const [a, b] = [this.below(from), this.below(to)];
    return a < b ? [this.at(a), this.at(b - 1)] : [from, to - 1];
  }
}

/** Over how many of the first elements of a sorted array something holds. */
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
