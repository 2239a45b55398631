// What every view is given, and what several of them need.

import { effective, matrixSize, weightCount } from "../kernel/models.js";
import { principal } from "../kernel/task.js";
import { scale } from "./svg.js";

/** @typedef {import("../page/trainer.js").Run} Run */
/** @typedef {import("../page/jobs.js").Setup} Setup */
/** `index`: the save that the time cursor is on. @typedef {{setup: Setup, front: Run | undefined, runs: Run[], cloud: number[][], index: number, log: boolean, playing: boolean}} Context */
/** Rows of numbers and texts under names. @typedef {{columns: string[], rows: (number | string)[][]}} Table */

export const LEFT = 44,
  RIGHT = 122,
  RIGHT_NARROW = 58;

/** The time axis that the loss, the strip and the value weights share. @type {(context: Context, width: number) => import("./svg.js").Scale} */
export function timeScale({ setup, log }, width) {
  const first = setup.theory?.drops[0]?.time ?? setup.horizon / 100;
  const from = log ? Math.max(2 * setup.rate, Math.min(first / 5, setup.horizon / 20)) : 0;
  return scale(log, [from, setup.horizon], [LEFT, width - (width < 560 ? RIGHT_NARROW : RIGHT)]);
}

/** What the time axis is called. @type {(context: Context) => string} */
export const clockName = ({ setup }) => setup.clock ?? "training time t/τ";

/** The weights of a run at one save. @type {(run: Run, index: number) => Float64Array} */
export function weightsAt(run, index) {
  const count = weightCount(run.setup.shape);
  return run.weights.subarray(index * count, (index + 1) * count);
}

/** M of a run at one save, of each layer one behind the other. @type {(run: Run, index: number) => Float64Array} */
export function matrixAt(run, index) {
  const M = new Float64Array(matrixSize(run.setup.shape));
  effective(run.setup.shape, weightsAt(run, index), M);
  return M;
}

/** The colour of component d, counted from zero in order of variance; neutral for none. @type {(d: number | undefined) => string} */
export const colour = (d) => (d === undefined || d < 0 ? "var(--soft)" : `var(--c${(d % 8) + 1})`);

/** The same for text, nearer to the ink: thin strokes need more contrast. @type {(d: number | undefined) => string} */
export const textColour = (d) => `color-mix(in oklab, ${colour(d)} 70%, var(--ink))`;

export const DIGITS = "₁₂₃₄₅₆₇₈";

/** The name of component d. @type {(d: number) => string} */
export const component = (d) => `e${DIGITS[d]}`;

/** The name of what a drop learns. @type {(setup: Setup, drop: import("../theory/dormant.js").Drop) => string} */
export function learned({ modes, shape, given }, { mode, head }) {
  if (shape.layers) return `${component(mode)}, layer ${layerOf(shape, head) + 1}`;
  return given ? `mode ${mode + 1}` : component(modes.order[mode]);
}

/** The component whose colour a drop has, or -1. @type {(setup: Setup, drop: import("../theory/dormant.js").Drop) => number} */
export const componentOf = ({ modes, shape }, { mode }) =>
  shape.layers ? mode : shape.kind === "merged" ? -1 : modes.order[mode];

/** The layer of a head, from zero. @type {(shape: import("../kernel/models.js").Shape, head: number) => number} */
export const layerOf = ({ heads, layers = 1 }, head) => Math.floor((head * layers) / heads);

/** The name of a head. @type {(shape: import("../kernel/models.js").Shape, head: number) => string} */
export const headName = (shape, head) =>
  shape.layers ? `layer ${layerOf(shape, head) + 1}, ${(head % (shape.heads / shape.layers)) + 1}` : `head ${head + 1}`;

/** Whether each save has a linear map M: softmax attention applies none. @type {(setup: Setup) => boolean} */
export const isLinear = ({ settings }) => !settings.model.startsWith("softmax");

