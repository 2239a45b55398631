// A share of prompts with one fixed task w*, every weight block trained: the moments of all features in the population.
//
// Given w the tokens t = (x, wᵀx + ε) are independent Gaussian vectors with covariance C(w), so the moments of
// S = (Σ ttᵀ + t_q t_qᵀ)/N follow from Wick's theorem (library: population_moments). Features are S_ab x_c, a ≤ b.

import { keyOf, normal, split } from "./random.js";
import { basisOf, rightProduct } from "./start.js";

/** @typedef {import("../page/settings.js").Settings} Settings */
/**
 * L = E[y²] - 2 ⟨W, E[yφ]⟩ + ⟨W, E[φφᵀ] W⟩; row i of E[φφᵀ] has its `values` from `starts[i]` to `starts[i + 1]`.
 * @typedef {{size: number, power: number, cross: Float64Array, starts: Int32Array, columns: Int32Array, values: Float64Array}} Moments
 */

/** The fixed task in the eigenbasis: |w*|² = D, drawn as `iclflow simulate` does. @type {(settings: Settings) => Float64Array} */
export function fixedTask(settings) {
  const size = settings.spectrum.length,
    basis = basisOf(settings),
    drawn = normal(split(keyOf(settings.eigen_seed), 3)[2], size);
  const stretch = Math.sqrt(size) / Math.sqrt(drawn.reduce((sum, x) => sum + x * x, 0));
  return (basis ? rightProduct(drawn, basis, size) : drawn).map((x) => x * stretch);
}

/** The pairs a ≤ b of token entries, in row order. @type {(token: number) => [number, number][]} */
export const packedPairs = (token) =>
  Array.from({ length: token }, (_, a) => a).flatMap((a) =>
    Array.from({ length: token - a }, (_, i) => /** @type {[number, number]} */ ([a, a + i])),
  );

/** @type {Map<string, Moments>} */ const known = new Map();
const SQUARINGS = 50; // of CCᵀ: after n of them a part that is x times smaller is x^(2^n) times smaller
const KEPT = 6; // tasks whose moments are remembered: training and two tests, now and before

/** The moments with this share of fixed tasks: that of the settings trains, 0 and 1 are the two tests. @type {(settings: Settings, fraction?: number) => Moments} */
export function mixtureMoments(settings, fraction = settings.fixed_fraction) {
  const { spectrum, task_covariance, context, noise, rotate, eigen_seed } = settings;
  const key = JSON.stringify([spectrum, task_covariance, context, noise, rotate, eigen_seed, fraction]);
  const found = known.get(key) ?? compute(settings, fraction);
  known.delete(key);
  known.set(key, found);
  if (known.size > KEPT) known.delete(/** @type {string} */ (known.keys().next().value));
  return found;
}

/** @type {(settings: Settings, fraction: number) => Moments} */
function compute(settings, fraction) {
  const { spectrum: lambda, task_covariance: s, context: N, noise } = settings;
  const size = lambda.length,
    fixed = fixedTask(settings),
    pairs = packedPairs(size + 1),
    drawn = lambda.reduce((sum, l, d) => sum + l * s[d], 0), // E[wᵀΛw] of the drawn tasks
    known = lambda.reduce((sum, l, d) => sum + l * fixed[d] ** 2, 0),
    spread = 2 * lambda.reduce((sum, l, d) => sum + (l * s[d]) ** 2, 0);
  // C(w)_ab is a constant, linear in w (one label slot), or quadratic (both).
  const order = (/** @type {number} */ a, /** @type {number} */ b) => Number(a === size) + Number(b === size);
  const constant = (/** @type {number} */ a, /** @type {number} */ b) => (a === b ? lambda[a] : 0);
  const atFixed = (/** @type {number} */ a, /** @type {number} */ b) => {
    const n = order(a, b),
      d = Math.min(a, b);
    return n === 2 ? known + noise ** 2 : n === 1 ? lambda[d] * fixed[d] : constant(a, b);
  };
  const mean = (/** @type {number} */ a, /** @type {number} */ b) => {
    const n = order(a, b);
    return n === 2 ? drawn + noise ** 2 : n === 1 ? 0 : constant(a, b);
  };
  const single = (/** @type {number} */ a, /** @type {number} */ b) =>
    (1 - fraction) * mean(a, b) + fraction * atFixed(a, b);
  /** E[C_ab C_cd] over the tasks. @type {(a: number, b: number, c: number, d: number) => number} */
  const double = (a, b, c, d) => {
    const [i, j] = [Math.min(a, b), Math.min(c, d)],
      n = order(a, b),
      m = order(c, d);
    let random = 0;
    if (n !== 1 && m !== 1) random = mean(a, b) * mean(c, d) + (n === 2 && m === 2 ? spread : 0);
    else if (n === m && i === j) random = lambda[i] ** 2 * s[i];
    return (1 - fraction) * random + fraction * atFixed(a, b) * atFixed(c, d);
  };
  /** E[q_a q_b …] of the query token, whose label slot is 0. @type {(...index: number[]) => number} */
  const query = (...index) => {
    let product = 1;
    for (let n = 0; n < index.length; n++) {
      const d = index[n];
      if (d === size) return 0;
      let before = 0,
        all = 0;
      for (let i = 0; i < index.length; i++)
        if (index[i] === d) {
          all++;
          if (i < n) before++;
        }
      if (all % 2) return 0;
      if (before % 2) product *= lambda[d] * before; // (n - 1)!! λ^(n/2)
    }
    return product;
  };

  const count = pairs.length * size,
    cross = new Float64Array(count),
    starts = new Int32Array(count + 1);
  /** @type {number[]} */ const columns = [];
  /** @type {number[]} */ const values = [];
  pairs.forEach(([a, b], k) => {
    for (let c = 0; c < size; c++) {
      const row = k * size + c;
      const linear = order(a, b) === 1 && a === c ? (1 - fraction) * lambda[c] ** 2 * s[c] : 0;
      cross[row] = linear + fraction * lambda[c] * fixed[c] * atFixed(a, b);
      for (let i = 0; i < size; i++) cross[row] += (fraction * fixed[i] * query(a, b, c, i)) / N;
      pairs.forEach(([a2, b2], k2) => {
        const context = double(a, b, a2, b2) + (double(a, a2, b, b2) + double(a, b2, b, a2)) / N;
        for (let c2 = 0; c2 < size; c2++) {
          let value = c === c2 ? context * lambda[c] : 0;
          value += (single(a, b) * query(a2, b2, c, c2) + single(a2, b2) * query(a, b, c, c2)) / N;
          value += query(a, b, a2, b2, c, c2) / N ** 2;
          if (value === 0) continue;
          columns.push(k2 * size + c2);
          values.push(value);
        }
      });
      starts[row + 1] = values.length;
    }
  });
  const power = (1 - fraction) * drawn + fraction * known;
  return { size, power, cross, starts, columns: Int32Array.from(columns), values: Float64Array.from(values) };
}

