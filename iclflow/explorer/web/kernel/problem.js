// A problem is a loss together with weights that descend on it; `Descent` knows nothing else of a model.

import { compiledLoop } from "./compiled.js";
import { effective, flow, lossOf, matrixSize, residual } from "./models.js";

/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("./models.js").Loss} Loss */
/**
 * `descend(clock, count)` makes `count` steps w += clock · flow, clock = 2η being t/τ a step (10).
 * @typedef {{weights: Float64Array, loss: () => number, descend: (clock: number, count: number) => void}} Problem
 */

/** Linear attention, in the population or on the Gram matrix of prompts; `fast`: by the compiled loop where it applies. @type {(shape: Shape, loss: Loss, start: Float64Array, fast?: boolean) => Problem} */
export function linearAttention(shape, loss, start, fast = true) {
  const compiled = fast ? compiledLoop(shape, loss, start) : null;
  const weights = compiled?.weights ?? Float64Array.from(start);
  const M = compiled?.M ?? new Float64Array(matrixSize(shape));
  const A = compiled?.A ?? new Float64Array(matrixSize(shape));
  const slope = new Float64Array(weights.length);
  return {
    weights,
    loss: () => {
      if (compiled) compiled.weigh();
      else {
        effective(shape, weights, M);
        residual(loss, M, A);
      }
      return lossOf(loss, M, A);
    },
    descend: (clock, count) => {
      if (compiled) return compiled.descend(clock, count);
      for (let n = 0; n < count; n++) {
        effective(shape, weights, M);
        residual(loss, M, A);
        flow(shape, weights, A, slope);
        for (let i = 0; i < weights.length; i++) weights[i] += clock * slope[i];
      }
    },
  };
}
