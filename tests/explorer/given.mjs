// A file of prompts as the page reads it, its plateaus, its predicted drops and its training: one object of JSON.

import { readFileSync } from "node:fs";

const [web, path, name, text] = process.argv.slice(2);
const load = (module) => import(`${web}/${module}`);
const [{ readPrompts }, { give, momentsOf }, { valid }, { plan }, { problems }, { Descent }] = await Promise.all(
  [
    "page/reading.js",
    "kernel/given.js",
    "page/settings.js",
    "page/jobs.js",
    "kernel/experiment.js",
    "kernel/descent.js",
  ].map(load),
);
const bytes = readFileSync(path);
const file = { name, size: bytes.length, arrayBuffer: async () => Uint8Array.from(bytes).buffer };
try {
  const found = momentsOf(await readPrompts(file));
  give(found);
  const { marks, ...given } = JSON.parse(text);
  const settings = valid({ ...given, given: 1 });
  const { theory, rate } = plan(settings);
  const descent = new Descent(problems(settings)(settings.seed), { rate, marks });
  descent.advance(Infinity);
  const drops = theory.drops.map(({ time, head }) => ({ time, head }));
  console.log(JSON.stringify({ levels: found.modes.levels, drops, losses: descent.losses }));
} catch (error) {
  console.log(JSON.stringify({ error: error.message }));
}
