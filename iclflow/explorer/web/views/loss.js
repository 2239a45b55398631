// The loss: plateaus, prediction, runs, and the cursor that everything else follows.

import { freshId, keep, line, number, scale, set, svg, ticks } from "./svg.js";
import { dropLevels, plateaus } from "../theory/seen.js";
import {
  LEFT,
  algorithm,
  clockName,
  colour,
  componentOf,
  count,
  learned,
  shortly,
  termOf,
  textColour,
  timeScale,
} from "./context.js";

/** @typedef {import("./context.js").Context} Context */

export class LossView {
  /** @param {HTMLElement} host @param {(time: number) => void} scrub */
  constructor(host, scrub) {
    this.host = host;
    this.width = host.clientWidth;
    const layer = (/** @type {string} */ name) => svg("g", { class: name });
    this.grid = layer("grid");
    this.levels = layer("levels");
    this.others = svg("path", { class: "run other" });
    this.future = svg("path", { class: "run future" });
    this.past = svg("path", { class: "run" });
    this.theory = svg("path", { class: "theory" });
    this.marks = layer("marks");
    this.clip = svg("rect", { x: 0, y: 0, width: 0, height: 1000 });
    const id = freshId();
    this.soFar = `url(#${id})`;
    const clipped = svg("g", { "clip-path": this.soFar }, this.past);
    this.tests = layer("tests");
    this.cloud = svg("g", {}, this.others, this.tests);
    this.legend = layer("legend");
    this.starts = layer("starts");
    this.sheet = svg(
      "svg",
      { class: "plot", role: "img" },
      svg("defs", {}, svg("clipPath", { id }, this.clip)),
      this.grid,
      this.levels,
      this.starts,
      this.cloud,
      this.future,
      clipped,
      this.marks,
      this.theory,
      this.legend,
    );
    this.cursor = svg("line", { class: "cursor" });
    this.dot = svg("circle", { class: "dot", r: 5 });
    this.over = svg("svg", { class: "over", "aria-hidden": "true" }, this.cursor, this.dot);
    host.replaceChildren(this.sheet, this.over);
    host.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      host.setPointerCapture(event.pointerId);
      this.dragging = true;
      scrub(this.#timeAt(event));
    });
    host.addEventListener("pointermove", (event) => this.dragging && scrub(this.#timeAt(event)));
    for (const end of ["pointerup", "pointercancel"]) host.addEventListener(end, () => (this.dragging = false));
  }

  /** @param {PointerEvent} event */
  #timeAt(event) {
    return this.x ? this.x.invert(event.clientX - this.host.getBoundingClientRect().left) : 0;
  }

