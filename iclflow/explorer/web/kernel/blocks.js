// Linear attention with every weight block trained: ŷ = Σ aᵀ S B x_q with a = [𝐯; v] and B = [U; 𝐮ᵀ], or Σ_r [k; k'] qᵀ.
// The extra blocks lie behind the others: 𝐯 [H D], then 𝐮 [H D], or k' [H R].

import { packedPairs } from "./mixture.js";

/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("./mixture.js").Moments} Moments */
/** One head, read from all weights or written to their slopes: a [D + 1] and B [D + 1, D]. @typedef {{a: Float64Array, B: Float64Array}} Head */

/** Where the extra blocks begin. @type {(shape: Shape) => {inputs: number, labels: number}} */
export function extraBlocks({ kind, heads, rank, size }) {
  const inputs = heads * (1 + (kind === "merged" ? size * size : 2 * rank * size));
  return { inputs, labels: inputs + heads * size };
}

/** What all heads together put on the features, and what the flow does to them. @type {(shape: Shape, width: number) => {weigh: (w: Float64Array, W: Float64Array) => void, flow: (w: Float64Array, A: Float64Array, out: Float64Array) => void}} */
export function allBlocks(shape, width) {
  const { kind, heads, rank, size } = shape,
    token = width + 1,
    pairs = packedPairs(token),
    { inputs, labels } = extraBlocks(shape),
    shift = heads * rank * size;
  const a = new Float64Array(token),
    B = new Float64Array(token * width),
    da = new Float64Array(token),
    dB = new Float64Array(token * width);
  /** Where row b of key r of a head lies. @type {(h: number, r: number, b: number) => number} */
  const keyAt = (h, r, b) => (b < width ? heads + (h * rank + r) * size + b : labels + h * rank + r);
  /** Where row b of U of a head begins. @type {(h: number, b: number) => number} */
  const rowAt = (h, b) => (b < width ? heads + (h * size + b) * size : labels + h * size);
  const read = (/** @type {Float64Array} */ w, /** @type {number} */ h) => {
    for (let i = 0; i < width; i++) a[i] = w[inputs + h * size + i];
    a[width] = w[h];
    for (let b = 0; b < token; b++)
      for (let c = 0; c < width; c++) {
        let sum = 0;
        if (kind === "merged") sum = w[rowAt(h, b) + c];
        else for (let r = 0; r < rank; r++) sum += w[keyAt(h, r, b)] * w[heads + shift + (h * rank + r) * size + c];
        B[b * width + c] = sum;
      }
  };
  const write = (/** @type {Float64Array} */ w, /** @type {Float64Array} */ out, /** @type {number} */ h) => {
    for (let i = 0; i < width; i++) out[inputs + h * size + i] = da[i];
    out[h] = da[width];
    for (let b = 0; b < token; b++) {
      if (kind === "merged") for (let c = 0; c < width; c++) out[rowAt(h, b) + c] = dB[b * width + c];
      else
        for (let r = 0; r < rank; r++) {
          const query = heads + shift + (h * rank + r) * size,
            key = keyAt(h, r, b);
          let sum = 0;
          for (let c = 0; c < width; c++) {
            sum += dB[b * width + c] * w[query + c];
            out[query + c] = (b === 0 ? 0 : out[query + c]) + dB[b * width + c] * w[key];
          }
          out[key] = sum;
        }
    }
  };
  return {
    weigh: (w, W) => {
      W.fill(0);
      for (let h = 0; h < heads; h++) {
        read(w, h);
        for (let k = 0, at = 0; k < pairs.length; k++) {
          const [i, j] = pairs[k],
            left = a[i],
            right = i === j ? 0 : a[j];
          for (let c = 0; c < width; c++, at++) W[at] += left * B[j * width + c] + right * B[i * width + c];
        }
      }
    },
    flow: (w, A, out) => {
      for (let h = 0; h < heads; h++) {
        read(w, h);
        da.fill(0);
        dB.fill(0);
        for (let k = 0, at = 0; k < pairs.length; k++) {
          const [i, j] = pairs[k],
            right = i === j ? 0 : 1;
          for (let c = 0; c < width; c++, at++) {
            da[i] += A[at] * B[j * width + c];
            dB[j * width + c] += A[at] * a[i];
            da[j] += right * A[at] * B[i * width + c];
            dB[i * width + c] += right * A[at] * a[j];
          }
        }
        write(w, out, h);
      }
    },
  };
}

/** A = E[yφ] - E[φφᵀ] W = -½ ∂L/∂W, into A. @type {(moments: Moments, W: Float64Array, A: Float64Array) => void} */
export function featureResidual({ cross, starts, columns, values }, W, A) {
  for (let i = 0; i < cross.length; i++) {
    let sum = cross[i];
    for (let at = starts[i]; at < starts[i + 1]; at++) sum -= values[at] * W[columns[at]];
    A[i] = sum;
  }
}

/** L = E[y²] - ⟨W, E[yφ] + A⟩ of weights W on the features. @type {(moments: Moments, W: Float64Array, A: Float64Array) => number} */
export function featureLoss(moments, W, A) {
  featureResidual(moments, W, A);
  let sum = moments.power;
  for (let i = 0; i < W.length; i++) sum -= W[i] * (moments.cross[i] + A[i]);
  return sum;
}

/** The losses of saved weights under several moments: [moments][save]. @type {(shape: Shape, moments: Moments[], saved: ArrayLike<Float64Array>) => Float64Array[]} */
export function lossesOf(shape, moments, saved) {
  const { weigh } = allBlocks(shape, moments[0].size),
    W = new Float64Array(moments[0].cross.length),
    A = new Float64Array(W.length),
    found = moments.map(() => new Float64Array(saved.length));
  for (let i = 0; i < saved.length; i++) {
    weigh(saved[i], W);
    moments.forEach((one, n) => (found[n][i] = featureLoss(one, W, A)));
  }
  return found;
}

/** @type {(shape: Shape, moments: Moments, start: Float64Array) => import("./problem.js").Problem} */
export function fullAttention(shape, moments, start) {
  const weights = Float64Array.from(start),
    slope = new Float64Array(start.length),
    W = new Float64Array(moments.cross.length),
    A = new Float64Array(W.length),
    { weigh, flow } = allBlocks(shape, moments.size);
  return {
    weights,
    loss: () => {
      weigh(weights, W);
      return featureLoss(moments, W, A);
    },
    descend: (clock, count) => {
      for (let n = 0; n < count; n++) {
        weigh(weights, W);
        featureResidual(moments, W, A);
        flow(weights, A, slope);
        for (let i = 0; i < weights.length; i++) weights[i] += clock * slope[i];
      }
    },
  };
}
