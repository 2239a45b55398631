// The settings as controls: the knob, the bars, the presets, and what is folded away.

import { byId, field, html, number } from "../views/svg.js";
import { SpectrumView } from "../views/spectrum.js";
import { PRESETS } from "./presets.js";
import { COMPONENTS, DEEP_COMPONENTS, MODELS } from "./options.js";
import { BOUNDS, DEFAULTS, format, valid } from "./settings.js";

/** @typedef {import("./settings.js").Settings} Settings */
/** @typedef {{name: keyof Settings, label: string, kind: "select" | "number" | "text" | "check", options?: [string, string][], step?: number, wide?: boolean}} Field */

const CHIPS = 12; // runs that can be brought to the front by a button

/** @type {Field[]} */
const FIELDS = [
  {
    name: "model",
    label: "Model",
    kind: "select",
    options: MODELS.map((name) => [name, name.replace("-", " ")]),
    wide: true,
  },
  { name: "layers", label: "Layers", kind: "select", options: ["1", "2"].map((n) => [n, n]) },
  { name: "heads", label: "Heads H of a layer", kind: "number" },
  { name: "rank", label: "Rank R", kind: "number" },
  { name: "context", label: "Examples in a prompt N", kind: "number" },
  { name: "noise", label: "Label noise", kind: "number", step: 0.05 },
  { name: "fixed_fraction", label: "Share of prompts with one fixed task", kind: "number", step: 0.1 },
  { name: "sequences", label: "Training prompts P (0: ∞)", kind: "number", step: 100 },
  { name: "rate", label: "Learning rate (0: chosen)", kind: "number", step: 0.01 },
  { name: "steps", label: "Steps (0: past the drops)", kind: "number", step: 1000 },
  { name: "seeds", label: "Runs", kind: "number" },
  { name: "seed", label: "First seed", kind: "number" },
  { name: "cloud", label: "Starts by theory", kind: "select", options: ["0", "100", "1000"].map((n) => [n, n]) },
  { name: "eigen_seed", label: "Seed of eigenvectors and fixed task", kind: "number" },
  { name: "rotate", label: "Eigenvectors drawn, not the axes", kind: "check", wide: true },
  { name: "task_covariance", label: "Task variance along each component", kind: "text", wide: true },
];

