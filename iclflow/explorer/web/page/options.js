// Options of `iclflow simulate`: written by `python -m iclflow.explorer.address`.

/** The models of the page. */
export const MODELS = ["separate", "merged", "linear-transformer", "softmax-separate", "softmax-merged"];

/** Components at most. */
export const COMPONENTS = 8;

/** The same of two layers. */
export const DEEP_COMPONENTS = 4;

/** What `iclflow simulate` takes where nothing is said. */
export const DEFAULTS = {
  model: "separate",
  spectrum: [0.4, 0.3, 0.2, 0.1],
  context: 31,
  noise: 0,
  task_covariance: [1, 1, 1, 1],
  fixed_fraction: 0,
  layers: 1,
  heads: 5,
  rank: 1,
  scale: 0.01,
  sequences: 0,
  rate: 0,
  steps: 0,
  seeds: 1,
  seed: 0,
  data_seed: 1,
  eigen_seed: 2,
  rotate: false,
};

/** Least and largest value. @type {Record<string, [number, number]>} */
export const BOUNDS = {
  spectrum: [0.005, 2],
  context: [1, 1000],
  noise: [0, 3],
  task_covariance: [0.1, 8],
  fixed_fraction: [0, 1],
  layers: [1, 2],
  heads: [1, 16],
  rank: [1, 8],
  scale: [1e-6, 3],
  sequences: [0, 80000],
  rate: [0, 20],
  steps: [0, 1000000],
  seeds: [1, 100],
  seed: [0, 4294967195],
  data_seed: [0, 4294967295],
  eigen_seed: [0, 4294967295],
};

/** Those that are whole numbers. */
export const WHOLE = ["context", "layers", "heads", "rank", "sequences", "steps", "seeds", "seed", "data_seed", "eigen_seed"];
