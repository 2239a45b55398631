// The time cursor: it plays, it is scrubbed, and a new experiment is played as it comes.

import { byId, field } from "../views/svg.js";

/** @typedef {import("./trainer.js").Run} Run */

const SPEED = 55; // saves per second while it plays

export class Timeline {
  /** @param {boolean} calm no motion that was not asked for @param {number} wanted t/τ that an address asks for @param {() => void} changed */
  constructor(calm, wanted, changed) {
    this.calm = calm;
    this.wanted = wanted;
    this.changed = changed;
    this.index = 0;
    this.playing = false;
    this.moved = true;
    this.from = this.began = 0;
    this.until = Infinity; // the save at which it stops by itself
    this.shown = 0; // the first time that the axis shows
    this.arriving = !calm && wanted === 0; // a new experiment is played as it comes
    this.atEnd = calm && wanted === 0; // the cursor stays at the end of the run, wherever that is
  }

  /** A new experiment from its beginning. */
  restart() {
    this.stop();
    this.wanted = 0;
    this.arriving = !this.calm;
    this.atEnd = this.calm;
  }

  /** The time for the address; 0 for the end. @param {Run | undefined} front */
  time(front) {
    return this.atEnd || !front ? 0 : front.times[Math.min(this.index, front.times.length - 1)];
  }

  /** @param {Run | undefined} front @param {number} to a save */
  moveTo(front, to) {
    if (!front) return;
    const next = Math.max(0, Math.min(front.times.length - 1, Math.round(to)));
    this.atEnd = front.done && next === front.times.length - 1;
    if (next !== this.index) this.moved = true;
    this.index = next;
  }

  /** To the save nearest to a time. @param {Run | undefined} front @param {number} time */
  seek(front, time) {
    if (!front) return;
    this.stop();
    let low = 0,
      high = front.times.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (front.times[middle] <= time) low = middle;
      else high = middle;
    }
    this.moveTo(front, time - front.times[low] < front.times[high] - time ? low : high);
    this.changed();
  }

  /** On to a time, as if it played, or there at once where less motion is asked for. @param {Run} front @param {number} time */
  glide(front, time) {
    const from = this.index;
    this.seek(front, time);
    const to = this.index;
    if (this.calm || to <= from) return;
    this.moveTo(front, from);
    this.play(front);
    this.until = to;
  }

  /** @param {Run | undefined} front */
  play(front) {
    this.playing = true;
    this.until = Infinity;
    this.began = performance.now();
    this.from = front && this.index >= front.times.length - 1 ? this.#first(front) : this.index;
    this.#show();
  }

  stop() {
    this.arriving = false;
    if (!this.playing) return;
    this.playing = false;
    this.moved = true;
    this.#show();
  }

  /** The first save that the time axis shows. @param {Run} front */
  #first(front) {
    return Math.max(0, front.times.findIndex((t) => t >= this.shown) - 1);
  }

  /** Once a frame. @param {Run | undefined} front */
  frame(front) {
    if (!this.playing || !front) return;
    const next = this.from + ((performance.now() - this.began) / 1000) * SPEED;
    this.moveTo(front, Math.min(next, this.until));
    if (next < this.until && (!front.done || next < front.times.length - 1)) return;
    this.stop();
    this.changed();
  }

  /** Before a picture: where the cursor belongs in a run that may be new. @param {Run | undefined} front @param {boolean} current @param {number} shown */
  settle(front, current, shown) {
    this.shown = shown;
    if (!front) return;
    if (current && this.wanted > 0) {
      this.seek(front, this.wanted);
      if (front.done) this.wanted = 0;
    } else if (current && this.atEnd) this.index = front.times.length - 1;
    this.index = Math.min(this.index, front.times.length - 1);
    if (!current || !this.arriving) return;
    this.arriving = false;
    this.index = this.#first(front);
    this.play(front);
  }

  #show() {
    const button = byId("play");
    button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    button.querySelector("path")?.setAttribute("d", this.playing ? "M6 4h4v16H6zM14 4h4v16h-4z" : "M7 4l13 8-13 8z");
  }

  /** @param {() => Run | undefined} front */
  listen(front) {
    const toggle = () => (this.playing ? this.stop() : this.play(front()));
    byId("play").addEventListener("click", toggle);
    byId("time").addEventListener("input", () => {
      this.stop();
      this.moveTo(front(), Number(field("time").value));
      this.changed();
    });
    document.addEventListener("keydown", (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      const takes = /^(INPUT|BUTTON|SELECT|SUMMARY|A|PRE|DIALOG)$/.test(target.tagName);
      if (event.key !== " " || takes || target.getAttribute("role") === "slider") return;
      event.preventDefault();
      toggle();
    });
  }
}