/** Whether the answer is βᵀM x_q: one output, linear, and no other block trained. @type {(setup: Setup) => boolean} */
export const isMap = (setup) =>
  isLinear(setup) && !setup.given && setup.shape.kind !== "transformer" && !setup.shape.full && !setup.shape.layers;

/** What a model uses that has learned m components, in words. @type {(m: number, setup: Setup) => string} */
export function algorithm(m, { modes, shape, given, theory }) {
  const all = modes.order.length;
  if (m === 0) return "nothing";
  if (shape.layers) {
    const up = new Set(theory?.drops.slice(0, m).map(({ head }) => head));
    const second = [...up].filter((head) => layerOf(shape, head) > 0).length;
    return `${up.size - second} + ${second} heads`;
  }
  if (shape.full) return m < modes.levels.length - 1 ? "first drop" : "least loss";
  if (m === all && given) return "least squares";
  if (shape.kind === "transformer" || given) return `${m} ${m === 1 ? "mode" : "modes"}`;
  if (m === all) return "least squares";
  return `${m === 1 ? "component" : "components"} ${shortly(m, modes)}`;
}

/** The components themselves: 1, 1–3, or 2, 1. @type {(m: number, modes: import("../kernel/task.js").Modes) => string} */
export function shortly(m, modes) {
  if (m > 1 && principal(modes)) return `1–${m}`;
  return modes.order
    .slice(0, m)
    .map((d) => d + 1)
    .join(", ");
}

/** The same as a sentence about the model. @type {(m: number, setup: Setup) => [string, string]} */
export function doing(m, setup) {
  const name = algorithm(m, setup);
  if (m === 0) return ["predicts", "nothing yet"];
  return [name === "least squares" ? "does" : "uses", name];
}

/** What statistics calls it, for those who want to look it up. @type {(m: number, setup: Setup) => string} */
export function termOf(m, { modes, shape, given }) {
  if (shape.layers) return "The least loss with so many heads in the first and in the second layer (D20).";
  if (shape.full || given || shape.kind === "transformer") return "";
  if (m === 0) return "The model's answer is zero: L = E[y²].";
  if (m === modes.order.length) return "Least squares on β, the best that this model can do (23).";
  return principal(modes)
    ? `Principal component regression with ${m} ${m === 1 ? "component" : "components"}, PCR-${m} (27).`
    : "Regression on these components (27).";
}

/** How much of each component is in a head: k_d² and q_d² over its rank, or the diagonal of U. @type {(run: Run, w: Float64Array, head: number) => {keys: Float64Array[], queries: Float64Array[]}} */
export function shares({ setup: { shape, settings } }, w, head) {
  const { heads, rank, size, kind } = shape;
  const row = (/** @type {number} */ at, /** @type {number} */ stride) => {
    const parts = Float64Array.from(settings.spectrum, (_, d) => w[at + d * stride] ** 2);
    const sum = parts.reduce((a, b) => a + b, 0) || 1;
    return parts.map((x) => x / sum);
  };
  if (kind === "merged") return { keys: [row(heads + head * size * size, size + 1)], queries: [] };
  const at = (/** @type {number} */ r) => heads + (head * rank + r) * size;
  const all = Array.from({ length: rank }, (_, r) => r);
  return { keys: all.map((r) => row(at(r), 1)), queries: all.map((r) => row(at(r) + heads * rank * size, 1)) };
}

/** The component that a head holds most of at a save. @type {(run: Run, index: number, head: number) => number} */
export function holds(run, index, head) {
  const [first] = shares(run, weightsAt(run, index), head).keys;
  return first.indexOf(Math.max(...first));
}

/** The numbers from 0 to n - 1. @type {(n: number) => number[]} */
export const count = (n) => Array.from({ length: n }, (_, i) => i);

/** @type {(x: number) => string} */
export const percent = (x) =>
  !Number.isFinite(x) ? "–" : x < 5e-5 ? "<0.01%" : `${Number((100 * x).toPrecision(x < 0.001 ? 1 : 2))}%`;
