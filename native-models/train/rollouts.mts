/**
 * Makes rollouts for gspo.py with the runtime. A line of JSON on standard input requests some: the model file, the sampling, and cells,
 * each with a task's spec. Every output line is a snapshot in the form of `kvfold collect`; `{"done": true}` ends a request.
 */
import { createInterface } from 'node:readline'
import { collect } from '../../src/lab/collect/collect.js'
import { openMemToolSource, type OwnMemToolOptions, taskSource, type TrajectorySource } from '../../src/lab/collect/sources.js'
import type { TaskSpec } from '../../src/lab/task.js'
import { openTask } from '../../src/lab/tasks/open.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { modelFingerprint } from '../../src/runtime/engine/model-facts.js'
import { openNative } from '../../src/runtime/native/binding.js'

/** The spec of a task that `kvfold collect memtool` plays. */
interface MemToolSpec {
  readonly task: 'memtool'
  readonly options: OwnMemToolOptions
}

type Cell = (TaskSpec & { readonly stumble: boolean }) | MemToolSpec

interface Asked {
  readonly model: string
  readonly temperature: number
  readonly seed: number
  readonly rollouts: number
  readonly maxTokens: number
  readonly maxCalls: number
  readonly cells: readonly Cell[]
}

type Source = TrajectorySource & { readonly close?: () => void }

async function sourceOf(cell: Cell, limits: Pick<Asked, 'maxTokens' | 'maxCalls'>): Promise<Source> {
  if (cell.task === 'memtool') return openMemToolSource(cell.options)
  const { stumble, ...spec } = cell
  return taskSource({ task: await openTask(spec), agent: 'sculptor', stumble, ...limits })
}

const native = await openNative({ gpu: 'cpu' })
for await (const line of createInterface({ input: process.stdin })) {
  const { model: path, cells, temperature, seed, rollouts, ...limits } = JSON.parse(line) as Asked
  // Keys and values are in F32, because the log-probabilities are compared with the trainer's.
  const engine = await LlamaEngine.load(native, path, {
    cells: 16384,
    keyType: 'f32',
    valueType: 'f32',
    flashAttention: 'off',
    threads: 1,
    batchThreads: 1,
  })
  const fingerprint = (await modelFingerprint(path)).toString('hex')
  const model = { name: engine.info.model, fingerprint }
  const tokens = { format: engine.format, isEndOfGeneration: (token: number) => engine.model.isEndOfGeneration(token) }
  for (const [at, cell] of cells.entries()) {
    const acting = { teacher: 'model', engine, model: engine, sampling: { temperature, seed: seed + 1000 * at } } as const
    const source = await sourceOf(cell, limits)
    for await (const { rows } of collect({ source, acting, format: 'tokens', tokens, model, rollouts }))
      for (const row of rows) console.log(JSON.stringify(row))
    source.close?.()
  }
  await engine.dispose()
  console.log(JSON.stringify({ done: true }))
}
