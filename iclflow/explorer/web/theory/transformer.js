// The linear transformer mode by mode, in closed form (Mainali & Teixeira 2025, (9)-(14)): exact as N → ∞ only.
// The loss here has no factor ½, so the plateaus are twice the paper's; the clock t/τ is the same.

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./dormant.js").Stairs} Stairs */

const POINTS = 600;

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

/** a(t) = a∞ a₀/(a₀ + (a∞ - a₀) e^(-2t/τ_α)), τ_α = 1/(v s²), from p = q = √a₀ (13). @type {(modes: Modes, shape: Shape, start: Float64Array) => Stairs} */
export function transformerCourse(modes, { size }, start) {
  const { g, order, lambda, power } = modes;
  const trace = lambda.reduce((sum, s) => sum + s, 0),
    context = modes.context;
  const effective = lambda.map((s) => ((context + 1) * s + trace) / context); // s∞ (11)
  const first = start.slice(0, size).map((p, d) => p * start[size + d]);
  const drops = order.map((d, mode) => ({
    time: Math.log(Math.max(1e-9, (1 / effective[d] - first[d]) / first[d])) / (2 * g[d]),
    head: d,
    mode,
  }));
  const end = 3 * Math.max(...drops.map((drop) => drop.time), 1 / Math.min(...order.map((d) => g[d])));
  const times = Float64Array.from({ length: POINTS }, (_, i) => end * (i / (POINTS - 1)) ** 2);
  const products = order.map((d) =>
    times.map((t) => first[d] / effective[d] / (first[d] + (1 / effective[d] - first[d]) * Math.exp(-2 * t * g[d]))),
  );
  // L = Σ v s (s a² s∞ - 2 s a + 1) (14), twice the paper's.
  const loss = times.map((_, i) =>
    order.reduce((sum, d, n) => sum + g[d] * products[n][i] * (products[n][i] * effective[d] - 2), power),
  );
  const values = Array.from({ length: size }, (_, d) => products[order.indexOf(d)] ?? times.map(() => 0));
  return { by: "transformer", drops: drops.filter(({ time }) => time > 0), times, loss, values };
}
