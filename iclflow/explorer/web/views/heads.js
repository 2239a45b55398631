// The heads, one dial each: the arrow is where its key points among the components, the disc how large its value weight is.

import { keep, set, svg } from "./svg.js";
import { colour, component, count, headName, shares, textColour, weightsAt } from "./context.js";

/** @typedef {import("./context.js").Context} Context */

export class HeadsView {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
    this.width = host.clientWidth;
    this.drawn = "";
    this.dials = svg("g");
    this.sheet = svg("svg", { class: "plot heads", role: "img" }, this.dials);
    host.replaceChildren(this.sheet);
  }

  /** @param {Context} context */
  draw(context) {
    const { front } = context;
    if (!front || front.setup.shape.kind === "transformer") return;
    const { shape, settings } = front.setup,
      width = this.width;
    const room = Math.max(3, Math.floor(width / 112)),
      layers = shape.layers ?? 1, // each begins a row
      columns = Math.ceil(shape.heads / layers / Math.ceil(shape.heads / layers / room)),
      each = Math.ceil(shape.heads / layers / columns),
      rows = layers * each;
    const cell = Math.min(150, width / columns);
    const radius = cell * 0.31,
      tall = 2 * radius + 56;
    set(this.sheet, { width, height: rows * tall, viewBox: `0 0 ${width} ${rows * tall}` });
    const all = settings.spectrum.length;
    this.radius = radius;
    this.angles = Array.from({ length: all }, (_, n) => -Math.PI / 2 + (2 * Math.PI * n) / all);
    const key = `${width} ${all} ${shape.heads} ${shape.kind} ${shape.rank}`;
    if (key === this.drawn) return this.move(context);
    this.drawn = key;
    const offset = (width - columns * cell) / 2;
    const place = (/** @type {number} */ h) => {
      const n = h % (shape.heads / layers);
      return { column: n % columns, row: each * Math.floor((h * layers) / shape.heads) + Math.floor(n / columns) };
    };
    keep(this.dials, "g", shape.heads).forEach((dial, h) => {
      set(dial, {
        transform: `translate(${offset + cell * (place(h).column + 0.5)} ${tall * (place(h).row + 0.5) - 8})`,
      });
      const parts = [svg("circle", { class: "ring", r: radius }), svg("circle", { class: "disc", r: 0 })];
      this.angles?.forEach((angle, n) => {
        const [dx, dy] = [Math.cos(angle), Math.sin(angle)];
        parts.push(svg("circle", { cx: radius * dx, cy: radius * dy, r: 3, style: `fill: ${colour(n)}` }));
        if (all <= 4 || radius > 36)
          parts.push(
            svg(
              "text",
              {
                x: (radius + 10) * dx,
                y: (radius + 10) * dy + 4,
                "text-anchor": "middle",
                style: `fill: ${textColour(n)}`,
              },
              component(n),
            ),
          );
      });
      parts.push(svg("text", { class: "name", y: radius + 27, "text-anchor": "middle" }, headName(shape, h)));
      for (let r = 0; r < (shape.kind === "merged" ? 1 : shape.rank); r++)
        parts.push(svg("path", { class: "query" }), svg("path", { class: "key" }));
      dial.replaceChildren(...parts);
    });
    this.move(context);
  }

  /** @param {Context} context */
  move({ front, index }) {
    const { radius = 1, angles = [] } = this;
    if (!front || front.setup.shape.kind === "transformer") return;
    if (index >= front.times.length || this.dials.childElementCount !== front.setup.shape.heads) return;
    const w = weightsAt(front, index),
      { modes } = front.setup;
    const largest = Math.max(...Array.from(modes.m, Math.cbrt)) * (front.setup.shape.rank > 1 ? 1.25 : 1);
    [...this.dials.children].forEach((dial, h) => {
      const { keys, queries } = shares(front, w, h);
      const top = keys[0].indexOf(Math.max(...keys[0]));
      const disc = /** @type {SVGElement} */ (dial.querySelector(".disc"));
      set(disc, { r: radius * Math.min(1, Math.abs(w[h]) / largest), style: `fill: ${colour(top)}` });
      dial.querySelectorAll(".key").forEach((path, r) => point(path, keys[r] ?? keys[0], angles, radius, true));
      dial
        .querySelectorAll(".query")
        .forEach((path, r) => queries[r] && point(path, queries[r], angles, radius, false));
    });
    const names = count(front.setup.shape.heads).map((h) => {
      const [keys] = shares(front, w, h).keys;
      const top = keys.indexOf(Math.max(...keys));
      return `${headName(front.setup.shape, h)}: ${Math.round(100 * keys[top])}% along ${component(top)}, value ${Math.abs(w[h]).toFixed(2)}`;
    });
    set(this.sheet, { "aria-label": names.join("; ") });
  }

  /** The share of every component in every key at the cursor. @param {Context} context @returns {import("./context.js").Table} */
  table({ front, index }) {
    if (!front || front.setup.shape.kind === "transformer") return { columns: [], rows: [] };
    const w = weightsAt(front, index),
      { heads } = front.setup.shape;
    const rows = count(heads).flatMap((h) => shares(front, w, h).keys.map((key, r) => [h + 1, r + 1, w[h], ...key]));
    return { columns: ["head", "pair", "value", ...front.setup.settings.spectrum.map((_, d) => component(d))], rows };
  }
}

/** An arrow to the mean of the components' places, weighted by their shares: it reaches the ring when there is one left. @type {(path: Element, share: Float64Array, angles: number[], radius: number, head: boolean) => void} */
function point(path, share, angles, radius, head) {
  let x = 0,
    y = 0;
  share.forEach((part, n) => {
    x += part * Math.cos(angles[n]);
    y += part * Math.sin(angles[n]);
  });
  const [px, py] = [x * radius, y * radius],
    length = Math.hypot(px, py) || 1;
  const [ux, uy] = [px / length, py / length];
  const barb = head
    ? `M${px - 6 * ux + 3.5 * uy} ${py - 6 * uy - 3.5 * ux}L${px} ${py}L${px - 6 * ux - 3.5 * uy} ${py - 6 * uy + 3.5 * ux}`
    : "";
  const top = share.indexOf(Math.max(...share));
  set(path, {
    d: `M0 0L${px} ${py}${length > 5 ? barb : ""}`,
    style: `stroke: ${share[top] > 0.5 ? colour(top) : "var(--soft)"}`,
  });
}
