// The staircase of two layers of heads of rank one: the heads that wait, by their own equations; each drop, by the flow.
//
// A waiting head of layer l sees A of that layer, which both layers make together, and no other waiting head. Where the
// heads awake rest depends on which they are, so the plateaus are found on the way (D20).

import { effective, flow, lossOf, matrixSize, residual } from "../kernel/models.js";
import { sharpness } from "../kernel/rate.js";
import { dormant, fastest, rootMeanSquare } from "./dormant.js";
import { integrate } from "./ode.js";

/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("../kernel/models.js").Loss} Loss */
/** @typedef {import("./dormant.js").Drop} Drop */
/** @typedef {import("./dormant.js").Stairs} Stairs */
/** The best direction of what a layer has left to learn: its gain, and the value weight 1/c of a head that learned it. @typedef {{gain: number, size: number}} Opening */

const LEAD = 50; // an escape is followed by the flow from c v = 1/LEAD on
const AWAKE = 0.3; // share of 1/c above which a head counts as escaped
const NEAR = 3e-3; // force on the heads awake, in units of the drop, at which a rest is looked for
const CLOSE = 1e-4; // change of A, in units of the gain, that may be left until then
const STILL = 1e-5; // force at which they rest
const TURNING = 1e-3; // rate of growth, in units of the drop, above which they do not rest yet
const FITTED = 1e-7; // gain, in units of the first, at which nothing is left to learn
const LOOK = 4; // accepted steps between two looks for a rest
const LONG = 5000; // steps of a drop
const SETTLING = 1500; // steps after which what still moves is taken for a rest