export class Controls {
  /** @param {(changes: Partial<Settings>) => void} change @param {(settings: Partial<Settings>) => void} preset */
  constructor(change, preset) {
    this.settings = DEFAULTS;
    this.change = change;
    const folded = /** @type {HTMLDetailsElement} */ (byId("more-presets"));
    this.spectrum = new SpectrumView(byId("spectrum"), BOUNDS.spectrum, (spectrum) => change({ spectrum }));
    this.presets = PRESETS.map(({ name, figure, group, settings }) => {
      const button = html("button", { type: "button", "aria-pressed": "false" }, name);
      if (figure) button.append(" ", html("small", {}, figure));
      button.addEventListener("click", () => {
        folded.open = false;
        preset({ ...DEFAULTS, task_covariance: [], ...settings });
      });
      byId(group).append(button);
      return button;
    });
    folded.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !folded.open) return;
      folded.open = false;
      folded.querySelector("summary")?.focus();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!folded.contains(/** @type {Node} */ (event.target))) folded.open = false;
    });
    for (const one of FIELDS) byId("fields").append(this.#field(one));
    const scale = field("scale");
    scale.addEventListener("input", () => change({ scale: Number((10 ** Number(scale.value)).toPrecision(3)) }));
    byId("fewer").addEventListener(
      "click",
      () => this.settings.spectrum.length > 1 && change({ spectrum: this.settings.spectrum.slice(0, -1) }),
    );
    byId("more").addEventListener("click", () => {
      const { spectrum } = this.settings,
        next = Math.max(BOUNDS.spectrum[0], Number((0.7 * spectrum[spectrum.length - 1]).toFixed(3)));
      if (spectrum.length < (this.settings.layers > 1 ? DEEP_COMPONENTS : COMPONENTS)) change({ spectrum: [...spectrum, next] });
    });
  }

  /** Buttons for recorded runs, before the presets. @param {{name: string, show: () => void}[]} runs */
  offer(runs) {
    for (const { name, show } of runs.reverse()) {
      const button = html("button", { type: "button" }, name);
      button.addEventListener("click", show);
      byId("row").prepend(button);
    }
  }

  /** @param {Field} about */
  #field({ name, label, kind, options = [], step = 1, wide }) {
    const attributes = {
      number: () => ({ type: "number", min: BOUNDS[name][0], max: BOUNDS[name][1], step }),
      text: () => ({ type: "text", inputmode: "decimal" }),
      check: () => ({ type: "checkbox" }),
      select: () => ({}),
    }[kind]();
    const choices = options.map(([value, text]) => html("option", { value }, text));
    const input = /** @type {HTMLInputElement} */ (
      html(kind === "select" ? "select" : "input", attributes, ...choices)
    );
    input.id = `field-${name}`;
    input.addEventListener(kind === "text" ? "change" : "input", () => {
      if (kind === "check") return this.change({ [name]: input.checked });
      if (name === "model") return this.change({ model: input.value });
      const numbers = input.value
        .trim()
        .split(/[,\s]+/)
        .map(Number);
      if (input.value.trim() === "" || !numbers.every(Number.isFinite)) return;
      if (name !== "task_covariance") return this.change({ [name]: numbers[0] });
      if (numbers.length === this.settings.spectrum.length) this.change({ task_covariance: numbers });
    });
    return html("label", { class: [wide ? "wide" : "", kind].join(" ") }, label, input);
  }

  /** @param {Settings} settings @param {string | null} note what to say instead of a remark on the settings */
  show(settings, note = null) {
    this.settings = settings;
    this.spectrum.draw(settings.spectrum);
    const scale = field("scale");
    if (Math.abs(10 ** Number(scale.value) / settings.scale - 1) > 0.02)
      scale.value = String(Math.log10(settings.scale));
    byId("scale-out").textContent = number(settings.scale, 2);
    for (const { name, kind } of FIELDS) {
      const input = field(`field-${name}`),
        value = settings[name];
      input.checked = value === true;
      if (document.activeElement === input && kind !== "select") continue;
      const text = Array.isArray(value) ? value.join(", ") : String(value);
      if (kind === "select" && ![...input.children].some((option) => option.getAttribute("value") === text))
        input.append(html("option", { value: text }, text));
      input.value = text;
    }
    const transformer = settings.model === "linear-transformer";
    const deep = settings.layers > 1;
    field("field-layers").disabled = settings.model !== "separate" || settings.given > 0;
    for (const name of ["heads", "noise", "sequences", "seeds", "cloud"]) field(`field-${name}`).disabled = transformer;
    field("field-rank").disabled = deep || !settings.model.endsWith("separate");
    for (const name of ["sequences", "cloud"]) if (deep) field(`field-${name}`).disabled = true; // in the population
    const mixed = settings.fixed_fraction > 0;
    if (mixed) field("field-sequences").disabled = true; // in the population
    if (mixed && settings.model === "separate") field("field-cloud").disabled = true;
    field("field-fixed_fraction").disabled = deep || !["separate", "merged"].includes(settings.model);
    this.#showRuns(settings);
    const bare = (/** @type {Settings} */ s) => format({ ...s, seed: 0, seeds: 1, front: 0 }, 0);
    const chosen =
      note === null
        ? PRESETS.findIndex((preset) => bare(valid({ task_covariance: [], ...preset.settings })) === bare(settings))
        : -1;
    this.presets.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
    const hidden = chosen >= 0 && PRESETS[chosen].group !== "row";
    byId("more-name").textContent = hidden ? PRESETS[chosen].name : "More";
    byId("more-presets").classList.toggle("chosen", hidden);
    byId("note").textContent = note ?? PRESETS[chosen]?.note ?? remark(settings);
  }

  /** @param {Settings} settings */
  #showRuns({ seeds, front }) {
    const chips = byId("seed-buttons"),
      shown = Math.min(seeds, CHIPS);
    const make = (/** @type {number} */ index) => {
      const about = { type: "button", "aria-label": `bring run ${index} to the front` };
      const button = html("button", about, String(index));
      button.addEventListener("click", () => this.change({ front: index }));
      return button;
    };
    if (chips.childElementCount !== shown) chips.replaceChildren(...Array.from({ length: shown }, (_, i) => make(i)));
    [...chips.children].forEach((button, index) => button.setAttribute("aria-pressed", String(index === front)));
  }
}

/** One sentence on what is special about some settings. @type {(settings: Settings) => string} */
function remark({ model, layers, heads, rank, spectrum, scale, sequences, fixed_fraction: fixed, given }) {
  if (given)
    return "Your own prompts: the bars are the variances of their inputs, and the theory is of these very prompts.";
  if (layers > 1)
    return "Two layers: each head takes one component in its layer, so there are up to twice as many drops. In which layer, the start decides.";
  if (fixed === 1) return "Every prompt has the same task: it is learned in weight, and the context is not needed.";
  if (fixed > 0) return "Some prompts share one task: it is learned in weight, and the others in context, later.";
  if (model.startsWith("softmax"))
    return "Softmax attention trains on prompts, step by step; the theory is that of its linear counterpart.";
  if (model === "linear-transformer") return "The linear transformer: every mode has its own logistic course.";
  if (model === "merged") return "Key and query as one matrix: all components are learned together, in one drop.";
  if (heads * rank < spectrum.length)
    return `${heads * rank} of ${spectrum.length} components find a place in ${heads} ${heads === 1 ? "head" : "heads"} of rank ${rank}: training ends there.`;
  if (sequences) return "Finitely many prompts: the plateaus are off by their sampling error.";
  if (spectrum.some((value, d) => d > 0 && value === spectrum[d - 1]))
    return "Two equal eigenvalues: which direction is learned first is the heads' choice.";
  if (scale > 0.6) return "A large start: the theory is for small ones, and shows how wrong it is here.";
  return "Your own experiment. The address of this page keeps it.";
}
