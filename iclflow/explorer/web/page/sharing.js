// What leaves the page: its address, and the same runs as a settings file and a program; and the theme.

import { byId } from "../views/svg.js";
import { toPython, toToml } from "./copies.js";
import { selfTest } from "./selftest.js";

/** @typedef {import("./jobs.js").Setup} Setup */

const SAME = "Seed for seed the same weights, step for step the same losses, to 10⁻¹².";

/** @param {() => Setup | null} setup @param {() => string} link */
export function makeActions(setup, link) {
  byId("link").addEventListener("click", () => copy(link(), byId("link")));
  const dialog = /** @type {HTMLDialogElement} */ (byId("dialog"));
  const show = (/** @type {string} */ title, /** @type {string} */ about, /** @type {string} */ text) => {
    byId("dialog-title").textContent = title;
    byId("dialog-words").textContent = about;
    byId("dialog-code").textContent = text;
    dialog.showModal();
  };
  byId("python").addEventListener("click", () => {
    const now = setup();
    if (now) show("The same runs in Python", SAME, toPython(now.settings, now.rate, now.steps));
  });
  byId("toml").addEventListener("click", () => {
    const now = setup();
    const about = `Saved as page.toml, iclflow simulate --from page.toml --out run.nc trains it. ${SAME}`;
    if (now) show("The same runs as a settings file", about, toToml(now.settings, now.rate, now.steps));
  });
  byId("dialog-copy").addEventListener("click", () => copy(byId("dialog-code").textContent ?? "", byId("dialog-copy")));
  byId("dialog-close").addEventListener("click", () => dialog.close());
  byId("selftest").addEventListener("click", () => selfTest());
  makeTheme();
}

/** @param {string} text @param {HTMLElement} button */
async function copy(text, button) {
  const before = (button.dataset.name ??= button.textContent ?? "");
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => (button.textContent = before), 1600);
}

function makeTheme() {
  const themes = ["auto", "light", "dark"],
    root = document.documentElement,
    button = byId("theme");
  const show = () => (button.textContent = `Theme: ${root.dataset.theme}`);
  button.addEventListener("click", () => {
    root.dataset.theme = themes[(themes.indexOf(root.dataset.theme ?? "auto") + 1) % themes.length];
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      /* private window */
    }
    show();
  });
  show();
}