/** @type {(shape: Shape, start: Float64Array, loss: Loss) => Stairs} */
export function byLayers(shape, start, loss) {
  const { heads, size, layers = 1 } = shape,
    each = heads / layers,
    square = size * size,
    M = new Float64Array(matrixSize(shape)),
    A = new Float64Array(M.length),
    slope = new Float64Array(start.length);
  const evaluate = (/** @type {Float64Array} */ y) => {
    effective(shape, y, M);
    residual(loss, M, A);
    return lossOf(loss, M, A);
  };
  /** @type {import("./ode.js").Slope} */
  const together = (_, y, out) => {
    effective(shape, y, M);
    residual(loss, M, A);
    flow(shape, y, A, out);
  };
  /** @type {import("./ode.js").Point} */ let now = { t: 0, y: Float64Array.from(start) };
  let awake = Array(heads).fill(false),
    floor = Infinity,
    first = 0; // gain
  const blocks = (/** @type {number} */ h) => [heads + h * size, heads + (heads + h) * size]; // k and q
  /** The weights with all but some heads taken away. @type {(y: Float64Array, up: boolean[]) => Float64Array} */
  const only = (y, up) => {
    const kept = Float64Array.from(y);
    up.forEach((awake, h) => {
      if (awake) return;
      kept[h] = 0;
      for (const at of blocks(h)) kept.fill(0, at, at + size);
    });
    return kept;
  };
  /** A of the heads awake alone, off the directions that they have learned. @type {(y: Float64Array, up: boolean[]) => Float64Array} */
  const left = (y, up) => {
    evaluate(only(y, up));
    const found = Float64Array.from(A);
    for (let l = 0; l < layers; l++) {
      const own = up.flatMap((awake, h) => (awake && Math.floor(h / each) === l ? [h] : []));
      const spans = [0, 1].map((n) =>
        orthonormal(own.map((h) => y.subarray(blocks(h)[n], blocks(h)[n] + size))),
      );
      project(found.subarray(l * square, (l + 1) * square), spans[0], spans[1], size);
    }
    return found;
  };
  /** @type {(y: Float64Array, up: boolean[], frozen: Float64Array) => Opening[]} */
  const openings = (y, up, frozen) => {
    const at = only(y, up);
    return Array.from({ length: layers }, (_, l) => {
      const { gain, u, w } = leading(frozen.subarray(l * square, (l + 1) * square), size);
      if (gain < FITTED * first) return { gain: 0, size: Infinity };
      evaluate(at);
      const step = 1e-3,
        before = Float64Array.from(A);
      for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) M[l * square + i * size + j] += step * u[i] * w[j];
      residual(loss, M, A);
      let bent = 0;
      for (let i = 0; i < size; i++)
        for (let j = 0; j < size; j++) {
          const n = l * square + i * size + j;
          bent += ((before[n] - A[n]) / step) * u[i] * w[j];
        }
      return { gain, size: Math.cbrt(gain / bent) };
    });
  };
  const isAsleep = (/** @type {number} */ i, /** @type {boolean[]} */ up) =>
    !up[i < heads ? i : Math.floor((i - heads) / size) % heads];
  /** The force on some heads, in units of a drop. @type {(y: Float64Array, up: boolean[], opening: Opening) => number} */
  const force = (y, up, { gain, size }) => {
    together(0, y, slope);
    return Math.sqrt(slope.reduce((sum, x, i) => (isAsleep(i, up) ? sum : sum + x * x), 0)) / (gain * size ** 2);
  };
  /** Where some heads come to rest without the others. @type {(y: Float64Array, up: boolean[], opening: Opening) => Float64Array} */
  const settled = (y, up, opening) => {
    let looks = 0;
    const path = integrate(together, { t: 0, y: only(y, up) }, {
      rtol: 1e-6,
      atol: 1e-7 * opening.size,
      limit: SETTLING,
      stop: (_, w) => ++looks % LOOK === 0 && force(w, up, opening) < STILL,
    });
    return path[path.length - 1].y;
  };
  /** The rest that the heads awake are close to, if no one of them turns away from it. @type {(y: Float64Array, up: boolean[], opening: Opening) => Float64Array | null} */
  const restOf = (y, up, opening) => {
    const rest = settled(y, up, opening);
    evaluate(only(y, up));
    const before = Float64Array.from(A);
    evaluate(rest);
    if (Math.hypot(...A.map((x, i) => x - before[i])) > CLOSE * opening.gain) return null;
    // The largest eigenvalue of -J: how fast the heads awake would grow away.
    const away = sharpness(rest, (w, out) => {
      together(0, w, out);
      for (let i = 0; i < out.length; i++) out[i] = isAsleep(i, up) ? 0 : -out[i];
    });
    return away / 2 < TURNING * opening.gain * opening.size ? rest : null;
  };

  const path = [now];
  /** @type {Drop[]} */ const drops = [];
  const levels = [loss.power];
  while (awake.includes(false)) {
    const asleep = awake.map((up) => !up),
      frozen = left(now.y, awake),
      open = openings(now.y, awake, frozen);
    const gain = Math.max(...open.map((one) => one.gain));
    first ||= gain;
    if (gain === 0) break;
    const opening = open[open.findIndex((one) => one.gain === gain)];
    floor = Math.min(floor, ...open.map((one) => AWAKE * one.size));
    const near = (/** @type {Float64Array} */ y) =>
      asleep.some((rests, h) => rests && Math.abs(y[h]) * LEAD > open[Math.floor(h / each)].size);
    const wait = integrate(dormant(shape, frozen, asleep), now, {
      atol: 1e-8 * rootMeanSquare(start),
      stop: (_, y) => near(y),
    });
    now = wait[wait.length - 1];
    if (!near(now.y)) break; // no head that is left ever escapes
    path.push(...wait.slice(1));

    /** Each time that a head rises while those before it are under way. @type {{y: Float64Array, up: boolean[]}[]} */
    const risen = [];
    let up = awake,
      looks = 0,
      tried = NEAR;
    /** @type {Float64Array | null} */ let rest = null;
    const down = integrate(together, now, {
      rtol: 1e-6,
      atol: 1e-7 * rootMeanSquare(start),
      limit: LONG,
      stop: (_, y) => {
        const before = up;
        up = up.map((was, h) => was || Math.abs(y[h]) > floor);
        if (differ(up, before)) {
          if (differ(before, awake)) risen.push({ y: Float64Array.from(y), up: before });
          tried = NEAR;
        }
        if (!differ(up, awake) || ++looks % LOOK) return false;
        const still = force(y, up, opening);
        if (still > tried) return false;
        tried = still / 3; // to settle takes long: again when the force has fallen to a third
        rest = restOf(y, up, opening);
        return rest !== null;
      },
    });
    path.push(...down.slice(1));
    now = down[down.length - 1];
    if (rest) now = { t: now.t, y: Float64Array.from(now.y, (x, i) => (isAsleep(i, up) ? x : /** @type {Float64Array} */ (rest)[i])) };
    const steps = [...risen.map((one) => evaluate(settled(one.y, one.up, opening))), evaluate(only(now.y, up))];
    const losses = down.map(({ y }) => evaluate(y));
    for (const level of steps) {
      const last = levels[levels.length - 1],
        middle = (last + level) / 2,
        at = losses.findIndex((value) => value < middle);
      if (level > last * (1 - 1e-9) || at < 1) continue;
      const part = (losses[at - 1] - middle) / (losses[at - 1] - losses[at]);
      together(0, down[at].y, slope); // the head that makes the drop is the one that moves
      const speeds = slope.slice(0, heads).map((x, h) => Math.hypot(x, ...blocks(h).flatMap((at) => [...slope.subarray(at, at + size)])));
      const head = fastest(speeds, heads),
        key = now.y.subarray(blocks(head)[0], blocks(head)[0] + size);
      const mode = key.reduce((top, x, d) => (Math.abs(x) > Math.abs(key[top]) ? d : top), 0);
      drops.push({ time: down[at - 1].t + part * (down[at].t - down[at - 1].t), head, mode });
      levels.push(level);
    }
    awake = up;
    if (!rest) break; // it took longer than it was followed for
  }
  return {
    by: "layers",
    drops,
    levels,
    times: Float64Array.from(path, ({ t }) => t),
    loss: Float64Array.from(path, ({ y }) => evaluate(y)),
    values: Array.from({ length: heads }, (_, h) => Float64Array.from(path, ({ y }) => Math.abs(y[h]))),
  };
}

