// The settings of the page: the names, defaults and meanings of `iclflow simulate`, within the page's bounds.

import { given as prompts } from "../kernel/given.js";
import { BOUNDS as RANGES, COMPONENTS, DEEP_COMPONENTS, DEFAULTS as USUAL, MODELS, WHOLE } from "./options.js";

/**
 * @typedef {object} Settings
 * @property {string} model one of `MODELS`
 * @property {number} layers 1, or 2 layers of separate key and query with heads of rank one, in the population
 * @property {number[]} spectrum eigenvalues λ, largest first
 * @property {number[]} task_covariance variances of the task vectors along the eigenvectors
 * @property {number} context N
 * @property {number} noise standard deviation of the context labels' noise
 * @property {number} fixed_fraction share of prompts with one fixed task, in the population
 * @property {number} heads H
 * @property {number} rank R
 * @property {number} scale init scale w
 * @property {boolean} rotate whether the eigenvectors are drawn, or are the coordinate axes
 * @property {number} eigen_seed the seed that draws them
 * @property {number} sequences P; 0 for the population
 * @property {number} data_seed the seed of the prompts
 * @property {number} rate η; 0 for a quarter of the stability limit
 * @property {number} steps 0 to go on past the predicted drops
 * @property {number} seeds how many runs
 * @property {number} seed the first of them
 * @property {number} front the run in front, counted from zero
 * @property {number} cloud how many further starts the theory is asked about
 * @property {number} given 1 to train on the prompts that were read from a file, which no address holds
 */

/** The library's defaults, and the page's own. @type {Settings} */
export const DEFAULTS = { ...USUAL, front: 0, cloud: 0, given: 0 };

/** Least and largest value of each number. @type {Record<string, [number, number]>} */
export const BOUNDS = { ...RANGES, front: [0, 99], cloud: [0, 1000], given: [0, 1] };
const OF_PROMPTS = ["spectrum", "context"]; // what a file of prompts says itself
const LONGEST = 6e10; // nanoseconds, about, that all runs of a page may take together
const TYPICAL = 25000; // steps of a run that is given none
const SOFTMAX_SEQUENCES = [300, 3000]; // softmax trains on prompts: when none are asked for, and at most

/** Whether a model trains on prompts only. @type {(settings: Settings) => boolean} */
export const isSoftmax = ({ model }) => model.startsWith("softmax");

/** About how many nanoseconds a step of one run takes. @type {(settings: Settings) => number} */
function stepCost({ model, layers, spectrum: { length: D }, heads, rank, context, sequences, fixed_fraction, given }) {
  if (layers > 1) return 4000 + 250 * D ** 3;
  if (model.startsWith("softmax")) return sequences * (context + 1) * heads * 2 * D;
  const features = sequences || fixed_fraction || given ? (D * (D + 1) ** 2) ** 2 : 0;
  return 100 + 2 * heads * rank * D ** 2 + features;
}

