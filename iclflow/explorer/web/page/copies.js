// The same runs elsewhere: as a settings file of `iclflow simulate`, and as a program.

import { given } from "../kernel/given.js";
import { isSoftmax, short, stated } from "./settings.js";

/** @typedef {import("./settings.js").Settings} Settings */

/** @type {(numbers: number[]) => string} */
const list = (numbers) => `[${numbers.map(short).join(", ")}]`;

/** For `iclflow simulate --from`: rate and end as the page chose them. @type {(settings: Settings, rate: number, steps: number) => string} */
export function toToml(settings, rate, steps) {
  const own = ["front", "cloud", "rate", "steps"];
  const lines = stated(settings)
    .filter(([name]) => !own.includes(name))
    .map(([name, value]) => {
      const given = /** @type {any} */ (settings)[name];
      const shown = Array.isArray(given) ? list(given) : typeof given === "string" ? `"${value}"` : value;
      return `${name} = ${shown}`;
    });
  if (settings.given) lines.push(`prompts = ${JSON.stringify(given()?.name ?? "")}`);
  if (settings.sequences || settings.given) lines.push('blocks = "frozen"');
  return [...lines, `rate = ${short(rate)}`, `steps = ${steps}`, ""].join("\n");
}

/** A program with the library's verbs. @type {(settings: Settings, rate: number, steps: number) => string} */
export function toPython(settings, rate, steps) {
  const { model, layers, spectrum, task_covariance: tasks, context, noise, heads, rank, scale, seeds, seed, front } = settings;
  const white = tasks.every((s) => s === 1),
    vector = model === "linear-transformer";
  const mixed = settings.fixed_fraction > 0,
    drawn = white ? "" : `icl.Normal(covariance=${list(tasks)})`;
  const law = mixed
    ? `icl.Mixture(${drawn ? `${drawn}, ` : ""}fixed=fixed, fraction=${short(settings.fixed_fraction)})`
    : vector
      ? `icl.Commuting(${white ? "" : list(tasks)})`
      : drawn;
  const about = [
    `context=${context}`,
    ...(settings.rotate ? [`rotation=jax.random.split(jax.random.key(${settings.eigen_seed}), 3)[0]`] : []),
    ...(law ? [`tasks=${law}`] : []),
    ...(noise > 0 ? [`label_noise=${short(noise)}`] : []),
  ];
  if (settings.given) return ownPython(settings, rate, steps);
  const loss = !settings.sequences
    ? `icl.${mixed ? "population_moments" : "Population"}(task)`
    : `icl.${isSoftmax(settings) ? "Sequences" : "Moments"}.sample(task, ${settings.sequences}, key=jax.random.key(${settings.data_seed})${isSoftmax(settings) ? "" : ", features=icl.ReducedFeatures()"})`;
  const depth = layers > 1 ? `, layers=${layers}` : "",
    sizes = model.endsWith("separate") ? `${depth}, heads=${heads}, rank=${rank}` : vector ? "" : `, heads=${heads}`;
  const name = vector
    ? "Merged.linear_transformer"
    : depth
      ? "Layers.initialiser"
      : `${isSoftmax(settings) ? "Softmax" : model === "merged" ? "Merged" : "Separate"}.initialiser`;
  const predicted = !vector && !mixed && !isSoftmax(settings);
  const blocks = mixed ? ", blocks=icl.Blocks.FULL" : "";
  const fixed = `fixed = jax.random.normal(jax.random.split(jax.random.key(${settings.eigen_seed}), 3)[2], (${spectrum.length},))
fixed = fixed * (${spectrum.length} / (fixed @ fixed)) ** 0.5
`;
  return `import jax, iclflow as icl
jax.config.update("jax_enable_x64", True)

${mixed ? fixed : ""}task = icl.Task(${list(spectrum)}, ${about.join(", ")})
loss = ${loss}
init = icl.${name}(task${sizes}, scale=${short(scale)}${blocks})
runs = icl.sweep(loss, init, icl.Descent(rate=${short(rate)}), until=${steps}, seeds=range(${seed}, ${seed + seeds}))
${predicted ? `theory = icl.theory.predict(task, init(jax.random.key(${seed + front})))\nicl.plots.loss(runs, theory=theory, levels=theory.levels).savefig("run.png")` : 'icl.plots.loss(runs).savefig("run.png")'}
`;
}

/** The same on prompts of a file. @type {(settings: Settings, rate: number, steps: number) => string} */
function ownPython({ model, heads, rank, scale, seeds, seed, front }, rate, steps) {
  const name = given()?.name ?? "",
    load = name.endsWith(".npz")
      ? `icl.Prompts.load(${JSON.stringify(name)})`
      : `icl.Prompts(x, y) # x [P, N+1, D] and y [P, N+1] of ${name}`;
  const init =
    model === "merged"
      ? `Merged.initialiser(loss, heads=${heads}`
      : `Separate.initialiser(loss, heads=${heads}, rank=${rank}`;
  return `import jax, iclflow as icl
jax.config.update("jax_enable_x64", True)

prompts = ${load}
loss = icl.Moments.of(prompts, features=icl.ReducedFeatures())
init = icl.${init}, scale=${short(scale)})
runs = icl.sweep(loss, init, icl.Descent(rate=${short(rate)}), until=${steps}, seeds=range(${seed}, ${seed + seeds}))
theory = icl.predict(loss, init(jax.random.key(${seed + front})))
icl.plots.loss(runs, theory=theory, levels=theory.levels).savefig("run.png")
`;
}
