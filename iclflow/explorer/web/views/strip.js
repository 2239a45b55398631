// Which in-context algorithm the model runs, over time: the nearest PCR-m, paler where the match is poor.

import { freshId, set, svg } from "./svg.js";
import { distances } from "../kernel/task.js";
import { LEFT, algorithm, colour, count, isMap, matrixAt, shortly, termOf, timeScale } from "./context.js";

/** @typedef {import("./context.js").Context} Context */

const HEIGHT = 30;

export class StripView {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
    this.width = host.clientWidth;
    this.bands = svg("g", { class: "bands" });
    this.names = svg("g", { class: "names" });
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT });
    this.clip = svg("rect", { x: 0, y: 0, width: 0, height: HEIGHT });
    const id = freshId();
    this.soFar = `url(#${id})`;
    this.shown = svg("g", {}, this.bands, this.names);
    this.title = svg("text", { class: "label", y: HEIGHT / 2 + 4.5 });
    this.sheet = svg(
      "svg",
      { class: "plot", role: "img" },
      svg("defs", {}, svg("clipPath", { id }, this.clip)),
      this.shown,
      this.title,
      this.cursor,
    );
    host.replaceChildren(this.sheet);
  }

  /** @param {Context} context */
  draw(context) {
    const { front } = context,
      width = this.width;
    set(this.sheet, { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
    const x = (this.x = timeScale(context, width));
    this.distances =
      front && isMap(front.setup)
        ? Array.from(front.times, (_, i) => distances(front.setup.modes, matrixAt(front, i)))
        : [];
    if (!front) return;
    const { setup } = front;
    const all = front.setup.modes.order.length;
    /** @type {SVGElement[]} */ const bands = [];
    const names = [];
    const place = (/** @type {number} */ t) => Math.min(x.range[1], Math.max(x.range[0], x(t)));
    /** @type {{m: number, fit: number, from: number}[]} */ const pieces = [];
    this.distances.forEach((d, i) => {
      const { m, margin } = nearest(d);
      const fit = Math.round(4 * margin) / 4,
        last = pieces[pieces.length - 1];
      if (!last || last.m !== m || last.fit !== fit)
        pieces.push({ m, fit, from: place(i === 0 ? 0 : (front.times[i] + front.times[i - 1]) / 2) });
    });
    pieces.forEach(({ m, fit, from }, i) => {
      const to = i + 1 < pieces.length ? pieces[i + 1].from : place(front.times[front.times.length - 1]);
      if (to - from > 0.2)
        bands.push(
          svg("rect", {
            x: from,
            y: 2,
            width: to - from + 0.3,
            height: HEIGHT - 4,
            style: `fill: ${colour(front.setup.modes.order[m - 1])}; opacity: ${0.15 + 0.6 * fit}`,
          }),
        );
    });
    for (let m = 0; m <= all; m++) {
      const own = pieces.filter((piece) => piece.m === m);
      if (own.length === 0) continue;
      const from = own[0].from,
        after = pieces.indexOf(own[own.length - 1]) + 1;
      const to = after < pieces.length ? pieces[after].from : place(front.times[front.times.length - 1]);
      const name = [algorithm(m, setup), m === 0 ? "0" : m === all ? "all" : shortly(m, setup.modes)].find(
        (text) => 7.2 * text.length < to - from,
      );
      const middle = { x: (from + to) / 2, y: HEIGHT / 2 + 4.5, "text-anchor": "middle" };
      if (name) names.push(svg("text", middle, name, svg("title", {}, termOf(m, setup))));
    }
    set(this.title, { x: x.range[1] + 8 });
    this.title.textContent = this.distances.length === 0 ? "" : width < 560 ? "uses" : "the model uses";
    this.bands.replaceChildren(...bands);
    this.names.replaceChildren(...names);
    set(this.sheet, {
      "aria-label": `In-context algorithm over time: ${pieces
        .map((p) => algorithm(p.m, setup))
        .filter((name, i, list) => name !== list[i - 1])
        .join(", then ")}`,
    });
    this.move(context);
  }

  /** @param {Context} context */
  move({ front, index, playing }) {
    const at =
      this.x && front
        ? Math.max(LEFT, Math.min(this.x.range[1], this.x(front.times[Math.min(index, front.times.length - 1)])))
        : LEFT;
    set(this.cursor, { x1: at, x2: at });
    set(this.clip, { width: at });
    set(this.shown, { "clip-path": playing ? this.soFar : null });
  }

  /** The algorithm at a save, with its distance. @param {number} index */
  at(index) {
    const d = this.distances?.[Math.min(index, this.distances.length - 1)];
    return d ? { ...nearest(d), distance: Math.min(...d) } : null;
  }

  /** The distance to every algorithm over time. @param {Context} context @returns {import("./context.js").Table} */
  table({ front }) {
    const found = this.distances ?? [];
    const names = front ? count(found[0]?.length ?? 0).map((m) => algorithm(m, front.setup)) : [];
    return { columns: ["time", ...names], rows: front ? found.map((d, i) => [front.times[i], ...d]) : [] };
  }
}

/** @type {(d: Float64Array) => {m: number, margin: number}} */
function nearest(d) {
  const sorted = [...d].sort((a, b) => a - b);
  return { m: d.indexOf(sorted[0]), margin: sorted[1] > 0 ? 1 - sorted[0] / sorted[1] : 0 };
}
