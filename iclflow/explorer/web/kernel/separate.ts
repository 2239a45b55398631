// The inner loop of descent.js for separate heads, two numbers at a time (AssemblyScript, compiled to 1.5 kB of WebAssembly):
//   npx asc separate.ts -O3 --enable simd --runtime stub --initialMemory 4 --memoryBase 8 -o separate.wasm
// compiled.js holds the result. It is optional: without it the page uses the same loop in JavaScript.
//
// From BASE on: weights v [H], k [H R D], q [H R D]; then M, A, cross, curvature [D D each], one row of D numbers for each
// of the R pairs of a head, and v q of all pairs. D is four or eight: sums stay in registers.

const BASE: usize = 1024;

/** M = Σ v k qᵀ and A = G - B M Λ, into their places. */
export function weigh(H: i32, R: i32, D: i32): void {
  const row = D << 3,
    square = (D * D) << 3,
    pairs = H * R;
  const K = BASE + (H << 3),
    Q = K + pairs * row,
    M = Q + pairs * row,
    A = M + square,
    G = A + square,
    C = G + square,
    VQ = C + square + R * row;
  for (let h = 0, p = 0; h < H; h++) {
    const v = v128.load_splat<f64>(BASE + (h << 3));
    for (let r = 0; r < R; r++, p++)
      for (let j = 0; j < row; j += 16) v128.store(VQ + p * row + j, f64x2.mul(v, v128.load(Q + p * row + j)));
  }
  const end = pairs * row;
  for (let j = 0; j < row; j += 32)
    for (let i = 0, m = j; i < row; i += 8, m += row) {
      let m0 = f64x2.splat(0),
        m1 = f64x2.splat(0);
      for (let p = 0; p < end; p += row) {
        const here = v128.load_splat<f64>(K + p + i);
        m0 = f64x2.add(m0, f64x2.mul(here, v128.load(VQ + p + j)));
        m1 = f64x2.add(m1, f64x2.mul(here, v128.load(VQ + p + j, 16)));
      }
      v128.store(M + m, m0);
      v128.store(M + m, m1, 16);
      v128.store(A + m, f64x2.sub(v128.load(G + m), f64x2.mul(v128.load(C + m), m0)));
      v128.store(A + m, f64x2.sub(v128.load(G + m, 16), f64x2.mul(v128.load(C + m, 16), m1)), 16);
    }
}

/** The sum of both numbers of a, and that of b. */
@inline
function folded(a: v128, b: v128): v128 {
  return f64x2.add(v128.shuffle<f64>(a, b, 0, 2), v128.shuffle<f64>(a, b, 1, 3));
}

export function descend(H: i32, R: i32, D: i32, step: f64, count: i32): void {
  const row = D << 3,
    square = (D * D) << 3,
    pairs = H * R;
  const K = BASE + (H << 3),
    Q = K + pairs * row,
    A = Q + pairs * row + square,
    Aq = A + 3 * square;
  for (let n = 0; n < count; n++) {
    weigh(H, R, D);
    // v += step Σ kᵀA q, k += step v A q, q += step v Aᵀk
    for (let h = 0; h < H; h++) {
      const v = load<f64>(BASE + (h << 3)),
        wide = f64x2.splat(step * v);
      let sum = f64x2.splat(0);
      for (let r = 0; r < R; r++) {
        const k = K + (h * R + r) * row,
          q = Q + (h * R + r) * row,
          q0 = v128.load(q),
          q1 = v128.load(q, 16);
        let s0 = f64x2.splat(0),
          s1 = f64x2.splat(0);
        if (D == 8) {
          const q2 = v128.load(q, 32),
            q3 = v128.load(q, 48);
          let s2 = f64x2.splat(0),
            s3 = f64x2.splat(0);
          for (let i = 0, a = A; i < 64; i += 16, a += 128) {
            const x = v128.load_splat<f64>(k + i),
              y = v128.load_splat<f64>(k + i, 8),
              a0 = v128.load(a),
              a1 = v128.load(a, 16),
              a2 = v128.load(a, 32),
              a3 = v128.load(a, 48),
              b0 = v128.load(a, 64),
              b1 = v128.load(a, 80),
              b2 = v128.load(a, 96),
              b3 = v128.load(a, 112);
            const first = f64x2.add(
              f64x2.add(f64x2.mul(a0, q0), f64x2.mul(a1, q1)),
              f64x2.add(f64x2.mul(a2, q2), f64x2.mul(a3, q3)),
            );
            const second = f64x2.add(
              f64x2.add(f64x2.mul(b0, q0), f64x2.mul(b1, q1)),
              f64x2.add(f64x2.mul(b2, q2), f64x2.mul(b3, q3)),
            );
            v128.store(Aq + r * row + i, folded(first, second));
            s0 = f64x2.add(s0, f64x2.add(f64x2.mul(a0, x), f64x2.mul(b0, y)));
            s1 = f64x2.add(s1, f64x2.add(f64x2.mul(a1, x), f64x2.mul(b1, y)));
            s2 = f64x2.add(s2, f64x2.add(f64x2.mul(a2, x), f64x2.mul(b2, y)));
            s3 = f64x2.add(s3, f64x2.add(f64x2.mul(a3, x), f64x2.mul(b3, y)));
          }
          v128.store(q, f64x2.add(q2, f64x2.mul(wide, s2)), 32);
          v128.store(q, f64x2.add(q3, f64x2.mul(wide, s3)), 48);
        } else {
          for (let i = 0, a = A; i < 32; i += 16, a += 64) {
            const x = v128.load_splat<f64>(k + i),
              y = v128.load_splat<f64>(k + i, 8),
              a0 = v128.load(a),
              a1 = v128.load(a, 16),
              b0 = v128.load(a, 32),
              b1 = v128.load(a, 48);
            const first = f64x2.add(f64x2.mul(a0, q0), f64x2.mul(a1, q1)),
              second = f64x2.add(f64x2.mul(b0, q0), f64x2.mul(b1, q1));
            v128.store(Aq + r * row + i, folded(first, second));
            s0 = f64x2.add(s0, f64x2.add(f64x2.mul(a0, x), f64x2.mul(b0, y)));
            s1 = f64x2.add(s1, f64x2.add(f64x2.mul(a1, x), f64x2.mul(b1, y)));
          }
        }
        v128.store(q, f64x2.add(q0, f64x2.mul(wide, s0)));
        v128.store(q, f64x2.add(q1, f64x2.mul(wide, s1)), 16);
        for (let i = 0; i < row; i += 16) {
          const here = v128.load(k + i),
            slope = v128.load(Aq + r * row + i);
          sum = f64x2.add(sum, f64x2.mul(here, slope));
          v128.store(k + i, f64x2.add(here, f64x2.mul(wide, slope)));
        }
      }
      store<f64>(BASE + (h << 3), v + step * (f64x2.extract_lane(sum, 0) + f64x2.extract_lane(sum, 1)));
    }
  }
}
