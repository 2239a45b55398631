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
    note: "Key and query are merged into one matrix: all components are learned together, in one drop, and the wait grows only as the logarithm of one over the start.",
    settings: { model: "merged", heads: 8, scale: 0.001, rate: 0.05, seeds: 6 },
  },
  {
    name: "Heads share",
    figure: "Fig. 4",
    group: "row",
    note: "Each head holds two components, so only every second drop has a long wait before it.",
    settings: { rank: 2, heads: 4, scale: 0.03, seeds: 6 },
  },
  {
    name: "Longer waits",
    figure: "Fig. 7",
    group: "row",
    note: "The initial weights are a seventh: the waits grow sevenfold, the drops do not, and the prediction is seven times closer.",
    settings: { scale: 0.01, seeds: 6, front: 3 },
  },
  {
    name: "In weights first",
    figure: "Fig. 10",
    group: "row",
    note: "Six of every ten prompts have the same task. It is learned first, in the weights. Reading any task from the context comes later.",
    settings: { ...IN_WEIGHT, seeds: 6 },
  },
  {
    name: "Two layers",
    group: "folded",
    note: "Two layers learn each component twice: first a large step for all of them, in either layer, then a smaller one in the other. Which layer comes first depends on the start.",
    settings: { layers: 2, spectrum: [0.6, 0.3], heads: 3, scale: 0.03, rate: 0.1, seeds: 3, front: 1 },
  },
  {
    name: "Eight drops",
    group: "folded",
    note: "λ falls as 1/d. Nine heads make eight drops, and the last ones are slow and small.",
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
    note: "The theory alone computes the drops of 1,000 random starts: it shows where chance puts each drop, and whether the runs are typical.",
    settings: { ...STAIRS, cloud: 1000 },
  },
  {
    name: "Each mode alone",
    group: "folded",
    note: "The outputs are vectors, and each mode has its own p and q (Mainali & Teixeira). The closed form (13) is exact for long contexts; at N = 31 the modes slow one another.",
    settings: { model: "linear-transformer", spectrum: [1.7, 1, 0.6, 0.35], scale: 0.01 },
  },
  {
    name: "Large start",
    group: "breakage",
    note: "The theory is for small weights. Here the plateaus melt, and the dashed prediction is off; the error says by how much.",
    settings: { scale: 1, seeds: 6 },
  },
  {
    name: "Noisy labels",
    group: "breakage",
    note: "The context labels have noise of size 1. Nothing breaks: the order is the same, the steps are shallower and the weights smaller, as predicted.",
    settings: { noise: 1, scale: 0.05, seeds: 6 },
  },
  {
    name: "Few prompts",
    group: "breakage",
    note: "There are 300 training prompts instead of infinitely many: the plateaus shift by about P^(−1/2), and training goes on below them.",
    settings: { ...STAIRS, sequences: 300 },
  },
  {
    name: "Large rate",
    group: "breakage",
    note: "The rate is four times the usual one, at the edge of stability. The theory is of gradient flow, and descent is no longer close to it.",
    settings: { scale: 0.07, rate: 1.58, seeds: 6 },
  },
  {
    name: "Softmax",
    group: "breakage",
    note: "Softmax attention trains on 300 prompts from the same start. The dashed theory is that of linear attention, which is another model.",
    settings: { model: "softmax-separate", scale: 0.5, steps: 4000, sequences: 300 },
  },
];
