// Prompts from a file that a visitor chooses or drops on the page. They are read here and sent nowhere.

import { give, momentsOf } from "../kernel/given.js";
import { byId, field, number } from "../views/svg.js";
import { readPrompts } from "./reading.js";

/** Listen for files; `ready` is called when the prompts of one are there. @param {() => void} ready */
export function takePrompts(ready) {
  const place = byId("own"),
    note = byId("own-note"),
    input = field("own-file");
  const take = async (/** @type {File | undefined} */ file) => {
    if (!file) return;
    note.textContent = `Reading ${file.name} …`;
    try {
      const found = await readPrompts(file);
      const own = momentsOf(found);
      if (own.modes.levels.length < 2) throw new Error("linear attention can learn nothing from them");
      give(own);
      note.textContent = `${file.name}: ${number(found.count, 6)} prompts of ${found.context} pairs, D = ${found.size}. Plateaus at ${own.modes.levels.map((level) => number(level)).join(", ")}. It stays in this browser, so links do not hold it.`;
      ready();
    } catch (error) {
      note.textContent = `${file.name} cannot be used: ${/** @type {Error} */ (error).message}.`;
    }
  };
  input.addEventListener("change", () => take(input.files?.[0]));
  for (const kind of ["dragover", "dragleave", "drop"])
    document.addEventListener(kind, (event) => {
      const { dataTransfer } = /** @type {DragEvent} */ (event);
      if (!dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      place.classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(dataTransfer.files[0]);
    });
}
