// Prompts, number for number those of the library's `Moments.sample` and `Sequences.sample`, in the eigenbasis of Λ.

import { packedPairs } from "./mixture.js";
import { foldIn, keyOf, normal } from "./random.js";
import { rightProduct } from "./start.js";

/** @typedef {import("./task.js").Task} Task */
/** @typedef {import("./models.js").Loss} Loss */
/** `inputs` [N + 1, D], the last row the query; `labels` [N]; the task vector; the query's label. @typedef {{inputs: Float64Array, labels: Float64Array, vector: Float64Array, target: number}} Prompt */

/**
 * Prompt `index` of the set with key `data_seed`: it depends on nothing else, so sets of any size begin alike.
 * With a `fixed` task, that takes the place of the drawn one.
 * @type {(task: Task, basis: Float64Array | null, dataSeed: number, index: number, fixed?: Float64Array | null) => Prompt}
 */
export function drawPrompt({ spectrum, task_covariance, context, noise }, basis, dataSeed, index, fixed = null) {
  const size = spectrum.length,
    points = context + 1;
  const normals = normal(foldIn(keyOf(dataSeed), index), points * (size + 2) + size);
  const roots = spectrum.map(Math.sqrt);
  const inputs = normals.slice(0, points * size).map((z, i) => z * roots[i % size]);
  const drawn = normals.subarray(points * (size + 2));
  const random = (basis ? rightProduct(drawn, basis, size) : drawn).map((x, d) => x * Math.sqrt(task_covariance[d]));
  const vector = fixed ?? random;
  const clean = (/** @type {number} */ n) => vector.reduce((sum, w, d) => sum + w * inputs[n * size + d], 0);
  const labels = Float64Array.from({ length: context }, (_, n) => clean(n) + noise * normals[points * size + n]);
  return { inputs, labels, vector, target: clean(context) };
}

/** β = Σ y x / N of a prompt. @type {(prompt: Prompt, size: number) => Float64Array} */
export function correlation({ inputs, labels }, size) {
  const beta = new Float64Array(size);
  labels.forEach((y, n) => {
    for (let d = 0; d < size; d++) beta[d] += (y * inputs[n * size + d]) / labels.length;
  });
  return beta;
}

/** S = (Σ ttᵀ + t_q t_qᵀ)/N of the tokens t = (x, y), y_q = 0: its entries on and above the diagonal. @type {(prompt: Prompt, size: number) => Float64Array} */
export function tokenMoments({ inputs, labels }, size) {
  const token = (/** @type {number} */ n, /** @type {number} */ a) =>
    a < size ? inputs[n * size + a] : (labels[n] ?? 0);
  return Float64Array.from(packedPairs(size + 1), ([a, b]) => {
    let sum = 0;
    for (let n = 0; n <= labels.length; n++) sum += (token(n, a) * token(n, b)) / labels.length;
    return sum;
  });
}

/** The moments E[y²], E[y z] and E[z zᵀ], z = vec(β x_qᵀ), of `count` prompts. @type {(task: Task, wide: number, count: number, dataSeed: number, basis: Float64Array | null) => Loss} */
export function sampledLoss(task, wide, count, dataSeed, basis) {
  const size = task.spectrum.length,
    features = wide * wide;
  const cross = new Float64Array(features),
    gram = new Float64Array(features * features);
  const used = Array.from({ length: size * size }, (_, i) => Math.floor(i / size) * wide + (i % size));
  const z = new Float64Array(features);
  let power = 0;
  for (let p = 0; p < count; p++) {
    const prompt = drawPrompt(task, basis, dataSeed, p),
      { inputs, target } = prompt;
    const beta = correlation(prompt, size);
    for (let i = 0; i < size; i++)
      for (let j = 0; j < size; j++) z[i * wide + j] = beta[i] * inputs[task.context * size + j];
    power += (target * target) / count;
    for (const i of used) {
      const here = z[i] / count;
      cross[i] += here * target;
      for (const j of used) gram[i * features + j] += here * z[j];
    }
  }
  return { power, cross, curvature: null, gram };
}
