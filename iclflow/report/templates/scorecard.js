// The scorecard filters and sorts; without this script it is a plain table.
const claims = document.getElementById("claims");
if (claims) {
  const body = claims.tBodies[0], rows = [...body.rows], fields = ["find", "verdict", "kind", "of"].map((id) => document.getElementById(id));
  const [find, verdict, kind, of] = fields;
  document.getElementById("filters").hidden = false;
  const filter = () => {
    for (const row of rows)
      row.hidden = !(
        (!verdict.value || row.dataset.verdict === verdict.value) &&
        (!kind.value || row.dataset.kind === kind.value) &&
        (!of.value || row.dataset.figure === of.value) &&
        row.textContent.toLowerCase().includes(find.value.trim().toLowerCase())
      );
    document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
  };
  for (const field of fields) field.addEventListener("input", filter);
  // From a figure to its claims alone; from anywhere else to one of them, whatever was filtered.
  for (const link of document.querySelectorAll('a[href^="#claim-"]'))
    link.addEventListener("click", () => {
      for (const field of fields) field.value = "";
      of.value = link.dataset.of ?? "";
      filter();
    });
  filter();
  // What a cell sorts by: its number where it has one, else its words.
  const value = (row, column) => {
    const cell = row.cells[column], number = Number(cell.dataset.value ?? NaN);
    return Number.isNaN(number) ? cell.textContent.trim() : number;
  };
  [...claims.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of claims.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
      body.append(...[...rows].sort((a, b) => (up ? 1 : -1) * order(value(a, column), value(b, column))));
    });
  });
}
// A link to a line of code opens what it is in.
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1))), box = target?.closest("details");
  if (!box) return;
  box.open = true;
  target.scrollIntoView({ block: "center" });
}
addEventListener("hashchange", unfold);
unfold();
