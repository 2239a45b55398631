// Merged key and query: all heads become parallel, and what is left is one equation for M (E2).

import { integrate } from "./ode.js";

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./dormant.js").Stairs} Stairs */

/** Merged key and query: M has D numbers, τ dμ/dt = ‖μ‖ r + μ (μ·r)/‖μ‖, r = g - λ b μ (E2). @type {(modes: Modes, shape: Shape, start: Float64Array) => Stairs} */
export function mergedCourse(modes, shape, start) {
  const { size, g, b, lambda, power, levels } = modes;
  const { heads } = shape;
  const norm = Math.hypot(...g);
  // Only the growing half of a small start survives.
  const growing = Float64Array.from({ length: heads }, (_, h) => {
    let along = 0;
    for (let d = 0; d < size; d++) along += (start[heads + h * size * size + d * (size + 1)] * g[d]) / norm;
    return (start[h] + along) / 2;
  });
  const strength = growing.reduce((sum, x) => sum + x * x, 0);
  const last = levels[levels.length - 1];
  const evaluate = (/** @type {Float64Array} */ mu) =>
    mu.reduce((sum, x, d) => sum - x * (2 * g[d] - lambda[d] * b[d] * x), power);
  /** @type {import("./ode.js").Slope} */
  const slope = (_, mu, out) => {
    const length = Math.hypot(...mu);
    let dot = 0;
    for (let d = 0; d < size; d++) {
      out[d] = g[d] - lambda[d] * b[d] * mu[d];
      dot += mu[d] * out[d];
    }
    for (let d = 0; d < size; d++) out[d] = length * out[d] + (mu[d] * dot) / length;
  };
  const path = integrate(
    slope,
    { t: 0, y: g.map((gain) => (strength * gain) / norm) },
    {
      atol: 1e-9 * strength,
      stop: (_, mu) => evaluate(mu) < last + 1e-7 * power,
    },
  );
  const times = Float64Array.from(path, ({ t }) => t),
    loss = Float64Array.from(path, ({ y }) => evaluate(y));
  const middle = (power + last) / 2,
    at = loss.findIndex((value) => value < middle);
  const part = (loss[at - 1] - middle) / (loss[at - 1] - loss[at]);
  const drops = at > 0 ? [{ time: times[at - 1] + part * (times[at] - times[at - 1]), head: -1, mode: 0 }] : [];
  const values = Array.from(growing, (share) =>
    Float64Array.from(path, ({ y }) => (Math.sqrt(Math.hypot(...y)) * Math.abs(share)) / Math.sqrt(strength)),
  );
  return { by: "merged", drops, times, loss, values };
}