  /** @param {Context} context */
  draw(context) {
    const { setup, front } = context;
    const { modes, theory, shape } = setup;
    const width = this.width,
      narrow = width < 560,
      height = narrow ? 310 : innerHeight < 800 ? 340 : 410; // on a low screen the strip shall be seen too
    for (const sheet of [this.sheet, this.over]) set(sheet, { width, height, viewBox: `0 0 ${width} ${height}` });
    const x = (this.x = timeScale(context, width));
    const y = (this.y = scale(false, [0, 1.04 * Math.max(modes.power, ...testPeaks(front))], [height - 44, 24]));
    const right = x.range[1];

    const grid = [];
    for (const t of ticks(x, narrow ? 4 : 7)) {
      grid.push(svg("line", { x1: x(t), x2: x(t), y1: height - 44, y2: height - 39 }));
      grid.push(svg("text", { x: x(t), y: height - 26, "text-anchor": "middle" }, number(t)));
    }
    for (const value of ticks(y, 5))
      grid.push(svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    grid.push(svg("line", { x1: LEFT, x2: right, y1: height - 44, y2: height - 44 }));
    grid.push(svg("text", { class: "label", x: 2, y: 10 }, setup.lossName ?? "loss  E(y − ŷ)²"));
    grid.push(svg("text", { class: "label", x: right, y: height - 8, "text-anchor": "end" }, clockName(context)));
    this.grid.replaceChildren(...grid);

    const stairs = plateaus(modes, theory),
      all = stairs.length - 1,
      drops = theory?.drops ?? [];
    const own = (/** @type {number} */ m) =>
      colour(shape.full ? undefined : shape.layers ? drops[m - 1]?.mode : modes.order[m - 1]);
    /** @type {SVGElement[]} */ const levels = [];
    /** @type {{y: number, text: SVGElement}[]} */ const labels = [];
    stairs.forEach((level, m) => {
      if (shape.kind === "merged" && !shape.full && m > 0 && m < all) return;
      levels.push(
        svg("line", {
          x1: LEFT,
          x2: right,
          y1: y(level),
          y2: y(level),
          style: `stroke: ${own(m)}`,
        }),
      );
      const crowded = labels.length > 0 && y(level) - labels[labels.length - 1].y <= 12;
      if (crowded && m !== all) return;
      if (crowded && labels.length > 1) labels.pop(); // the last level has its name
      const name = algorithm(m, setup);
      const short = name.startsWith("component")
        ? shortly(m, modes)
        : name.replace("least squares", "all").replace(" heads", "");
      const label = svg("text", { x: right + 8, y: y(level) + 4 }, narrow ? short : name);
      const term = termOf(m, setup);
      if (term) label.append(svg("title", {}, term));
      labels.push({ y: y(level), text: label });
      levels.push(svg("circle", { cx: right + 1, cy: y(level), r: 2.5, style: `fill: ${own(m)}` }));
    });
    this.levels.replaceChildren(...levels, ...labels.map(({ text }) => text));

    const predicted = theory ? line(x, y, theory.times, theory.loss) : "";
    set(this.theory, { d: theory?.by === "first" ? predicted : extended(predicted, right) });
    const d = front ? line(x, y, front.times, front.losses) : "";
    set(this.past, { d });
    set(this.future, { d });
    this.drawOthers(context);
    this.#drawTests(front);

    /** @type {SVGElement[]} */ const marks = [];
    const stops = theory?.levels ?? dropLevels(modes, shape),
      middles = stops.slice(1).map((level, m) => (level + stops[m]) / 2);
    let named = { end: -1e9, middle: -1e9 };
    theory?.drops.forEach((drop, m) => {
      const at = x(drop.time),
        middle = y(middles[m]),
        name = learned(setup, drop),
        hidden = at < named.end && middle - named.middle < 13; // by the name before it
      if (at > right) return;
      marks.push(
        svg("circle", {
          class: "predicted",
          cx: at,
          cy: middle,
          r: 5,
          style: `stroke: ${colour(componentOf(setup, drop))}`,
        }),
      );
      if (shape.kind === "merged" || hidden) return;
      named = { end: at + 10 + 7 * name.length, middle };
      const outside = at + 14 + 7 * name.length > right; // then on the left, free of the plateaus' names
      // The curve comes from the left above a name on the left, and goes on to the right below one on the right.
      const base = outside ? Math.max(middle + 10, y(stops[m]) + 14) : Math.min(middle + 4, y(stops[m + 1]) - 8);
      const place = { class: "name", x: outside ? at - 9 : at + 10, y: base };
      if (outside) Object.assign(place, { "text-anchor": "end" });
      marks.push(svg("text", { ...place, style: `fill: ${textColour(componentOf(setup, drop))}` }, name));
    });
    this.marks.replaceChildren(...marks);
    set(this.sheet, {
      "aria-label": `Loss over training time: plateaus at ${stairs.map((level) => number(level)).join(", ")}. ${theory?.drops.map((drop, m) => `Drop ${m + 1} predicted at ${number(drop.time)}${front?.seen[m] ? `, seen at ${number(front.seen[m])}` : ""}.`).join(" ")}`,
    });
    this.move(context);
  }

  /** Test losses of the run in front, thin, with their names. @param {Context["front"]} front */
  #drawTests(front) {
    const { x, y } = this,
      tests = front?.tests ?? [];
    if (!x || !y) return;
    keep(this.tests, "path", tests.length).forEach((path, n) =>
      set(path, { d: front ? line(x, y, front.times, tests[n].losses) : "", style: `stroke: ${tests[n].colour}` }),
    );
    const names = [{ name: "training", colour: "var(--run)" }, ...tests];
    const low = y.range[0] - 14 - 18 * tests.length; // early the losses are high, and here is room
    const keys = (tests.length ? names : []).flatMap(({ name, colour }, n) => [
      svg("path", { d: `M${LEFT + 10} ${low + 18 * n}h20`, style: `stroke: ${colour}` }),
      svg("text", { x: LEFT + 37, y: low + 4 + 18 * n }, name),
    ]);
    this.legend.replaceChildren(...keys);
  }

