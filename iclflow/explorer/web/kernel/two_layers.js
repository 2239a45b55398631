// Two layers of linear attention, in the population: the loss of any weights and its slope, exactly, at any D and N.
//
// In white coordinates G = Λ^½ Γᵀ Λ^½ the two layers leave the error Q₁Q₀, Q = I - G W, of a white Wishart W. The means
// are over Δ = W - I, as in the library; the page on depth has the equations (D11)-(D17).

import { Program } from "./algebra.js";

/** @typedef {import("./task.js").Task} Task */
/** @typedef {import("./algebra.js").Matrix} Matrix */
/** `residual`: A = -½ ∂L/∂Γ of both layers, one behind the other. @typedef {{loss: (M: Float64Array) => number, residual: (M: Float64Array, A: Float64Array) => void}} Pair */

/** The means of products of Δ that two layers need, as parts of a program. @type {(program: Program, context: number) => any} */
function means(p, context) {
  const n = 1 / context,
    s = n * n;
  /** E[Δ C Δ] (D11). @type {(c: Matrix) => Matrix} */
  const two = (c) => p.sum([[n, p.turned(c)]], { share: n, traces: [c] });
  /** E[Δ A Δ B Δ] (D12). @type {(a: Matrix, b: Matrix) => Matrix} */
  const three = (a, b) => {
    const at = p.turned(a),
      bt = p.turned(b),
      ba = p.times(b, a);
    return p.sum(
      [
        [s, p.turned(ba)],
        [s, ba],
        [s, p.times(b, at)],
        [s, p.times(bt, a)],
        [s, at, b],
        [s, bt, a],
      ],
      { share: s, inner: [a, b] },
      { share: s, traces: [a, b] },
    );
  };
  /** E[tr(A Δ) Δ C Δ] (D13). @type {(a: Matrix, c: Matrix) => Matrix} */
  const traceTwo = (a, c) => {
    const half = plus([0.5, a], [0.5, p.turned(a)]),
      mean = two(c);
    const both = two(plus([1, p.times(half, c)], [1, p.times(c, half)]));
    return plus([n, p.times(half, mean)], [n, p.times(mean, half)], [n, both]);
  };
  /** E[tr(A Δ B Δ) Δ] (D14). @type {(a: Matrix, b: Matrix) => Matrix} */
  const traceThree = (a, b) => {
    const bt = p.turned(b),
      m = plus([1, p.times(bt, a)], [1, p.times(a, bt)], [1, a, b], [1, b, a]);
    return plus([s, m], [s, p.turned(m)]);
  };
  /** E[Δ A Δ B Δ C Δ] (D15). @type {(a: Matrix, b: Matrix, c: Matrix) => Matrix} */
  const four = (a, b, c) => {
    const at = p.turned(a),
      bt = p.turned(b),
      ba = p.times(b, a),
      ofC = two(c),
      ofBC = three(b, c);
    return p.sum(
      [
        [n, p.times(at, plus([1, p.times(b, ofC)], [1, ofBC]))],
        [n, p.times(b, plus([1, ofC, a], [1, traceTwo(a, c)]))],
        [n, p.times(bt, plus([1, two(p.times(at, c))], [1, three(at, c)]))],
        [n, p.times(c, plus([n, ba], [n, p.turned(ba)], [1, traceThree(a, b)]))],
        [n, p.times(p.turned(c), plus([1, p.times(two(bt), at)], [1, three(bt, at)]))],
      ],
      { share: n, inner: [p.times(c, a), p.turned(two(b))] },
      { share: n, inner: [a, p.turned(ofBC)] },
    );
  };
  const plus = (/** @type {import("./algebra.js").Part[]} */ ...parts) => p.sum(parts);
  return { plus, two, three, four };
}

/** What the loss and its slope both need: Q, and what comes of both layers. @type {(p: Program) => any} */
function layersOf(p) {
  const [g0, g1, T] = [p.take(), p.take(), p.take()];
  const q0 = p.sum([[-1, g0]], { share: 1 }),
    q1 = p.sum([[-1, g1]], { share: 1 });
  const [g0t, q0t] = [p.turned(g0), p.turned(q0)];
  const stillT = p.times(p.times(q1, q0), T);
  return { g0, g1, T, q0, q1, g0t, q0t, a: p.times(q1, g0), stillT, tq: p.times(T, q0t), q0T: p.times(q0, T) };
}

/** L of G₀ and G₁ (D16), and what label noise of variance N adds to it (D17), in inner products. @type {(size: number, context: number) => {program: Program, value: (variance: number) => number, g: Matrix[], T: Matrix}} */
function lossProgram(size, context) {
  const p = new Program(size),
    { plus, two, three, four } = means(p, context),
    { g0, g1, T, q0, q1, g0t, a, stillT, tq, q0T } = layersOf(p);
  const still = p.times(q1, q0),
    both = plus([1, two(p.times(q0, tq))], [-2, three(q0T, g0t)], [1, four(g0, T, g0t)]),
    mixed = p.times(a, plus([2, two(tq)], [-2, three(T, g0t)]));
  const alone = p.times(a, two(T)),
    after = p.times(g1, both),
    across = p.times(g1, p.times(two(g0), T));
  const read = plus([1, g0], [1, g1], [-1, p.times(g1, g0)]),
    spread = p.times(g1, plus([1, two(p.times(g0, g0t))], [1, three(g0, g0t)])),
    lost = p.times(g1, two(g0));
  p.close();
  const value = (/** @type {number} */ variance) => {
    const signal =
      p.inner(stillT, still) + p.inner(alone, a) + p.inner(mixed, g1) + p.inner(after, g1) + 2 * p.inner(across, still);
    return signal + variance * (p.inner(read, read) + p.inner(spread, g1) - 2 * p.inner(lost, read));
  };
  return { program: p, value, g: [g0, g1], T };
}