/** Settings with every number in its bounds, or a default in its place. @type {(given: Partial<Settings>) => Settings} */
export function valid(given) {
  /** @type {any} */ const result = { ...DEFAULTS };
  for (const [name, value] of Object.entries(given)) if (Object.hasOwn(DEFAULTS, name)) result[name] = value;
  for (const [name, [low, high]] of Object.entries(BOUNDS)) {
    const fixed = (/** @type {any} */ x) => {
      const inside = Math.min(high, Math.max(low, Number.isFinite(x) ? x : low));
      return WHOLE.includes(name) || name === "front" ? Math.round(inside) : inside;
    };
    result[name] = Array.isArray(result[name]) ? result[name].slice(0, COMPONENTS).map(fixed) : fixed(result[name]);
  }
  if (!MODELS.includes(result.model)) result.model = DEFAULTS.model;
  if (!result.spectrum.length) result.spectrum = DEFAULTS.spectrum;
  result.spectrum = [...result.spectrum].sort((a, b) => b - a);
  const own = prompts();
  result.given = own && result.given ? 1 : 0;
  if (own && result.given) {
    const plain = { rotate: false, sequences: 0, noise: 0, fixed_fraction: 0, task_covariance: [] };
    Object.assign(result, plain, { spectrum: own.spectrum, context: own.modes.context });
    if (!["separate", "merged"].includes(result.model)) result.model = "separate";
  }
  result.task_covariance = result.spectrum.map(
    (/** @type {number} */ _, /** @type {number} */ d) => result.task_covariance[d] ?? 1,
  );
  if (result.model !== "separate" || result.given) result.layers = 1;
  if (result.layers > 1) {
    Object.assign(result, { rank: 1, sequences: 0, fixed_fraction: 0, cloud: 0 });
    result.spectrum = result.spectrum.slice(0, DEEP_COMPONENTS);
    result.task_covariance = result.task_covariance.slice(0, DEEP_COMPONENTS);
  }
  result.rank = Math.min(result.rank, result.spectrum.length);
  result.rotate = Boolean(result.rotate);
  result.front = Math.min(result.front, result.seeds - 1);
  if (result.model === "linear-transformer") Object.assign(result, { sequences: 0, noise: 0, seeds: 1, front: 0 });
  if (!["separate", "merged"].includes(result.model)) result.fixed_fraction = 0;
  if (result.fixed_fraction > 0) result.sequences = 0;
  if (result.fixed_fraction > 0 && result.model === "separate") result.cloud = 0;
  if (isSoftmax(result)) result.sequences = Math.min(SOFTMAX_SEQUENCES[1], result.sequences || SOFTMAX_SEQUENCES[0]);
  // Each number is in its bounds; their product could still keep the page busy for hours.
  const affordable = Math.max(1, Math.floor(LONGEST / stepCost(result)));
  result.steps = Math.min(result.steps, affordable);
  result.seeds = Math.max(1, Math.min(result.seeds, Math.floor(affordable / (result.steps || TYPICAL))));
  result.front = Math.min(result.front, result.seeds - 1);
  return result;
}

/** What an address says; anything it does not say, or says wrongly, is the default. @type {(hash: string) => {settings: Settings, time: number, named: boolean}} */
export function parse(hash) {
  /** @type {any} */ const given = {};
  const fields = new URLSearchParams(hash.replace(/^#/, "").slice(0, 2000));
  for (const [name, text] of fields) {
    if (name === "model") given.model = text;
    else if (name === "rotate") given.rotate = text === "true";
    else if (Object.hasOwn(BOUNDS, name) && name !== "given") {
      const numbers = text.split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
      if (!numbers.every(Number.isFinite)) continue;
      given[name] = Array.isArray(/** @type {any} */ (DEFAULTS)[name]) ? numbers : numbers[0];
    }
  }
  const time = Number(fields.get("t"));
  return { settings: valid(given), time: time > 0 ? time : 0, named: Object.keys(given).length > 0 };
}

/** A number as an address has it: short, and exactly what the page computes with. @type {(x: number) => string} */
export const short = (x) => String(Number(x.toPrecision(12)));

/** @type {(value: any) => string} */
const text = (value) =>
  Array.isArray(value) ? value.map(short).join(",") : typeof value === "number" ? short(value) : String(value);

/** What differs from the library's defaults, as texts by name. @type {(settings: Settings) => [string, string][]} */
export const stated = (settings) =>
  Object.entries(settings)
    .filter(([name]) => name !== "given" && !(settings.given && OF_PROMPTS.includes(name)))
    .filter(([name, value]) =>
      name === "task_covariance"
        ? !settings.task_covariance.every((s) => s === 1)
        : text(value) !== text(/** @type {any} */ (DEFAULTS)[name]),
    )
    .map(([name, value]) => [name, text(value)]);

/** The address of some settings and a time. @type {(settings: Settings, time: number) => string} */
export function format(settings, time) {
  const fields = stated(settings).map(([name, value]) => `${name}=${value}`);
  if (time > 0) fields.push(`t=${Number(time.toPrecision(4))}`);
  return fields.join("&") || `scale=${DEFAULTS.scale}`;
}
