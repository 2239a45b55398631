// With a share of fixed tasks: the first drop of merged key and query, along the leading direction of E[y S ⊗ x_q].

import { extraBlocks } from "../kernel/blocks.js";
import { leadingDirection } from "../kernel/mixture.js";

/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./dormant.js").Stairs} Stairs */

const POINTS = 300;
const UNTIL = 0.9; // of the way: it knows nothing of what comes after
/** Where the theory says nothing. @type {Stairs} */
export const UNKNOWN = { by: "none", drops: [], times: new Float64Array(0), loss: new Float64Array(0), values: [] };
const HALFWAY = 1 - Math.SQRT1_2; // of the way of s, where the loss is halfway down

/** On that line τ ds/dt = 2 s (σ₁ - κ s) as in (15), from s(0) = ¼ Σ (a·u + b·w)² over the heads. @type {(moments: import("../kernel/mixture.js").Moments, shape: Shape, start: Float64Array) => Stairs} */
export function firstDrop(moments, shape, start) {
  const { gain, curvature, left, right } = leadingDirection(moments),
    { heads, size } = shape,
    { inputs, labels } = extraBlocks(shape),
    width = moments.size;
  let first = 0;
  for (let h = 0; h < heads; h++) {
    let along = start[h] * left[width];
    for (let d = 0; d < width; d++) {
      along += start[inputs + h * size + d] * left[d] + start[labels + h * size + d] * right[width * width + d];
      for (let c = 0; c < width; c++) along += start[heads + (h * size + d) * size + c] * right[d * width + c];
    }
    first += along ** 2 / 4;
  }
  const end = gain / curvature,
    wait = end / first - 1;
  if (!(wait > 0)) return UNKNOWN; // the start is no small one
  const time = (/** @type {number} */ share) => Math.log((share / (1 - share)) * wait) / (2 * gain);
  const last = Math.max(time(UNTIL), 0);
  const times = Float64Array.from({ length: POINTS }, (_, i) => (last * i) / (POINTS - 1));
  const loss = times.map((t) => {
    const s = end / (1 + wait * Math.exp(-2 * gain * t));
    return moments.power - 2 * gain * s + curvature * s * s;
  });
  const drops = time(HALFWAY) > 0 ? [{ time: time(HALFWAY), head: -1, mode: 0 }] : [];
  return { by: "first", drops, times, loss, values: [] };
}
