// The story: a few captions that go with the drops, for who sees this for the first time.

import { component } from "../views/context.js";
import { byId } from "../views/svg.js";

/** @typedef {import("./trainer.js").Run} Run */
/** One caption, and the time t/τ that it speaks of; null for the time at which the cursor is. @typedef {{time: number | null, text: string}} Chapter */

const READING = 9000; // ms for a caption before the next one comes by itself

/** What is told of a staircase. @type {(run: Run) => Chapter[]} */
export function chapters({ setup, times }) {
  const drops = setup.theory?.drops ?? [];
  const end = times[times.length - 1];
  const first = component(setup.modes.order[0]);
  /** The middle of the wait after drop n, on the logarithmic axis. @type {(n: number) => number} */
  const after = (n) => Math.sqrt(drops[n].time * (drops[n + 1]?.time ?? end));
  const start = drops.length ? drops[0].time / 4 : 0;
  const told = [
    {
      time: start,
      text: "All weights begin small and random, so the model predicts nothing, and its error is as large as the labels themselves. It looks as if nothing happened. But the heads below are turning.",
    },
  ];
  if (drops.length)
    told.push({
      time: after(0),
      text: `One head wakes up. It has found ${first}, the direction in which the inputs vary most: the model now reads that one component of the task from its prompt, and the error falls to the next dotted line.`,
    });
  if (drops.length > 2)
    told.push({
      time: after(1),
      text: "Then it waits again, until another head takes the next component. Each step of the stairs is one more component of the task that the model learns to use.",
    });
  told.push({
    time: end,
    text: "In the end it does least squares on the examples of any prompt, for tasks that it never saw. The dashed line and the rings were computed before the first step of training.",
  });
  return [
    ...told,
    {
      time: null,
      text: "Now change something: drag a bar on the right, or make the initial weights smaller and watch the waits grow.",
    },
  ];
}

export class Story {
  /** @param {import("./timeline.js").Timeline} timeline @param {() => Run | undefined} front @param {() => void} begin shows the experiment that the story is about */
  constructor(timeline, front, begin) {
    this.timeline = timeline;
    this.front = front;
    this.begin = begin;
    this.at = -1;
    this.timer = 0;
    byId("story-start").addEventListener("click", () => this.start());
    byId("story-back").addEventListener("click", () => this.go(this.at - 1));
    byId("story-next").addEventListener("click", () => this.go(this.at + 1));
    byId("story-skip").addEventListener("click", () => this.end());
    document.addEventListener("keydown", (event) => {
      if (this.at < 0 || /** @type {HTMLElement} */ (event.target).closest("input, select, [role=slider], dialog"))
        return;
      if (event.key === "ArrowRight") this.go(this.at + 1);
      else if (event.key === "ArrowLeft") this.go(this.at - 1);
      else if (event.key === "Escape") this.end();
    });
  }

  start() {
    this.begin();
    byId("story").hidden = false;
    byId("note").hidden = true;
    this.at = 0;
    this.waiting = true; // until the run is there
    this.timeline.stop();
    byId("story-next").focus();
  }

  /** Once a frame: the first caption waits for a finished run. @param {boolean} ready */
  frame(ready) {
    if (this.at < 0 || !this.waiting || !ready) return;
    this.waiting = false;
    this.go(0);
  }

  /** @param {number} to a caption */
  go(to) {
    const run = this.front();
    if (!run) return;
    const told = chapters(run);
    clearTimeout(this.timer);
    if (to >= told.length) return this.end();
    this.at = Math.max(0, to);
    const { time, text } = told[this.at];
    byId("story-words").textContent = text;
    byId("story-count").textContent = `${this.at + 1} of ${told.length}`;
    byId("story-skip").textContent = this.at === told.length - 1 ? "Done" : "Skip";
    /** @type {HTMLButtonElement} */ (byId("story-back")).disabled = this.at === 0;
    if (time !== null) this.timeline.glide(run, time);
    // Who asked for less motion turns the pages alone; the last one stays.
    if (!this.timeline.calm && this.at < told.length - 1) this.timer = setTimeout(() => this.go(this.at + 1), READING);
  }

  end() {
    clearTimeout(this.timer);
    this.at = -1;
    byId("story").hidden = true;
    byId("note").hidden = false;
  }
}
