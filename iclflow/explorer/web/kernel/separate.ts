// The inner loop of descent.js for separate heads, two numbers at a time (AssemblyScript, compiled to 1 kB of WebAssembly):
//   npx asc separate.ts -O3 --enable simd --runtime stub --initialMemory 4 --memoryBase 8 -o separate.wasm
// compiled.js holds the result. It is optional: without it the page uses the same loop in JavaScript.
//
// From BASE on: weights v [H], k [H R D], q [H R D]; then M, A, cross, curvature [D D each], one row of D numbers for each
// of the R pairs of a head. D is a multiple of four.

const BASE: usize = 1024;

export function descend(H: i32, R: i32, D: i32, step: f64, count: i32): void {
  const row = D << 3,
    square = (D * D) << 3,
    pairs = H * R;
  const K = BASE + (H << 3),
    Q = K + pairs * row,
    M = Q + pairs * row,
    A = M + square,
    G = A + square,
    C = G + square;
  const Aq = C + square;
  for (let n = 0; n < count; n++) {
    // M = Σ v k qᵀ
    memory.fill(M, 0, square);
    for (let p = 0; p < pairs; p++) {
      const v = v128.load_splat<f64>(BASE + ((p / R) << 3)),
        k = K + p * row,
        q = Q + p * row;
      for (let j = 0; j < row; j += 32) {
        const q0 = f64x2.mul(v, v128.load(q + j)),
          q1 = f64x2.mul(v, v128.load(q + j, 16));
        for (let i = 0, m = M + j; i < row; i += 8, m += row) {
          const here = v128.load_splat<f64>(k + i);
          v128.store(m, f64x2.add(v128.load(m), f64x2.mul(here, q0)));
          v128.store(m, f64x2.add(v128.load(m, 16), f64x2.mul(here, q1)), 16);
        }
      }
    }
    // A = G - B M Λ
    for (let i = 0; i < square; i += 16)
      v128.store(A + i, f64x2.sub(v128.load(G + i), f64x2.mul(v128.load(C + i), v128.load(M + i))));
    // v += step Σ kᵀA q, k += step v A q, q += step v Aᵀk
    for (let h = 0; h < H; h++) {
      const v = load<f64>(BASE + (h << 3)),
        sv = step * v,
        wide = f64x2.splat(sv);
      let sum = 0.0;
      memory.fill(Aq, 0, R * row);
      for (let r = 0; r < R; r++) {
        const k = K + (h * R + r) * row,
          q = Q + (h * R + r) * row,
          out = Aq + r * row;
        for (let j = 0; j < row; j += 32) {
          const q0 = v128.load(q + j),
            q1 = v128.load(q + j, 16);
          let s0 = f64x2.splat(0),
            s1 = f64x2.splat(0);
          for (let i = 0, a = A + j; i < row; i += 8, a += row) {
            const here = v128.load_splat<f64>(k + i),
              a0 = v128.load(a),
              a1 = v128.load(a, 16);
            const both = f64x2.add(f64x2.mul(a0, q0), f64x2.mul(a1, q1));
            store<f64>(out + i, load<f64>(out + i) + f64x2.extract_lane(both, 0) + f64x2.extract_lane(both, 1));
            s0 = f64x2.add(s0, f64x2.mul(a0, here));
            s1 = f64x2.add(s1, f64x2.mul(a1, here));
          }
          v128.store(q + j, f64x2.add(q0, f64x2.mul(wide, s0)));
          v128.store(q + j, f64x2.add(q1, f64x2.mul(wide, s1)), 16);
        }
        for (let i = 0; i < row; i += 8) {
          const here = load<f64>(k + i),
            slope = load<f64>(out + i);
          sum += here * slope;
          store<f64>(k + i, here + sv * slope);
        }
      }
      store<f64>(BASE + (h << 3), v + step * sum);
    }
  }
}
