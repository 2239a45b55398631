// The page's own test: its kernel against what the library computed, in Node, in a browser, behind "test this page".

import { Descent } from "../kernel/descent.js";
import { defaultRate, lossOfLayers, problems, stage } from "../kernel/experiment.js";
import { lossesOf } from "../kernel/blocks.js";
import { mixtureMoments } from "../kernel/mixture.js";
import { effective } from "../kernel/models.js";
import { basisOf, initialWeights, packed, rightProduct } from "../kernel/start.js";
import { distances, ordered, principal } from "../kernel/task.js";
import { byCourse } from "../theory/by_course.js";
import { byFlow } from "../theory/by_flow.js";
import { predict } from "../theory/predict.js";
import { isSoftmax, valid } from "./settings.js";

/** @typedef {{what: string, error: number, tolerance: number}} Finding */
/** @typedef {import("../theory/dormant.js").Stairs} Stairs */

const REACH = 0.5; // init scale up to which the theory is a theory

/** @type {(a: ArrayLike<number>, b: ArrayLike<number>) => number} */
const gap = (a, b) =>
  Array.from(a).reduce((top, x, i) => Math.max(top, Math.abs(x - b[i])), a.length === b.length ? 0 : Infinity);
/** @type {(a: ArrayLike<number>, b: ArrayLike<number>) => number} */
const relative = (a, b) =>
  Array.from(a).reduce((top, x, i) => Math.max(top, Math.abs(x / b[i] - 1)), a.length === b.length ? 0 : Infinity);

/** Repeat one run of reference.json and compare. @param {any} run @returns {Finding[]} */
export function check(run) {
  const settings = valid({ task_covariance: [], ...run.settings }),
    { modes, shape } = stage(settings);
  const { seed, rate, scale, spectrum } = settings;
  const size = spectrum.length,
    basis = basisOf(settings),
    start = initialWeights(settings, seed);
  const given = (/** @type {number[][]} */ parts) =>
    shape.kind === "transformer" ? diagonals(parts, basis, size) : packed({ ...shape, size }, parts, basis);
  const train = (/** @type {boolean} */ fast) => {
    const descent = new Descent(problems(settings)(seed, fast), { rate, marks: run.marks });
    descent.advance(Infinity);
    return descent;
  };
  const descent = train(true);
  /** @type {Finding[]} */
  const found = [
    { what: "weights of the seed", error: gap(start, given(run.start)) / scale, tolerance: 1e-14 },
    { what: "loss", error: gap(descent.losses, run.loss), tolerance: 1e-12 },
    { what: "final weights", error: gap(descent.problem.weights, given(run.end)), tolerance: 1e-11 },
  ];
  if (shape.kind === "separate" && !settings.sequences && !shape.full)
    found.push({ what: "loss, plain JavaScript", error: gap(train(false).losses, run.loss), tolerance: 1e-12 });
  if (run.levels && !shape.layers)
    found.push({ what: "plateau levels", error: gap(modes.levels, run.levels), tolerance: shape.full ? 1e-12 : 1e-13 });
  if (run.tests) {
    const tests = lossesOf(shape, [mixtureMoments(settings, 0), mixtureMoments(settings, 1)], descent.saved);
    const error = Math.max(...tests.map((losses, n) => gap(losses, run.tests[n])));
    found.push({ what: "test losses, in context and in weight", error, tolerance: 1e-12 });
  }
  if (run.rate)
    found.push({ what: "default rate", error: relative([defaultRate(settings)], [run.rate]), tolerance: 6e-3 }); // three digits
  if (run.distance && principal(modes)) {
    const M = new Float64Array(shape.size ** 2);
    const all = descent.saved.map((w) => {
      effective(shape, w, M);
      return gap(distances(modes, M), run.distance[descent.saved.indexOf(w)]);
    });
    found.push({ what: "distances to PCR-m", error: Math.max(...all), tolerance: 1e-7 }); // rounding under a root
  }
  if (scale <= REACH && !isSoftmax(settings)) found.push(...theory(run, start));
  return found;
}

/** Drop times by every way that both sides have. @param {any} run @param {Float64Array} start @returns {Finding[]} */
function theory(run, start) {
  const settings = valid({ task_covariance: [], ...run.settings }),
    { modes, shape } = stage(settings);
  return Object.entries(run.times ?? {}).flatMap(([by, times]) => {
    const layers = lossOfLayers(settings);
    const own = layers || by !== "flow" ? predict(modes, shape, start, false, layers) : byFlow(modes, shape, start);
    // Accepted steps of two integrators are not the same; the flow is interpolated between them.
    const tolerance = /** @type {Record<string, number>} */ ({ flow: 5e-4, merged: 2e-4, layers: 5e-3 })[by] ?? 1e-12;
    const drops = own.drops.map((drop) => drop.time);
    /** @type {Finding[]} */
    const found = [{ what: `drop times by ${by}`, error: relative(drops, /** @type {number[]} */ (times)), tolerance }];
    if (by !== "flow" && !layers) return found;
    /** @type {(stairs: Stairs) => number[]} */
    const heads = (stairs) => stairs.drops.map((d) => d.head);
    found.push({ what: "heads", error: gap(heads(own), run.heads), tolerance: 0 });
    if (layers)
      return [...found, { what: "plateau levels", error: gap(own.levels ?? [], run.levels), tolerance: 2e-4 }];
    if (shape.rank > 1 || !ordered(modes)) return found; // the page takes the flow for these
    // Scalar courses leave out that heads feel each other: a few percent at these init scales.
    const quick = byCourse(modes, shape, start).drops.map((drop) => drop.time);
    const error = relative(quick, /** @type {number[]} */ (times));
    return [...found, { what: "drop times by course", error, tolerance: 0.1 }];
  });
}

/** Eᵀ W E of p₂ and q₁, which are diagonal there. @type {(parts: number[][], basis: Float64Array | null, size: number) => Float64Array} */
function diagonals(parts, basis, size) {
  const wide = 4 * Math.ceil(size / 4),
    w = new Float64Array(2 * wide);
  parts.forEach((part, n) => {
    const turned = basis ? rightProduct(part, basis, size) : part;
    for (let d = 0; d < size; d++)
      for (let i = 0; i < size; i++)
        w[n * wide + d] += (basis ? basis[i * size + d] : i === d ? 1 : 0) * turned[i * size + d];
  });
  return w;
}