/** @type {WeakMap<Moments, number>} */ const least = new WeakMap();

/** The least loss of any weights on the features. @type {(moments: Moments) => number} */
export function leastLoss(moments) {
  const found = least.get(moments) ?? eliminated(moments);
  least.set(moments, found);
  return found;
}

/** What is left of E[y²] when all features are eliminated. @type {(moments: Moments) => number} */
function eliminated({ power, cross, starts, columns, values }) {
  const n = cross.length,
    rows = Array.from({ length: n }, (_, i) => {
      const row = new Float64Array(n + 1);
      for (let at = starts[i]; at < starts[i + 1]; at++) row[columns[at]] = values[at];
      row[n] = cross[i];
      return row;
    });
  const scale = rows.map((row, i) => row[i]);
  let rest = power;
  for (let p = 0; p < n; p++) {
    const pivot = rows[p];
    if (pivot[p] < 1e-11 * scale[p]) continue; // a feature that is a combination of others
    rest -= pivot[n] ** 2 / pivot[p];
    for (let i = p + 1; i < n; i++) {
      const factor = rows[i][p] / pivot[p];
      if (factor !== 0) for (let j = p; j <= n; j++) rows[i][j] -= factor * pivot[j];
    }
  }
  return rest;
}

/** The leading singular vectors `left` and `right` of C = E[y S ⊗ x_q], [D + 1] x [D + 1, D], with its gain σ₁ and the curvature κ of the loss on their line. @type {(moments: Moments) => {gain: number, curvature: number, left: Float64Array, right: Float64Array}} */
export function leadingDirection({ size, cross, starts, columns, values }) {
  const token = size + 1,
    pairs = packedPairs(token),
    C = Array.from({ length: token }, () => new Float64Array(token * size));
  pairs.forEach(([a, b], k) => {
    for (let c = 0; c < size; c++) C[a][b * size + c] = C[b][a * size + c] = cross[k * size + c];
  });
  const dot = (/** @type {Float64Array} */ a, /** @type {Float64Array} */ b) =>
    a.reduce((sum, x, i) => sum + x * b[i], 0);
  let power = C.map((row) => Float64Array.from(C, (other) => dot(row, other)));
  for (let n = 0; n < SQUARINGS; n++) {
    const top = Math.max(...power.map((row, i) => row[i]));
    const unit = power.map((row) => row.map((x) => x / top));
    power = unit.map((row) => Float64Array.from(unit, (other) => dot(row, other)));
  }
  const column = power.reduce((best, row, i) => (row[i] > power[best][best] ? i : best), 0);
  const left = power[column].map((x) => x / Math.sqrt(dot(power[column], power[column])));
  const image = new Float64Array(token * size);
  C.forEach((row, a) => row.forEach((x, i) => (image[i] += left[a] * x)));
  const gain = Math.sqrt(dot(image, image)),
    right = image.map((x) => x / gain);
  const line = pairs.flatMap(([a, b]) =>
    Array.from({ length: size }, (_, c) =>
      a === b ? left[a] * right[a * size + c] : left[a] * right[b * size + c] + left[b] * right[a * size + c],
    ),
  );
  let curvature = 0;
  for (let i = 0; i < line.length; i++)
    for (let at = starts[i]; at < starts[i + 1]; at++) curvature += line[i] * values[at] * line[columns[at]];
  return { gain, curvature, left, right };
}
