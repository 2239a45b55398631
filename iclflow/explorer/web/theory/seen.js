// When a run went down each drop.

/** The plateaus of a run; `theory`: that of the run, which may know more than its task. @type {(modes: {levels: number[]}, theory?: {levels?: number[]} | null) => number[]} */
export const plateaus = ({ levels }, theory) => theory?.levels ?? levels;

/** The levels between which drops are predicted. @type {(modes: {levels: number[]}, shape: {kind: string, full?: boolean}) => number[]} */
export function dropLevels({ levels }, { kind, full }) {
  if (full) return levels.slice(0, -1); // the last is a bound, not the end of a predicted drop
  return kind === "merged" ? [levels[0], levels[levels.length - 1]] : levels;
}

/** The times at which the loss crossed the middle of each drop; `own`: the plateaus of this run, where they are not those of its task. @type {(run: {setup: import("../page/jobs.js").Setup, times: Float64Array, losses: Float64Array, levels?: number[]}) => number[]} */
export function seenDrops({ setup: { modes, shape }, times, losses, levels: own }) {
  const levels = own ?? dropLevels(modes, shape);
  const found = [];
  for (let i = 0, at = 1; i + 1 < levels.length; i++) {
    const middle = (levels[i] + levels[i + 1]) / 2;
    while (at < losses.length && losses[at] >= middle) at++;
    if (at >= losses.length) break;
    const part = (losses[at - 1] - middle) / (losses[at - 1] - losses[at]);
    found.push(times[at - 1] + Math.max(0, part) * (times[at] - times[at - 1]));
  }
  return found;
}

/** Relative errors of the predicted times of all runs, smallest first. @type {(runs: import("../page/trainer.js").Run[]) => number[]} */
export const timeErrors = (runs) =>
  runs
    .flatMap((run) => run.drops.slice(0, run.seen.length).map((drop, m) => Math.abs(drop.time / run.seen[m] - 1)))
    .sort((a, b) => a - b);

/** (∫ (L - L_theory)² d log t / ∫ d log t)^(1/2) / E[y²]: how far the predicted curve is off, where there are no drops to compare. @type {(run: import("../page/trainer.js").Run) => number} */
export function curveError({ setup: { theory, modes }, times, losses }) {
  if (!theory?.times.length || theory.by === "first" || times.length < 3) return NaN;
  let sum = 0,
    weight = 0;
  for (let i = 2, at = 0; i < times.length; i++) {
    while (at < theory.times.length - 2 && theory.times[at + 1] < times[i]) at++;
    const [a, b] = [theory.times[at], theory.times[at + 1]];
    const part = b > a ? Math.min(1, Math.max(0, (times[i] - a) / (b - a))) : 0;
    const predicted = theory.loss[at] + part * (theory.loss[at + 1] - theory.loss[at]);
    const width = Math.log(times[i] / times[i - 1]);
    sum += width * (losses[i] - predicted) ** 2;
    weight += width;
  }
  return Math.sqrt(sum / weight) / modes.power;
}
