// In-context linear regression along the eigenvectors of Λ, where all its moments are diagonal.

/**
 * @typedef {object} Task
 * @property {number[]} spectrum eigenvalues λ of the inputs' covariance, largest first
 * @property {number[]} task_covariance variances s of the task vectors along the same eigenvectors
 * @property {number} context the number of labelled pairs N
 * @property {number} noise standard deviation of the context labels' noise
 */

/**
 * The moments that population training depends on, and what follows from them (E1).
 * @typedef {object} Modes
 * @property {number} size D, padded
 * @property {number} context N
 * @property {number} power E[y²]
 * @property {Float64Array} lambda λ
 * @property {Float64Array} b eigenvalues of B = E[ββᵀ] (32)
 * @property {Float64Array} g eigenvalues of G = E[β y_q x_qᵀ]: how fast a mode is learned
 * @property {Float64Array} m g/(λ b), the weight of a learned mode (23)
 * @property {Float64Array} c m^(-1/3) = 1/v*, the inverse of its final value weight (25)
 * @property {Float64Array} drops σ² = g²/(λ b), by how much learning it lowers the loss (24)
 * @property {number[]} order the modes with σ > 0, largest drop first
 * @property {number[]} levels L(M_0), …, L(M_r): the plateaus; with a fixed task E[y²], the end of the first drop where it is known, the least loss
 * @property {import("./mixture.js").Moments=} moments of all features, with a fixed task
 * @property {boolean=} coupled whether the loss is not diagonal in these modes, as that of given prompts
 */

/** D padded to a multiple of four with modes of no variance, which stay zero exactly: the kernel is unrolled. */
export const padded = (/** @type {number} */ size) => 4 * Math.ceil(size / 4);

/** @type {(task: Task) => Modes} */
export function modesOf({ spectrum, task_covariance, context, noise }) {
  const lambda = new Float64Array(padded(spectrum.length));
  lambda.set(spectrum);
  const s = new Float64Array(lambda.length);
  s.set(task_covariance);
  const power = lambda.reduce((sum, l, d) => sum + l * s[d], 0);
  const b = lambda.map((l, d) => (1 + 1 / context) * l * l * s[d] + ((power + noise ** 2) * l) / context);
  const g = lambda.map((l, d) => l * l * s[d]);
  const m = g.map((gain, d) => (gain > 0 ? gain / (lambda[d] * b[d]) : 0));
  const drops = g.map((gain, d) => gain * m[d]);
  const order = [...drops.keys()].filter((d) => drops[d] > 0).sort((i, j) => drops[j] - drops[i]);
  const levels = [power];
  for (const d of order) levels.push(levels[levels.length - 1] - drops[d]);
  return { size: lambda.length, context, power, lambda, b, g, m, c: m.map((x) => x ** (-1 / 3)), drops, order, levels };
}

/** Whether gains and drops order the modes alike, and none are equal, as the scalar courses need (E1). @type {(modes: Modes) => boolean} */
export const ordered = ({ order, g }) => order.every((d, i) => i === 0 || g[d] < g[order[i - 1]] * (1 - 1e-9));

/** Whether drops and input variances order the components alike: then the first m of them are those of PCR-m. @type {(modes: Modes) => boolean} */
export const principal = ({ order }) => order.every((d, i) => d === i);

/**
 * (E(ŷ - ŷ')²/E[y²])^(1/2) between the predictor βᵀ M x_q and PCR-m (27), for m = 0, …, rank.
 * Among equal components PCR-m is free to choose its directions, and is given the nearest ones.
 * @type {(modes: Modes, effective: ArrayLike<number>) => Float64Array}
 */
export function distances({ size, power, lambda, b, m, order }, effective) {
  let rest = 0;
  for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) rest += b[i] * lambda[j] * effective[i * size + j] ** 2;
  const found = [rest];
  for (let n = 0; n < order.length;) {
    const first = order[n];
    const equal = order.slice(n).filter((d) => lambda[d] === lambda[first] && m[d] === m[first]);
    for (const strength of eigenvalues(
      equal.map((i) => equal.map((j) => (effective[i * size + j] + effective[j * size + i]) / 2)),
    )) {
      rest += b[first] * lambda[first] * m[first] * (m[first] - 2 * strength);
      found.push(rest);
    }
    n += equal.length;
  }
  return Float64Array.from(found, (squared) => Math.sqrt(Math.max(0, squared) / power));
}

/** Of a small symmetric matrix, largest first, by Jacobi's rotations. @type {(a: number[][]) => number[]} */
export function eigenvalues(a) {
  const n = a.length;
  for (let sweep = 0; sweep < 12 && n > 1; sweep++)
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        const angle = 0.5 * Math.atan2(2 * a[p][q], a[p][p] - a[q][q]),
          c = Math.cos(angle),
          s = Math.sin(angle);
        for (const row of a) [row[p], row[q]] = [c * row[p] + s * row[q], c * row[q] - s * row[p]];
        [a[p], a[q]] = [a[p].map((x, i) => c * x + s * a[q][i]), a[q].map((x, i) => c * x - s * a[p][i])];
      }
  return a.map((row, i) => row[i]).sort((x, y) => y - x);
}
