// Softmax attention (5)(6) on P prompts: linear in no fixed features, so every step goes through all of them.

import { drawPrompt } from "./prompts.js";

/** @typedef {import("./models.js").Shape} Shape */
/** @typedef {import("./task.js").Task} Task */
/** @typedef {import("./problem.js").Problem} Problem */

/** @type {(task: Task, shape: Shape, basis: Float64Array | null, count: number, dataSeed: number, start: Float64Array) => Problem} */
export function softmaxAttention(task, shape, basis, count, dataSeed, start) {
  const { heads, rank, size, kind } = shape,
    width = task.spectrum.length,
    tokens = task.context + 1;
  const prompts = Array.from({ length: count }, (_, i) => drawPrompt(task, basis, dataSeed, i));
  const weights = Float64Array.from(start),
    slope = new Float64Array(start.length);
  const score = new Float64Array(width), // U x_q
    pull = new Float64Array(width), // Σ_j ∂/∂s_j x_j
    share = new Float64Array(tokens),
    reads = new Float64Array(heads),
    shares = Array.from({ length: heads }, () => new Float64Array(tokens));
  const pairs = heads * rank * size;

  /** Row i of U of a head, times the query. @type {(head: number, query: Float64Array) => void} */
  const turn = (head, query) => {
    score.fill(0);
    if (kind === "merged") {
      for (let i = 0, at = heads + head * size * size; i < width; i++, at += size)
        for (let j = 0; j < width; j++) score[i] += weights[at + j] * query[j];
      return;
    }
    for (let r = 0; r < rank; r++) {
      const at = heads + (head * rank + r) * size;
      let activity = 0;
      for (let j = 0; j < width; j++) activity += weights[at + pairs + j] * query[j];
      for (let i = 0; i < width; i++) score[i] += weights[at + i] * activity;
    }
  };

  /** ŷ, with what each head attends to and reads. @type {(prompt: import("./prompts.js").Prompt, query: Float64Array) => number} */
  const predict = ({ inputs, labels }, query) => {
    let answer = 0;
    for (let h = 0; h < heads; h++) {
      turn(h, query);
      let top = -Infinity,
        sum = 0,
        read = 0;
      for (let n = 0, at = 0; n < tokens; n++) {
        let value = 0;
        for (let d = 0; d < width; d++) value += inputs[at++] * score[d];
        share[n] = value;
        if (value > top) top = value;
      }
      for (let n = 0; n < tokens; n++) sum += share[n] = Math.exp(share[n] - top);
      for (let n = 0; n < tokens; n++) {
        shares[h][n] = share[n] / sum;
        if (n < labels.length) read += shares[h][n] * labels[n]; // the query's own label slot is 0
      }
      reads[h] = read;
      answer += weights[h] * read;
    }
    return answer;
  };

  /** Add -½ ∂(y - ŷ)²/∂w / P to the slope. @type {(prompt: import("./prompts.js").Prompt) => void} */
  const learn = (prompt) => {
    const { inputs, labels, target } = prompt,
      query = inputs.subarray((tokens - 1) * width);
    const error = (target - predict(prompt, query)) / count;
    for (let h = 0; h < heads; h++) {
      slope[h] += error * reads[h];
      pull.fill(0);
      for (let n = 0, at = 0; n < tokens; n++) {
        const push = error * weights[h] * shares[h][n] * ((labels[n] ?? 0) - reads[h]);
        for (let d = 0; d < width; d++) pull[d] += push * inputs[at++];
      }
      if (kind === "merged") {
        for (let i = 0, at = heads + h * size * size; i < width; i++, at += size)
          for (let j = 0; j < width; j++) slope[at + j] += pull[i] * query[j];
        continue;
      }
      for (let r = 0; r < rank; r++) {
        const at = heads + (h * rank + r) * size;
        let activity = 0,
          along = 0;
        for (let d = 0; d < width; d++) {
          activity += weights[at + pairs + d] * query[d];
          along += weights[at + d] * pull[d];
        }
        for (let d = 0; d < width; d++) {
          slope[at + d] += pull[d] * activity;
          slope[at + pairs + d] += along * query[d];
        }
      }
    }
  };

  return {
    weights,
    loss: () =>
      prompts.reduce(
        (sum, prompt) =>
          sum + (prompt.target - predict(prompt, prompt.inputs.subarray((tokens - 1) * width))) ** 2 / count,
        0,
      ),
    descend: (clock, steps) => {
      for (let n = 0; n < steps; n++) {
        slope.fill(0);
        for (const prompt of prompts) learn(prompt);
        for (let i = 0; i < weights.length; i++) weights[i] += clock * slope[i];
      }
    },
  };
}
