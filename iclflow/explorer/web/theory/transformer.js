// The linear transformer mode by mode, in closed form (Mainali & Teixeira 2025, (9)-(14)): exact as N → ∞ only.
// The loss here has no factor ½, so the plateaus are twice the paper's; the clock t/τ is the same.

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./dormant.js").Stairs} Stairs */

const POINTS = 600;

/** a(t) = a∞ a₀/(a₀ + (a∞ - a₀) e^(-2t/τ_α)), τ_α = 1/(v s²), from p = q = √a₀ (13). @type {(modes: Modes, shape: Shape, start: Float64Array) => Stairs} */
export function transformerCourse(modes, { size }, start) {
  const { g, order, lambda, power } = modes;
  const trace = lambda.reduce((sum, s) => sum + s, 0),
    context = modes.context;
  const effective = lambda.map((s) => ((context + 1) * s + trace) / context); // s∞ (11)
  const first = start.slice(0, size).map((p, d) => p * start[size + d]);
  const drops = order.map((d, mode) => ({
    // a = (1 - 2^(-1/2)) a∞: where the mode's loss, a square in a∞ - a, is halfway down.
    time: Math.log(Math.max(1e-9, ((Math.SQRT2 - 1) * (1 / effective[d] - first[d])) / first[d])) / (2 * g[d]),
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
