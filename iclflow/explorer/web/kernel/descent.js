// Gradient descent, saved at chosen steps and wherever the loss moves.

/** @typedef {import("./problem.js").Problem} Problem */

const EXPLODED = 1e6; // a loss this many times its start (plus one) will not come back
const WATCH = 8; // steps between two looks at the loss

/** About `count` whole steps from 0 to `last`, evenly spaced in the logarithm. @type {(last: number, count: number) => number[]} */
export function logSteps(last, count) {
  const grid = [0];
  for (let i = 0; i < count - 1; i++) {
    const mark = Math.round(last ** (i / (count - 2)));
    if (mark > grid[grid.length - 1]) grid.push(mark);
  }
  return grid;
}

/** One run, which can be advanced piece by piece. */
export class Descent {
  /**
   * @param {Problem} problem
   * @param {{rate: number, marks: number[], moved?: number}} options `moved`: save also where the loss moved this much
   */
  constructor(problem, { rate, marks, moved = Infinity }) {
    this.problem = problem;
    this.rate = rate;
    this.marks = marks;
    this.moved = moved;
    this.step = 0;
    this.next = 0; // mark
    /** @type {number[]} */ this.steps = [];
    /** @type {number[]} */ this.losses = [];
    /** @type {Float64Array[]} */ this.saved = [];
    this.diverged = false;
    this.value = problem.loss();
    this.bound = EXPLODED * (1 + Math.abs(this.value));
    this.#saveIfDue();
  }

  get done() {
    return this.diverged || this.next >= this.marks.length;
  }

  /** Up to about `count` further steps. @param {number} count */
  advance(count) {
    const stop = this.step + count;
    while (!this.done && this.step < stop) {
      const watch = this.moved < Infinity ? WATCH : stop - this.step;
      const steps = Math.min(this.marks[this.next] - this.step, watch);
      this.problem.descend(2 * this.rate, steps);
      this.step += steps;
      this.value = this.problem.loss();
      if (!(this.value < this.bound)) this.diverged = true;
      else this.#saveIfDue();
    }
  }

  #saveIfDue() {
    const due = this.marks[this.next] === this.step;
    if (due) this.next++;
    else if (Math.abs(this.value - this.losses[this.losses.length - 1]) < this.moved) return;
    this.steps.push(this.step);
    this.losses.push(this.value);
    this.saved.push(Float64Array.from(this.problem.weights));
  }

  /** What was saved since the n-th save: flat arrays that a worker can hand over. @param {number} from */
  since(from) {
    const count = this.problem.weights.length;
    const weights = new Float64Array((this.saved.length - from) * count);
    for (let i = from; i < this.saved.length; i++) weights.set(this.saved[i], (i - from) * count);
    return {
      times: Float64Array.from(this.steps.slice(from), (n) => 2 * this.rate * n),
      losses: Float64Array.from(this.losses.slice(from)),
      weights,
    };
  }
}
