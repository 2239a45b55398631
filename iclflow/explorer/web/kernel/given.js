// Prompts that a visitor brought along: all that training needs of them, along the eigenvectors of their inputs.

import { levelsOf, solved } from "./levels.js";
import { padded } from "./task.js";

/** P prompts of N + 1 points each, the query last: `x` [P, N + 1, D], `y` [P, N + 1]. @typedef {{name: string, count: number, context: number, size: number, x: Float64Array, y: Float64Array}} Prompts */
/**
 * @typedef {object} Given
 * @property {string} name of the file
 * @property {number} count P
 * @property {number[]} spectrum variances of the inputs along their eigenvectors, largest first
 * @property {Float64Array} basis the eigenvectors as columns, row by row
 * @property {import("./models.js").Loss} loss E[y²], E[y z] and E[z zᵀ], z = vec(β x_qᵀ)
 * @property {import("./task.js").Modes} modes
 * @property {number[]} best least squares over the prompts, M [D, D]
 */

/** @type {Given | null} */ let current = null;

/** The prompts that are trained on where the settings say so. @returns {Given | null} */
export const given = () => current;

/** @type {(found: Given | null) => void} */
export const give = (found) => void (current = found);

/** The moments of prompts, and the plateaus of linear attention on them. @type {(prompts: Prompts) => Given} */
export function momentsOf({ name, count, context, size, x, y }) {
  const points = context + 1,
    second = Array.from({ length: size }, () => Array(size).fill(0));
  for (let n = 0; n < count * points; n++)
    for (let i = 0; i < size; i++)
      for (let j = 0; j < size; j++) second[i][j] += (x[n * size + i] * x[n * size + j]) / (count * points);
  const { values, vectors } = eigen(second);
  const wide = padded(size),
    features = wide * wide,
    cross = new Float64Array(features),
    gram = new Float64Array(features * features),
    b = new Float64Array(wide);
  let power = 0;
  const turned = (/** @type {number} */ at, /** @type {number} */ d) => {
    let sum = 0;
    for (let i = 0; i < size; i++) sum += x[at * size + i] * vectors[i * size + d];
    return sum;
  };
  const beta = new Float64Array(size),
    query = new Float64Array(size),
    z = new Float64Array(features);
  for (let p = 0; p < count; p++) {
    beta.fill(0);
    for (let d = 0; d < size; d++) {
      for (let n = 0; n < context; n++) beta[d] += (y[p * points + n] * turned(p * points + n, d)) / context;
      query[d] = turned(p * points + context, d);
    }
    const target = y[p * points + context];
    power += (target * target) / count;
    for (let i = 0; i < size; i++) {
      b[i] += (beta[i] * beta[i]) / count;
      for (let j = 0; j < size; j++) z[i * wide + j] = beta[i] * query[j];
    }
    for (let i = 0; i < features; i++) {
      if (z[i] === 0) continue;
      cross[i] += (z[i] * target) / count;
      for (let j = 0; j < features; j++) gram[i * features + j] += (z[i] * z[j]) / count;
    }
  }
  const loss = { power, cross, curvature: null, gram };
  const matrix = solved(loss, wide, size),
    best = Array.from({ length: size * size }, (_, i) => matrix[Math.floor(i / size) * wide + (i % size)]);
  return { name, count, spectrum: values, basis: vectors, loss, modes: modesOf(loss, b, values, context, best), best };
}

/** What the views need of a loss that is not diagonal: the levels are exact, gains and weights are those on the diagonal. @type {(loss: import("./models.js").Loss, b: Float64Array, spectrum: number[], context: number, best: number[]) => import("./task.js").Modes} */
function modesOf(loss, b, spectrum, context, best) {
  const size = spectrum.length,
    wide = padded(size),
    lambda = new Float64Array(wide),
    m = new Float64Array(wide),
    g = new Float64Array(wide);
  spectrum.forEach((value, d) => {
    lambda[d] = value;
    m[d] = Math.max(1e-6, Math.abs(best[d * (size + 1)]));
    g[d] = Math.abs(loss.cross[d * (wide + 1)]);
  });
  const { levels, order } = levelsOf(loss, wide, size);
  const drops = new Float64Array(wide);
  order.forEach((d, i) => (drops[d] = levels[i] - levels[i + 1]));
  const c = m.map((x) => x ** (-1 / 3));
  return { size: wide, context, power: loss.power, lambda, b, g, m, c, drops, order, levels, coupled: true };
}

/** Eigenvalues and eigenvectors (columns) of a symmetric matrix, largest first, by Jacobi's rotations. @type {(a: number[][]) => {values: number[], vectors: Float64Array}} */
function eigen(a) {
  const n = a.length,
    turn = a.map((_, i) => a.map((_, j) => Number(i === j)));
  for (let sweep = 0; sweep < 30; sweep++)
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        const angle = 0.5 * Math.atan2(2 * a[p][q], a[p][p] - a[q][q]),
          c = Math.cos(angle),
          s = Math.sin(angle);
        for (const rows of [a, turn])
          for (const row of rows) [row[p], row[q]] = [c * row[p] + s * row[q], c * row[q] - s * row[p]];
        [a[p], a[q]] = [a[p].map((x, i) => c * x + s * a[q][i]), a[q].map((x, i) => c * x - s * a[p][i])];
      }
  const order = a.map((_, i) => i).sort((i, j) => a[j][j] - a[i][i]);
  const vectors = Float64Array.from({ length: n * n }, (_, i) => turn[Math.floor(i / n)][order[i % n]]);
  return { values: order.map((i) => a[i][i]), vectors };
}
