// The eigenvalues as bars to be dragged; each is a slider for the keyboard too. Neighbours hold each other in order.

import { number, set, svg } from "./svg.js";
import { colour } from "./context.js";

const HEIGHT = 150,
  TOP = 16,
  BOTTOM = 22;

export class SpectrumView {
  /** @param {HTMLElement} host @param {[number, number]} bounds of an eigenvalue @param {(spectrum: number[]) => void} changed */
  constructor(host, bounds, changed) {
    this.host = host;
    this.bounds = bounds;
    this.changed = changed;
    /** @type {number[]} */ this.spectrum = [];
    this.width = host.clientWidth;
    this.sheet = svg("svg", {
      class: "plot spectrum",
      role: "group",
      "aria-label": "Eigenvalues of the input covariance",
    });
    host.replaceChildren(this.sheet);
    this.sheet.addEventListener("pointermove", (event) => this.held !== undefined && this.#drag(event));
    for (const end of ["pointerup", "pointercancel"]) this.sheet.addEventListener(end, () => (this.held = undefined));
  }

  /** @param {number[]} spectrum */
  draw(spectrum) {
    const { width } = this,
      fresh = spectrum.length !== this.spectrum.length || width !== this.drawn;
    this.spectrum = [...spectrum];
    this.drawn = width;
    this.most = this.held === undefined ? Math.max(0.5, 1.15 * Math.max(...spectrum)) : this.most;
    if (fresh) {
      set(this.sheet, { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
      this.sheet.replaceChildren(
        svg("line", { class: "base", x1: 0, x2: width, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
      );
      this.bars = spectrum.map((_, d) => this.#bar(d));
    }
    this.bars?.forEach((bar, d) => this.#place(bar, d));
  }

  /** @param {number} d */
  #bar(d) {
    const step = this.width / this.spectrum.length,
      wide = Math.min(44, 0.62 * step);
    const bar = svg(
      "g",
      {
        class: "bar",
        tabindex: 0,
        role: "slider",
        "aria-label": `eigenvalue ${d + 1}`,
        "aria-valuemin": this.bounds[0],
        "aria-valuemax": this.bounds[1],
        transform: `translate(${step * (d + 0.5)} 0)`,
      },
      svg("rect", { class: "reach", x: -step / 2, y: 0, width: step, height: HEIGHT }),
      svg("rect", { class: "fill", x: -wide / 2, width: wide, rx: 3, style: `fill: ${colour(d)}` }),
      svg("rect", { class: "grip", x: -wide / 2 - 3, width: wide + 6, height: 6, rx: 3, style: `fill: ${colour(d)}` }),
      svg("text", { class: "value", "text-anchor": "middle" }),
      svg("text", { class: "name", y: HEIGHT - 6, "text-anchor": "middle" }, `λ${"₁₂₃₄₅₆₇₈"[d]}`),
    );
    bar.addEventListener("pointerdown", (event) => {
      this.held = d;
      this.sheet.setPointerCapture(event.pointerId);
      bar.focus({ preventScroll: true });
      this.#drag(event);
      event.preventDefault();
    });
    bar.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 10, PageDown: -10 };
      const step = steps[/** @type {keyof typeof steps} */ (event.key)];
      if (!step) return;
      event.preventDefault();
      this.#change(d, this.spectrum[d] + 0.005 * step);
    });
    this.sheet.append(bar);
    return bar;
  }

  /** @param {SVGElement} bar @param {number} d */
  #place(bar, d) {
    const y = HEIGHT - BOTTOM - (this.spectrum[d] / (this.most ?? 1)) * (HEIGHT - BOTTOM - TOP);
    const [, fill, grip, value] = bar.children;
    set(fill, { y, height: HEIGHT - BOTTOM - y });
    set(grip, { y: y - 3 });
    set(value, { y: y - 7 });
    value.textContent =
      this.spectrum.length > 5 ? this.spectrum[d].toFixed(2).replace(/^0/, "") : number(this.spectrum[d], 2);
    set(bar, { "aria-valuenow": this.spectrum[d] });
  }

  /** @param {PointerEvent} event */
  #drag(event) {
    const y = event.clientY - this.sheet.getBoundingClientRect().top;
    this.#change(
      /** @type {number} */ (this.held),
      ((HEIGHT - BOTTOM - y) / (HEIGHT - BOTTOM - TOP)) * (this.most ?? 1),
    );
  }

  /** @param {number} d @param {number} value */
  #change(d, value) {
    const high = Math.min(this.most ?? 1, this.spectrum[d - 1] ?? this.bounds[1]),
      low = this.spectrum[d + 1] ?? this.bounds[0];
    const next = Math.min(high, Math.max(low, Number(value.toFixed(3))));
    if (next === this.spectrum[d]) return;
    this.changed(this.spectrum.map((old, i) => (i === d ? next : old)));
  }
}
