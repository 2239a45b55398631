// Linear attention with separate or merged key and query: weights, effective matrix, flow.
// All weights of a model lie in one array: v [H], then k [H R D] and q [H R D], or U [H D D].

/** @typedef {import("./task.js").Modes} Modes */
/** `size` is D padded to a multiple of four; "transformer" has p and q of each mode; `full`: with the blocks that are zero at first; `layers`: of separate heads, those of the first layer before those of the second. @typedef {{kind: "separate" | "merged" | "transformer", heads: number, rank: number, size: number, full: boolean, layers?: number}} Shape */

/**
 * What training needs of the loss: A = G - B M Λ, or c - K M with the Gram matrix of sampled prompts, or `pair`: two layers.
 * @typedef {{power: number, cross: Float64Array, curvature: Float64Array | null, gram: Float64Array | null, pair?: import("./two_layers.js").Pair}} Loss
 */

/** @type {(shape: Shape) => number} */
export const weightCount = ({ kind, heads, rank, size, full }) =>
  kind === "transformer"
    ? 2 * size
    : heads * (1 + (kind === "merged" ? size * size : 2 * rank * size)) +
      (full ? heads * (size + (kind === "merged" ? size : rank)) : 0);

/** How many numbers the effective matrices have, one of each layer. @type {(shape: Shape) => number} */
export const matrixSize = ({ size, layers = 1 }) => layers * size * size;

/** The population loss of a task. @type {(modes: Modes) => Loss} */
export function populationLoss({ size, power, lambda, b, g }) {
  const cross = new Float64Array(size * size);
  const curvature = new Float64Array(size * size);
  for (let i = 0; i < size; i++) {
    cross[i * size + i] = g[i];
    for (let j = 0; j < size; j++) curvature[i * size + j] = b[i] * lambda[j];
  }
  return { power, cross, curvature, gram: null };
}

/** M = Σ v k qᵀ, of each layer by itself, Σ v U, or diag(p q), into M. @type {(shape: Shape, w: Float64Array, M: Float64Array) => void} */
export function effective({ kind, heads, rank, size, layers = 1 }, w, M) {
  M.fill(0);
  if (kind === "transformer") {
    for (let d = 0; d < size; d++) M[d * (size + 1)] = w[d] * w[size + d];
    return;
  }
  if (kind === "merged") {
    const square = size * size;
    for (let h = 0; h < heads; h++) {
      const v = w[h],
        u = heads + h * square;
      for (let i = 0; i < square; i++) M[i] += v * w[u + i];
    }
    return;
  }
  const shift = heads * rank * size,
    each = heads / layers;
  for (let h = 0, k = heads; h < heads; h++) {
    const v = w[h],
      from = Math.floor(h / each) * size * size;
    for (let r = 0; r < rank; r++, k += size) {
      for (let j = 0, q = k + shift; j < size; j += 4, q += 4) {
        const q0 = v * w[q],
          q1 = v * w[q + 1],
          q2 = v * w[q + 2],
          q3 = v * w[q + 3];
        for (let i = 0, x = from + j; i < size; i++, x += size) {
          const here = w[k + i];
          M[x] += here * q0;
          M[x + 1] += here * q1;
          M[x + 2] += here * q2;
          M[x + 3] += here * q3;
        }
      }
    }
  }
}

/** A = G - B M Λ = -½ ∂L/∂M, into A. @type {(loss: Loss, M: Float64Array, A: Float64Array) => void} */
export function residual({ cross, curvature, gram, pair }, M, A) {
  if (pair) return pair.residual(M, A);
  const count = M.length;
  if (curvature) {
    for (let i = 0; i < count; i++) A[i] = cross[i] - curvature[i] * M[i];
    return;
  }
  const K = /** @type {Float64Array} */ (gram);
  for (let i = 0; i < count; i++) {
    let sum = cross[i];
    for (let j = 0, row = i * count; j < count; j++) sum -= K[row + j] * M[j];
    A[i] = sum;
  }
}

/** L = E[y²] - ⟨M, G + A⟩. @type {(loss: Loss, M: Float64Array, A: Float64Array) => number} */
export function lossOf({ power, cross, pair }, M, A) {
  if (pair) return pair.loss(M);
  let sum = power;
  for (let i = 0; i < M.length; i++) sum -= M[i] * (cross[i] + A[i]);
  return sum;
}

/**
 * dw/dt under the residual A, into `out`: v̇ = Σ kᵀA q, k̇ = v A q, q̇ = v Aᵀk (19)(80); v̇ = ⟨U, A⟩, U̇ = v A (13).
 * @type {(shape: Shape, w: Float64Array, A: Float64Array, out: Float64Array) => void}
 */
export function flow({ kind, heads, rank, size, layers = 1 }, w, A, out) {
  if (kind === "merged") {
    const square = size * size;
    for (let h = 0; h < heads; h++) {
      const v = w[h],
        u = heads + h * square;
      let sum = 0;
      for (let i = 0; i < square; i++) {
        sum += w[u + i] * A[i];
        out[u + i] = v * A[i];
      }
      out[h] = sum;
    }
    return;
  }
  const shift = heads * rank * size,
    each = heads / layers;
  for (let h = 0, k = heads; h < heads; h++) {
    const v = w[h],
      from = Math.floor(h / each) * size * size;
    let sum = 0;
    for (let r = 0; r < rank; r++, k += size) {
      for (let i = 0; i < size; i++) out[k + i] = 0;
      for (let j = 0, q = k + shift; j < size; j += 4, q += 4) {
        const q0 = w[q],
          q1 = w[q + 1],
          q2 = w[q + 2],
          q3 = w[q + 3];
        let s0 = 0,
          s1 = 0,
          s2 = 0,
          s3 = 0;
        for (let i = 0, x = from + j; i < size; i++, x += size) {
          const here = w[k + i],
            a0 = A[x],
            a1 = A[x + 1],
            a2 = A[x + 2],
            a3 = A[x + 3];
          out[k + i] += a0 * q0 + a1 * q1 + a2 * q2 + a3 * q3;
          s0 += a0 * here;
          s1 += a1 * here;
          s2 += a2 * here;
          s3 += a3 * here;
        }
        out[q] = v * s0;
        out[q + 1] = v * s1;
        out[q + 2] = v * s2;
        out[q + 3] = v * s3;
      }
      for (let i = 0; i < size; i++) {
        sum += w[k + i] * out[k + i];
        out[k + i] *= v;
      }
    }
    out[h] = sum;
  }
}
