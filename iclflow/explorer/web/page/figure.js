// Figures of a report: the loss of recorded runs with theory and a time cursor, beside the printed picture.

import { html, number } from "../views/svg.js";
import { LossView } from "../views/loss.js";
import { inflated } from "./inflate.js";
import { seenDrops } from "../theory/seen.js";

/** @typedef {import("./trainer.js").Run} Run */
/** @typedef {{time: number[], loss: number[][], theory: number[][], levels: number[], drops?: (number | null)[][], rate: number}} Curves */

/** Runs that have a loss and no weights. @type {(about: Curves) => Run[]} */
function runsOf({ time, loss, theory, levels, drops = [], rate }) {
  const order = levels.slice(1).map((_, d) => d),
    times = Float64Array.from(time);
  return loss.map((losses, index) => {
    const predicted = (drops[index] ?? [])
      .filter((t) => t !== null)
      .map((t, mode) => ({ time: Number(t), head: -1, mode }));
    const stairs = { by: "recorded", drops: predicted, times, loss: Float64Array.from(theory[index]), values: [] };
    /** @type {any} */
    const setup = {
      modes: { levels, order, power: Math.max(levels[0], losses[0]) },
      shape: { kind: levels.length === 2 ? "merged" : "separate", rank: 1 },
      settings: { model: "separate", front: index },
      theory: stairs,
      horizon: times[times.length - 1],
      rate,
    };
    const run = { index, setup, times, losses: Float64Array.from(losses), weights: new Float64Array(0), done: true };
    return { ...run, tests: [], step: 0, diverged: 0, ms: 0, seen: seenDrops(run), drops: predicted };
  });
}

/** A plot with a slider and a button for each run. @type {(place: HTMLElement, about: Curves) => void} */
function mount(place, about) {
  const runs = runsOf(about),
    host = html("div", { class: "host scrub" });
  const slider = /** @type {HTMLInputElement} */ (
    html("input", { type: "range", min: 0, max: about.time.length - 1, "aria-label": "Training time" })
  );
  const words = html("output", { class: "fine" }),
    chips = html("div", { class: "chips", role: "group", "aria-label": "Run in front" });
  let front = runs[0],
    index = about.time.length - 1;
  const context = () => ({ setup: front.setup, front, runs, cloud: [], index, log: true, playing: false });
  const move = (/** @type {number} */ to) => {
    index = Math.max(0, Math.min(about.time.length - 1, to));
    slider.value = String(index);
    const seen = front.seen.map(
      (t, m) => `${number(t)}${front.drops[m] ? ` (predicted ${number(front.drops[m].time)})` : ""}`,
    );
    words.textContent = `t/τ ${number(about.time[index])}, loss ${front.losses[index].toFixed(4)}. Drops of run ${front.index} at ${seen.join(", ")}.`;
    slider.setAttribute("aria-valuetext", words.textContent);
    loss.move(context());
  };
  const loss = new LossView(host, (time) => move(about.time.findIndex((t) => t >= time)));
  const draw = () => {
    loss.width = host.clientWidth;
    loss.draw(context());
    move(index);
    [...chips.children].forEach((chip, n) => chip.setAttribute("aria-pressed", String(n === front.index)));
  };
  runs.forEach((run) => {
    const chip = html(
      "button",
      { type: "button", "aria-label": `bring run ${run.index} to the front` },
      String(run.index),
    );
    chip.addEventListener("click", () => {
      front = run;
      draw();
    });
    chips.append(chip);
  });
  slider.addEventListener("input", () => move(Number(slider.value)));
  place.replaceChildren(chips, host, slider, words);
  place.hidden = false;
  new ResizeObserver(draw).observe(place);
}

for (const element of document.querySelectorAll("script.curves")) {
  const name = element.getAttribute("data-figure") ?? "",
    place = document.getElementById(`${name}-live`);
  inflated(element.textContent ?? "").then((bytes) => {
    if (place) mount(place, JSON.parse(new TextDecoder().decode(bytes)));
  });
}
