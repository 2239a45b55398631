// Runs that the library recorded, inside the page: a line of JSON and the numbers, deflated, in base64.

import { stage } from "../kernel/experiment.js";
import { weightCount } from "../kernel/models.js";
import { predict } from "../theory/predict.js";
import { inflated } from "./inflate.js";
import { testsOf } from "./jobs.js";
import { COMPONENTS } from "./options.js";
import { BOUNDS, valid } from "./settings.js";

/** @typedef {import("./trainer.js").Run} Run */
/** @typedef {import("./jobs.js").Setup} Setup */
/** @typedef {{setup: Setup, runs: Run[], title: string}} Recorded */

const SAVES = 4000; // of a run at most

/** All recorded runs inside the page. @type {() => Promise<Recorded[]>} */
export async function recorded() {
  const inside = [...document.querySelectorAll("script.recorded")];
  return Promise.all(inside.map(async (element) => unpack(await inflated(element.textContent ?? ""))));
}

/** Runs from bytes; every number that sizes depend on is bounded first. @type {(bytes: ArrayBuffer) => Recorded} */
export function unpack(bytes) {
  const length = new DataView(bytes).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  const settings = valid({ ...about.settings, seeds: about.settings.seeds }),
    { modes, shape } = stage(settings);
  const count = weightCount(shape),
    saves = Number(about.saves);
  const expected = 4 + length + 8 * saves * (1 + settings.seeds) + 4 * saves * settings.seeds * count;
  if (!(saves >= 2 && saves <= SAVES) || bytes.byteLength !== expected)
    throw new Error("not the size its settings say");
  let at = 4 + length;
  const doubles = (/** @type {number} */ n) => {
    const part = new Float64Array(bytes, at, n);
    at += 8 * n;
    return part;
  };
  const times = doubles(saves);
  const losses = Array.from({ length: settings.seeds }, () => doubles(saves));
  const rate = Math.min(BOUNDS.rate[1], Math.max(1e-9, Number(about.rate) || 1)),
    steps = Math.max(1, Math.round(Number(about.steps) || 1));
  /** @type {Setup} */
  const setup = {
    settings,
    modes,
    shape,
    rate,
    steps,
    horizon: times[saves - 1],
    theory: null,
    rough: false,
    partial: Boolean(about.partial),
  };
  const given = about.given ? givenPrompts(about.given, setup, saves) : null;
  const runs = losses.map((loss, index) => {
    const weights = Float64Array.from(new Float32Array(bytes, at, saves * count));
    at += 4 * saves * count;
    const theory = given ? given(index, times) : predict(setup.modes, shape, weights.subarray(0, count));
    if (index === settings.front) setup.theory = theory;
    return {
      index,
      setup,
      times,
      losses: loss,
      weights,
      done: true,
      step: steps,
      diverged: 0,
      ms: 0,
      seen: [],
      tests: index === settings.front ? testsOf(setup, weights) : [],
      drops: theory?.drops ?? [],
    };
  });
  return { setup, runs, title: String(about.title).slice(0, 80) };
}

/** Numbers of a list from outside, at most `most` of them. @type {(list: any, most: number) => number[]} */
const numbers = (list, most) => (Array.isArray(list) ? list : []).slice(0, most).map(Number);

/**
 * Prompts of somebody: levels, least squares and predictions are those that the library found for these very prompts.
 * Gives the theory of a run by its number.
 * @type {(about: any, setup: Setup, saves: number) => (index: number, times: Float64Array) => import("../theory/dormant.js").Stairs | null}
 */
function givenPrompts(about, setup, saves) {
  const { modes, settings } = setup,
    levels = numbers(about.levels, COMPONENTS + 1),
    size = settings.spectrum.length,
    best = numbers(about.best, size * size);
  const order = levels.slice(1).map((_, m) => m);
  setup.given = { count: Number(about.count), best: best.length === size * size ? best : null };
  setup.modes = { ...modes, levels, order, power: levels[0] ?? modes.power };
  return (index, times) => {
    const loss = numbers(about.theory?.[index], saves),
      drops = numbers(about.drops?.[index], COMPONENTS).map((time, mode) => ({ time, head: -1, mode }));
    return loss.length === saves ? { by: "given", drops, times, loss: Float64Array.from(loss), values: [] } : null;
  };
}
