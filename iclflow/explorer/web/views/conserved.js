// What the flow conserves, over time: flat lines, and a drift that is the rate's doing.

import { colour, count, holds } from "./context.js";
import { conserved, conservedNames } from "./conserved_quantities.js";
import { TimePlot } from "./plot.js";

/** @typedef {import("./context.js").Context} Context */

export class ConservedView extends TimePlot {
  /** @param {HTMLElement} host */
  constructor(host) {
    super(host, "Conserved quantities over training time");
  }

  /** @param {Context} context */
  draw(context) {
    const { front, setup } = context;
    const names = conservedNames(setup);
    const fits = front && front.setup.shape.kind === setup.shape.kind;
    const all = front && fits ? count(front.times.length).map((i) => conserved(front, i)) : [];
    const curves = (all[0] ?? []).flatMap((row, q) =>
      row.map((_, n) => ({
        ys: Float64Array.from(all, (values) => values[q][n]),
        colour: this.#colour(context, row.length, n),
        dash: q > 0 ? "2 5" : undefined,
      })),
    );
    // The scale is that of the weights they are made of: on it, conserved means flat.
    const unit = Math.max(...setup.modes.order.map((d) => setup.modes.m[d])) ** (2 / 3);
    const most = curves.reduce((top, { ys }) => ys.reduce((a, b) => Math.max(a, Math.abs(b)), top), 0.1 * unit);
    this.axes(context, [-1.08 * most, 1.08 * most], names.join("   dotted: "));
    this.drawLines(context, curves);
    this.move(context);
  }

  /** @param {Context} context @param {number} lines @param {number} n */
  #colour({ front }, lines, n) {
    if (!front) return "var(--soft)";
    const { kind } = front.setup.shape;
    if (kind === "transformer") return lines === 1 ? "var(--run)" : colour(n);
    return kind === "merged" ? "var(--run)" : colour(holds(front, front.times.length - 1, n));
  }

  /** @param {Context} context */
  table(context) {
    const { front, setup } = context;
    const names = front
      ? conservedNames(setup).flatMap((name, q) => conserved(front, 0)[q].map((_, n) => `${name} ${n + 1}`))
      : [];
    return this.numbers(context, names);
  }
}
