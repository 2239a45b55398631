// Curves below the loss of a recorded run: value weights, modes, cosines, with their limits and what theory says of them.

import { colour } from "./context.js";
import { TimePlot } from "./plot.js";
import { keep, line, set, svg } from "./svg.js";

/** @typedef {import("./context.js").Context} Context */
/** @typedef {{lines: number[][], linesTheory?: number[][], time: number[]}} Lined */

export class LinesView extends TimePlot {
  /** @param {HTMLElement} host @param {string} name @param {(number | null)[]} ends their dotted limits */
  constructor(host, name, ends) {
    super(host, `${name} over training time`);
    this.name = name;
    this.ends = ends.filter((end) => end !== null);
  }

  /** @param {Context} context @param {Lined} run */
  draw(context, { lines, linesTheory = [], time }) {
    const all = [...lines, ...linesTheory, this.ends].flat();
    const low = Math.min(0, ...all),
      high = Math.max(...all);
    const { x, y } = this.axes(context, [1.06 * low, 1.06 * high], this.name, (x, y) =>
      this.ends.map((end) => {
        const [x1, x2] = x.range;
        return svg("line", { class: "level", x1, x2, y1: y(end), y2: y(end) });
      }),
    );
    this.drawLines(
      context,
      lines.map((ys, n) => ({ ys, colour: colour(n) })),
    );
    keep(this.dashes, "path", linesTheory.length).forEach((path, n) =>
      set(path, { class: "theory thin", d: line(x, y, time, linesTheory[n]) }),
    );
    this.move(context);
  }
}
