// The plateaus of linear attention on any quadratic loss: the best M of rank one, two, … that training comes to.

/** @typedef {import("./models.js").Loss} Loss */

const SWEEPS = 400; // of alternating least squares
const STILL = 1e-13; // of E[y²]: the loss of a sweep that changes less has converged
const SMALL = 1e-11; // of the trace: added to the diagonal of a system, so that empty directions stay empty

/** The least M of a loss on its first `size` rows and columns of `wide`. @type {(loss: Loss, wide: number, size: number) => Float64Array} */
export function solved({ cross, gram }, wide, size) {
  const K = /** @type {Float64Array} */ (gram),
    used = Array.from({ length: size * size }, (_, i) => Math.floor(i / size) * wide + (i % size));
  const rows = used.map((i) => [...used.map((j) => K[i * wide * wide + j]), cross[i]]);
  const found = eliminated(rows),
    M = new Float64Array(wide * wide);
  used.forEach((i, n) => (M[i] = found[n]));
  return M;
}

/** L(M_0), L(M_1), …: each adds the direction in which the loss falls fastest, and all factors follow. @type {(loss: Loss, wide: number, size: number) => {levels: number[], order: number[]}} */
export function levelsOf(loss, wide, size) {
  const levels = [loss.power];
  /** @type {number[]} */ const order = [];
  /** @type {Float64Array[]} */ let left = [];
  /** @type {Float64Array[]} */ let right = [];
  /** @type {Float64Array} */ let before = new Float64Array(wide * wide);
  for (let rank = 1; rank <= size; rank++) {
    const A = residualOf(loss, before),
      [u, w] = leadingPair(A, wide, size);
    left.push(u.map((x) => 0.1 * x));
    right.push(w.map((x) => 0.1 * x));
    let value = Infinity;
    for (let sweep = 0; sweep < SWEEPS; sweep++) {
      right = fitted(loss, left, wide, size, false);
      left = fitted(loss, right, wide, size, true);
      const now = lossAt(loss, product(left, right, wide));
      const still = value - now < STILL * loss.power;
      value = now;
      if (still) break;
    }
    if (!(value < levels[levels.length - 1] * (1 - 1e-9))) break;
    const M = product(left, right, wide);
    const gained = Array.from({ length: size }, (_, d) => Math.abs(M[d * (wide + 1)] - before[d * (wide + 1)]));
    const free = gained.map((x, d) => (order.includes(d) ? -1 : x));
    order.push(free.indexOf(Math.max(...free)));
    levels.push(value);
    before = M;
  }
  return { levels, order };
}

/** @type {(loss: Loss, M: Float64Array) => Float64Array} */
function residualOf({ cross, gram }, M) {
  const K = /** @type {Float64Array} */ (gram),
    n = M.length;
  return Float64Array.from({ length: n }, (_, i) => {
    let sum = cross[i];
    for (let j = 0; j < n; j++) sum -= K[i * n + j] * M[j];
    return sum;
  });
}

/** @type {(loss: Loss, M: Float64Array) => number} */
function lossAt(loss, M) {
  const A = residualOf(loss, M);
  return M.reduce((sum, x, i) => sum - x * (loss.cross[i] + A[i]), loss.power);
}

/** @type {(left: Float64Array[], right: Float64Array[], wide: number) => Float64Array} */
function product(left, right, wide) {
  const M = new Float64Array(wide * wide);
  left.forEach((u, r) => {
    for (let i = 0; i < wide; i++) for (let j = 0; j < wide; j++) M[i * wide + j] += u[i] * right[r][j];
  });
  return M;
}

/** One side of M = Σ u wᵀ by least squares, the other given; `rows`: the left side. @type {(loss: Loss, other: Float64Array[], wide: number, size: number, rows: boolean) => Float64Array[]} */
function fitted({ cross, gram }, other, wide, size, rows) {
  const K = /** @type {Float64Array} */ (gram),
    n = wide * wide,
    at = (/** @type {number} */ own, /** @type {number} */ i) => (rows ? own * wide + i : i * wide + own);
  const unknown = other.flatMap((_, r) => Array.from({ length: size }, (_, own) => ({ r, own })));
  // K times each direction that an unknown moves M in.
  const moved = unknown.map(({ r, own }) => {
    const column = new Float64Array(n);
    for (let i = 0; i < size; i++) {
      const weight = other[r][i],
        from = at(own, i);
      for (let j = 0; j < n; j++) column[j] += weight * K[j * n + from];
    }
    return column;
  });
  const along = (/** @type {Float64Array} */ values, /** @type {{r: number, own: number}} */ { r, own }) => {
    let sum = 0;
    for (let i = 0; i < size; i++) sum += other[r][i] * values[at(own, i)];
    return sum;
  };
  const system = unknown.map((one) => [...moved.map((column) => along(column, one)), along(cross, one)]);
  const trace = system.reduce((sum, row, i) => sum + row[i], 0);
  system.forEach((row, i) => (row[i] += SMALL * trace));
  const found = eliminated(system);
  return other.map((_, r) => Float64Array.from({ length: wide }, (_, i) => (i < size ? found[r * size + i] : 0)));
}

/** The pair of unit vectors with the largest uᵀA w, by turns. @type {(A: Float64Array, wide: number, size: number) => [Float64Array, Float64Array]} */
function leadingPair(A, wide, size) {
  const unit = (/** @type {Float64Array} */ x) => {
    const length = Math.hypot(...x) || 1;
    return x.map((value) => value / length);
  };
  let w = unit(Float64Array.from({ length: wide }, (_, i) => (i < size ? Math.cos(i + 1) : 0))),
    u = w;
  for (let n = 0; n < 300; n++) {
    u = unit(Float64Array.from({ length: wide }, (_, i) => w.reduce((sum, x, j) => sum + A[i * wide + j] * x, 0)));
    w = unit(Float64Array.from({ length: wide }, (_, j) => u.reduce((sum, x, i) => sum + A[i * wide + j] * x, 0)));
  }
  return [u, w];
}

/** The solution of a linear system whose right side is the last column, with pivots. @type {(rows: number[][]) => number[]} */
function eliminated(rows) {
  const n = rows.length;
  for (let p = 0; p < n; p++) {
    let top = p;
    for (let i = p + 1; i < n; i++) if (Math.abs(rows[i][p]) > Math.abs(rows[top][p])) top = i;
    [rows[p], rows[top]] = [rows[top], rows[p]];
    if (rows[p][p] === 0) continue;
    for (let i = 0; i < n; i++) {
      if (i === p) continue;
      const factor = rows[i][p] / rows[p][p];
      if (factor !== 0) for (let j = p; j <= n; j++) rows[i][j] -= factor * rows[p][j];
    }
  }
  return rows.map((row, i) => (row[i] === 0 ? 0 : row[n] / row[i]));
}
