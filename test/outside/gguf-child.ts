/** A process that takes damaged models one after another, as the trials before `model info` and `serve` would and then these, until one of them ends it. */
import { readFileSync, rmSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { reportOf } from '../../src/runtime/cli/commands/model.js'
import { KvfoldError } from '../../src/runtime/core/errors.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { Random } from '../../src/runtime/core/random.js'
import { Embedder } from '../../src/runtime/engine/embedder.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { type ModelTrialOptions, tryModel } from '../../src/runtime/engine/tried-models.js'
import { loadAddon } from '../../src/runtime/native/addon.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { isTextEncoder } from '../../src/runtime/native/context-options.js'
import { damage } from './gguf-damage.js'
import { seedModels } from './gguf-seeds.js'

const [, , folder = ''] = process.argv
const native = await openNative({ gpu: 'cpu' })
const { addon } = await loadAddon('cpu')
const blocks = addon.about().tensorTypes
const models = await seedModels(join(folder, 'seeds'))
const path = join(folder, `variant-${process.pid}.gguf`)
/** A pipe takes 64 KiB at a time. */
const say = (message: object) => {
  for (let left = Buffer.from(`${JSON.stringify(message)}\n`); left.length > 0;) left = left.subarray(writeSync(1, left))
}

say({ kind: 'ready' })
for await (const line of createInterface({ input: process.stdin })) {
  const { seed, number } = JSON.parse(line) as { seed: number; number: number }
  const random = new Random(seed, number)
  const from = models[random.below(models.length)]!
  const { bytes, what } = damage(from.gguf, random, blocks)
  writeFileSync(path, bytes)
  // So that VmHWM tells the most memory that this variant took.
  writeFileSync('/proc/self/clear_refs', '5')
  say({ kind: 'variant', what: `${from.name}: ${what}` })
  const flashAttention = random.below(2) === 0 ? 'auto' : 'off'
  const outcome = await take(flashAttention)
  const peak = Number(/VmHWM:\s*(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))![1]) / 1024
  say({ kind: 'done', outcome, peak })
}
rmSync(path, { force: true })

/** What became of it: the message of a refusal, or what it was taken for. */
async function take(flashAttention: 'auto' | 'off'): Promise<string> {
  try {
    say({ kind: 'phase', phase: 'trial' })
    await tryModel(native, path, { loads: 'only' })
    say({ kind: 'phase', phase: 'info' })
    const model = await native.loadModel(path, { gpuLayers: 0 })
    const { architecture, encoder } = model.info
    try {
      reportOf(model)
    } finally {
      await model.dispose()
    }
    const reads = encoder && isTextEncoder(architecture)
    const options: ModelTrialOptions = { threads: 1, flashAttention, attention: !reads, embeddings: reads ? 'alone' : 'beside' }
    say({ kind: 'phase', phase: 'trial' })
    await tryModel(native, path, options)
    say({ kind: 'phase', phase: 'serve' })
    await (reads ? embedSome() : answerSome(flashAttention))
    return 'works'
  } catch (error) {
    if (error instanceof KvfoldError) return `refused (${error.code}): ${error.message.replaceAll(path, 'FILE')}`
    return `threw: ${String(error)}`
  }
}

async function embedSome(): Promise<void> {
  const embedder = await Embedder.load(native, path, { threads: 1 })
  try {
    await embedder.embed(['Two foxes', 'a third'])
  } finally {
    await embedder.dispose()
  }
}

async function answerSome(flashAttention: 'auto' | 'off'): Promise<void> {
  const engine = await LlamaEngine.load(native, path, { threads: 1, flashAttention, hostBytes: 2 ** 24 })
  try {
    const { vocabType, chatTemplate } = engine.modelInfo
    const conversation = conversationId('a')
    if (vocabType !== 'none' && chatTemplate !== null) {
      await engine.respond({ conversation, messages: [{ role: 'user', content: 'Two foxes.' }], maxTokens: 8 }).reply
      return
    }
    const tokens = vocabType === 'none' ? Int32Array.of(0) : engine.model.tokenize('Two foxes')
    await engine.complete({ conversation, tokens, sampling: { temperature: 0 }, maxTokens: 8 })
  } finally {
    await engine.dispose()
  }
}
