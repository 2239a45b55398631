// "Test this page": the kernel against the library's numbers, in this very browser.

import { byId } from "../views/svg.js";
import { check } from "./check.js";

/** @returns {Promise<import("./check.js").Finding[]>} */
export async function selfTest() {
  const inside = document.getElementById("reference");
  const { runs } = inside ? JSON.parse(inside.textContent ?? "") : await (await fetch("reference.json")).json();
  const found = Object.values(runs).flatMap((run) => check(run));
  const bad = found.filter(({ error, tolerance }) => !(error <= tolerance));
  const worst = Math.max(...found.filter(({ what }) => what === "loss").map(({ error }) => error));
  byId("selftest-result").textContent = bad.length
    ? `Failed: ${bad.map(({ what }) => what).join(", ")}.`
    : `${found.length} checks of ${Object.keys(runs).length} runs passed; losses equal the library's to ${worst.toExponential(0)}.`;
  return found;
}
