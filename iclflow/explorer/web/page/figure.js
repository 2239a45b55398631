// Figures of a report: the loss of recorded runs with theory and a time cursor, beside the printed picture.

import { html, number } from "../views/svg.js";
import { LinesView } from "../views/lines.js";
import { LossView } from "../views/loss.js";
import { inflated } from "./inflate.js";
import { seenDrops } from "../theory/seen.js";

/** @typedef {import("./trainer.js").Run} Run */
/** @typedef {{name: string, time: number[], loss: number[], levels: number[], tests: number[][], lines: number[][], linesTheory?: number[][], theory?: (number | null)[], drops: (number | null)[]}} Curves */
/** @typedef {{title: string, clock: string, runs: string, all: Curves[], front: number, tests: string[], lines: string, ends: (number | null)[], dashed: string, model: string, lossName: string}} Panel */

const TESTS = ["var(--c3)", "var(--c2)"];

/** What the theory says of a run, as far as it goes. @type {(run: Curves) => import("../theory/dormant.js").Stairs} */
function stairsOf({ time, theory = [], drops }) {
  const known = theory.flatMap((loss, i) => (loss === null ? [] : [i]));
  return {
    by: known.length < time.length ? "first" : "recorded",
    drops: drops.flatMap((t, mode) => (t === null ? [] : [{ time: t, head: -1, mode }])),
    times: Float64Array.from(known, (i) => time[i]),
    loss: Float64Array.from(known, (i) => Number(theory[i])),
    values: [],
  };
}

/** Runs that have a loss and no weights. @type {(panel: Panel) => Run[]} */
function runsOf({ all, clock, tests, model, lossName }) {
  const horizon = Math.max(...all.map(({ time }) => time[time.length - 1]));
  const kinds = /** @type {Record<string, string>} */ ({ transformer: "transformer", mixture: "merged" });
  return all.map((one, index) => {
    const { levels } = one,
      times = Float64Array.from(one.time),
      theory = stairsOf(one);
    /** @type {any} */
    const setup = {
      modes: { levels, order: levels.slice(1).map((_, d) => d), power: Math.max(...levels, ...one.loss) },
      shape: {
        kind: kinds[model] ?? (levels.length === 2 ? "merged" : "separate"),
        rank: 1,
        full: model === "mixture",
      },
      settings: { model: "separate", front: index },
      theory,
      horizon,
      clock,
      lossName,
      rate: times[1] / 2,
    };
    const run = { index, setup, times, losses: Float64Array.from(one.loss), weights: new Float64Array(0), done: true };
    const found = one.tests.map((losses, n) => ({
      name: tests[n],
      colour: TESTS[n],
      losses: Float64Array.from(losses),
    }));
    return { ...run, tests: found, step: 0, diverged: 0, ms: 0, seen: seenDrops(run), drops: theory.drops };
  });
}

/** A plot with a slider and a button for each run. @type {(place: HTMLElement, panel: Panel) => () => void} */
function mount(place, panel) {
  const runs = runsOf(panel),
    host = html("div", { class: "host scrub" }),
    below = html("div", { class: "host" });
  const slider = /** @type {HTMLInputElement} */ (
    html("input", { type: "range", min: 0, "aria-label": "Training time" })
  );
  const words = html("output", { class: "fine" }),
    chips = html("div", { class: "chips", role: "group", "aria-label": `Which ${panel.runs} is in front` });
  let front = runs[panel.front],
    index = front.times.length - 1;
  const context = () => ({ setup: front.setup, front, runs, cloud: [], index, log: true, playing: false });
  const lines = panel.lines ? new LinesView(below, panel.lines, panel.ends) : null;
  const unit = panel.clock.replace(/^training time /, "");
  const move = (/** @type {number} */ to) => {
    index = Math.max(0, Math.min(front.times.length - 1, to));
    slider.value = String(index);
    const seen = front.seen.map(
      (t, m) => `${number(t)}${front.drops[m] ? ` (predicted ${number(front.drops[m].time)})` : ""}`,
    );
    const name = `${panel.runs} ${panel.all[front.index].name}`;
    const drops = seen.length ? ` Drops of ${name} at ${seen.join(", ")}.` : "";
    const dashed = panel.dashed ? ` Dashed: ${panel.dashed}.` : "";
    words.textContent = `${unit} ${number(front.times[index])}, loss ${front.losses[index].toFixed(4)}.${drops}${dashed}`;
    slider.setAttribute("aria-valuetext", words.textContent);
    loss.move(context());
    lines?.move(context());
  };
  const loss = new LossView(host, (time) => move(front.times.findIndex((t) => t >= time)));
  const draw = () => {
    slider.max = String(front.times.length - 1);
    index = Math.min(index, front.times.length - 1);
    loss.width = host.clientWidth;
    loss.draw(context());
    if (lines) {
      lines.width = below.clientWidth;
      lines.draw(context(), panel.all[front.index]);
    }
    move(index);
    [...chips.children].forEach((chip, n) => chip.setAttribute("aria-pressed", String(n === front.index)));
  };
  for (const run of runs) {
    const { name } = panel.all[run.index];
    const chip = html("button", { type: "button", "aria-label": `bring ${panel.runs} ${name} to the front` }, name);
    chip.addEventListener("click", () => {
      const end = index === front.times.length - 1;
      front = run;
      if (end) index = front.times.length - 1;
      draw();
    });
    if (runs.length > 1) chips.append(chip);
  }
  slider.addEventListener("input", () => move(Number(slider.value)));
  const named = html("span", { class: "fine" }, `${panel.runs} `);
  place.replaceChildren(...(runs.length > 1 ? [named, chips] : []), host, ...(lines ? [below] : []), slider, words);
  return draw;
}

/** The panels of a figure, one at a time. @type {(place: HTMLElement, panels: Panel[]) => void} */
function mountAll(place, panels) {
  const tabs = html("div", { class: "chips", role: "group", "aria-label": "Panel" }),
    inside = html("div");
  let draw = () => {};
  const choose = (/** @type {number} */ chosen) => {
    draw = mount(inside, panels[chosen]);
    [...tabs.children].forEach((tab, n) => tab.setAttribute("aria-pressed", String(n === chosen)));
    draw();
  };
  panels.forEach(({ title }, n) => {
    const tab = html("button", { type: "button" }, title);
    tab.addEventListener("click", () => choose(n));
    tabs.append(tab);
  });
  place.replaceChildren(...(panels.length > 1 ? [tabs] : []), inside);
  place.hidden = false;
  choose(0);
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth === width) return;
    width = place.clientWidth;
    draw();
  }).observe(place);
}

for (const element of document.querySelectorAll("script.curves")) {
  const name = element.getAttribute("data-figure") ?? "",
    place = document.getElementById(`${name}-live`);
  inflated(element.textContent ?? "").then((bytes) => {
    if (place) mountAll(place, JSON.parse(new TextDecoder().decode(bytes)));
  });
}
