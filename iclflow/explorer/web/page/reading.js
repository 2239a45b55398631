// A small file of prompts, read in the page: .npz with x [P, N + 1, D] and y [P, N + 1], or .csv with a line per point.

/** @typedef {import("../kernel/given.js").Prompts} Prompts */

const MOST_BYTES = 2 ** 26;
const COMPONENTS = 8; // inputs that the page has room for

/** @type {(file: File) => Promise<Prompts>} */
export async function readPrompts(file) {
  if (file.size > MOST_BYTES)
    throw new Error(
      `${file.name} has ${Math.round(file.size / 1e6)} MB, and the page reads up to 64; use iclflow explore --prompts`,
    );
  const bytes = await file.arrayBuffer();
  const zipped = new DataView(bytes).byteLength > 3 && new DataView(bytes).getUint32(0, true) === 0x04034b50;
  const found = zipped ? fromArrays(await unzipped(bytes)) : fromTable(new TextDecoder().decode(bytes));
  if (found.size > COMPONENTS)
    throw new Error(
      `these prompts have ${found.size} inputs, and the page has room for ${COMPONENTS}; use iclflow explore --prompts`,
    );
  if (!found.x.every(Number.isFinite) || !found.y.every(Number.isFinite))
    throw new Error("some numbers are missing or not finite");
  if (found.count < 2) throw new Error("training needs at least 2 prompts");
  return { name: file.name, ...found };
}

/** @typedef {Omit<Prompts, "name">} Found */

/** Lines `prompt,x1,…,xD,y`; those of a prompt stand together, the query last. @type {(text: string) => Found} */
export function fromTable(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  if (lines.length && Number.isNaN(Number(lines[0].split(",")[0]))) lines.shift(); // the names of the columns
  const rows = lines.map((line) => line.split(",").map((cell) => (cell.trim() === "" ? NaN : Number(cell))));
  const wide = rows[0]?.length ?? 0;
  if (wide < 3 || rows.some((row) => row.length !== wide))
    throw new Error("a .csv needs the columns prompt, x1, …, xD, y, the same number in every line");
  const starts = rows.flatMap((row, i) => (i === 0 || row[0] !== rows[i - 1][0] ? [i] : []));
  const points = starts.length > 1 ? starts[1] : rows.length;
  if (points < 2 || starts.some((at, p) => at !== p * points) || rows.length !== points * starts.length)
    throw new Error(
      "all prompts of a .csv must have the same number of lines, at least 2, and each a number of its own",
    );
  const size = wide - 2;
  return {
    count: starts.length,
    context: points - 1,
    size,
    x: Float64Array.from(rows.flatMap((row) => row.slice(1, 1 + size))),
    y: Float64Array.from(rows, (row) => row[wide - 1]),
  };
}

/** @typedef {{shape: number[], values: Float64Array}} Values */

/** @type {(arrays: Map<string, Values>) => Found} */
function fromArrays(arrays) {
  const x = arrays.get("x"),
    y = arrays.get("y");
  if (!x || !y)
    throw new Error(
      `an .npz needs x [P, N+1, D] and y [P, N+1], and has ${[...arrays.keys()].join(", ") || "nothing"}`,
    );
  const [count, points, size] = x.shape,
    labels = y.shape[2] === 1 ? y.shape.slice(0, 2) : y.shape;
  if (x.shape.length !== 3 || points < 2 || labels.length !== 2 || labels[0] !== count || labels[1] !== points)
    throw new Error(`x must be [P, N+1, D] and y [P, N+1], got [${x.shape.join(", ")}] and [${y.shape.join(", ")}]`);
  return { count, context: points - 1, size, x: x.values, y: y.values };
}

/** The arrays of an .npz file, stored or deflated. @type {(bytes: ArrayBuffer) => Promise<Map<string, Values>>} */
export async function unzipped(bytes) {
  const view = new DataView(bytes),
    found = new Map();
  let end = bytes.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error("this .npz file is cut");
  const entries = view.getUint16(end + 10, true);
  for (let n = 0, at = view.getUint32(end + 16, true); n < entries; n++) {
    const method = view.getUint16(at + 10, true),
      packed = view.getUint32(at + 20, true),
      letters = view.getUint16(at + 28, true),
      skip = view.getUint16(at + 30, true) + view.getUint16(at + 32, true),
      local = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(new Uint8Array(bytes, at + 46, letters)).replace(/\.npy$/, "");
    at += 46 + letters + skip;
    if (name !== "x" && name !== "y") continue;
    const from = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    if (packed === 0xffffffff) throw new Error("this .npz file is in the 64-bit format of large files");
    const inside = new Uint8Array(bytes, from, packed);
    found.set(name, array(method === 0 ? inside.slice().buffer : await inflatedRaw(inside)));
  }
  return found;
}

/** @type {(packed: Uint8Array<ArrayBuffer>) => Promise<ArrayBuffer>} */
const inflatedRaw = (packed) =>
  new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();

/** @type {Record<string, [number, (view: DataView, at: number) => number]>} */
const KINDS = {
  f8: [8, (view, at) => view.getFloat64(at, true)],
  f4: [4, (view, at) => view.getFloat32(at, true)],
  i8: [8, (view, at) => Number(view.getBigInt64(at, true))],
  i4: [4, (view, at) => view.getInt32(at, true)],
  i2: [2, (view, at) => view.getInt16(at, true)],
  i1: [1, (view, at) => view.getInt8(at)],
  u1: [1, (view, at) => view.getUint8(at)],
};

/** An array in NumPy's format. @type {(bytes: ArrayBuffer) => Values} */
function array(bytes) {
  const view = new DataView(bytes),
    long = view.getUint8(6) > 1,
    length = long ? view.getUint32(8, true) : view.getUint16(8, true),
    begin = (long ? 12 : 10) + length;
  const about = new TextDecoder().decode(new Uint8Array(bytes, long ? 12 : 10, length));
  const kind = /'descr':\s*'[<|=](\w+)'/.exec(about)?.[1] ?? "",
    shape = (/'shape':\s*\(([^)]*)\)/.exec(about)?.[1] ?? "")
      .split(",")
      .filter((part) => part.trim() !== "")
      .map(Number);
  if (!Object.hasOwn(KINDS, kind)) throw new Error("arrays of an .npz must hold numbers, little-endian");
  if (/'fortran_order':\s*True/.test(about))
    throw new Error("arrays of an .npz must be in C order; save a copy of them");
  const [bits, read] = KINDS[kind],
    count = shape.reduce((a, b) => a * b, 1);
  if (begin + count * bits > bytes.byteLength) throw new Error("an array of this .npz file is cut");
  return { shape, values: Float64Array.from({ length: count }, (_, i) => read(view, begin + i * bits)) };
}
