// Runs: the one in front at once where it is quick, the others in workers; says when there is something new to show.

import { given } from "../kernel/given.js";
import { cost, joined, plan, plansLong, runsOf, testsOf } from "./jobs.js";
import { seenDrops } from "../theory/seen.js";

/** @typedef {import("./settings.js").Settings} Settings */
/** @typedef {import("./jobs.js").Setup} Setup */
/**
 * @typedef {object} Run
 * @property {number} index its number, counted from zero
 * @property {Setup} setup what it was trained with
 * @property {Float64Array} times t/τ of the saves
 * @property {Float64Array} losses
 * @property {Float64Array} weights [saves, weights]
 * @property {boolean} done
 * @property {number} step how far it is
 * @property {number} diverged the step at which the loss was lost, or 0
 * @property {number} ms how long it took
 * @property {number[]} seen when the loss was halfway down each drop
 * @property {import("../theory/dormant.js").Drop[]} drops the predicted ones
 * @property {number[]=} levels its plateaus, where they depend on the start
 * @property {Test[]} tests losses that training does not know of
 */
/** @typedef {{name: string, colour: string, losses: Float64Array}} Test */

const QUICK = 2e7; // ns: a run in front that takes longer goes to a worker
const PATIENCE = 600; // ms that a run in front is waited for before newer settings replace it
const PAUSE = 200; // ms without a change before the runs behind are trained

export class Trainer {
  /** @param {(what: "front" | "others") => void} changed called when there is something new to show */
  constructor(changed) {
    this.changed = changed;
    this.id = 0;
    this.begun = 0;
    this.timer = 0;
    this.waiting = false;
    /** @type {Settings | null} */ this.next = null;
    /** @type {Setup | null} */ this.setup = null;
    /** @type {Map<number, Run>} */ this.runs = new Map();
    /** @type {number[][]} */ this.cloud = [];
    /** @type {Worker[]} */ this.workers = [];
    this.behind = false; // whether the workers behind may be at work
    this.planning = false; // whether a worker makes the plan, which takes it seconds
  }

  /** Train with these settings in the next frame. @param {Settings} settings */
  ask(settings) {
    this.next = settings;
  }

  /** Once a frame: the newest settings, unless a run in front is on its way. */
  frame() {
    if (!this.next || (this.waiting && performance.now() - this.begun < PATIENCE)) return;
    const settings = this.next;
    this.next = null;
    this.id++;
    this.begun = performance.now();
    this.#dismiss();
    clearTimeout(this.timer);
    if (plansLong(settings)) {
      this.waiting = this.planning = true;
      this.asked = settings;
      return this.#post(0, settings, [settings.front], []);
    }
    const setup = this.#begin(plan(settings));
    if (cost(setup) < QUICK) {
      const descent = runsOf(settings, setup.rate, setup.steps)(settings.front);
      descent.advance(Infinity);
      const { diverged, step } = descent,
        ms = performance.now() - this.begun;
      this.#extend({ index: settings.front, ...descent.since(0), done: true, diverged: diverged ? step : 0, step, ms });
    } else {
      this.waiting = true;
      this.#post(0, settings, [settings.front], []);
      this.changed("front");
    }
  }

