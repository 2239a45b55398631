// Formulas of small square matrices, written down once as a list of operations and worked off many times: a formula
// with a hundred products takes microseconds, without a new array.

/** A matrix of a program: where it begins in the memory. @typedef {number} Matrix */
/** share · matrix, or share · tr(of) · matrix. @typedef {[share: number, matrix: Matrix, of?: Matrix]} Part */
/** On the diagonal: a number, or that times tr(A Bᵀ), or times tr A · tr B. @typedef {{share: number, inner?: [Matrix, Matrix], traces?: Matrix[]}} Diagonal */

const TIMES = 0,
  TURN = 1,
  SET = 2,
  ADD = 3,
  DIAGONAL = 4,
  NONE = -1;

export class Program {
  /** @param {number} size rows and columns of every matrix */
  constructor(size) {
    this.size = size;
    /** @type {number[]} */ this.steps = []; // kind, out, a, b, c
    /** @type {number[]} */ this.shares = []; // one per step
    this.used = 0;
    this.memory = new Float64Array(0);
    this.list = new Int32Array(0);
    this.weights = new Float64Array(0);
  }

  /** Room for a matrix; what is given stays in `memory` between two runs. @returns {Matrix} */
  take() {
    this.used += this.size * this.size;
    return this.used - this.size * this.size;
  }

  /** @param {number} kind @param {Matrix} out @param {Matrix} a @param {number} b @param {number} c @param {number} share */
  #note(kind, out, a, b = NONE, c = NONE, share = 1) {
    this.steps.push(kind, out, a, b, c);
    this.shares.push(share);
    return out;
  }

  /** A B. @param {Matrix} a @param {Matrix} b @returns {Matrix} */
  times(a, b) {
    return this.#note(TIMES, this.take(), a, b);
  }

  /** Aᵀ. @param {Matrix} a @returns {Matrix} */
  turned(a) {
    return this.#note(TURN, this.take(), a);
  }

  /** @param {Part[]} parts @param {...Diagonal} diagonal @returns {Matrix} */
  sum(parts, ...diagonal) {
    const out = this.take();
    parts.forEach(([share, matrix, of = NONE], i) => this.#note(i ? ADD : SET, out, matrix, of, NONE, share));
    for (const { share, inner, traces } of diagonal) {
      const [a, b] = inner ?? traces ?? [];
      this.#note(DIAGONAL, out, a ?? NONE, b ?? NONE, inner ? 1 : 0, share);
    }
    return out;
  }

  /** The program is written: give it its memory. */
  close() {
    this.memory = new Float64Array(this.used);
    this.list = Int32Array.from(this.steps);
    this.weights = Float64Array.from(this.shares);
    return this;
  }

  /** @param {Matrix} a */
  trace(a) {
    const { memory, size } = this;
    let found = 0;
    for (let i = 0; i < size; i++) found += memory[a + i * (size + 1)];
    return found;
  }

  /** tr(A Bᵀ). @param {Matrix} a @param {Matrix} b */
  inner(a, b) {
    const { memory, size } = this;
    let found = 0;
    for (let i = 0; i < size * size; i++) found += memory[a + i] * memory[b + i];
    return found;
  }

  run() {
    const { memory, list, weights, size } = this,
      square = size * size;
    for (let s = 0, n = 0; s < list.length; s += 5, n++) {
      const kind = list[s],
        out = list[s + 1],
        a = list[s + 2],
        b = list[s + 3];
      if (kind === TIMES) {
        for (let i = 0; i < square; i += size)
          for (let j = 0; j < size; j++) {
            let sum = 0;
            for (let k = 0, at = b + j; k < size; k++, at += size) sum += memory[a + i + k] * memory[at];
            memory[out + i + j] = sum;
          }
      } else if (kind === TURN) {
        for (let i = 0; i < size; i++)
          for (let j = 0; j < size; j++) memory[out + j * size + i] = memory[a + i * size + j];
      } else if (kind === DIAGONAL) {
        let share = weights[n];
        if (list[s + 4] === 1) share *= this.inner(a, b);
        else {
          if (a !== NONE) share *= this.trace(a);
          if (b !== NONE) share *= this.trace(b);
        }
        for (let i = 0; i < square; i += size + 1) memory[out + i] += share;
      } else {
        const share = b === NONE ? weights[n] : weights[n] * this.trace(b);
        if (kind === SET) for (let i = 0; i < square; i++) memory[out + i] = share * memory[a + i];
        else for (let i = 0; i < square; i++) memory[out + i] += share * memory[a + i];
      }
    }
  }
}
