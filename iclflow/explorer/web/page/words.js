// What the page says about what it shows.

import { ordered } from "../kernel/task.js";
import { doing, isLinear, isMap, percent } from "../views/context.js";
import { conservedNames, drift } from "../views/conserved_quantities.js";
import { byId, field, html, number, superscript } from "../views/svg.js";
import { curveError, timeErrors } from "../theory/seen.js";

/** @typedef {import("../views/context.js").Context} Context */

/** Beside the slider: where the cursor is. @param {Context} context @param {{m: number, distance: number} | null} now the nearest algorithm */
export function cursorWords({ front, index }, now) {
  if (!front) return;
  const slider = field("time"),
    at = Math.min(index, front.times.length - 1);
  slider.max = String(front.times.length - 1);
  slider.value = String(at);
  const [verb, name] = now ? doing(now.m, front.setup) : ["", ""];
  const step = Math.round(front.times[at] / (2 * front.setup.rate));
  slider.setAttribute(
    "aria-valuetext",
    `time ${number(front.times[at])}, loss ${number(front.losses[at])}, ${verb} ${name}`,
  );
  byId("readout").replaceChildren(
    `t/τ ${number(front.times[at])} · step ${number(step, 6)} · loss `,
    html("b", {}, front.losses[at].toFixed(3)),
    ...(now ? [` · ${verb} `, html("b", {}, name)] : []),
    now && now.distance > 0.0005 ? ` (within ${percent(now.distance)})` : "",
  );
}

/** Captions and status. @param {Context} context */
export function words(context) {
  const { setup, front } = context,
    { kind, rank, full } = setup.shape;
  const transformer = kind === "transformer",
    layers = setup.shape.layers;
  byId("status").textContent = status(context);
  const busy = front?.setup === setup && !front.done;
  byId("progress").hidden = !busy;
  if (busy) field("progress").value = /** @type {any} */ (front.step / setup.steps);
  for (const [view, shown] of /** @type {[string, boolean][]} */ ([
    ["heads", !transformer],
    ["strip", isMap(setup)],
    ["prompt", isLinear(setup) && !transformer && !setup.given && !setup.shape.layers],
    ["times", !full || Boolean(setup.theory?.drops.length)],
    ["conserved", conservedNames(setup).length > 0],
  ]))
    /** @type {HTMLElement} */ (document.querySelector(`[data-view="${view}"]`)).hidden = !shown;
  document.body.dataset.kind = kind;
  byId("matrix-words").textContent = transformer
    ? "ŷ = p β q x with p, q diagonal; shown: a = p q. Best: the optimum at this N."
    : full
      ? `M = Σ v ${kind === "merged" ? "U" : "k qᵀ"}, the part of the answer that reads task and input off the context (87). Best: for drawn tasks alone (23).`
      : layers
        ? "Γ = Σ v k qᵀ of each layer: a step of gradient descent on the prompt's own least squares (D2)."
        : `ŷ = βᵀM x, M = Σ v k qᵀ. Best: ${setup.given ? "least squares on these prompts" : "M = B⁻¹GΛ⁻¹ (23)"}.`;
  byId("loss-words").title = full || layers || transformer || setup.given ? "" : "L = E[y²] − Σ σ² over what is learned (24)";
  byId("loss-words").textContent = full
    ? mixtureWords(context)
    : layers
      ? "Dotted: the plateaus of this start, named by how many heads are awake in each layer (D20). The loss is that of infinitely many prompts, exactly (D16)."
      : setup.given
        ? givenWords(setup.given.count)
        : `Dotted: plateaus, ${transformer ? "the least loss of the modes learned so far" : "computed from the variances alone"}. ${context.cloud.length ? `Thin strokes: the drops of ${context.cloud.length} other starts, by theory.` : ""}`;
  byId("heads-words").textContent =
    kind === "merged"
      ? "One dial per head. The arrow shows which diagonal entries of its matrix U are large. All heads become copies of one another (17)."
      : `One dial per head. Arrow: where its key${rank > 1 ? "s point" : " points"} among the components e₁, e₂, … of the inputs (dotted: its query). Disc: its value weight.${full ? "" : " Small heads turn unseen; then one wakes up: k = q = v·e₁ for the first component, and so on (25)."}`;
  byId("values-title").textContent = transformer
    ? "Each mode on its own clock."
    : kind === "merged"
      ? "Value weights grow together."
      : "Value weights wake up one by one.";
  byId("values-words").textContent = full
    ? "With a fixed task the theory says nothing of single heads."
    : transformer
      ? "Dashed: a(t) = a∞a₀/(a₀ + (a∞ − a₀)e^(−2t/τ)) (13), exact as N → ∞; dotted: the optimum at this N."
      : setup.theory?.by === "course"
        ? "Dashed: the scalar equation of each head, τ v̇ = λ²v² − λa v⁵ (26) for the paper's task; dotted: where it ends, v = ∛m (25)."
        : "Dashed: the theory from the same initial weights.";
  byId("matrix-title").textContent = layers 
    ? "The two steps fill in one component at a time."
    : "The matrix it applies fills in from the largest component.";
  byId("prompt-rule").textContent = full ? "Σ aᵀS B (87)" : "Mᵀβ (27)";
  byId("conserved-words").textContent = conservedWords(context);
  byId("times-words").textContent = timesWords(context);
}

