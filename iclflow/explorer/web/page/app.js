// The page: settings in, pictures out, one time cursor for all of them.

import { ConservedView } from "../views/conserved.js";
import { HeadsView } from "../views/heads.js";
import { LossView } from "../views/loss.js";
import { MatrixView } from "../views/matrix.js";
import { PromptView } from "../views/prompt.js";
import { StripView } from "../views/strip.js";
import { byId } from "../views/svg.js";
import { TimesView } from "../views/times.js";
import { ValuesView } from "../views/values.js";
import { Controls } from "./controls.js";
import { PRESETS } from "./presets.js";
import { recorded } from "./recorded.js";
import { makeSaving, saveCard } from "./saving.js";
import { format, parse, valid } from "./settings.js";
import { makeActions } from "./sharing.js";
import { takePrompts } from "./own.js";
import { selfTest } from "./selftest.js";
import { Story } from "./story.js";
import { Timeline } from "./timeline.js";
import { Trainer } from "./trainer.js";
import { cursorWords, words } from "./words.js";

/** @typedef {import("./settings.js").Settings} Settings */

const OF_TASK = ["spectrum", "context", "noise", "task_covariance", "sequences", "fixed_fraction", "rotate"];
const PAUSE = 80; // ms between two pictures of the runs behind
const opened = parse(location.hash.length > 1 ? location.hash : (document.getElementById("opens")?.textContent ?? ""));
let settings = opened.named ? opened.settings : valid(PRESETS[0].settings);
if (new URLSearchParams(location.hash.slice(1)).has("embed")) {
  document.body.classList.add("embed");
  // The page around it gives the frame this height, so that nothing scrolls within what scrolls.
  const tell = () => parent.postMessage({ iclflow: document.body.scrollHeight }, "*");
  new ResizeObserver(tell).observe(document.body);
  // The page around it is dark or light by its own switch, and says which.
  addEventListener("message", ({ source, data }) => {
    if (source === parent && ["light", "dark"].includes(data?.theme)) document.documentElement.dataset.theme = data.theme;
  });
}
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
let log = true,
  dirty = true,
  rest = false, // views that wait for the frame after the curve
  others = false,
  drawnOthers = 0;

const trainer = new Trainer((what) => (what === "front" ? (dirty = true) : (others = true)));
const timeline = new Timeline(calm, opened.time, keepAddress);
const views = {
  loss: new LossView(byId("loss"), (time) => timeline.seek(trainer.front, time)),
  strip: new StripView(byId("strip")),
  heads: new HeadsView(byId("heads")),
  values: new ValuesView(byId("values")),
  matrix: new MatrixView(byId("matrix")),
  conserved: new ConservedView(byId("conserved")),
  prompt: new PromptView(byId("prompt"), byId("prompt-words")),
  times: new TimesView(byId("times"), byId("times-table")),
};
const moving = [views.loss, views.strip, views.heads, views.values, views.matrix, views.conserved, views.prompt];
const controls = new Controls(change, (preset) => {
  timeline.restart();
  change(preset);
});

const story = new Story(
  timeline,
  () => trainer.front,
  () => {
    timeline.restart();
    change({ ...valid(PRESETS[0].settings), task_covariance: [] });
  },
);

/** When settings were asked for, until their run is on the screen: the page measures its own latency. */
/** @type {{settings: Settings, at: number}[]} */ const requests = [];
/** @type {number[]} */ const latencies = [];

/** New settings: the controls and the address at once, the runs in the next frame. @param {Partial<Settings>} changes */
function change(changes) {
  const resized = changes.spectrum && changes.spectrum.length !== settings.spectrum.length && !changes.task_covariance;
  const left = Object.keys(changes).some((name) => OF_TASK.includes(name)) && !changes.given; // prompts are no task
  settings = valid({
    ...settings,
    ...changes,
    ...(left ? { given: 0 } : {}),
    ...(resized ? { task_covariance: [] } : {}),
  });
  requests.push({ settings, at: performance.now() });
  controls.show(settings);
  trainer.ask(settings);
  keepAddress();
}

let addressTimer = 0;
function keepAddress() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    const embed = document.body.classList.contains("embed") ? "&embed=1" : "";
    try {
      history.replaceState(null, "", `#${format(settings, timeline.time(trainer.front))}${embed}`);
    } catch {
      /* some browsers refuse this for pages opened as files */
    }
  }, 250);
}

