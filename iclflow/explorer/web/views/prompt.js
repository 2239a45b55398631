// One prompt, along each component and as answers: what the context says, the true slope, and the slope the model uses.

import { allBlocks } from "../kernel/blocks.js";
import { fixedTask } from "../kernel/mixture.js";
import { correlation, drawPrompt, tokenMoments } from "../kernel/prompts.js";
import { basisOf } from "../kernel/start.js";
import { algorithm, colour, component, count, isLinear, isMap, matrixAt, textColour, weightsAt } from "./context.js";
import { html, keep, number, scale, set, svg, ticks } from "./svg.js";

/** @typedef {import("./context.js").Context} Context */

const SHOWN = 60; // examples drawn
const BELOW = 74; // px for the line of answers

export class PromptView {
  /** @param {HTMLElement} host @param {HTMLElement} words */
  constructor(host, words) {
    this.host = host;
    this.width = host.clientWidth;
    this.drawn = "";
    this.words = words;
    this.number = 0; // of the prompt, in the set that the library draws
    this.panels = svg("g");
    this.line = svg("g", { class: "grid" });
    this.now = svg(
      "g",
      {},
      svg("path", { class: "now", d: "M0 -4L-6 -15L6 -15Z" }),
      svg("text", { y: -20, "text-anchor": "middle" }, "model"),
    );
    this.sheet = svg("svg", { class: "plot prompt", role: "img" }, this.panels, this.line, this.now);
    host.replaceChildren(this.sheet);
  }

  /** @param {Context} context */
  another(context) {
    this.number++;
    this.draw(context);
  }

  /** @param {Context} context */
  draw(context) {
    const { front } = context;
    if (!front || !applies(front.setup)) return;
    const { settings } = front.setup,
      { spectrum } = settings,
      size = spectrum.length,
      { width } = this;
    const key = JSON.stringify([width, this.number, { ...settings, scale: 0, seed: 0, front: 0, heads: 0 }]);
    if (key === this.drawn) return this.move(context);
    this.drawn = key;
    const columns = Math.min(size, width < 420 ? 2 : size > 4 && width < 900 ? 4 : size);
    const side = Math.min(200, (width - 8 * (columns - 1)) / columns),
      below = Math.ceil(size / columns) * (side + 8);
    set(this.sheet, { width, height: below + BELOW, viewBox: `0 0 ${width} ${below + BELOW}` });
    // With a fixed task every second prompt has it.
    const fixed = front.setup.shape.full && this.number % 2 ? fixedTask(settings) : null;
    const prompt = drawPrompt(settings, basisOf(settings), settings.data_seed, this.number, fixed);
    this.prompt = prompt;
    this.whose = front.setup.shape.full ? (fixed ? "The task is the fixed one. " : "The task is a drawn one. ") : "";
    this.beta = correlation(prompt, size);
    this.half = side / 2;
    this.scaleX = spectrum.map((l) => side / 2 / (2.9 * Math.sqrt(l)));
    this.scaleY = side / 2 / (Math.max(...prompt.labels.map(Math.abs), Math.abs(prompt.target)) * 1.08);
    const left = (width - columns * side - 8 * (columns - 1)) / 2;
    keep(this.panels, "g", size).forEach((panel, d) => {
      const [x, y] = [left + (d % columns) * (side + 8), Math.floor(d / columns) * (side + 8) + 2];
      set(panel, { transform: `translate(${x + side / 2} ${y + side / 2})` });
      panel.replaceChildren(...this.#panel(d, size));
    });
    this.#answers(front, below);
    this.move(context);
  }

  /** The box of component d. @param {number} d @param {number} size */
  #panel(d, size) {
    const { prompt, half: h = 1, scaleX = [], scaleY = 1 } = this;
    if (!prompt) return [];
    const clip = (/** @type {number} */ x) => Math.max(2 - h, Math.min(h - 2, x));
    const dots = count(Math.min(prompt.labels.length, SHOWN)).map((n) =>
      svg("circle", {
        class: "pair",
        r: 2,
        cx: clip(prompt.inputs[n * size + d] * scaleX[d]),
        cy: clip(-prompt.labels[n] * scaleY),
      }),
    );
    return [
      svg("rect", { class: "box", x: -h, y: -h, width: 2 * h, height: 2 * h, rx: 4 }),
      ...dots,
      svg("path", { class: "truth", d: this.#slope(d, prompt.vector[d]) }),
      svg("path", { class: "slope", style: `stroke: ${colour(d)}` }),
      svg("text", { x: 6 - h, y: 15 - h, style: `fill: ${textColour(d)}` }, `along ${component(d)}`),
    ];
  }

  /** A line through the origin, in the box of a component. @param {number} d @param {number} slope */
  #slope(d, slope) {
    const { half = 1, scaleX = [], scaleY = 1 } = this;
    const ratio = (slope * scaleY) / scaleX[d],
      far = Math.min(half, half / Math.max(Math.abs(ratio), 1e-9));
    return `M${-far} ${far * ratio}L${far} ${-far * ratio}`;
  }

  /** The answers of PCR-m and the truth, on one line. @param {import("./context.js").Run} front @param {number} top */
  #answers(front, top) {
    const { setup } = front,
      { modes, settings } = setup;
    const { prompt, beta } = this;
    if (!prompt || !beta) return;
    const query = prompt.inputs.subarray(settings.context * beta.length);
    const steps = [0];
    for (const d of modes.order) steps.push(steps[steps.length - 1] + beta[d] * modes.m[d] * query[d]);
    const answers = isMap(setup) ? steps : [0, steps[steps.length - 1]];
    const low = Math.min(...answers, prompt.target, 0),
      high = Math.max(...answers, prompt.target, 0),
      room = 0.15 * (high - low) + 0.05;
    const x = (this.x = scale(false, [low - room, high + room], [30, this.width - 30]));
    this.answers = answers;
    this.top = top + 40;
    const y = this.top;
    /** @type {{at: number, text: string, d: number | undefined}[]} */
    const marks = answers.map((answer, m) => ({ at: answer, text: who(m, setup), d: modes.order[m - 1] }));
    const parts = [svg("line", { x1: 30, x2: this.width - 30, y1: y, y2: y })];
    for (const t of ticks(x, this.width < 420 ? 3 : 6))
      parts.push(svg("text", { x: x(t), y: y + 18, "text-anchor": "middle" }, number(t)));
    for (const { at, d } of marks) parts.push(svg("circle", { cx: x(at), cy: y, r: 4.5, style: `fill: ${colour(d)}` }));
    parts.push(svg("path", { class: "truth", d: `M${x(prompt.target)} ${y - 10}V${y + 10}` }));
    parts.push(svg("text", { class: "label", x: 2, y: y - 26 }, "answers ŷ"));
    let free = 0; // names where there is room for them, the truth first
    const named = [{ at: prompt.target, text: "truth", d: undefined }, ...marks].sort((a, b) => a.at - b.at);
    for (const { at, text, d } of named) {
      const half = 3.6 * text.length;
      if (x(at) - half < free) continue;
      free = x(at) + half + 6;
      parts.push(svg("text", { x: x(at), y: y + 34, "text-anchor": "middle", style: `fill: ${textColour(d)}` }, text));
    }
    this.line.replaceChildren(...parts);
  }