/** @param {number} count */
const givenWords = (count) =>
  `${count.toLocaleString("en")} prompts of your own. Dotted: the plateaus of these very prompts, where heads rest that come one by one; the last is least squares on them. Dashed: the prediction from the initial weights and these prompts.`;

/** @param {Context} context */
function mixtureWords({ setup }) {
  const { settings, shape } = setup;
  const share = `${percent(settings.fixed_fraction)} of the prompts share one fixed task; every block is trained (87).`;
  const least = "the least loss that any weights can have";
  if (shape.kind === "separate") return `${share} Dotted: ${least}. No theory covers this with separate key and query.`;
  return `${share} Dashed: the first drop, along the leading direction of E[y S ⊗ x] (15); the theory says nothing of what follows. Dotted: its end on that direction alone, and ${least}.`;
}

/** @param {Context} context */
function status({ setup, front, runs }) {
  const { rate, steps, settings } = setup;
  if (front?.setup === setup && front.diverged)
    return `Diverged at step ${number(front.diverged, 6)}: the learning rate ${number(rate)} is too large here. Set it to 0 to let the page choose.`;
  const own = runs.filter((run) => run.setup === setup),
    done = own.filter((run) => run.done);
  const each = done.map((run) => run.ms).sort((a, b) => a - b)[done.length >> 1];
  const found = timeErrors(own);
  const error = found.length
    ? ` Theory: drop times to ${percent(found[found.length >> 1])} (median), ${percent(found[found.length - 1])} (worst);`
    : " Theory:";
  const curve = front?.setup === setup ? curveError(front) : NaN;
  const off = Number.isFinite(curve)
    ? `${error} curve off by ${percent(curve)} of E[y²].`
    : found.length
      ? error.replace(/;$/, ".")
      : "";
  const took = each ? `, ${each < 10 ? Math.ceil(each) : Math.round(each)} ms each` : "";
  return `${done.length} of ${settings.seeds} ${settings.seeds === 1 ? "run" : "runs"} of ${number(steps, 6)} steps at rate ${number(rate)}${took}.${off}`;
}

/** 3.4×10⁻². @type {(x: number) => string} */
function scientific(x) {
  const [mantissa, power] = x.toExponential(1).split("e");
  return `${mantissa}×10${superscript(Number(power))}`;
}

/** @param {Context} context */
function conservedWords({ setup, front }) {
  const names = conservedNames(setup);
  if (!front || !names.length || front.setup.shape.kind !== setup.shape.kind) return "";
  const equation = { separate: " (79)(85)", merged: " (17)", transformer: "" }[setup.shape.kind];
  const moved = names.map((name, n) => `${name} by ${scientific(drift(front, front.times.length - 1, n))}`);
  const only = setup.shape.kind === "transformer" ? " At finite N only the sum over modes is conserved." : "";
  return `Flat lines${equation}: gradient flow does not change them; descent at rate ${number(setup.rate)} moves ${moved.join(", ")}.${only}`;
}

/** @param {Context} context */
function timesWords({ setup }) {
  const { theory, shape, modes } = setup;
  const where = " Left: the run in front. Right: every drop of every run.";
  if (shape.full && theory?.drops.length)
    return `The first drop, halfway to where it would end on the leading direction of E[y S ⊗ x]; from the initial weights.${where}`;
  if (!theory?.drops.length) return "No drop is predicted for these settings.";
  if (theory.by === "layers")
    return `A waiting head sees what both layers together have left to learn, and its initial weights say when it escapes; down each drop the prediction follows the flow.${where}`;
  if (theory.by === "given")
    return `Predicted by the library, from the initial weights and these very prompts.${where}`;
  if (theory.by === "transformer")
    return `When the loss of a mode is halfway down by (13)(14): (τ_α/2) ln((√2 − 1)(a∞ − a₀)/a₀), τ_α = 1/(v s²), in the limit of long contexts.${where}`;
  if (theory.by === "merged")
    return `Of a small start only the half that grows survives; after that the whole matrix follows one equation for its components.${where}`;
  if (shape.rank === 1 && !ordered(modes))
    return `Here components are equal, or gains and drops order them differently, so a head takes one and turns to another; the prediction follows the flow down each drop.${where}`;
  return `Each waiting head blows up at a time that its initial weights fix; the first to do so makes the next drop.${where}`;
}