/** What the views are given. @returns {import("../views/context.js").Context | null} */
function context() {
  const { setup, front, runs, cloud } = trainer;
  const { index, playing } = timeline;
  return setup && { setup, front, runs: [...runs.values()], cloud, index, log, playing };
}

function frame() {
  requestAnimationFrame(frame);
  trainer.frame();
  const { front, setup } = trainer;
  if (trainer.planning) byId("status").textContent = "Computing when the drops of two layers come …";
  story.frame(Boolean(front?.done && front.setup === setup));
  timeline.frame(front);
  if (rest) drawRest();
  if (dirty && setup) draw();
  else if (timeline.moved) move();
  if (others && performance.now() - drawnOthers > PAUSE) drawOthers();
}

function drawOthers() {
  others = false;
  drawnOthers = performance.now();
  const given = context();
  if (!given) return;
  views.loss.drawOthers(given);
  if (views.times.width > 0) views.times.draw(given);
  words(given);
}

function draw() {
  dirty = false;
  const { front, setup } = trainer,
    current = front && setup && front.setup === setup;
  timeline.settle(front, Boolean(current), views.loss.x?.domain[0] ?? 0);
  const given = context();
  if (!given) return;
  for (const view of [views.loss, views.strip]) if (view.width > 0) view.draw(given);
  rest = true;
  timeline.moved = false;
  cursorWords(given, views.strip.at(given.index));
  if (!current) return performance.mark("theory drawn");
  performance.mark("run drawn");
  if (front.done) arrived(setup.settings);
}

function drawRest() {
  rest = false;
  const given = context();
  if (!given) return;
  words(given);
  for (const view of Object.values(views))
    if (view !== views.loss && view !== views.strip && view.width > 0) view.draw(given);
}

/** Take the time from a request to the frame that shows its run. @param {Settings} shown */
function arrived(shown) {
  const at = requests.findIndex((request) => request.settings === shown);
  if (at < 0) return;
  const [{ at: asked }] = requests.splice(0, at + 1).slice(-1);
  requestAnimationFrame((begin) => latencies.push(begin - asked)); // the frame with it is out, the other views are not drawn yet
}

function move() {
  timeline.moved = false;
  const given = context();
  if (!given) return;
  for (const view of moving) if (view.width > 0) view.move(given);
  cursorWords(given, views.strip.at(given.index));
}

for (const [name, value] of /** @type {[string, boolean][]} */ ([
  ["axis-log", true],
  ["axis-linear", false],
]))
  byId(name).addEventListener("click", () => {
    log = value;
    byId("axis-log").setAttribute("aria-pressed", String(log));
    byId("axis-linear").setAttribute("aria-pressed", String(!log));
    dirty = true;
  });
byId("another").addEventListener("click", () => {
  const given = context();
  if (given) views.prompt.another(given);
});
timeline.listen(() => trainer.front);
takePrompts(() => {
  timeline.restart();
  change({ given: 1, steps: 0, rate: 0, cloud: 0 });
});
makeActions(
  () => trainer.setup,
  () => `${location.href.replace(/#.*/, "")}#${format(settings, 0)}`,
);
makeSaving(views, context);
byId("card").addEventListener("click", () => saveCard(views.loss.sheet, location.href));
const placed = [...Object.values(views), controls.spectrum];
const sizes = new ResizeObserver(() => {
  const changed = placed.filter((view) => view.width !== view.host.clientWidth);
  for (const view of changed) view.width = view.host.clientWidth;
  if (changed.includes(controls.spectrum)) controls.spectrum.draw(settings.spectrum);
  if (changed.length) dirty = true;
});
for (const { host } of placed) sizes.observe(host);
addEventListener("hashchange", () => {
  const given = parse(location.hash);
  if (format(given.settings, 0) === format(settings, 0)) return;
  timeline.wanted = given.time;
  change(given.settings);
});
requestAnimationFrame(frame);

/** @param {import("./recorded.js").Recorded} found */
function showRecorded({ setup, runs, title }) {
  timeline.restart();
  settings = setup.settings;
  controls.show(settings, `Recorded by the library: ${title}. Move anything, and this page trains its own.`);
  trainer.show(setup, runs);
}

recorded()
  .catch((error) => {
    byId("note").textContent = `The recorded runs in this page cannot be read: ${error.message}.`;
    return [];
  })
  .then((found) => {
    controls.offer(found.map((one) => ({ name: one.title, show: () => showRecorded(one) })));
    if (found.length && !opened.named) showRecorded(found[0]);
    else change({});
  });
/** @type {any} */ (window).explorer = { trainer, timeline, latencies, change, selfTest, settings: () => settings };
