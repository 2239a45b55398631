// What the theory says of a start before any training: one door to all of it.

import { given } from "../kernel/given.js";
import { weightCount } from "../kernel/models.js";
import { ordered } from "../kernel/task.js";
import { byCourse } from "./by_course.js";
import { byFlow } from "./by_flow.js";
import { byLayers } from "./by_layers.js";
import { courseThrough } from "./course.js";
import { firstDrop, UNKNOWN } from "./first_drop.js";
import { mergedCourse } from "./merged.js";
import { transformerCourse } from "./transformer.js";

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./dormant.js").Stairs} Stairs */

const FEW = 80; // weights up to which the flow is followed within a frame

/** Whether a scalar course (26) belongs to each drop. @type {(modes: Modes, shape: Shape) => boolean} */
const scalar = (modes, shape) =>
  shape.kind === "separate" && shape.rank === 1 && !shape.full && !modes.coupled && ordered(modes);

/** Whether `predict` has a quicker answer, a hundred times less accurate, for a first picture. @type {(modes: Modes, shape: Shape) => boolean} */
export const hasQuick = (modes, shape) => scalar(modes, shape) && weightCount(shape) > FEW;

/** The prediction as the library makes it, down each drop by the flow; `quick`: by scalar courses where the flow takes long; `layers`: the loss of several. @type {(modes: Modes, shape: Shape, start: Float64Array, quick?: boolean, layers?: import("../kernel/models.js").Loss | null) => Stairs} */
export function predict(modes, shape, start, quick = false, layers = null) {
  if (layers) return byLayers(shape, start, layers);
  if (shape.kind === "transformer") return transformerCourse(modes, shape, start);
  if (modes.moments) return shape.kind === "merged" ? firstDrop(modes.moments, shape, start) : UNKNOWN;
  const prompts = modes.coupled ? given() : null;
  if (prompts) return byFlow(modes, shape, start, prompts.loss);
  if (shape.kind === "merged") return mergedCourse(modes, shape, start);
  if (quick && hasQuick(modes, shape)) return byCourse(modes, shape, start);
  const stairs = byFlow(modes, shape, start);
  if (!scalar(modes, shape)) return stairs;
  // What is drawn for the value weights is (26), set going at each predicted drop.
  const values = stairs.values.map((small, head) => {
    const drop = stairs.drops.find((one) => one.head === head);
    if (!drop) return small;
    const d = modes.order[drop.mode];
    return stairs.times.map(courseThrough(modes.g[d], modes.c[d], drop.time));
  });
  return { ...stairs, by: "course", values };
}