  /** @param {Context} context */
  move({ front, index }) {
    const { prompt, beta, x } = this;
    if (!front || !prompt || !beta || !x || !applies(front.setup) || index >= front.times.length) return;
    if (this.panels.childElementCount !== front.setup.settings.spectrum.length) return;
    const { settings } = front.setup,
      size = beta.length,
      slopes = this.#slopes(front, index);
    let said = 0;
    [...this.panels.children].forEach((panel, d) => {
      const slope = slopes[d];
      said += slope * prompt.inputs[settings.context * size + d];
      set(/** @type {SVGElement} */ (panel.querySelector(".slope")), { d: this.#slope(d, slope) });
    });
    const at = Math.min(x.range[1], Math.max(x.range[0], x(said)));
    set(this.now, { transform: `translate(${at} ${this.top})` });
    const fixed = (/** @type {number} */ value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
    const best = this.answers?.[this.answers.length - 1] ?? 0;
    const words = `; least squares as linear attention does it (16) ${fixed(best)}; the truth ${fixed(prompt.target)}.`;
    this.words.replaceChildren(
      this.whose ?? "",
      "Asked for a new input, it answers ",
      html("b", {}, fixed(said)),
      words,
    );
    this.said = said;
    set(this.sheet, {
      "aria-label": `A prompt along ${size} components: the model answers ${fixed(said)}, the truth is ${fixed(prompt.target)}`,
    });
  }

  /** The slope that the model uses along each component: Mᵀβ, or Σ W_ab S_ab where every block is trained. @param {import("./context.js").Run} front @param {number} index */
  #slopes(front, index) {
    const { prompt, beta } = this,
      { shape } = front.setup;
    const size = beta?.length ?? 0,
      slopes = new Float64Array(size);
    if (!prompt || !beta) return slopes;
    if (!shape.full) {
      const M = matrixAt(front, index);
      return slopes.map((_, d) => beta.reduce((sum, b, a) => sum + b * M[a * shape.size + d], 0));
    }
    const S = tokenMoments(prompt, size),
      W = new Float64Array(S.length * size);
    allBlocks(shape, size).weigh(weightsAt(front, index), W);
    return slopes.map((_, d) => S.reduce((sum, s, k) => sum + s * W[k * size + d], 0));
  }

  /** Who answers what. @param {Context} context @returns {import("./context.js").Table} */
  table({ setup }) {
    const rows = (this.answers ?? []).map((answer, m) => [who(m, setup), answer]);
    return {
      columns: ["who", "answer"],
      rows: [...rows, ["model", this.said ?? NaN], ["truth", this.prompt?.target ?? NaN]],
    };
  }
}

/** Who gives answer m. @type {(m: number, setup: import("./context.js").Setup) => string} */
const who = (m, setup) => (isMap(setup) ? algorithm(m, setup) : m === 0 ? "nothing" : "least squares");

/** One output and a linear map: what the view is about. @type {(setup: import("./context.js").Setup) => boolean} */
const applies = (setup) => isLinear(setup) && setup.shape.kind !== "transformer";
