// The library's initial weights, seed by seed, turned into the eigenvectors of Λ, where the page computes.

import { given } from "./given.js";
import { weightCount } from "./models.js";
import { foldIn, keyOf, normal, rotation, split } from "./random.js";
import { padded } from "./task.js";

/** @typedef {import("./models.js").Shape} Shape */
/** Which model starts from which random numbers. @typedef {{model: string, layers: number, spectrum: number[], heads: number, rank: number, scale: number, rotate: boolean, eigen_seed: number, fixed_fraction: number, given: number}} Start */

/** The eigenvectors of Λ as columns, row by row; null for the coordinate axes. @type {(start: Start) => Float64Array | null} */
export const basisOf = ({ given: own, rotate, eigen_seed, spectrum }) =>
  own ? (given()?.basis ?? null) : rotate ? rotation(split(keyOf(eigen_seed), 3)[0], spectrum.length) : null;

/**
 * v ~ N(0, w²/H), entries of k, q ~ N(0, w²/(H R D)) (36), of U ~ N(0, w²/(H D²)) (34), in the eigenbasis.
 * The linear transformer starts from p = q = w in every mode; blocks that are trained with a fixed task start from 0.
 * A second layer is drawn like the first, from a key of its own.
 * @type {(start: Start, seed: number) => Float64Array}
 */
export function initialWeights(start, seed) {
  const { model, layers, heads, rank, spectrum } = start,
    size = spectrum.length;
  if (model === "linear-transformer") {
    const w = new Float64Array(2 * padded(size));
    for (let d = 0; d < size; d++) w[d] = w[padded(size) + d] = start.scale;
    return w;
  }
  const first = layerWeights(start, keyOf(seed));
  if (layers === 1) return first;
  /** @type {Shape} */ const one = { kind: "separate", heads, rank, size: padded(size), full: false };
  return joinedLayers(one, [first, layerWeights(start, foldIn(keyOf(seed), 1))]);
}

/** @type {(start: Start, key: import("./random.js").Key) => Float64Array} */
function layerWeights(start, key) {
  const { model, heads, rank, scale, spectrum } = start,
    size = spectrum.length;
  const merged = model.endsWith("merged");
  const keys = split(key, merged ? 2 : 3);
  const values = normal(keys[0], heads).map((x) => (x * scale) / Math.sqrt(heads));
  const [rows, std] = merged
    ? [heads * size, scale / (size * Math.sqrt(heads))]
    : [heads * rank, scale / Math.sqrt(heads * rank * size)];
  const parts = keys.slice(1).map((key) => normal(key, rows * size).map((x) => x * std));
  const full = start.fixed_fraction > 0;
  return packed({ kind: merged ? "merged" : "separate", heads, rank, size, full }, [values, ...parts], basisOf(start));
}

/** The weights of layers in one array: all v, all k, all q; `one` is the shape of a layer, padded. @type {(one: Shape, layers: Float64Array[]) => Float64Array} */
export function joinedLayers({ heads, rank, size }, layers) {
  const count = layers.length,
    rows = heads * rank * size,
    w = new Float64Array(count * (heads + 2 * rows));
  layers.forEach((layer, l) => {
    w.set(layer.subarray(0, heads), l * heads);
    for (const n of [0, 1])
      w.set(layer.subarray(heads + n * rows, heads + (n + 1) * rows), count * (heads + n * rows) + l * rows);
  });
  return w;
}

/**
 * Weights as the library has them, v and rows of D numbers, in the eigenbasis and laid out for the kernel;
 * behind them the blocks of `full`, 𝐯 and the keys' label slot, where they are given.
 * @type {(shape: Shape, parts: ArrayLike<number>[], basis: Float64Array | null) => Float64Array}
 */
export function packed({ kind, heads, rank, size, full }, [values, ...given], basis) {
  const wide = padded(size);
  const w = new Float64Array(weightCount({ kind, heads, rank, size: wide, full }));
  w.set(values);
  const own = kind === "merged" ? 1 : 2;
  const parts = given.slice(0, own);
  const block = kind === "merged" ? size : rank; // rows a head
  const room = kind === "merged" ? wide : rank;
  parts.forEach((part, n) => {
    let turned = basis ? rightProduct(part, basis, size) : part;
    if (basis && kind === "merged") turned = leftProduct(basis, turned, size);
    for (let i = 0; i < turned.length; i++) {
      const row = Math.floor(i / size),
        head = Math.floor(row / block);
      w[heads + (n * heads * room + head * room + (row % block)) * wide + (i % size)] = turned[i];
    }
  });
  let at = weightCount({ kind, heads, rank, size: wide, full: false });
  given.slice(own).forEach((part, n) => {
    const rows = n === 0 || kind === "merged"; // keys of rank R have single numbers in their label slot
    const turned = rows && basis ? rightProduct(part, basis, size) : part;
    for (let i = 0; i < turned.length; i++) w[at + (rows ? Math.floor(i / size) * wide + (i % size) : i)] = turned[i];
    at += rows ? heads * wide : turned.length;
  });
  return w;
}

/** Rows of D numbers times E. @type {(rows: ArrayLike<number>, E: Float64Array, size: number) => Float64Array} */
export function rightProduct(rows, E, size) {
  return Float64Array.from({ length: rows.length }, (_, n) => {
    const row = n - (n % size);
    let sum = 0;
    for (let i = 0; i < size; i++) sum += rows[row + i] * E[i * size + (n % size)];
    return sum;
  });
}

/** Eᵀ times each of several D x D matrices. @type {(E: Float64Array, matrices: ArrayLike<number>, size: number) => Float64Array} */
function leftProduct(E, matrices, size) {
  return Float64Array.from({ length: matrices.length }, (_, n) => {
    const square = size * size,
      first = n - (n % square),
      row = Math.floor((n - first) / size);
    let sum = 0;
    for (let i = 0; i < size; i++) sum += E[i * size + row] * matrices[first + i * size + (n % size)];
    return sum;
  });
}
