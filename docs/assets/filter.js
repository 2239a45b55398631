// A box above the tables of the equation index: only rows that have every word of it stay.
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("equation-filter");
  if (!place) return;
  const label = document.createElement("label"), box = document.createElement("input"), found = document.createElement("output");
  label.textContent = "Find an equation, a function or a test: ";
  Object.assign(box, { type: "search", placeholder: "(24), plateau, staircase" });
  box.style.cssText = "font: inherit; color: inherit; background: transparent; border: 1px solid; border-radius: .3rem; padding: .3rem .5rem; margin-right: .6rem";
  label.append(box);
  place.append(label, found);
  const rows = [...document.querySelectorAll("article table tbody tr")].filter((row) => place.compareDocumentPosition(row) & 4);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    found.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  });
});
