// The kernel in Node against reference.json, all of it or the runs that are named: one line of JSON a run.

import { readFileSync } from "node:fs";

const [web, ...names] = process.argv.slice(2);
const { check } = await import(`${web}/page/check.js`);
const { runs } = JSON.parse(readFileSync(`${web}/reference.json`, "utf8"));
for (const [name, run] of Object.entries(runs))
  if (!names.length || names.includes(name)) console.log(JSON.stringify({ name, found: check(run) }));
