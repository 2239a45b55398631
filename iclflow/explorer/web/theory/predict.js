// What the theory says of a start before any training: one door to all of it.

import { ordered } from "../kernel/task.js";
import { byCourse } from "./by_course.js";
import { byFlow } from "./by_flow.js";
import { mergedCourse } from "./merged.js";
import { transformerCourse } from "./transformer.js";

/** @typedef {import("../kernel/task.js").Modes} Modes */
/** @typedef {import("../kernel/models.js").Shape} Shape */
/** @typedef {import("./dormant.js").Stairs} Stairs */

/** The best prediction there is for a task and start. @type {(modes: Modes, shape: Shape, start: Float64Array) => Stairs} */
export function predict(modes, shape, start) {
  if (shape.kind === "transformer") return transformerCourse(modes, shape, start);
  if (shape.kind === "merged") return mergedCourse(modes, shape, start);
  return (shape.rank === 1 && ordered(modes) ? byCourse : byFlow)(modes, shape, start);
}
