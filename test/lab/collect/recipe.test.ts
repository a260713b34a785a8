/**
 * Tests the recipe for real models: a trajectory as a tree of tokens has the log-probabilities of its snapshots apart, and kvfold predicts
 * with a written adapter as PyTorch does. Needs the trainers (`node scripts/training-parts.mjs`).
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import { synthesizeModel } from '../../../src/runtime/native/synthetic.js'
import { freshPrediction, largestDifference } from '../../support/predictions.js'
import { LONG } from '../../support/long.js'

const python = join(process.env['KVFOLD_TRAINING'] ?? join(homedir(), '.cache', 'kvfold', 'training'), 'venv', 'bin', 'python')
const checks = fileURLToPath(new URL('recipe_checks.py', import.meta.url))
if (!existsSync(python)) console.log('The recipe is not tested: node scripts/training-parts.mjs installs its trainers.')

const SETTINGS = { cells: 512, threads: 1, batchThreads: 1, flashAttention: 'off', keyType: 'f32', valueType: 'f32' } as const
/** PyTorch and llama.cpp sum in another order. */
const NOISE = 1e-3
/** Beside matrices in F16, llama.cpp rounds activations to F16: a share of what the adapter changes. */
const ROUNDED = 2e-3

interface Checked {
  readonly learned: number
  readonly apart: number
  /** The same of a model with sliding windows. */
  readonly windowed: number
  /** The devices of the adapter's tokens, for a model on the device `meta`. */
  readonly devices: readonly string[]
  /** Whether a checkpoint keeps what ratios are taken to. */
  readonly resumed: boolean
  readonly untaught: number
  readonly unlearned: readonly number[]
  readonly before: readonly number[]
  readonly after: readonly number[]
  /** How far the model is from itself with the adapter switched off. */
  readonly off: number
  /** The distance of the adapted model's predictions from the model's, by the formula and by the step that keeps it small. */
  readonly distance: readonly [formula: number, step: number]
  /** The least of the largest slopes that the step gives each of the adapter's matrices. */
  readonly slopes: number
  /** The difference of the steps of GSPO and GRPO, for tokens that became likelier by 0, 0.1 and 0.3 nats. */
  readonly rewards: readonly number[]
}

describe.runIf(LONG && existsSync(python))('the recipe', () => {
  it('computes a tree as its snapshots apart, and writes an adapter with which kvfold predicts as PyTorch does', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-recipe-'))
    const [path, lora] = [join(folder, 'model.gguf'), join(folder, 'adapter.gguf')]
    const shape = {
      architecture: 'qwen2',
      layers: 4,
      embedding: 64,
      heads: 4,
      kvHeads: 2,
      feedForward: 128,
      vocabulary: 400,
    } as const
    await synthesizeModel(path, { ...shape, type: 'f32' })
    const ids = Array.from({ length: 60 }, (_, at) => (at * 7919) % 380)
    const { status, stdout, stderr } = spawnSync(python, [checks, path, lora, JSON.stringify(ids)], { encoding: 'utf8' })
    expect(status, stderr).toBe(0)
    const { learned, apart, windowed, devices, resumed, untaught, unlearned, before, after, off, distance, slopes, rewards } =
      JSON.parse(stdout.trim().split('\n').at(-1)!) as Checked
    expect(learned).toBe(118)
    expect(apart).toBeLessThan(1e-4)
    expect(windowed).toBeLessThan(1e-4)
    expect(resumed).toBe(true)
    expect(devices).toEqual(['meta', 'meta'])
    expect(untaught).toBe(0)
    expect(unlearned).toEqual([200, 201])
    expect(off).toBe(0)
    expect(distance[1]).toBeGreaterThan(0.01)
    expect(distance[1]).toBeCloseTo(distance[0], 4)
    expect(slopes).toBeGreaterThan(0)
    // Within both clips the steps are the same, and beyond both. Between them GSPO no longer raises the right try.
    const [within, between, beyond] = rewards
    for (const same of [within, beyond]) expect(same).toBeLessThan(1e-3)
    expect(between).toBeGreaterThan(0.1)
    const model = await (await openNative({ gpu: 'cpu' })).loadModel(path)
    const adapter = await model.loadAdapter(lora)
    const context = await model.createContext({ ...SETTINGS, sequences: 1 })
    const plain = await freshPrediction(context, Int32Array.from(ids))
    expect(largestDifference(plain, Float32Array.from(before))).toBeLessThan(NOISE)
    context.useAdapters([{ adapter, scale: 1 }])
    const adapted = await freshPrediction(context, Int32Array.from(ids))
    const changed = largestDifference(adapted, plain)
    expect(changed).toBeGreaterThan(1)
    expect(largestDifference(adapted, Float32Array.from(after))).toBeLessThan(ROUNDED * changed)
    await model.dispose()
    rmSync(folder, { recursive: true })
  }, 300_000)
})
