// The default rate, by the library's rule: a quarter of the stability limit 2/sharpness where training ends.

import { allBlocks, featureResidual } from "./blocks.js";
import { effective, flow, matrixSize, residual, weightCount } from "./models.js";
import { joinedLayers } from "./start.js";

/** @typedef {import("./task.js").Modes} Modes */
/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("./models.js").Loss} Loss */

const FRACTION = 0.25;
const ITERATIONS = 40; // of Lanczos' method

/** M = Σ strength · left rightᵀ, largest first. @typedef {{strength: number, left: Float64Array, right: Float64Array}[]} Factors */

/** Weights with the effective matrix M, in every layer, balanced: merged all in one head, separate R factors a head. @type {(shape: Shape, factors: Factors) => Float64Array} */
function atMinimum(shape, factors) {
  const { kind, heads, rank, size, layers } = shape;
  if (layers) {
    const one = { ...shape, heads: heads / layers, layers: undefined };
    return joinedLayers(one, Array(layers).fill(atMinimum(one, factors)));
  }
  const w = new Float64Array(weightCount(shape));
  if (kind === "merged") {
    const norm = Math.hypot(...factors.map(({ strength }) => strength));
    w[0] = Math.sqrt(norm);
    for (const { strength, left, right } of factors)
      left.forEach((x, i) =>
        right.forEach((y, j) => (w[heads + i * size + j] += (strength * x * y) / Math.sqrt(norm))),
      );
    return w;
  }
  for (let h = 0; h < heads; h++) {
    const own = factors.slice(h * rank, (h + 1) * rank);
    const value = Math.cbrt(own.reduce((sum, { strength }) => sum + strength, 0));
    w[h] = value;
    own.forEach(({ strength, left, right }, r) => {
      const at = heads + (h * rank + r) * size,
        amplitude = value > 0 ? Math.sqrt(strength / value) : 0;
      left.forEach((x, i) => (w[at + i] = amplitude * x));
      right.forEach((x, i) => (w[at + heads * rank * size + i] = amplitude * x));
    });
  }
  return w;
}

/** A diagonal matrix. @type {(m: Float64Array) => Factors} */
const diagonal = (m) =>
  [...m.keys()]
    .sort((i, j) => m[j] - m[i])
    .map((d) => {
      const axis = new Float64Array(m.length);
      axis[d] = 1;
      return { strength: m[d], left: axis, right: axis };
    });

/** Any small matrix, by Jacobi's rotations of its columns. @type {(columns: Float64Array[]) => Factors} */
function factorised(columns) {
  const n = columns.length,
    turned = columns.map((_, d) => Float64Array.from({ length: n }, (_, i) => Number(i === d)));
  for (let sweep = 0; sweep < 30; sweep++)
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        const [a, b, c] = [dot(columns[p], columns[p]), dot(columns[p], columns[q]), dot(columns[q], columns[q])];
        const angle = 0.5 * Math.atan2(2 * b, a - c),
          [x, y] = [Math.cos(angle), Math.sin(angle)];
        for (const list of [columns, turned]) {
          const [first, second] = [list[p], list[q]];
          list[p] = first.map((value, i) => x * value + y * second[i]);
          list[q] = first.map((value, i) => x * second[i] - y * value);
        }
      }
  return columns
    .map((column, d) => {
      const strength = Math.sqrt(dot(column, column));
      return { strength, left: strength > 0 ? column.map((x) => x / strength) : column, right: turned[d] };
    })
    .sort((a, b) => b.strength - a.strength);
}

/** The best M while the extra blocks are zero: least squares on the features y x_a x_c alone. @type {(moments: import("./mixture.js").Moments) => Float64Array[]} */
function bestMatrix({ size, cross, starts, columns, values }) {
  const last = (/** @type {number} */ d) => (d * (2 * (size + 1) - d + 1)) / 2 + (size - d); // the pair (d, label)
  const features = Array.from({ length: size * size }, (_, i) => last(Math.floor(i / size)) * size + (i % size));
  const rows = features.map((feature) => {
    const row = new Float64Array(cross.length);
    for (let at = starts[feature]; at < starts[feature + 1]; at++) row[columns[at]] = values[at];
    return [...features.map((column) => row[column]), cross[feature]];
  });
  const n = features.length;
  for (let p = 0; p < n; p++)
    for (let i = 0; i < n; i++) {
      if (i === p) continue;
      const factor = rows[i][p] / rows[p][p];
      for (let j = p; j <= n; j++) rows[i][j] -= factor * rows[p][j];
    }
  return Array.from({ length: size }, (_, c) =>
    Float64Array.from({ length: size }, (_, d) => rows[d * size + c][n] / rows[d * size + c][d * size + c]),
  );
}

/** The largest eigenvalue of the Hessian of L at w, by Lanczos' method on differences of the flow. @type {(w: Float64Array, flow: (at: Float64Array, out: Float64Array) => void) => number} */
export function sharpness(w, flow) {
  const n = w.length;
  const slope = (/** @type {Float64Array} */ at) => {
    const out = new Float64Array(n);
    flow(at, out);
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

/** To three digits, as the page writes it. @type {(sharpness: number) => number} */
const rateAt = (sharpness) => Number(((2 * FRACTION) / sharpness).toPrecision(3));

/** @type {(modes: Modes, shape: Shape, loss: Loss) => number} */
export function stableRate(modes, shape, loss) {
  const M = new Float64Array(matrixSize(shape)),
    A = new Float64Array(matrixSize(shape));
  return rateAt(
    sharpness(atMinimum(shape, diagonal(modes.m)), (at, out) => {
      effective(shape, at, M);
      residual(loss, M, A);
      flow(shape, at, A, out);
    }),
  );
}

/** The same with every block trained. @type {(shape: Shape, moments: import("./mixture.js").Moments) => number} */
export function stableRateOfAll(shape, moments) {
  const { weigh, flow } = allBlocks(shape, moments.size),
    W = new Float64Array(moments.cross.length),
    A = new Float64Array(W.length);
  return rateAt(
    sharpness(atMinimum(shape, factorised(bestMatrix(moments))), (at, out) => {
      weigh(at, W);
      featureResidual(moments, W, A);
      flow(at, A, out);
    }),
  );
}

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
