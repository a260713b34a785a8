/**
 * The Sculptor paper's numbers that reports show beside ours. The paper has other models and other data. `source`: the table or figure of a
 * number.
 */
import type { TaskName } from './task.js'

/** A row of a table in the paper. `tools`: whether the model had the context tools. */
export interface PaperRow {
  readonly method: string
  readonly tools: boolean
  /** The row's numbers in percent, in the order of the table's columns. */
  readonly values: readonly number[]
}

/** Table 1: accuracy of models that were only prompted, with and without the tools. */
export const paperTable1 = {
  source: 'Sculptor, table 1',
  needles: {
    task: 'needles' as TaskName,
    /** Needles per text. The values are means over lengths of 1K to 128K tokens. */
    columns: [2, 3, 4, 5],
    rows: [
      { method: 'Claude-4-Sonnet', tools: false, values: [96, 82, 54, 36] },
      { method: 'Claude-4-Sonnet', tools: true, values: [100, 98, 88, 90] },
      { method: 'GPT-4.1', tools: false, values: [90, 64, 30, 8] },
      { method: 'GPT-4.1', tools: true, values: [96, 84, 60, 44] },
      { method: 'DeepSeek-V3', tools: false, values: [88, 68, 28, 16] },
      { method: 'DeepSeek-V3', tools: true, values: [92, 58, 50, 32] },
    ] satisfies PaperRow[],
  },
  piLlm: {
    task: 'pi-llm' as TaskName,
    /** Updates per key. 4 updates make about 1K tokens of context, 256 about 64K. */
    columns: [4, 8, 16, 32, 64, 128, 256],
    rows: [
      { method: 'Claude-4-Sonnet', tools: false, values: [99.13, 95.65, 92.17, 84.78, 81.74, 65.22, 69.57] },
      { method: 'Claude-4-Sonnet', tools: true, values: [90.43, 91.74, 98.26, 92.17, 91.74, 87.39, 77.83] },
      { method: 'GPT-4.1', tools: false, values: [96.96, 91.3, 79.57, 67.83, 63.04, 63.91, 50.43] },
      { method: 'GPT-4.1', tools: true, values: [92.17, 89.13, 93.04, 83.91, 76.09, 64.35, 60.43] },
      { method: 'DeepSeek-V3', tools: false, values: [95.22, 85.65, 70, 63.91, 33.04, 32.17, 21.74] },
      { method: 'DeepSeek-V3', tools: true, values: [73.91, 90, 79.13, 37.39, 53.04, 55.65, 11.74] },
    ] satisfies PaperRow[],
  },
} as const

/** Table 2: accuracy in percent on five tasks. `mean`: the paper's last column, the mean of the five. */
export const paperTable2 = {
  source: 'Sculptor, table 2',
  columns: ['pi-llm', 'needles', 'mrcr', 'longbench-v2', 'frames'] satisfies TaskName[],
  rows: [
    { method: 'M3 (13B)', values: [22.5, 30, 46.3, 33, 65.2], mean: 39.4 },
    { method: 'M3 + RAG (BM25)', values: [17.9, 12.5, 6.6, 25.8, 33.6], mean: 19.3 },
    { method: 'M3 + RAG (Qwen3-Emb)', values: [10.9, 13, 20.6, 29.6, 46], mean: 24 },
    { method: 'M3 + Mem0', values: [39.2, 19, 9.2, 29, 52.8], mean: 29.8 },
    { method: 'M3 + MemAgent', values: [41.5, 24, 22.1, 29.6, 61.5], mean: 35.7 },
    { method: 'Sculptor-M3', values: [71.8, 67.6, 79.1, 29.2, 51.2], mean: 59.8 },
    { method: 'Sculptor-M3-RL', values: [99.4, 84.8, 85.7, 34.5, 64.6], mean: 73.8 },
    { method: 'GLM-4.5-air (106B, 12B active)', values: [29.4, 24.5, 43.1, 46.9, 76], mean: 44 },
    { method: 'GLM-4.5-air + RAG (BM25)', values: [30.6, 15, 4.8, 19.5, 30.9], mean: 20.2 },
    { method: 'GLM-4.5-air + RAG (Qwen3-Emb)', values: [10.9, 12, 24.1, 27.2, 46.6], mean: 24.2 },
    { method: 'GLM-4.5-air + Mem0', values: [18.5, 14.5, 6.2, 28.8, 62.3], mean: 26.1 },
    { method: 'GLM-4.5-air + MemAgent', values: [22.2, 17, 8.6, 33.2, 68.6], mean: 29.9 },
    { method: 'Sculptor-GLM-4.5-air', values: [65.2, 58, 88.5, 31.7, 56.7], mean: 60 },
    { method: 'Sculptor-GLM-4.5-air-RL', values: [86, 84, 99, 50.7, 79.2], mean: 79.8 },
  ],
} as const

/**
 * Figure 3: tool calls over 50 samples, with a general prompt and with the task's own prompt. Only the bars for which the paper's text
 * gives numbers.
 */
export const paperFigure3 = {
  source: 'Sculptor, figure 3',
  method: 'Claude-4-Sonnet',
  samples: 50,
  counts: [
    { task: 'pi-llm' as TaskName, tool: 'search_context', prompt: 'general prompt', calls: 625 },
    { task: 'pi-llm' as TaskName, tool: 'fold_fragment', prompt: "the task's prompt", calls: 1206 },
    { task: 'needles' as TaskName, tool: 'search_context', prompt: 'general prompt', calls: 77 },
    { task: 'needles' as TaskName, tool: 'search_context', prompt: "the task's prompt", calls: 206 },
  ],
} as const

/** Figure 6: mean context in tokens, before and after the agent used its tools. */
export const paperFigure6 = {
  source: 'Sculptor, figure 6',
  method: 'Sculptor-M3-RL',
  tasks: [
    { task: 'pi-llm' as TaskName, before: 72_400, after: 8_000 },
    { task: 'needles' as TaskName, before: 85_200, after: 20_300 },
    { task: 'mrcr' as TaskName, before: 95_600, after: 20_000 },
  ],
} as const

/**
 * Figures 11 to 13: tool use at the beginning and the end of reinforcement learning. The entropy must be in bits: of six tools it cannot
 * reach 2.09 nats.
 */
export const paperTraining = {
  method: 'Sculptor-M3 in training',
  entropy: {
    source: 'Sculptor, figure 11',
    rows: [
      { of: 'training set', start: 1.17, end: 2.09 },
      { of: 'evaluation set', start: 1.69, end: 1.98 },
    ],
  },
  calls: { source: 'Sculptor, figure 12', rows: [{ of: 'evaluation set', start: 7.26, end: 8.47 }] },
  piLlm: {
    source: 'Sculptor, figure 13',
    rows: [
      { tool: 'fold_fragment', start: 4.85, end: 7.08 },
      { tool: 'restore_fragment', start: 0.052, end: 0.267 },
    ],
  },
} as const
