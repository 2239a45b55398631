// Named experiments: what happens in them, the figure of the papers that shows it, and breakage on purpose.

/** @typedef {import("./settings.js").Settings} Settings */
/** `figure`: where the papers show it. `group`: in the row, or folded away. @typedef {{name: string, figure?: string, group: "row" | "folded" | "breakage", note: string, settings: Partial<Settings>}} Preset */

const STAIRS = { scale: 0.07, rate: 0.2, seeds: 6, front: 3 };
const IN_WEIGHT = {
  model: "merged",
  spectrum: Array(4).fill(0.25),
  heads: 8,
  scale: 0.001,
  fixed_fraction: 0.6,
  rate: 0.05,
};
const EIGHT = [0.368, 0.184, 0.123, 0.092, 0.074, 0.061, 0.053, 0.046];

/** The first is what the page opens with. @type {Preset[]} */
export const PRESETS = [
  {
    name: "Staircase",
    figure: "Fig. 3",
    group: "row",
    note: "Five heads, four components: each drop is one head that wakes up and takes the largest component left over.",
    settings: STAIRS,
  },
  {
    name: "One drop",
    figure: "Fig. 1",
    group: "row",
    note: "Key and query merged into one matrix: all components together, one drop, and a wait that grows only as the logarithm of the start.",
    settings: { model: "merged", heads: 8, scale: 0.001, rate: 0.05, seeds: 6 },
  },
  {
    name: "Heads share",
    figure: "Fig. 4",
    group: "row",
    note: "Each head holds two components: the long waits come before every second drop only.",
    settings: { rank: 2, heads: 4, scale: 0.03, seeds: 6 },
  },
  {
    name: "Longer waits",
    figure: "Fig. 7",
    group: "row",
    note: "A seventh of the initial weights: the waits grow sevenfold, the drops do not, and the prediction is seven times closer.",
    settings: { scale: 0.01, seeds: 6, front: 3 },
  },
  {
    name: "In weights first",
    figure: "Fig. 10",
    group: "row",
    note: "Of every ten prompts six have the same task. That one is learned first, in the weights; to read any task from the context comes later.",
    settings: { ...IN_WEIGHT, seeds: 6 },
  },
  {
    name: "Eight drops",
    group: "folded",
    note: "λ falls as 1/d, nine heads: eight drops, the last ones slow and small.",
    settings: { spectrum: EIGHT, heads: 9, scale: 0.1, seeds: 6 },
  },
  {
    name: "Equal components",
    group: "folded",
    note: "Nothing prefers a direction in a plane of equal variance: the heads choose one, and the matrix leaves the diagonal.",
    settings: { spectrum: [0.35, 0.35, 0.15, 0.15], scale: 0.04, seeds: 6 },
  },
  {
    name: "Against the order",
    group: "folded",
    note: "The tasks vary most along the second component: it is the better one to know, but the first is faster to learn. A head takes component one, and turns to two.",
    settings: { spectrum: [0.6, 0.3], task_covariance: [1, 3], context: 200, heads: 4, scale: 0.02, seeds: 6 },
  },
  {
    name: "A thousand starts",
    group: "folded",
    note: "The theory alone, asked about 1,000 random starts: where each drop falls by chance, and how far the runs are typical.",
    settings: { ...STAIRS, cloud: 1000 },
  },
  {
    name: "Each mode alone",
    group: "folded",
    note: "Vector outputs, p and q of each mode (Mainali & Teixeira): the closed form (13) is exact for long contexts; at N = 31 the modes slow one another.",
    settings: { model: "linear-transformer", spectrum: [1.7, 1, 0.6, 0.35], scale: 0.01 },
  },
  {
    name: "Large start",
    group: "breakage",
    note: "No small parameter, no theory: the plateaus melt, and the dashed prediction is off. The error says by how much.",
    settings: { scale: 1, seeds: 6 },
  },
  {
    name: "Noisy labels",
    group: "breakage",
    note: "Noise of size 1 on the context labels. It does not break: the same order, shallower steps, smaller weights, as predicted.",
    settings: { noise: 1, scale: 0.05, seeds: 6 },
  },
  {
    name: "Few prompts",
    group: "breakage",
    note: "300 training prompts in place of infinitely many: the plateaus shift by P^(−1/2), and training goes on below them.",
    settings: { ...STAIRS, sequences: 300 },
  },
  {
    name: "Large rate",
    group: "breakage",
    note: "Four times the usual rate, at the edge of stability: the theory is one of gradient flow, and descent is no longer that.",
    settings: { scale: 0.07, rate: 1.58, seeds: 6 },
  },
  {
    name: "Softmax",
    group: "breakage",
    note: "Softmax attention on 300 prompts, from the same start. Dashed: the theory of its linear counterpart, which is another model.",
    settings: { model: "softmax-separate", scale: 0.5, steps: 4000, sequences: 300 },
  },
];
