// The linear transformer of Mainali & Teixeira (2025): D outputs, W = U diag(l) Uᵀ, weights p and q diagonal in U.
//
// From p = q = w I it stays diagonal, so D pairs of numbers are all of it. Exact at any N (library: CoupledFlow):
// L = Σ [v s - 2 v s² p q + v s p² s² q² (N+1)/N] + T_p T_q / N, T_p = Σ v s p², T_q = Σ s² q².

/** @typedef {import("./task.js").Modes} Modes */
/** @typedef {import("./problem.js").Problem} Problem */

/**
 * `drive` v s², `curve` (N+1)/N v s³, and the two coupled sums.
 * @typedef {{power: number, drive: Float64Array, curve: Float64Array, key: Float64Array, query: Float64Array, context: number}} Coupled
 */

/** The moments of the loss. @type {(modes: Modes, context: number) => Coupled} */
export function coupled({ lambda, g, power }, context) {
  return {
    power,
    drive: g, // λ² v
    curve: g.map((x, d) => (1 + 1 / context) * x * lambda[d]),
    key: g.map((x, d) => (lambda[d] > 0 ? x / lambda[d] : 0)), // v s
    query: lambda.map((s) => s * s),
    context,
  };
}

/** E|y - ŷ|² of p, q. @type {(moments: Coupled, w: Float64Array) => number} */
export function transformerLoss({ power, drive, curve, key, query, context }, w) {
  const size = drive.length;
  let sum = power,
    tp = 0,
    tq = 0;
  for (let d = 0; d < size; d++) {
    const p = w[d],
      q = w[size + d],
      a = p * q;
    sum += curve[d] * a * a - 2 * drive[d] * a;
    tp += key[d] * p * p;
    tq += query[d] * q * q;
  }
  return sum + (tp * tq) / context;
}

/** τ ṗ = -½ ∂L/∂p and the same for q, into `out`. @type {(moments: Coupled, w: Float64Array, out: Float64Array) => void} */
export function transformerFlow({ drive, curve, key, query, context }, w, out) {
  const size = drive.length;
  let tp = 0,
    tq = 0;
  for (let d = 0; d < size; d++) {
    tp += (key[d] * w[d] * w[d]) / context;
    tq += (query[d] * w[size + d] * w[size + d]) / context;
  }
  for (let d = 0; d < size; d++) {
    const p = w[d],
      q = w[size + d],
      push = drive[d] - curve[d] * p * q;
    out[d] = push * q - key[d] * p * tq;
    out[size + d] = push * p - query[d] * q * tp;
  }
}

/** @type {(moments: Coupled, start: Float64Array) => Problem} */
export function linearTransformer(moments, start) {
  const weights = Float64Array.from(start),
    slope = new Float64Array(start.length);
  return {
    weights,
    loss: () => transformerLoss(moments, weights),
    descend: (clock, count) => {
      for (let n = 0; n < count; n++) {
        transformerFlow(moments, weights, slope);
        for (let i = 0; i < weights.length; i++) weights[i] += clock * slope[i];
      }
    },
  };
}

/** a = p q of each mode and the loss at the optimum of the `learned` fastest modes: a = N/((N+1)s) (1 - √(μ/(vs))). @type {(modes: Modes, context: number, learned: number) => {a: Float64Array, loss: number}} */
function optimum({ lambda, g, power }, context, learned) {
  const root = g.map((x, d) => (x > 0 ? Math.sqrt(x / lambda[d]) : 0)); // √(v s)
  const allowed = fastest(g).slice(0, learned);
  const strongest = allowed.map((d) => root[d]).sort((a, b) => b - a);
  let sum = 0,
    level = 0;
  strongest.forEach((value, k) => {
    sum += value;
    if (value > sum / (context + 2 + k)) level = sum / (context + 2 + k);
  });
  const a = new Float64Array(g.length),
    share = context / (context + 1);
  let loss = power;
  for (const d of allowed) {
    const gain = Math.max(0, root[d] - level);
    a[d] = (share * gain) / (root[d] * lambda[d]);
    loss -= share * root[d] * gain;
  }
  return { a, loss };
}

/** The modes in the order in which they are learned, largest v s² first. @type {(g: Float64Array) => number[]} */
const fastest = (g) => [...g.keys()].filter((d) => g[d] > 0).sort((i, j) => g[j] - g[i]);

/** The modes of a task as this model sees them: plateaus where the fastest so many wait, and the final a. @type {(modes: Modes, context: number) => Modes} */
export function transformerModes(modes, context) {
  const order = fastest(modes.g);
  const levels = [0, ...order.keys()].map((_, k) => optimum(modes, context, k).loss);
  const m = optimum(modes, context, order.length).a;
  return { ...modes, order, levels, m, c: m.map((x) => x ** (-1 / 3)) };
}