/** @type {(a: boolean[], b: boolean[]) => boolean} */
const differ = (a, b) => a.some((x, i) => x !== b[i]);

/** Vectors of length one that span the same. @type {(vectors: Float64Array[]) => Float64Array[]} */
function orthonormal(vectors) {
  /** @type {Float64Array[]} */ const found = [];
  for (const vector of vectors) {
    const left = Float64Array.from(vector);
    for (let twice = 0; twice < 2; twice++)
      for (const other of found) {
        const share = left.reduce((sum, x, i) => sum + x * other[i], 0);
        for (let i = 0; i < left.length; i++) left[i] -= share * other[i];
      }
    const length = Math.hypot(...left);
    if (length > 1e-4 * Math.hypot(...vector)) found.push(left.map((x) => x / length));
  }
  return found;
}

/** (1 - U Uᵀ) A (1 - W Wᵀ), in place. @type {(A: Float64Array, rows: Float64Array[], columns: Float64Array[], size: number) => void} */
function project(A, rows, columns, size) {
  for (const u of rows)
    for (let j = 0; j < size; j++) {
      let share = 0;
      for (let i = 0; i < size; i++) share += u[i] * A[i * size + j];
      for (let i = 0; i < size; i++) A[i * size + j] -= share * u[i];
    }
  for (const w of columns)
    for (let i = 0; i < size; i++) {
      let share = 0;
      for (let j = 0; j < size; j++) share += w[j] * A[i * size + j];
      for (let j = 0; j < size; j++) A[i * size + j] -= share * w[j];
    }
}

/** The leading singular value of A with its vectors, by turns. @type {(A: Float64Array, size: number) => {gain: number, u: Float64Array, w: Float64Array}} */
function leading(A, size) {
  const unit = (/** @type {Float64Array} */ x) => {
    const length = Math.hypot(...x) || 1;
    return x.map((value) => value / length);
  };
  let u = new Float64Array(size),
    w = unit(Float64Array.from({ length: size }, (_, i) => Math.cos(i + 1))),
    gain = 0;
  for (let n = 0; n < 200; n++) {
    const left = Float64Array.from({ length: size }, (_, i) => w.reduce((sum, x, j) => sum + A[i * size + j] * x, 0));
    gain = Math.hypot(...left);
    if (gain === 0) break;
    u = unit(left);
    w = unit(Float64Array.from({ length: size }, (_, j) => u.reduce((sum, x, i) => sum + A[i * size + j] * x, 0)));
  }
  return { gain, u, w };
}
