// Heads that have not escaped yet: small, they see a constant A_S and not each other (corrections, section 4).
//
// On a plateau the first of them to blow up, at T, makes the next drop. Their flow under A_S is not stiff, so it is
// integrated as it stands: a few hundred steps for a plateau of any length, any rank, any A_S.

import { flow } from "../kernel/models.js";

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./ode.js").Point} Point */
/** `values`: |v| of every head along `times`; `levels`: the plateaus, where they depend on the start. @typedef {{by: string, drops: Drop[], times: Float64Array, loss: Float64Array, values: Float64Array[], levels?: number[]}} Stairs */
/** `time`: when the loss is halfway down; `mode`: its number in order of the drops, of two layers the component that the head takes. @typedef {{time: number, head: number, mode: number}} Drop */

/** Heads that see the residual A and not each other; those not `asleep` rest. @type {(shape: Shape, A: Float64Array, asleep: boolean[]) => import("./ode.js").Slope} */
export function dormant(shape, A, asleep) {
  const { heads, rank, size } = shape;
  return (_, y, out) => {
    flow(shape, y, A, out);
    for (let h = 0; h < heads; h++) {
      if (asleep[h]) continue;
      out[h] = 0;
      for (const block of [0, heads * rank * size]) {
        const at = heads + block + h * rank * size;
        out.fill(0, at, at + rank * size);
      }
    }
  };
}

/** The dormant head of largest |v|, or -1. @type {(y: Float64Array, asleep: boolean[]) => number} */
export function leader(y, asleep) {
  let found = -1;
  asleep.forEach((rests, h) => {
    if (rests && (found < 0 || Math.abs(y[h]) > Math.abs(y[found]))) found = h;
  });
  return found;
}

/** @type {(slope: Float64Array, heads: number) => number} */
export const fastest = (slope, heads) => leader(slope, Array(heads).fill(true));

/** @type {(y: Float64Array) => number} */
export const rootMeanSquare = (y) => Math.sqrt(y.reduce((sum, x) => sum + x * x, 0) / y.length);

/** A = G at M = 0, and all heads asleep. @type {(modes: Modes, shape: Shape, start: Float64Array) => {A: Float64Array, M: Float64Array, point: Point, asleep: boolean[]}} */
export function atRest({ size, g }, { heads }, start) {
  const A = new Float64Array(size * size);
  g.forEach((gain, d) => (A[d * size + d] = gain));
  return { A, M: new Float64Array(size * size), point: { t: 0, y: start }, asleep: Array(heads).fill(true) };
}
