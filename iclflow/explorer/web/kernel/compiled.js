// The compiled inner loop of separate.ts, and the memory it works in.

/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("./models.js").Loss} Loss */
/** Views of the weights, M and A; `weigh` computes the two latter. @typedef {{weights: Float64Array, M: Float64Array, A: Float64Array, weigh: () => void, descend: (step: number, count: number) => void}} Fast */

const BASE = 1024; // bytes
const CODE = [
  "AGFzbQEAAAABDwJgA39/fwBgBX9/f3x/AAMDAgABBQMBAAQHHAMFd2VpZ2gAAAdkZXNjZW5kAAEGbWVtb3J5AgAKigwC2gMCDX8DeyACIAJsQQN0IgMgAkED",
  "dCIEIAAgAWwiDWwiAiAAQQN0QYAIaiIIaiIOIAJqIgkgA2oiCiADaiILIANqIgxqIAEgBGxqIQYDQCAAIAVKBEAgBUEDdEGACGr9CgMAIRBBACEDA0AgASAD",
  "SgRAQQAhAgNAIAIgBEgEQCAEIAdsIg8gBmogAmogECAOIA9qIAJq/QAEAP3yAf0LBAAgAkEQaiECDAELCyADQQFqIQMgB0EBaiEHDAELCyAFQQFqIQUMAQsL",
  "IAQgDWwhA0EAIQEDQCABIARIBEBBACEFIAEhAANAIAQgBUoEQP0MAAAAAAAAAAAAAAAAAAAAACEQ/QwAAAAAAAAAAAAAAAAAAAAAIRFBACECA0AgAiADSARA",
  "IBAgAiAIaiAFav0KAwAiEiACIAZqIAFqIgf9AAQA/fIB/fABIRAgESASIAf9AAQQ/fIB/fABIREgAiAEaiECDAELCyAAIAlqIgIgEP0LBAAgAiAR/QsEECAA",
  "IApqIgIgACALaiIH/QAEACAAIAxqIg39AAQAIBD98gH98QH9CwQAIAIgB/0ABBAgDf0ABBAgEf3yAf3xAf0LBBAgBUEIaiEFIAAgBGohAAwBCwsgAUEgaiEB",
  "DAELCwurCAMNfxZ7AXwgAiACbEEDdCIFIAJBA3QiDCAAIAFsbCIGIABBA3RBgAhqIghqIgcgBmpqIgYgBUEDbGohCwNAIAQgCUoEQCAAIAEgAhAAQQAhDQNA",
  "IAAgDUoEQCADIA1BA3RBgAhqKwMAIiii/RQhH/0MAAAAAAAAAAAAAAAAAAAAACEaQQAhDwNAIAEgD0oEQCABIA1sIA9qIAxsIgUgCGohCiAFIAdqIg79AAQA",
  "IR4gDv0ABBAhHf0MAAAAAAAAAAAAAAAAAAAAACEc/QwAAAAAAAAAAAAAAAAAAAAAIRsgAkEIRgRAIA79AAQgIRcgDv0ABDAhFv0MAAAAAAAAAAAAAAAAAAAA",
  "ACEV/QwAAAAAAAAAAAAAAAAAAAAAIRRBACEQIAYhBQNAIBBBwABIBEAgCiAQaiIR/QoDACEZIBH9CgMIIRggCyAMIA9saiAQaiAF/QAEACITIB798gEgBf0A",
  "BBAiEiAd/fIB/fABIAX9AAQgIiAgF/3yASAF/QAEMCIhIBb98gH98AH98AEiIiAF/QAEQCIjIB798gEgBf0ABFAiJCAd/fIB/fABIAX9AARgIiUgF/3yASAF",
  "/QAEcCImIBb98gH98AH98AEiJ/0NAAECAwQFBgcQERITFBUWFyAiICf9DQgJCgsMDQ4PGBkaGxwdHh/98AH9CwQAIBwgEyAZ/fIBICMgGP3yAf3wAf3wASEc",
  "IBsgEiAZ/fIBICQgGP3yAf3wAf3wASEbIBUgICAZ/fIBICUgGP3yAf3wAf3wASEVIBQgISAZ/fIBICYgGP3yAf3wAf3wASEUIBBBEGohECAFQYABaiEFDAEL",
  "CyAOIBcgHyAV/fIB/fAB/QsEICAOIBYgHyAU/fIB/fAB/QsEMAVBACEQIAYhBQNAIBBBIEgEQCAKIBBqIhH9CgMAIRIgEf0KAwghEyALIAwgD2xqIBBqIAX9",
  "AAQAIhQgHv3yASAF/QAEECIVIB398gH98AEiFiAF/QAEICIXIB798gEgBf0ABDAiGCAd/fIB/fABIhn9DQABAgMEBQYHEBESExQVFhcgFiAZ/Q0ICQoLDA0O",
  "DxgZGhscHR4f/fAB/QsEACAcIBQgEv3yASAXIBP98gH98AH98AEhHCAbIBUgEv3yASAYIBP98gH98AH98AEhGyAQQRBqIRAgBUFAayEFDAELCwsgDiAeIB8g",
  "HP3yAf3wAf0LBAAgDiAdIB8gG/3yAf3wAf0LBBBBACEFA0AgBSAMSARAIBogBSAKaiIO/QAEACISIAsgDCAPbGogBWr9AAQAIhP98gH98AEhGiAOIBIgHyAT",
  "/fIB/fAB/QsEACAFQRBqIQUMAQsLIA9BAWohDwwBCwsgDUEDdEGACGogKCADIBr9IQAgGv0hAaCioDkDACANQQFqIQ0MAQsLIAlBAWohCQwBCwsL",
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
  const { memory, weigh, descend } = /** @type {any} */ (new WebAssembly.Instance(compiled).exports);
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
  return {
    weights: now,
    M,
    A,
    weigh: () => weigh(heads, rank, size),
    descend: (step, count) => descend(heads, rank, size, step, count),
  };
}
