// A view as a file: SVG with its computed style written into it, the same as PNG, and its numbers as CSV.

import { html } from "../views/svg.js";

/** @typedef {import("../views/context.js").Context} Context */
/** @typedef {{sheet: SVGElement, table: (context: Context) => import("../views/context.js").Table}} Savable */

const STYLES =
  "fill stroke stroke-width stroke-dasharray stroke-linecap stroke-linejoin opacity font-family font-size font-weight display".split(
    " ",
  );
const SHARP = 2; // pixels of a PNG to one of the screen

/** Three small buttons for every view. @param {Record<string, Savable>} views @param {() => Context | null} context */
export function makeSaving(views, context) {
  for (const [name, view] of Object.entries(views)) {
    const figure = document.querySelector(`[data-view="${name}"]`);
    /** @type {[string, () => void][]} */
    const kinds = [
      ["PNG", () => savePng(view.sheet, name)],
      ["SVG", () => download(new Blob([drawing(view.sheet).text], { type: "image/svg+xml" }), `${name}.svg`)],
      ["CSV", () => saveCsv(view, name, context())],
    ];
    const buttons = kinds.map(([kind, save]) => {
      const button = html("button", { type: "button", "aria-label": `Save ${name} as ${kind}` }, kind);
      button.addEventListener("click", save);
      return button;
    });
    figure?.append(html("div", { class: "save", role: "group", "aria-label": `Save ${name}` }, ...buttons));
  }
}

/** @type {(sheet: SVGElement) => {text: string, width: number, height: number}} */
function drawing(sheet) {
  const page = getComputedStyle(document.body).backgroundColor;
  const { width, height } = sheet.getBoundingClientRect();
  const copy = /** @type {SVGElement} */ (sheet.cloneNode(true));
  const [from, to] = [sheet, copy].map((root) => /** @type {SVGElement[]} */ ([root, ...root.querySelectorAll("*")]));
  from.forEach((element, i) => {
    const computed = getComputedStyle(element);
    to[i].setAttribute("style", STYLES.map((style) => `${style}:${computed.getPropertyValue(style)}`).join(";"));
  });
  const inner = new XMLSerializer().serializeToString(copy);
  const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"><rect width="100%" height="100%" fill="${page}"/>${inner}</svg>`;
  return { text, width, height };
}

/** @type {(sheet: SVGElement, name: string) => Promise<void>} */
async function savePng(sheet, name) {
  const { text, width, height } = drawing(sheet);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [SHARP * width, SHARP * height];
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && download(blob, `${name}.png`));
}

const CARD = { width: 1200, height: 630 }; // what social media show whole

/** A picture to send to somebody: title, what is seen, the curve, and where it is. @type {(sheet: SVGElement, address: string) => Promise<void>} */
export async function saveCard(sheet, address) {
  const { text, width, height } = drawing(sheet);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [CARD.width, CARD.height];
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(document.documentElement);
  const [page, ink, soft] = ["--page", "--ink", "--soft"].map((name) => style.getPropertyValue(name));
  pen.fillStyle = page;
  pen.fillRect(0, 0, CARD.width, CARD.height);
  pen.fillStyle = ink;
  pen.font = `600 40px ${style.getPropertyValue("--serif")}`;
  pen.fillText(document.querySelector("h1")?.textContent ?? "", 48, 74, CARD.width - 96);
  pen.font = `24px ${style.getPropertyValue("--serif")}`;
  pen.fillText(
    "Solid: training. Dashed: computed before it began, from the initial weights.",
    48,
    116,
    CARD.width - 96,
  );
  const fit = Math.min((CARD.width - 96) / width, (CARD.height - 200) / height);
  pen.drawImage(image, (CARD.width - fit * width) / 2, 138, fit * width, fit * height);
  pen.fillStyle = soft;
  pen.font = `20px ${style.getPropertyValue("--sans")}`;
  // A page opened as a file has an address that is of no use to others.
  const where = address.startsWith("http") ? address.replace(/^https?:\/\//, "").slice(0, 110) : "iclflow explore";
  pen.fillText(where, 48, CARD.height - 24, CARD.width - 96);
  canvas.toBlob((blob) => blob && download(blob, "attention-learns.png"));
}

/** @type {(view: Savable, name: string, context: Context | null) => void} */
function saveCsv(view, name, context) {
  if (!context) return;
  const { columns, rows } = view.table(context);
  const cell = (/** @type {number | string} */ x) =>
    typeof x === "string" && /[",\n]/.test(x) ? `"${x.replaceAll('"', '""')}"` : String(x);
  const text = [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n");
  download(new Blob([`${text}\n`], { type: "text/csv" }), `${name}.csv`);
}

/** @type {(blob: Blob, name: string) => void} */
function download(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.getAttribute("href") ?? ""), 1000);
}
