// The compiled inner loop of separate.ts, and the memory it works in.

/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("./models.js").Loss} Loss */
/** Views of the weights, M and A, which JavaScript may use too. @typedef {{weights: Float64Array, M: Float64Array, A: Float64Array, descend: (step: number, count: number) => void}} Fast */

const BASE = 1024; // bytes
const CODE = [
  "AGFzbQEAAAABCQFgBX9/f3x/AAMCAQAFAwEABAcUAgdkZXNjZW5kAAAGbWVtb3J5AgAK0gYBzwYDE38JewV8IAIgAmxBA3QiCiACQQN0IgggACABbCIS",
  "bCICIABBA3RBgAhqIgxqIg0gAmoiCyAKaiIOIApqIhMgCmoiFGohDwNAIAQgEEoEQCALQQAgCvwLAEEAIQIDQCACIBJIBEAgAiABbUEDdEGACGr9CgMA",
  "IRggAiAIbCIFIAxqIQkgBSANaiERQQAhBgNAIAYgCEgEQCAYIAYgEWoiBf0ABAD98gEhGSAYIAX9AAQQ/fIBIRpBACEFIAYgC2ohBwNAIAUgCEgEQCAH",
  "IAf9AAQAIAUgCWr9CgMAIhsgGf3yAf3wAf0LBAAgByAH/QAEECAbIBr98gH98AH9CwQQIAVBCGohBSAHIAhqIQcMAQsLIAZBIGohBgwBCwsgAkEBaiEC",
  "DAELC0EAIQIDQCACIApIBEAgAiAOaiACIBNq/QAEACACIBRq/QAEACACIAtq/QAEAP3yAf3xAf0LBAAgAkEQaiECDAELC0EAIQYDQCAAIAZKBEAgAyAG",
  "QQN0QYAIaisDACIioiIj/RQhHUQAAAAAAAAAACEhIA9BACABIAhs/AsAQQAhBwNAIAEgB0oEQCABIAZsIAdqIAhsIgIgDGohFiACIA1qIRcgDyAHIAhs",
  "aiERQQAhAgNAIAIgCEgEQCACIBdqIgX9AAQAIR4gBf0ABBAhH/0MAAAAAAAAAAAAAAAAAAAAACEY/QwAAAAAAAAAAAAAAAAAAAAAIRlBACEFIAIgDmoh",
  "CQNAIAUgCEgEQCAFIBZq/QoDACEgIAUgEWoiFSAVKwMAIAn9AAQAIhogHv3yASAJ/QAEECIbIB/98gH98AEiHP0hAKAgHP0hAaA5AwAgGCAaICD98gH9",
  "8AEhGCAZIBsgIP3yAf3wASEZIAVBCGohBSAIIAlqIQkMAQsLIAIgF2oiBSAeIB0gGP3yAf3wAf0LBAAgBSAfIB0gGf3yAf3wAf0LBBAgAkEgaiECDAEL",
  "C0EAIQIDQCACIAhIBEAgISACIBZqIgUrAwAiJCACIBFqKwMAIiWioCEhIAUgJCAjICWioDkDACACQQhqIQIMAQsLIAdBAWohBwwBCwsgBkEDdEGACGog",
  "IiADICGioDkDACAGQQFqIQYMAQsLIBBBAWohEAwBCwsL",
].join("");
/** @type {WebAssembly.Module | null | undefined} */ let compiled;

/** The compiled loop for a run, or null where it does not apply or the browser has none. @type {(shape: Shape, loss: Loss, weights: Float64Array) => Fast | null} */
export function compiledLoop({ kind, heads, rank, size }, { cross, curvature }, weights) {
  if (kind !== "separate" || !curvature) return null;
  try {
    compiled ??= new WebAssembly.Module(Uint8Array.from(atob(CODE), (c) => c.charCodeAt(0)));
  } catch {
    compiled = null; // no SIMD, or the page's policy forbids it
  }
  if (!compiled) return null;
  const { memory, descend } = /** @type {any} */ (new WebAssembly.Instance(compiled).exports);
  const square = size * size;
  let at = BASE;
  const take = (/** @type {number} */ count) => {
    const part = new Float64Array(memory.buffer, at, count);
    at += 8 * count;
    return part;
  };
  const [now, M, A, G, C] = [weights.length, square, square, square, square].map(take);
  now.set(weights);
  G.set(cross);
  C.set(curvature);
  return { weights: now, M, A, descend: (step, count) => descend(heads, rank, size, step, count) };
}
