// The default rate, by the library's rule: a quarter of the stability limit 2/sharpness where training ends.

import { effective, flow, residual, weightCount } from "./models.js";

/** @typedef {import("./task.js").Modes} Modes */
/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("./models.js").Loss} Loss */

const FRACTION = 0.25;
const ITERATIONS = 40; // of Lanczos' method

/** The weights at the least-squares solution, balanced: merged all in one head, separate R modes a head. @type {(modes: Modes, shape: Shape) => Float64Array} */
function atMinimum({ m, size }, shape) {
  const { kind, heads, rank } = shape;
  const w = new Float64Array(weightCount(shape));
  if (kind === "merged") {
    const strength = Math.hypot(...m);
    w[0] = Math.sqrt(strength);
    m.forEach((x, d) => (w[heads + d * (size + 1)] = x / Math.sqrt(strength)));
    return w;
  }
  const largest = [...m.keys()].sort((i, j) => m[j] - m[i]);
  for (let h = 0; h < heads; h++) {
    const own = largest.slice(h * rank, (h + 1) * rank);
    const value = Math.cbrt(own.reduce((sum, d) => sum + m[d], 0));
    w[h] = value;
    own.forEach((d, r) => {
      const at = heads + (h * rank + r) * size + d;
      w[at] = w[at + heads * rank * size] = value > 0 ? Math.sqrt(m[d] / value) : 0;
    });
  }
  return w;
}

/** The largest eigenvalue of the Hessian of L, by Lanczos' method on differences of the flow. @type {(modes: Modes, shape: Shape, loss: Loss) => number} */
export function sharpness(modes, shape, loss) {
  const w = atMinimum(modes, shape),
    n = w.length,
    M = new Float64Array(shape.size ** 2),
    A = new Float64Array(shape.size ** 2);
  const slope = (/** @type {Float64Array} */ at) => {
    const out = new Float64Array(n);
    effective(shape, at, M);
    residual(loss, M, A);
    flow(shape, at, A, out);
    return out;
  };
  const STEP = 1e-4; // the flow is a polynomial of low degree: central differences lose nothing that shows
  const product = (/** @type {Float64Array} */ x) => {
    const [up, down] = [STEP, -STEP].map((h) => slope(w.map((value, i) => value + h * x[i])));
    return up.map((value, i) => (down[i] - value) / STEP); // L = -2 · (what the flow descends) / 2 h
  };
  /** @type {Float64Array[]} */ const basis = [];
  const alpha = [],
    beta = [];
  let q = normalised(Float64Array.from({ length: n }, (_, i) => Math.cos(i + 1)));
  for (let k = 0; k < Math.min(ITERATIONS, n); k++) {
    basis.push(q);
    const next = product(q);
    alpha.push(dot(next, q));
    for (let again = 0; again < 2; again++)
      for (const old of basis) {
        const share = dot(next, old);
        for (let i = 0; i < n; i++) next[i] -= share * old[i];
      }
    const length = Math.sqrt(dot(next, next));
    if (length < 1e-9 * Math.abs(alpha[0])) break;
    beta.push(length);
    q = next.map((x) => x / length);
  }
  return topOfTridiagonal(alpha, beta);
}

/** @type {(modes: Modes, shape: Shape, loss: Loss) => number} to three digits, as the page writes it */
export const stableRate = (modes, shape, loss) =>
  Number(((2 * FRACTION) / sharpness(modes, shape, loss)).toPrecision(3));

/** @type {(a: Float64Array, b: Float64Array) => number} */
function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** @type {(x: Float64Array) => Float64Array} */
const normalised = (x) => x.map((value) => value / Math.sqrt(dot(x, x)));

/** The largest eigenvalue of a symmetric tridiagonal matrix, by counting sign changes. @type {(alpha: number[], beta: number[]) => number} */
function topOfTridiagonal(alpha, beta) {
  let [low, high] = [0, 0];
  alpha.forEach((a, i) => (high = Math.max(high, Math.abs(a) + (beta[i - 1] ?? 0) + (beta[i] ?? 0))));
  const above = (/** @type {number} */ x) => {
    let d = 1,
      negative = 0;
    for (let i = 0; i < alpha.length; i++) {
      d = alpha[i] - x - (i > 0 ? beta[i - 1] ** 2 / d : 0) || 1e-300;
      if (d < 0) negative++;
    }
    return negative === alpha.length;
  };
  for (let n = 0; n < 60; n++) {
    const middle = (low + high) / 2;
    if (above(middle)) high = middle;
    else low = middle;
  }
  return high;
}
