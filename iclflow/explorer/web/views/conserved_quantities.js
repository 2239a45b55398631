// What gradient flow conserves, in numbers; descent at rate η lets it drift in first order of η.

import { extraBlocks } from "../kernel/blocks.js";
import { count, isLinear, weightsAt } from "./context.js";

/** @typedef {import("./context.js").Run} Run */

/** The names of the conserved quantities of a model, with their equations. @type {(setup: import("./context.js").Setup) => string[]} */
export function conservedNames(setup) {
  const { kind } = setup.shape;
  if (setup.partial) return []; // weights that are not here take part in them (E7)
  if (kind === "transformer") return ["Σ (p² − q²)", "p² − q²"];
  if (setup.shape.full)
    return kind === "merged" ? ["‖(𝐯, v)‖² − ‖(U, 𝐮)‖²"] : ["‖(k, k′)‖² − ‖(𝐯, v)‖²", "‖(k, k′)‖² − ‖q‖²"];
  if (kind === "merged") return isLinear(setup) ? ["v² − ‖U‖²"] : [];
  return isLinear(setup) ? ["‖k‖² − v²", "‖k‖² − ‖q‖²"] : ["‖k‖² − ‖q‖²"];
}

/** Their values at a save: [quantity][head or mode]. @type {(run: Run, index: number) => number[][]} */
export function conserved(run, index) {
  const { setup } = run,
    { kind, heads, rank, size } = setup.shape,
    w = weightsAt(run, index);
  const square = (/** @type {number} */ at, /** @type {number} */ length) => {
    let sum = 0;
    for (let i = at; i < at + length; i++) sum += w[i] * w[i];
    return sum;
  };
  if (kind === "transformer") {
    const each = count(setup.settings.spectrum.length).map((d) => w[d] ** 2 - w[size + d] ** 2);
    return [[each.reduce((a, b) => a + b, 0)], each];
  }
  const each = count(heads),
    { inputs, labels } = extraBlocks(setup.shape);
  const values = each.map((h) => w[h] ** 2 + (setup.shape.full ? square(inputs + h * size, size) : 0));
  const label = (/** @type {number} */ h, /** @type {number} */ length) =>
    setup.shape.full ? square(labels + h * length, length) : 0;
  if (kind === "merged")
    return isLinear(setup)
      ? [each.map((h) => values[h] - square(heads + h * size * size, size * size) - label(h, size))]
      : [];
  const keys = each.map((h) => square(heads + h * rank * size, rank * size) + label(h, rank));
  const queries = each.map((h) => square(heads + (heads + h) * rank * size, rank * size));
  const inside = each.map((h) => keys[h] - queries[h]);
  return isLinear(setup) ? [each.map((h) => keys[h] - values[h]), inside] : [inside];
}

/** The largest change of quantity n since the start. @type {(run: Run, index: number, n: number) => number} */
export function drift(run, index, n) {
  const [then, now] = [conserved(run, 0)[n], conserved(run, index)[n]];
  return Math.max(...now.map((x, i) => Math.abs(x - then[i])));
}