  /** @param {Setup} setup */
  #begin(setup) {
    this.planning = false;
    this.setup = setup;
    this.cloud = [];
    for (const index of [...this.runs.keys()]) if (index >= setup.settings.seeds) this.runs.delete(index);
    return setup;
  }

  /** Show runs that were recorded elsewhere. @param {Setup} setup @param {Run[]} runs */
  show(setup, runs) {
    this.id++; // nothing that is still being computed belongs to them
    this.waiting = this.planning = false;
    this.next = null;
    this.setup = setup;
    this.cloud = [];
    this.runs = new Map(runs.map((run) => [run.index, { ...run, seen: seenDrops(run) }]));
    this.changed("front");
  }

  /** The run in front. @returns {Run | undefined} */
  get front() {
    return this.setup ? this.runs.get(this.setup.settings.front) : undefined;
  }

  /** End the workers behind: they may be deep in a theory that nobody waits for any more, and the run in front needs the cores. */
  #dismiss() {
    const from = this.planning ? 0 : this.behind ? 1 : Infinity; // who makes a plan looks at no message
    this.planning = this.behind = false;
    for (const worker of this.workers.splice(from)) worker.terminate();
  }

  /** Worker 0 trains the run in front and nothing else. @param {number} n the worker @param {Settings} settings @param {number[]} runs @param {number[]} starts @param {boolean} refine */
  #post(n, settings, runs, starts, refine = false) {
    const { rate, steps } = this.setup ?? { rate: 0, steps: 0 };
    const most = 1 + Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 2) - 1)); // a core is the page's own
    const count = n > 0 ? most : 1; // those behind are started when they are needed
    if (n > 0) this.behind = true;
    while (this.workers.length < count) this.workers.push(startWorker((message) => this.#receive(message)));
    this.workers[n].postMessage({
      id: this.id,
      settings,
      runs,
      starts,
      refine,
      planned: !this.planning,
      rate,
      steps,
      given: settings.given ? given() : null,
    });
  }

  /** @param {any} message */
  #receive(message) {
    if (message.id !== this.id) return;
    if (message.what === "plan") {
      this.#begin({ ...message.setup, settings: this.asked });
      return this.changed("front");
    }
    if (message.what === "run") return this.#extend(message);
    if (message.what === "theory") this.#refine(message.stairs);
    if (message.what === "cloud") this.cloud.push(...message.times);
    const run = this.runs.get(message.index);
    if (run && message.what === "drops") {
      Object.assign(run, { drops: message.drops, levels: message.levels });
      if (message.levels) run.seen = seenDrops(run);
    }
    this.changed("others");
  }

  /** A better theory of the run in front. @param {import("../theory/dormant.js").Stairs} stairs */
  #refine(stairs) {
    const { setup, front } = this;
    if (!setup) return;
    Object.assign(setup, { theory: stairs, rough: false });
    if (front?.setup === setup) front.drops = stairs.drops;
    this.changed("front");
  }

  /** @param {any} message */
  #extend({ index, times, losses, weights, done, diverged, ms, step }) {
    const setup = /** @type {Setup} */ (this.setup);
    const old = this.runs.get(index);
    const before = old && old.setup === setup ? old : null;
    const front = index === setup.settings.front;
    /** @type {Run} */
    const run = {
      index,
      setup,
      done,
      diverged,
      ms,
      step,
      times: joined(before?.times, times),
      losses: joined(before?.losses, losses),
      weights: joined(before?.weights, weights),
      seen: [],
      tests: front ? testsOf(setup, weights, before?.tests) : [],
      drops: front ? (setup.theory?.drops ?? []) : (before?.drops ?? []),
      levels: front ? setup.theory?.levels : before?.levels,
    };
    run.seen = seenDrops(run);
    this.runs.set(index, run);
    if (front && done) {
      this.waiting = false;
      if (setup.rough) setTimeout(() => this.setup === setup && this.#refineLater(setup)); // after the picture
      this.timer = setTimeout(() => !this.next && this.#trainOthers(setup), PAUSE);
    }
    this.changed(front ? "front" : "others");
  }

  /** A worker makes the theory of the run in front better: the run has all cores until it is there. @param {Setup} setup */
  #refineLater(setup) {
    if (!this.next) this.#post(1, setup.settings, [], [], true);
  }

  /** The runs behind, once the one in front is there: it has all cores until then. @param {Setup} setup */
  #trainOthers({ settings }) {
    const { seeds, front, cloud } = settings;
    const others = Array.from({ length: seeds }, (_, i) => i).filter((i) => i !== front);
    const starts = Array.from({ length: cloud }, (_, i) => i);
    if (!others.length && !starts.length) return;
    this.#post(1, settings, [], []); // starts the workers
    const behind = this.workers.length - 1;
    const share = (/** @type {number[]} */ list, /** @type {number} */ n) => list.filter((_, i) => i % behind === n);
    for (let n = 0; n < behind; n++) this.#post(n + 1, settings, share(others, n), share(starts, n));
  }
}

let source = "";

/** A worker from the source inside the page, or, where the page is served as modules, from its file. @type {(receive: (message: any) => void) => Worker} */
function startWorker(receive) {
  const inside = document.getElementById("worker");
  if (inside) source ||= URL.createObjectURL(new Blob([inside.textContent ?? ""], { type: "text/javascript" }));
  // A page opened as a file has no origin, and may start no module worker, but a plain one from its own text.
  const worker = inside
    ? new Worker(source)
    : new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => receive(data);
  worker.onerror = ({ message }) => console.error(`worker: ${message}`);
  return worker;
}
