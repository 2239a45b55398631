// The effective matrix M = Σ v k qᵀ in the eigenbasis, beside the one that training ends at.

import { keep, number, set, svg } from "./svg.js";
import { count, matrixAt } from "./context.js";

/** @typedef {import("./context.js").Context} Context */

const LARGE_STEP = 1.6; // of two layers one takes about this many times the step of a single one

export class MatrixView {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
    this.width = host.clientWidth;
    this.now = svg("g");
    this.target = svg("g");
    this.titles = svg("g", { class: "grid" });
    this.sheet = svg(
      "svg",
      { class: "plot matrix", role: "img", "aria-label": "Effective matrix now and at the end" },
      this.titles,
      this.now,
      this.target,
    );
    host.replaceChildren(this.sheet);
  }

  /** @param {Context} context */
  draw(context) {
    const { front } = context;
    if (!front) return;
    const { modes, given, shape } = front.setup,
      { layers } = shape,
      width = this.width;
    const size = (this.size = front.setup.settings.spectrum.length);
    const side = Math.min((width - 24) / 2, 210),
      height = side + 30;
    set(this.sheet, { width, height, viewBox: `0 0 ${width} ${height}` });
    this.cell = side / size;
    this.most = (layers ? LARGE_STEP : 1) * Math.max(...(given?.best ?? modes.m).map(Math.abs));
    const gap = Math.min(48, width - 2 * side),
      left = (width - 2 * side - gap) / 2;
    set(this.now, { transform: `translate(${left} 26)` });
    set(this.target, { transform: `translate(${left + side + gap} 26)` });
    this.titles.replaceChildren(
      svg("text", { class: "label", x: left, y: 14 }, layers ? "layer 1" : "now"),
      svg("text", { class: "label", x: left + side + gap, y: 14 }, layers ? "layer 2" : "best"),
    );
    const best = new Float64Array(modes.size ** 2);
    for (const i of count(size)) for (const j of count(size)) best[i * modes.size + j] = bestOf(front.setup, i, j);
    if (!layers) this.#fill(this.target, best, modes.size);
    this.move(context);
  }

  /** @param {Context} context */
  move({ front, index }) {
    if (!front || index >= front.times.length || this.size !== front.setup.settings.spectrum.length) return;
    const M = matrixAt(front, index),
      { size } = front.setup.modes;
    this.#fill(this.now, M, size);
    if (front.setup.shape.layers) this.#fill(this.target, M.subarray(size * size), size);
  }

  /** M at the cursor, row by row. @param {Context} context @returns {import("./context.js").Table} */
  table({ front, index }) {
    if (!front) return { columns: [], rows: [] };
    const M = matrixAt(front, index),
      { modes, settings, shape } = front.setup,
      each = count(settings.spectrum.length),
      square = modes.size ** 2;
    const other = (/** @type {number} */ i, /** @type {number} */ j) =>
      shape.layers ? M[square + i * modes.size + j] : bestOf(front.setup, i, j);
    const rows = each.flatMap((i) => each.map((j) => [i + 1, j + 1, M[i * modes.size + j], other(i, j)]));
    return { columns: ["row", "column", ...(shape.layers ? ["layer 1", "layer 2"] : ["now", "best"])], rows };
  }

  /** @param {SVGElement} group @param {Float64Array} M @param {number} stride */
  #fill(group, M, stride) {
    const { size = 0, cell = 1, most = 1 } = this;
    const cells = keep(group, "g", size * size);
    cells.forEach((made, i) => {
      const row = Math.floor(i / size),
        column = i % size,
        value = M[row * stride + column];
      if (made.childElementCount < 2) made.replaceChildren(svg("rect"), svg("text", { "text-anchor": "middle" }));
      const [rect, text] = /** @type {SVGElement[]} */ ([...made.children]);
      set(rect, { x: column * cell, y: row * cell, width: cell - 1.5, height: cell - 1.5, rx: 2 });
      const strength = Math.min(1, Math.abs(value) / most);
      rect.style.fill = `color-mix(in oklab, ${value < 0 ? "var(--minus)" : "var(--plus)"} ${(100 * strength).toFixed(0)}%, var(--cell))`;
      text.textContent = cell > 34 ? (Math.abs(value) < 0.005 ? "0" : number(Number(value.toFixed(2)))) : "";
      set(text, {
        x: (column + 0.5) * cell,
        y: (row + 0.5) * cell + 4,
        class: strength > 0.55 ? "strong" : strength > 0.1 ? "plain" : "weak",
      });
    });
  }
}

/** An entry of the best M. @type {(setup: import("./context.js").Context["setup"], i: number, j: number) => number} */
function bestOf({ modes, settings, given }, i, j) {
  if (given) return given.best?.[i * settings.spectrum.length + j] ?? 0;
  return i === j ? modes.m[i] : 0;
}
