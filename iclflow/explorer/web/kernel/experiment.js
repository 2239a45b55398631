// From settings to what is trained: the modes of the task, the shape of the model, its start and its problem.

import { fullAttention } from "./blocks.js";
import { given } from "./given.js";
import { leadingDirection, leastLoss, mixtureMoments } from "./mixture.js";
import { populationLoss } from "./models.js";
import { linearAttention } from "./problem.js";
import { sampledLoss } from "./prompts.js";
import { stableRate, stableRateOfAll } from "./rate.js";
import { softmaxAttention } from "./softmax.js";
import { basisOf, initialWeights } from "./start.js";
import { modesOf } from "./task.js";
import { coupled, linearTransformer, transformerModes } from "./transformer.js";
import { pairLoss } from "./two_layers.js";

/** @typedef {import("./task.js").Modes} Modes */
/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("../page/settings.js").Settings} Settings */

/** The task as the model sees it, and the shape of its weights. @type {(settings: Settings) => {modes: Modes, shape: Shape}} */
export function stage(settings) {
  const { model, heads, rank, context, fixed_fraction: fixed } = settings,
    own = settings.given ? given() : null,
    modes = own?.modes ?? modesOf(settings);
  if (model === "linear-transformer")
    return {
      modes: transformerModes(modes, context),
      shape: { kind: "transformer", heads: 1, rank: 1, size: modes.size, full: false },
    };
  if (settings.layers > 1) {
    // Where a run rests depends on its start: the theory of the run has the levels.
    const pair = { kind: /** @type {const} */ ("separate"), heads: 2 * heads, rank, size: modes.size, full: false };
    return { modes: { ...modes, levels: [modes.power], coupled: true }, shape: { ...pair, layers: 2 } };
  }
  const kind = model.endsWith("merged") ? "merged" : "separate";
  /** @type {Shape} */ const shape = { kind, heads, rank, size: modes.size, full: fixed > 0 };
  if (!shape.full) return { modes, shape };
  const moments = mixtureMoments(settings);
  const levels = [moments.power, leastLoss(moments)];
  if (kind === "merged") {
    const { gain, curvature } = leadingDirection(moments);
    levels.splice(1, 0, moments.power - gain ** 2 / curvature); // after the first drop (15)
  }
  return { modes: { ...modes, power: moments.power, levels, moments }, shape };
}

/** The start of a seed in its loss; prompts are drawn once for all seeds. @type {(settings: Settings) => (seed: number, fast?: boolean) => import("./problem.js").Problem} */
export function problems(settings) {
  const { sequences, data_seed: dataSeed, context } = settings,
    { modes, shape } = stage(settings);
  if (shape.kind === "transformer") {
    const moments = coupled(modes, context);
    return (seed) => linearTransformer(moments, initialWeights(settings, seed));
  }
  if (shape.full) {
    const moments = mixtureMoments(settings);
    return (seed) => fullAttention(shape, moments, initialWeights(settings, seed));
  }
  const basis = basisOf(settings);
  if (settings.model.startsWith("softmax"))
    return (seed) => softmaxAttention(settings, shape, basis, sequences, dataSeed, initialWeights(settings, seed));
  const own = settings.given ? given() : null;
  const loss = shape.layers
    ? twoLayers(settings, modes)
    : own
      ? own.loss
      : sequences
        ? sampledLoss(settings, modes.size, sequences, dataSeed, basis)
        : populationLoss(modes);
  return (seed, fast = true) => linearAttention(shape, loss, initialWeights(settings, seed), fast);
}

/** The loss of two layers, where there are two. @type {(settings: Settings) => import("./models.js").Loss | null} */
export const lossOfLayers = (settings) => (settings.layers > 1 ? twoLayers(settings, stage(settings).modes) : null);

/** The population loss of two layers. @type {(settings: Settings, modes: Modes) => import("./models.js").Loss} */
const twoLayers = (settings, modes) => ({
  ...populationLoss(modes),
  curvature: null,
  pair: pairLoss(settings, modes.size),
});

/** The rate where none is given: the library's rule, in the population. @type {(settings: Settings) => number} */
export function defaultRate(settings) {
  const { modes, shape } = stage(settings);
  if (shape.full) return stableRateOfAll(shape, mixtureMoments(settings));
  if (shape.kind !== "transformer") {
    const own = settings.given ? given() : null,
      loss = shape.layers ? twoLayers(settings, modes) : (own?.loss ?? populationLoss(modes));
    const rate = stableRate(modes, shape, loss);
    return settings.model.startsWith("softmax") ? Number((2 * rate).toPrecision(3)) : rate;
  }
  // The Hessian of one mode at p q = a∞ is 2 v s² (p² + q²)/a∞ · ½; the largest of them limits the rate.
  return Number((0.25 / Math.max(...modes.order.map((d) => 2 * modes.g[d]))).toPrecision(3));
}
