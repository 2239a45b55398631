// The value weights |v| of the heads, and the scalar course (26) that the theory gives them; a = p q of the transformer.

import { weightCount } from "../kernel/models.js";
import { colour, count, DIGITS, holds, textColour } from "./context.js";
import { TimePlot } from "./plot.js";
import { keep, line, set, svg } from "./svg.js";

/** @typedef {import("./context.js").Context} Context */

export class ValuesView extends TimePlot {
  /** @param {HTMLElement} host */
  constructor(host) {
    super(host, "Value weights over training time");
  }

  /** @param {Context} context */
  draw(context) {
    const { front, setup } = context,
      { modes, theory, shape } = setup;
    const transformer = shape.kind === "transformer",
      total = weightCount(shape),
      lines = transformer ? setup.settings.spectrum.length : shape.heads;
    const fits = front && front.setup.shape.kind === shape.kind && weightCount(front.setup.shape) === total;
    const value = (/** @type {number} */ i, /** @type {number} */ n) => {
      const w = /** @type {import("./context.js").Run} */ (front).weights;
      return transformer ? w[i * total + n] * w[i * total + shape.size + n] : Math.abs(w[i * total + n]);
    };
    const curves =
      front && fits
        ? count(lines).map((n) => ({
            ys: Float64Array.from(front.times, (_, i) => value(i, n)),
            colour: transformer
              ? colour(n)
              : shape.kind === "merged"
                ? "var(--run)"
                : colour(holds(front, front.times.length - 1, n)),
          }))
        : [];
    const ends = modes.order.map((d) => (transformer ? modes.m[d] : Math.cbrt(modes.m[d])));
    const top = Math.max(...ends, ...curves.map(({ ys }) => ys.reduce((a, b) => Math.max(a, b), 0)));
    const named = transformer || (shape.kind === "separate" && shape.rank === 1 && !shape.full && !shape.layers && !setup.given);
    const { x, y } = this.axes(context, [0, 1.06 * top], transformer ? "a = p q" : "|v|", (x, y) =>
      named
        ? modes.order.flatMap((d, n) => {
            const at = y(ends[n]);
            const level = {
              class: "level",
              x1: x.range[0],
              x2: x.range[1],
              y1: at,
              y2: at,
              style: `stroke: ${colour(d)}`,
            };
            const crowded = n > 0 && Math.abs(at - y(ends[n - 1])) < 11;
            const name = `${transformer ? "a" : "v"}${DIGITS[d]}`;
            const text = svg("text", { x: x.range[1] + 5, y: at + 4, style: `fill: ${textColour(d)}` }, name);
            return [svg("line", level), ...(crowded ? [] : [text])];
          })
        : [],
    );
    this.drawLines(context, curves);
    keep(this.dashes, "path", theory?.values.length ?? 0).forEach(
      (path, n) =>
        theory && set(path, { class: "theory thin", d: `${line(x, y, theory.times, theory.values[n])}H${x.range[1]}` }),
    );
    this.move(context);
  }

  /** @param {Context} context */
  table(context) {
    const name = context.setup.shape.kind === "transformer" ? "a" : "v";
    return this.numbers(
      context,
      this.curves.map((_, n) => `${name}_${n + 1}`),
    );
  }
}
