// The kernel in Node against reference.json: one line of JSON a run.

import { readFileSync } from "node:fs";

const [web] = process.argv.slice(2);
const { check } = await import(`${web}/page/check.js`);
const { runs } = JSON.parse(readFileSync(`${web}/reference.json`, "utf8"));
for (const [name, run] of Object.entries(runs)) console.log(JSON.stringify({ name, found: check(run) }));
