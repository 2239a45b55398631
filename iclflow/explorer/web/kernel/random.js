// JAX's random numbers (threefry, double precision): seed s here is jax.random.key(s) there,
// so a link, this page and a line of Python start from the same weights.

/** @typedef {[number, number]} Key two unsigned words of 32 bits */

const ROTATIONS = [13, 15, 26, 6, 17, 29, 16, 24];

/** @type {(key: Key, x0: number, x1: number) => Key} threefry-2x32, 20 rounds */
export function threefry(key, x0, x1) {
  const ks = [key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bda];
  x0 = (x0 + ks[0]) | 0;
  x1 = (x1 + ks[1]) | 0;
  for (let round = 0; round < 20; round++) {
    const r = ROTATIONS[round % 8];
    x0 = (x0 + x1) | 0;
    x1 = ((x1 << r) | (x1 >>> (32 - r))) ^ x0;
    if (round % 4 === 3) {
      const j = (round + 1) / 4;
      x0 = (x0 + ks[j % 3]) | 0;
      x1 = (x1 + ks[(j + 1) % 3] + j) | 0;
    }
  }
  return [x0 >>> 0, x1 >>> 0];
}

/** @type {(seed: number) => Key} */
export const keyOf = (seed) => [Math.floor(seed / 2 ** 32) >>> 0, seed >>> 0];

/** @type {(key: Key, count: number) => Key[]} */
export const split = (key, count) => Array.from({ length: count }, (_, i) => foldIn(key, i));

/** The key of item i of a set. @type {(key: Key, i: number) => Key} */
export const foldIn = (key, i) => threefry(key, 0, i);

/** Standard normal numbers. @type {(key: Key, count: number) => Float64Array} */
export function normal(key, count) {
  const low = -1 + 2 ** -53; // the double after -1: |u| < 1
  return Float64Array.from({ length: count }, (_, i) => {
    const [high, word] = threefry(key, 0, i);
    const unit = (high * 2 ** 20 + (word >>> 12)) * 2 ** -52;
    return Math.SQRT2 * erfinv(Math.max(low, unit * (1 - low) + low));
  });
}

/**
 * An orthogonal matrix from the Haar measure, row by row: QR of a Gaussian matrix, the diagonal of R positive.
 * Gram and Schmidt's method, each column twice, is as exact as rounding allows.
 * @type {(key: Key, size: number) => Float64Array}
 */
export function rotation(key, size) {
  const q = normal(key, size * size);
  for (let column = 0; column < size; column++) {
    for (let again = 0; again < 2; again++)
      for (let done = 0; done < column; done++) {
        let dot = 0;
        for (let i = 0; i < size; i++) dot += q[i * size + done] * q[i * size + column];
        for (let i = 0; i < size; i++) q[i * size + column] -= dot * q[i * size + done];
      }
    let square = 0;
    for (let i = 0; i < size; i++) square += q[i * size + column] ** 2;
    for (let i = 0; i < size; i++) q[i * size + column] /= Math.sqrt(square);
  }
  return q;
}

// Giles' approximation of the inverse error function in double precision, as XLA has it.
const CENTRE = [
  -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
  -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
  -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
  1.051212273321532285e-9, -4.1126339803469836976e-9, -2.9070369957882005086e-8, 4.2347877827932403518e-7,
  -1.3654692000834678645e-6, -1.3882523362786468719e-5, 0.0001867342080340571352, -0.00074070253416626697512,
  -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356,
];
const MIDDLE = [
  2.2137376921775787049e-9, 9.0756561938885390979e-8, -2.7517406297064545428e-7, 1.8239629214389227755e-8,
  1.5027403968909827627e-6, -4.013867526981545969e-6, 2.9234449089955446044e-6, 1.2475304481671778723e-5,
  -4.7318229009055733981e-5, 6.8284851459573175448e-5, 2.4031110387097893999e-5, -0.0003550375203628474796,
  0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
  0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635,
];
const TAIL = [
  -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-9, -3.7894654401267369937e-9,
  7.6157012080783393804e-9, -1.4960026627149240478e-8, 2.9147953450901080826e-8, -6.7711997758452339498e-8,
  2.2900482228026654717e-7, -9.9298272942317002539e-7, 4.5260625972231537039e-6, -1.9681778105531670567e-5,
  7.5995277030017761139e-5, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
  4.8499064014085844221,
];

/** @type {(x: number) => number} */
function erfinv(x) {
  let w = -Math.log1p(-x * x);
  let table = CENTRE;
  if (w < 6.25) w -= 3.125;
  else if (w < 16) [table, w] = [MIDDLE, Math.sqrt(w) - 3.25];
  else [table, w] = [TAIL, Math.sqrt(w) - 5];
  let p = 0;
  for (const c of table) p = p * w + c;
  return p * x;
}
