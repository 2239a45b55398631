// When: predicted and seen, as a table for the run in the foreground and as points for all of them.

import { html, keep, number, scale, set, svg, ticks } from "./svg.js";
import { timeErrors } from "../theory/seen.js";
import { colour, componentOf, learned, percent, textColour } from "./context.js";

/** @typedef {import("./context.js").Context} Context */

export class TimesView {
  /** @param {HTMLElement} host @param {HTMLElement} table */
  constructor(host, table) {
    this.host = host;
    this.width = host.clientWidth;
    this.rows = table;
    this.grid = svg("g", { class: "grid" });
    this.points = svg("g", { class: "points" });
    this.sheet = svg("svg", { class: "plot", role: "img" }, this.grid, this.points);
    host.replaceChildren(this.sheet);
  }

  /** @param {Context} context */
  draw({ setup, front, runs }) {
    const { theory, shape, horizon } = setup,
      merged = shape.kind === "merged";
    const rows = (theory?.drops ?? []).map((drop, m) => {
      const seen = front?.setup === setup ? front.seen[m] : undefined;
      const error = seen ? Math.abs(drop.time / seen - 1) : NaN;
      const name = merged ? "all" : learned(setup, drop),
        head = String((drop.head % (shape.heads / (shape.layers ?? 1))) + 1);
      return html(
        "tr",
        {},
        html("th", { scope: "row", style: `color: ${merged ? "inherit" : textColour(componentOf(setup, drop))}` }, name),
        html("td", {}, drop.head < 0 ? (setup.given ? "–" : "all") : head),
        html("td", {}, number(drop.time, 4)),
        html("td", {}, seen ? number(seen, 4) : "…"),
        html("td", {}, Number.isFinite(error) ? percent(error) : ""),
      );
    });
    this.rows.replaceChildren(
      html(
        "thead",
        {},
        html(
          "tr",
          {},
          ...["component", "head", "predicted", "seen", "error"].map((name) => html("th", { scope: "col" }, name)),
        ),
      ),
      html("tbody", {}, ...rows),
    );

    const width = this.width,
      height = Math.min(230, width);
    set(this.sheet, { width, height, viewBox: `0 0 ${width} ${height}` });
    const all = runs
      .filter((run) => run.setup === setup)
      .flatMap((run) =>
        run.drops
          .slice(0, run.seen.length)
          .map((drop, m) => ({ predicted: drop.time, seen: run.seen[m], drop, front: run === front })),
      );
    const times = [...(theory?.drops.map((drop) => drop.time) ?? []), ...all.map((point) => point.seen)];
    const low = Math.min(...times, horizon / 5) / 1.5;
    const x = scale(true, [low, horizon], [40, width - 12]),
      y = scale(true, [low, horizon], [height - 36, 10]);
    const grid = [svg("line", { class: "diagonal", x1: x(low), y1: y(low), x2: x(horizon), y2: y(horizon) })];
    for (const t of ticks(x, width < 320 ? 2 : 4))
      grid.push(svg("text", { x: x(t), y: height - 18, "text-anchor": "middle" }, number(t)));
    for (const t of ticks(y, 3)) grid.push(svg("text", { x: 34, y: y(t) + 4, "text-anchor": "end" }, number(t)));
    grid.push(
      svg("text", { class: "label", x: width - 12, y: height - 0, "text-anchor": "end" }, "predicted t/τ"),
      svg("text", { class: "label", x: 44, y: 16 }, "seen"),
    );
    this.grid.replaceChildren(...grid);
    keep(this.points, "circle", all.length).forEach((dot, i) => {
      const { predicted, seen, drop, front: own } = all[i];
      set(dot, {
        cx: x(Math.min(predicted, horizon)),
        cy: y(seen),
        r: own ? 5 : 3,
        class: own ? "own" : "",
        style: `fill: ${merged ? "var(--run)" : colour(componentOf(setup, drop))}`,
      });
    });
    const errors = timeErrors(runs.filter((run) => run.setup === setup));
    this.median = errors.length ? errors[Math.floor(errors.length / 2)] : NaN;
    set(this.sheet, {
      "aria-label": `Predicted and seen times of ${all.length} drops; median error ${percent(this.median)}`,
    });
  }

  /** Every drop of every run. @param {Context} context @returns {import("./context.js").Table} */
  table({ setup, runs }) {
    const rows = runs
      .filter((run) => run.setup === setup)
      .flatMap((run) => run.drops.map((drop, m) => [run.index, m + 1, drop.head + 1, drop.time, run.seen[m] ?? ""]));
    return { columns: ["run", "drop", "head", "predicted", "seen"], rows };
  }
}