  /** The runs in the background, and where the theory puts the drops of other starts. @param {Context} context */
  drawOthers({ setup, front, runs, cloud }) {
    const { x, y } = this;
    if (!x || !y) return;
    const rest = runs.filter((run) => run !== front);
    const d = rest.map((run) => line(x, y, run.times, run.losses)).join("");
    set(this.others, { d, style: `opacity: ${Math.max(0.16, Math.min(0.55, 4 / (rest.length + 1)))}` });
    const { levels, order } = setup.modes;
    keep(this.starts, "path", cloud.length ? order.length : 0).forEach((path, m) => {
      const [top, bottom] = [y(levels[m]), y(levels[m + 1])];
      const ticks = cloud.map((times) => times[m]).filter((t) => t >= x.domain[0] && t <= x.domain[1]);
      set(path, { d: ticks.map((t) => `M${x(t).toFixed(1)} ${top.toFixed(1)}V${bottom.toFixed(1)}`).join("") });
      path.style.stroke = colour(order[m]);
    });
  }

  /** @param {Context} context */
  move({ front, index, playing }) {
    const { x, y } = this;
    if (!x || !y) return;
    const known = front && index < front.times.length;
    const at = known ? Math.min(x.range[1], Math.max(x.range[0], x(front.times[index]))) : x.range[0];
    const height = y.range[0];
    set(this.cursor, { x1: at, x2: at, y1: 18, y2: height + 4 });
    set(this.dot, { cx: at, cy: known ? y(front.losses[index]) : y.range[1] });
    this.dot.style.display = known ? "" : "none";
    set(this.clip, { width: Math.max(0, at) });
    // While it plays, what is to come is hidden: the prediction stands alone, and the runs arrive at it.
    this.future.style.display = playing ? "none" : "";
    set(this.cloud, { "clip-path": playing ? this.soFar : null });
  }

  /** Every run that is finished, and the prediction. @param {Context} context @returns {import("./context.js").Table} */
  table({ setup, runs }) {
    const { theory } = setup;
    const curves = [
      ...runs.map((run) => ({ name: `run ${run.index}`, times: run.times, losses: run.losses })),
      ...runs.flatMap(({ index, times, tests }) =>
        tests.map(({ name, losses }) => ({ name: `run ${index}, ${name}`, times, losses })),
      ),
      ...(theory ? [{ name: "theory", times: theory.times, losses: theory.loss }] : []),
    ];
    const rows = curves.flatMap(({ name, times, losses }) =>
      count(times.length).map((i) => [name, times[i], losses[i]]),
    );
    return { columns: ["curve", "time", "loss"], rows };
  }
}

/** The largest test losses of a run. @type {(run: Context["front"]) => number[]} */
const testPeaks = (run) => (run?.tests ?? []).map(({ losses }) => losses.reduce((a, b) => Math.max(a, b), 0));

/** The last level of a path drawn on to the edge. @type {(d: string, right: number) => string} */
const extended = (d, right) => (d ? `${d}H${right}` : "");