/** -½ ∂L/∂G₁ = E[Q₁Q₀TQ₀ᵀW] and -½ ∂L/∂G₀ = E[Q₁ᵀQ₁Q₀TW], W = I + Δ, taken by hand. @type {(size: number, context: number, variance: number) => {program: Program, slopes: Matrix[], g: Matrix[], T: Matrix}} */
function slopeProgram(size, context, variance) {
  const p = new Program(size),
    { plus, two, three, four } = means(p, context),
    { g0, g1, T, q0, q1, g0t, q0t, a, stillT, tq, q0T } = layersOf(p);
  const g1t = p.turned(g1),
    q1t = p.turned(q1),
    K = p.times(g1t, g1),
    ofG0 = two(g0),
    ofT = two(T),
    later = p.times(g1t, a);
  const alongA = plus([-1, two(tq)], [1, p.times(ofT, g0t)], [1, three(T, g0t)]);
  const alongG1 = plus(
    [-1, two(p.times(q0, tq))],
    [1, p.times(two(q0T), g0t)],
    [1, p.times(ofG0, tq)],
    [1, three(q0T, g0t)],
    [1, three(g0, tq)],
    [-1, p.times(three(g0, T), g0t)],
    [-1, four(g0, T, g0t)],
  );
  /** @type {import("./algebra.js").Part[]} */ const second = [
    [1, p.times(stillT, q0t)],
    [-1, p.times(stillT, two(g0t))],
    [1, p.times(a, alongA)],
    [1, p.times(g1, alongG1)],
  ];
  const behind = plus([-1, two(q0T)], [1, p.times(ofG0, T)], [1, three(g0, T)]);
  const withQ1 = plus([1, stillT], [-1, p.times(a, ofT)], [1, p.times(g1, behind)]);
  /** @type {import("./algebra.js").Part[]} */ const first = [
    [1, p.times(q1t, withQ1)],
    [-1, two(p.times(g1t, stillT))],
    [1, p.times(plus([1, two(later)], [-1, three(K, g0)]), T)],
    [1, p.times(two(K), q0T)],
    [1, three(later, T)],
    [1, three(K, q0T)],
    [-1, four(K, g0, T)],
  ];
  if (variance) {
    const read = plus([1, g0], [1, g1], [-1, p.times(g1, g0)]),
      lost = p.times(g1, ofG0),
      spread = plus([1, two(p.times(g0, g0t))], [1, three(g0, g0t)]);
    const ofFirst = plus([1, read], [-1, lost]);
    second.push([-variance, p.times(ofFirst, q0t)], [variance, p.times(read, two(g0t))]);
    second.push([-variance, p.times(g1, spread)]);
    first.push([-variance, p.times(q1t, ofFirst)], [variance, two(p.times(g1t, read))]);
    first.push([-variance, p.times(two(K), g0)], [-variance, three(K, g0)]);
  }
  const slopes = [p.sum(first), p.sum(second)];
  return { program: p.close(), slopes, g: [g0, g1], T };
}

/** The population loss of Γ₀ and Γ₁ for Gaussian inputs, along the eigenvectors of Λ; each has `wide` rows and columns. @type {(task: Task, wide: number) => Pair} */
export function pairLoss({ spectrum, task_covariance, context, noise }, wide) {
  const size = spectrum.length,
    roots = spectrum.map(Math.sqrt),
    variance = noise ** 2 / context;
  const ofLoss = lossProgram(size, context),
    ofSlope = slopeProgram(size, context, variance);
  for (const { program, T } of [ofLoss, ofSlope])
    spectrum.forEach((value, d) => (program.memory[T + d * (size + 1)] = value * task_covariance[d]));
  /** @type {(to: {program: Program, g: Matrix[]}, M: Float64Array) => void} */
  const whiten = ({ program: { memory }, g }, M) =>
    g.forEach((at, l) => {
      for (let i = 0; i < size; i++)
        for (let j = 0; j < size; j++) memory[at + i * size + j] = roots[i] * M[(l * wide + j) * wide + i] * roots[j];
    });
  return {
    loss: (M) => {
      whiten(ofLoss, M);
      ofLoss.program.run();
      return ofLoss.value(variance);
    },
    residual: (M, A) => {
      whiten(ofSlope, M);
      ofSlope.program.run();
      const { memory } = ofSlope.program;
      ofSlope.slopes.forEach((at, l) => {
        for (let i = 0; i < size; i++)
          for (let j = 0; j < size; j++) A[(l * wide + j) * wide + i] = roots[i] * memory[at + i * size + j] * roots[j];
      });
    },
  };
}
