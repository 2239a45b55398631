// The staircase, each mode by its scalar course (26): rank one, gains and drops in one order (E1).

import { alignedCourse } from "./course.js";
import { atRest, dormant, leader, rootMeanSquare } from "./dormant.js";
import { integrate } from "./ode.js";

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./ode.js").Point} Point */
/** @typedef {import("./dormant.js").Stairs} Stairs */

const ROUGH = 1e-5; // relative tolerance: the courses themselves are right to a hundredth
const GONE = 300; // c v at which a blow-up is as good as reached

/** Scalar courses: rank one, gains and drops in one order, no two equal. @type {(modes: Modes, shape: Shape, start: Float64Array) => Stairs} */
export function byCourse(modes, shape, start) {
  const { size, g, c, drops: sigma, order, levels } = modes;
  const { A, point, asleep } = atRest(modes, shape, start);
  /** @type {{mode: number, head: number, blowUp: number, from: number}[]} */
  const escapes = [];
  /** @type {Point[][]} */
  const plateaus = [];
  let now = point;
  for (const mode of order) {
    const path = integrate(dormant(shape, A, asleep), now, {
      rtol: ROUGH,
      atol: 1e-8 * rootMeanSquare(now.y),
      stop: (_, y) => c[mode] * Math.abs(y[leader(y, asleep)] ?? Infinity) > GONE,
    });
    const last = path[path.length - 1],
      head = leader(last.y, asleep);
    if (head < 0 || c[mode] * Math.abs(last.y[head]) <= GONE) break; // no head is left, or none ever escapes
    const blowUp = last.t + 1 / (g[mode] * Math.abs(last.y[head]));
    const switched = Math.max(now.t, blowUp - c[mode] / g[mode]); // exact: ∫ (1 - v³/m) dt
    plateaus.push(path.filter(({ t }) => t <= switched));
    escapes.push({ mode, head, blowUp, from: now.t });
    const before = plateaus[plateaus.length - 1];
    const tail = integrate(dormant(shape, A, asleep), before[before.length - 1], {
      end: switched,
      rtol: ROUGH,
      atol: 1e-8 * rootMeanSquare(now.y),
    });
    now = tail[tail.length - 1];
    plateaus[plateaus.length - 1].push(now);
    A[mode * (size + 1)] = 0; // the mode is taken away
    asleep[head] = false;
  }
  const share = (/** @type {number} */ i, /** @type {number} */ t) => {
    const { mode, blowUp } = escapes[i];
    return alignedCourse(((blowUp - t) * g[mode]) / c[mode]); // c v
  };
  const fall = (/** @type {number} */ i, /** @type {number} */ x) => sigma[escapes[i].mode] * (1 - (1 - x ** 3) ** 2);
  const lossAt = (/** @type {number} */ t) => escapes.reduce((sum, _, i) => sum - fall(i, share(i, t)), modes.power);
  const drops = escapes.map(({ head, blowUp, mode }, i) => {
    const guess = blowUp - (1.25 * c[mode]) / g[mode];
    return { time: crossing(lossAt, (levels[i] + levels[i + 1]) / 2, guess, c[mode] / g[mode]), head, mode: i };
  });
  const grid = new Set([0, now.t]);
  for (const path of plateaus) for (const { t } of path) grid.add(t);
  escapes.forEach(({ mode, blowUp }) => {
    for (let i = -24; i <= 24; i++) grid.add(blowUp + (Math.sinh(i / 6) * 1.2 - 0.8) * (c[mode] / g[mode]));
  });
  const times = Float64Array.from([...grid].filter((t) => t >= 0)).sort();
  const shares = escapes.map((_, i) => times.map((t) => share(i, t)));
  const loss = times.map((_, n) => shares.reduce((sum, x, i) => sum - fall(i, x[n]), modes.power));
  const values = Array.from({ length: shape.heads }, (_, h) => {
    const own = escapes.findIndex(({ head }) => head === h);
    const small = curve(plateaus, h);
    if (own < 0) return times.map(small);
    const { mode, blowUp } = escapes[own];
    return times.map((t, n) => {
      const asleepYet = small(t);
      return c[mode] * asleepYet < 0.05 && t < blowUp ? asleepYet : shares[own][n] / c[mode];
    });
  });
  return { by: "course", drops, times, loss, values };
}

/** Where a falling curve crosses a level, near a guess. @type {(f: (t: number) => number, level: number, guess: number, width: number) => number} */
function crossing(f, level, guess, width) {
  let low = guess - width,
    high = guess + width;
  for (let n = 0; n < 40 && f(low) < level && low > 0; n++) low -= width;
  for (let n = 0; n < 200 && f(high) > level; n++) high += width;
  for (let n = 0; n < 60; n++) {
    const middle = (low + high) / 2;
    if (f(middle) > level) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/** |v| of one dormant head over the plateaus, linear between the accepted points. @type {(plateaus: Point[][], head: number) => (t: number) => number} */
function curve(plateaus, head) {
  const points = plateaus.flat();
  let at = 0;
  return (t) => {
    while (at < points.length - 2 && points[at + 1].t <= t) at++;
    const [a, b] = [points[at], points[Math.min(at + 1, points.length - 1)]];
    const part = b.t > a.t ? Math.min(1, Math.max(0, (t - a.t) / (b.t - a.t))) : 0;
    return Math.abs(a.y[head] + part * (b.y[head] - a.y[head]));
  };
}
