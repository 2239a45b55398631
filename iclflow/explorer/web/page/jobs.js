// What is computed, wherever it runs: on the page while it is quick, in workers otherwise.

import { lossesOf } from "../kernel/blocks.js";
import { Descent, logSteps } from "../kernel/descent.js";
import { defaultRate, lossOfLayers, problems, stage } from "../kernel/experiment.js";
import { given } from "../kernel/given.js";
import { mixtureMoments } from "../kernel/mixture.js";
import { weightCount } from "../kernel/models.js";
import { initialWeights } from "../kernel/start.js";
import { hasQuick, predict } from "../theory/predict.js";
import { isSoftmax } from "./settings.js";

/** @typedef {import("./settings.js").Settings} Settings */
/** @typedef {import("../theory/dormant.js").Stairs} Stairs */
/** @typedef {import("./trainer.js").Test} Test */
/**
 * Everything about an experiment but its runs.
 * @typedef {object} Setup
 * @property {Settings} settings
 * @property {import("../kernel/task.js").Modes} modes
 * @property {import("../kernel/models.js").Shape} shape
 * @property {number} rate η
 * @property {number} horizon t/τ at the end
 * @property {number} steps
 * @property {Stairs | null} theory of the run in front
 * @property {boolean} rough whether a better theory is still to come
 * @property {string=} clock what time counts, where it is not t/τ
 * @property {string=} lossName what the loss is, where it is not E(y − ŷ)²
 * @property {{count: number, best: number[] | null}=} given where the prompts are somebody's: how many, and their least squares [D * D]
 * @property {boolean} partial whether weights were trained that the page does not show
 */

const TESTS = [
  { name: "test: any task", colour: "var(--c3)" },
  { name: "test: the fixed task", colour: "var(--c2)" },
];
const SAVES = 240; // evenly in the logarithm of time, and besides wherever the loss moves
const MOVED = 1 / 250; // of E[y²]
const BEYOND = 1.3; // times the last predicted drop: the end of a run that was given none, as in the library
const BEYOND_ONE = 2; // the same of models whose one drop has a long tail
const BEYOND_OWN = 12; // the same of merged heads on given prompts, of any scale
const BEYOND_FIRST = 8; // times the first drop, where only that one is predicted
const UNPREDICTED_STEPS = 10001;
const LONGEST = 250000; // steps that the page takes unasked
const SOFTMAX_STEPS = 4000;

/** The theory of the run in front, at first the quick one, the rate and the end. @type {(settings: Settings) => Setup} */
export function plan(settings) {
  const { modes, shape } = stage(settings),
    own = settings.given ? given() : null;
  const start = initialWeights(settings, settings.seed + settings.front);
  const theory = predict(modes, shape, start, true, lossOfLayers(settings));
  const rate = settings.rate || defaultRate(settings);
  let { steps } = settings;
  if (!steps && isSoftmax(settings)) steps = SOFTMAX_STEPS;
  if (!steps && shape.full && !theory.drops.length) steps = UNPREDICTED_STEPS;
  if (!steps) {
    const slowest = Math.min(...modes.order.map((d) => modes.g[d]));
    const last = theory.drops[theory.drops.length - 1]?.time ?? 30 / slowest;
    steps = Math.min(LONGEST, Math.ceil(niceAbove(beyond(settings, shape) * last) / (2 * rate)));
  }
  return {
    settings,
    modes,
    shape,
    rate,
    steps,
    horizon: 2 * rate * steps,
    theory,
    rough: hasQuick(modes, shape),
    partial: false,
    ...(own && { given: { count: own.count, best: own.best } }),
  };
}

/** Whether already the plan takes longer than a frame. @type {(settings: Settings) => boolean} */
export const plansLong = ({ layers }) => layers > 1;

/** How far a run goes on, in times of the last predicted drop. @type {(settings: Settings, shape: import("../kernel/models.js").Shape) => number} */
function beyond(settings, { kind, full }) {
  if (full) return BEYOND_FIRST;
  if (kind === "separate") return BEYOND;
  return settings.given ? BEYOND_OWN : BEYOND_ONE;
}

/** Runs of an experiment, each to be advanced piece by piece. @type {(settings: Settings, rate: number, steps: number) => (index: number) => Descent} */
export function runsOf(settings, rate, steps) {
  const problem = problems(settings),
    { modes } = stage(settings);
  const marks = logSteps(steps, SAVES);
  return (index) => new Descent(problem(settings.seed + index), { rate, marks, moved: MOVED * modes.power });
}

/** The two test losses of a run with a fixed task, from what was saved since `before`. @type {(setup: Setup, weights: Float64Array, before?: Test[]) => Test[]} */
export function testsOf({ settings, shape, modes }, weights, before) {
  if (!modes.moments) return [];
  const count = weightCount(shape);
  const saved = Array.from({ length: weights.length / count }, (_, i) => weights.subarray(i * count, (i + 1) * count));
  const found = lossesOf(shape, [mixtureMoments(settings, 0), mixtureMoments(settings, 1)], saved);
  return found.map((losses, n) => ({ ...TESTS[n], losses: joined(before?.[n].losses, losses) }));
}

/** One array behind another. @type {(a: Float64Array | undefined, b: Float64Array) => Float64Array} */
export function joined(a, b) {
  if (!a) return b;
  const both = new Float64Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

/** What the theory says of one start. @type {(settings: Settings, index: number, quick?: boolean) => Stairs} */
export function theoryOf(settings, index, quick = false) {
  const { modes, shape } = stage(settings);
  return predict(modes, shape, initialWeights(settings, settings.seed + index), quick, lossOfLayers(settings));
}

/** About how many nanoseconds a run takes. @type {(setup: Setup) => number} */
export function cost({ settings, modes, shape, steps }) {
  if (settings.sequences || settings.layers > 1) return Infinity;
  if (settings.given) return steps * (100 + 2 * shape.heads * shape.rank * shape.size ** 2 + shape.size ** 4);
  if (shape.kind === "separate" && !shape.full) return steps * (30 + 0.55 * shape.heads * shape.rank * shape.size ** 2); // compiled
  if (modes.moments) return steps * (2 * modes.moments.values.length + 20 * shape.heads * shape.rank * shape.size ** 3);
  return steps * (100 + 2 * shape.heads * shape.rank * shape.size ** 2);
}

/** The next of 1, 1.2, 1.5, 2, 2.5, … × 10ⁿ: an axis that does not tremble while a slider moves. @type {(x: number) => number} */
function niceAbove(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  return ([1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8].find((step) => step * unit >= x) ?? 10) * unit;
}
