// The staircase, down each drop by the flow of all heads: any rank, any order of the modes.

import { effective, flow, lossOf, populationLoss, residual } from "../kernel/models.js";
import { atRest, dormant, fastest, leader, rootMeanSquare } from "./dormant.js";
import { integrate } from "./ode.js";

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./dormant.js").Drop} Drop */
/** @typedef {import("./dormant.js").Stairs} Stairs */

const LEAD = 50; // an escape is followed by the flow from c v = 1/LEAD on
const ARRIVED = 1e-10; // excess loss, in units of the last drop, at which a plateau is reached
const ARRIVED_OWN = 1e-5; // the same of given prompts, whose levels are themselves found step by step
const AWAKE = 0.3; // share of the smallest final value weight above which a head counts as escaped

/** All heads follow the flow from shortly before a drop until it is over: any rank, any order of the modes; `own`: a loss that is not diagonal in them. @type {(modes: Modes, shape: Shape, start: Float64Array, own?: import("../kernel/models.js").Loss) => Stairs} */
export function byFlow(modes, shape, start, own) {
  const { size, g, c, m, drops: sigma } = modes;
  // Merged heads learn everything at once.
  const whole = shape.kind === "merged";
  const order = whole ? modes.order.slice(0, 1) : modes.order;
  const levels = whole ? [modes.levels[0], modes.levels[modes.levels.length - 1]] : modes.levels;
  const { heads, rank } = shape;
  const loss = own ?? populationLoss(modes);
  const arrived = own ? ARRIVED_OWN : ARRIVED;
  const { A, M, point, asleep } = atRest(modes, shape, start);
  const final = Math.min(...order.map((d) => Math.cbrt(m[d])));
  const evaluate = (/** @type {Float64Array} */ y) => {
    effective(shape, y, M);
    residual(loss, M, A);
    return lossOf(loss, M, A);
  };
  /** @type {import("./ode.js").Slope} */
  const together = (_, y, out) => {
    evaluate(y);
    flow(shape, y, A, out);
  };
  /** @type {Drop[]} */
  const drops = [];
  const path = [point];
  let now = point;
  const frozen = Float64Array.from(A),
    slope = new Float64Array(start.length);
  while (drops.length < order.length) {
    const awake = asleep.filter((rests) => !rests).length;
    let room = rank * awake;
    if (room <= drops.length) {
      const learned = drops.length,
        next = order[learned];
      if (own || (learned > 0 && sigma[next] > (1 - 1e-9) * sigma[order[learned - 1]])) {
        // Some of several equal modes are learned: the escaped heads chose which. Of prompts there are no others.
        evaluate(now.y.map((x, i) => (i < heads && asleep[i] ? 0 : x)));
        frozen.set(A);
      } else {
        frozen.fill(0);
        for (const d of order.slice(learned)) frozen[d * (size + 1)] = g[d];
      }
      const scale = c[order.slice(learned).reduce((a, d) => (g[d] > g[a] ? d : a))];
      const wait = integrate(dormant(shape, frozen, asleep), now, {
        atol: 1e-8 * rootMeanSquare(start),
        stop: (_, y) => scale * Math.abs(y[leader(y, asleep)] ?? Infinity) > 1 / LEAD,
      });
      now = wait[wait.length - 1];
      const head = leader(now.y, asleep);
      if (head < 0 || scale * Math.abs(now.y[head]) <= 1 / LEAD) break;
      path.push(...wait.slice(1));
      room += rank;
    }
    const target = Math.min(order.length, room);
    const goal = levels[target] + arrived * sigma[order[target - 1]];
    const down = integrate(together, now, {
      rtol: 1e-6,
      atol: 1e-7 * rootMeanSquare(start),
      stop: (_, y) => evaluate(y) < goal,
    });
    path.push(...down.slice(1));
    const losses = down.map(({ y }) => evaluate(y));
    now = down[down.length - 1];
    for (let h = 0; h < heads; h++) if (Math.abs(now.y[h]) > AWAKE * final) asleep[h] = false;
    const before = drops.length;
    for (let i = before; i < order.length; i++) {
      const middle = (levels[i] + levels[i + 1]) / 2;
      const at = losses.findIndex((value) => value < middle);
      if (at < 1) break;
      const part = (losses[at - 1] - middle) / (losses[at - 1] - losses[at]);
      together(0, down[at].y, slope); // the head that makes the drop is the one that moves
      drops.push({ time: down[at - 1].t + part * (down[at].t - down[at - 1].t), head: fastest(slope, heads), mode: i });
    }
    if (losses[losses.length - 1] >= goal || drops.length === before) break;
  }
  return {
    by: "flow",
    drops,
    times: Float64Array.from(path, ({ t }) => t),
    loss: Float64Array.from(path, ({ y }) => evaluate(y)),
    values: Array.from({ length: heads }, (_, h) => Float64Array.from(path, ({ y }) => Math.abs(y[h]))),
  };
}
