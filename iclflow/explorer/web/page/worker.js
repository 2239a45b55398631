// Works off one job at a time, piece by piece, so that a newer one can take its place within a frame.

import { give } from "../kernel/given.js";
import { plan, runsOf, theoryOf } from "./jobs.js";

/** `runs` to train, `starts` whose drops the theory is asked for, and whether the theory of the run in front is to be refined; `planned`: false where the plan is to be made first. @typedef {{id: number, settings: import("./settings.js").Settings, runs: number[], starts: number[], refine: boolean, planned: boolean, rate: number, steps: number, given: import("../kernel/given.js").Given | null}} Job */

const PIECE = 12; // ms between two looks for a newer job
const SHOW = 90; // ms between two pictures of an unfinished run

let latest = -1;
const { port1, port2 } = new MessageChannel();
/** @type {() => Promise<void>} let messages in; a timer would wait 4 ms */
const breathe = () =>
  new Promise((resolve) => {
    port1.onmessage = () => resolve();
    port2.postMessage(0);
  });

onmessage = ({ data }) => {
  latest = data.id;
  give(data.given);
  work(data);
};

/** @param {Job} job */
async function work({ id, settings, runs, starts, refine, planned, rate, steps }) {
  if (!planned) {
    const setup = plan(settings);
    ({ rate, steps } = setup);
    postMessage({ id, what: "plan", setup });
  }
  if (refine) postMessage({ id, what: "theory", stairs: theoryOf(settings, settings.front) });
  const begin = runs.length ? runsOf(settings, rate, steps) : null;
  for (const index of runs) {
    const run = /** @type {NonNullable<typeof begin>} */ (begin)(index);
    let sent = 0,
      ms = 0,
      shown = performance.now(),
      count = settings.sequences && settings.model.startsWith("softmax") ? 1 : 4000;
    while (!run.done) {
      const before = performance.now();
      run.advance(count);
      const took = performance.now() - before;
      ms += took;
      count = Math.max(1, Math.min(4 * count, (count * PIECE) / Math.max(took, 0.1)));
      if (run.done || performance.now() - shown >= SHOW) {
        const part = run.since(sent);
        sent = run.saved.length;
        shown = performance.now();
        const state = { done: run.done, diverged: run.diverged ? run.step : 0, ms, step: run.step };
        const buffers = [part.times.buffer, part.losses.buffer, part.weights.buffer];
        postMessage({ id, what: "run", index, ...part, ...state }, { transfer: buffers });
      }
      await breathe();
      if (latest !== id) return;
    }
    if (index === settings.front) continue;
    const { drops, levels } = theoryOf(settings, index);
    postMessage({ id, what: "drops", index, drops, levels });
  }
  /** @type {number[][]} */ let cloud = [];
  for (const [n, index] of starts.entries()) {
    cloud.push(theoryOf(settings, index, true).drops.map(({ time }) => time));
    if (n % 20 < 19 && n + 1 < starts.length) continue;
    postMessage({ id, what: "cloud", times: cloud });
    cloud = [];
    await breathe();
    if (latest !== id) return;
  }
}
