// By how much that which the flow conserves has changed: a drift that is the rate's doing, and happens in the drops.

import { colour, count, holds } from "./context.js";
import { conserved, conservedNames } from "./conserved_quantities.js";
import { TimePlot } from "./plot.js";
import { superscript } from "./svg.js";

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
    const changes = (all[0] ?? []).map((row, q) =>
      row.map((_, n) => Float64Array.from(all, (now) => now[q][n] - row[n])),
    );
    const most = changes.flat().reduce((top, ys) => ys.reduce((a, b) => Math.max(a, Math.abs(b)), top), 1e-15);
    const power = Math.ceil(-Math.log10(most)); // shown as small numbers times a power of ten
    const curves = changes.flatMap((row, q) =>
      row.map((ys, n) => ({
        ys: ys.map((y) => y * 10 ** power),
        colour: this.#colour(context, row.length, n),
        dash: q > 0 ? "2 5" : undefined,
      })),
    );
    const reach = 1.1 * most * 10 ** power;
    const label = `change of ${names.join(", dotted: ")}, × 10${superscript(-power)}`;
    this.axes(context, [-reach, reach], label);
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
