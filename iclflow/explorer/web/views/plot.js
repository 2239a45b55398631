// A plot over training time: sheet, axes, lines and the cursor that all plots share.

import { clockName, count, LEFT, timeScale } from "./context.js";
import { keep, line, number, scale, set, svg, ticks } from "./svg.js";

/** @typedef {import("./context.js").Context} Context */
/** @typedef {import("./svg.js").Scale} Scale */

const HEIGHT = 230;

export class TimePlot {
  /** @param {HTMLElement} host @param {string} label what a screen reader calls it */
  constructor(host, label) {
    this.host = host;
    this.width = host.clientWidth;
    this.grid = svg("g", { class: "grid" });
    this.lines = svg("g");
    this.dashes = svg("g");
    this.sheet = svg("svg", { class: "plot", role: "img", "aria-label": label }, this.grid, this.lines, this.dashes);
    this.cursor = svg("line", { class: "cursor" });
    this.dots = svg("g");
    this.over = svg("svg", { class: "over", "aria-hidden": "true" }, this.cursor, this.dots);
    host.replaceChildren(this.sheet, this.over);
    /** @type {{ys: ArrayLike<number>, colour: string, dash?: string}[]} */ this.curves = [];
  }

  /** Axes for a range of values; what else belongs to the grid is given. @param {Context} context @param {[number, number]} range @param {string} label @param {(x: Scale, y: Scale) => SVGElement[]} more */
  axes(context, range, label, more = () => []) {
    const { width } = this;
    for (const sheet of [this.sheet, this.over])
      set(sheet, { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
    const shared = timeScale(context, width);
    const x = (this.x = scale(shared.log, shared.domain, [LEFT, width - 28]));
    const y = (this.y = scale(false, range, [HEIGHT - 38, 22]));
    const grid = [svg("text", { class: "label", x: 2, y: 10 }, label)];
    for (const t of ticks(x, width < 420 ? 3 : 5)) {
      grid.push(svg("line", { x1: x(t), x2: x(t), y1: HEIGHT - 38, y2: HEIGHT - 34 }));
      grid.push(svg("text", { x: x(t), y: HEIGHT - 20, "text-anchor": "middle" }, number(t)));
    }
    for (const value of ticks(y, 4))
      grid.push(svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    grid.push(svg("line", { x1: x.range[0], x2: x.range[1], y1: HEIGHT - 38, y2: HEIGHT - 38 }));
    grid.push(svg("text", { class: "label", x: x.range[1], y: HEIGHT - 4, "text-anchor": "end" }, clockName(context)));
    this.grid.replaceChildren(...grid, ...more(x, y));
    return { x, y };
  }

  /** Curves of the run in front. @param {Context} context @param {{ys: ArrayLike<number>, colour: string, dash?: string}[]} curves */
  drawLines({ front }, curves) {
    const { x, y } = this;
    this.curves = curves;
    keep(this.lines, "path", curves.length).forEach((path, n) => {
      if (!front || !x || !y) return;
      const style = `stroke: ${curves[n].colour}${curves[n].dash ? `; stroke-dasharray: ${curves[n].dash}` : ""}`;
      set(path, { class: "value", d: line(x, y, front.times, curves[n].ys), style });
    });
    keep(this.dots, "circle", curves.length);
  }

  /** The cursor, with a dot on every curve. @param {Context} context */
  move({ front, index }) {
    const { x, y } = this;
    if (!x || !y || !front || index >= front.times.length) return;
    const at = Math.min(x.range[1], Math.max(x.range[0], x(front.times[index])));
    set(this.cursor, { x1: at, x2: at, y1: 18, y2: y.range[0] + 4 });
    [...this.dots.children].forEach((dot, n) => {
      const value = this.curves[n]?.ys[index];
      set(dot, { class: "dot small", r: 3.5, cx: at, cy: y(value ?? 0), style: `fill: ${this.curves[n]?.colour}` });
    });
  }

  /** The curves as numbers. @param {Context} context @param {string[]} names @returns {import("./context.js").Table} */
  numbers({ front }, names) {
    const rows = front
      ? count(front.times.length).map((i) => [front.times[i], ...this.curves.map(({ ys }) => ys[i])])
      : [];
    return { columns: ["time", ...names], rows };
  }
}
