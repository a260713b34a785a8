/** Each agent in full on the built-in model. Its answers to untrained prompts are nonsense, but its counts must be right. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { Embedder } from '../../../src/runtime/engine/embedder.js'
import { EngineAround, type EngineRequest, type Generation, generationOf } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { agentKinds, type AgentKind, type AgentSetting } from '../../../src/lab/agent.js'
import { openAgent } from '../../../src/lab/agents/open.js'
import { fallbackEmbedder, ggufEmbedder, onnxEmbedder, type OwnedTextEmbedder } from '../../../src/lab/agents/embedders.js'
import { ownWords, piSample, piScore, piText } from '../../../src/lab/pi-llm.js'
import { Recorder } from '../../../src/lab/recorder.js'
import type { TaskSample } from '../../../src/lab/task.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { synthesizeEncoder } from '../../support/synthetic-encoder.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { settingOn, task } from '../support/agents-material.js'

const ONNX = fileURLToPath(new URL('../../../native-models/builtin/onnx', import.meta.url))
let native: Native
let engine: LlamaEngine
let fallback: OwnedTextEmbedder
let folder: string
const stream = piSample({ words: ownWords(), updates: 4, seed: 3 })
const [, context, question] = piText(stream.keys, stream.updates)
const sample: TaskSample = {
  id: 'pi',
  cell: {},
  messages: [{ role: 'user', content: stream.prompt }],
  context,
  question,
  truth: null,
}

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
  engine = await LlamaEngine.load(native, builtinModel(), { threads: 1, batchThreads: 1 })
  fallback = await fallbackEmbedder(engine, { threads: 1, batchThreads: 1 })
  folder = mkdtempSync(join(tmpdir(), 'kvfold-agents-'))
})
afterAll(async () => {
  await fallback.dispose()
  await engine.dispose()
  rmSync(folder, { recursive: true })
})

async function run(kind: AgentKind, options: Record<string, unknown> = {}, change: Partial<AgentSetting> = {}) {
  const before = engine.submitted
  const recorder = new Recorder(engine)
  const setting = settingOn(recorder, {
    task: { ...task, prompt: 'pi-llm', maxTokens: 512, temperature: 0 },
    sample,
    embedder: fallback,
    name: `builtin-${kind}`,
    ...change,
  })
  const answered = await openAgent(kind, options).answer(setting)
  return { answered, recorder, submitted: engine.submitted - before }
}

/** An engine that stops the first step as soon as it is planned. */
class Hasty extends EngineAround {
  constructor(
    engine: LlamaEngine,
    private readonly stop: AbortController,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      const running = this.engine.respond(request)
      for await (const event of running) {
        if (event.type === 'plan') this.stop.abort()
        stream.push(event)
      }
      return running.reply
    })
  }
}

const small: Readonly<Partial<Record<AgentKind, Record<string, unknown>>>> = {
  'rag-bm25': { retrievedTokens: 300 },
  'rag-dense': { retrievedTokens: 300 },
  memagent: { chunkTokens: 300, newTokens: 64 },
  mem0: { chunkTokens: 300, newTokens: 64 },
}

describe.each(agentKinds)('%s', (kind) => {
  it('has its cost on the ledger, to the token', async () => {
    const { answered, recorder, submitted } = await run(kind, small[kind])
    expect(recorder.cost().work.submitted).toBe(submitted)
    expect(recorder.cost().work.submitted).toBeGreaterThan(0)
    const steps = recorder.talks.flatMap((talk) => talk.steps)
    expect(steps).toHaveLength(recorder.done.length)
    expect(steps.every(({ finish }) => finish !== 'failed')).toBe(true)
    const sum = steps.reduce((total, { ledger }) => total + ledger.submitted, 0)
    expect(sum).toBe(submitted)
    expect(['stop', 'length']).toContain(answered.end)
    if (kind === 'memagent') expect(answered.details['parts']).toBe(recorder.done.length - 1)
    if (kind === 'memagent' || kind === 'mem0') expect(answered.details['parts']).toBeGreaterThan(1)
    // Its cells are free: none of its conversations has a ledger any more.
    for (const label of ['turn', 'answer', 'memory', 'facts', 'decisions', 'summary'])
      expect(engine.ledger(`builtin-${kind}/${label}` as never)).toEqual([])
    await engine.check('books')
  })

  it('stops in the middle when the caller stops it', async () => {
    const stop = new AbortController()
    const hasty = new Hasty(engine, stop)
    const { answered } = await run(kind, small[kind], { engine: hasty, signal: stop.signal, name: `stopped-${kind}` })
    expect(answered).toMatchObject({ end: 'cancelled' })
    expect(stop.signal.aborted).toBe(true)
    await engine.check('books')
  })
})

it('plain and sculptor answer as they were trained to', async () => {
  for (const kind of ['plain', 'sculptor'] as const) {
    const { answered } = await run(kind)
    expect(piScore(stream, answered.answer).accuracy).toBeGreaterThan(0.8)
  }
})

describe('a logbook that was read with a tool', () => {
  const read = async () => {
    const book = await openTask({ task: 'logbook', options: { kinds: ['stale'], places: ['late'], samples: 1 } })
    return { task: book, sample: await book.sample(0) }
  }

  it.each(['exact', 'splice'] as const)(
    'is folded by the server’s policy under %s, after the model has read it',
    async (contract) => {
      const { answered, recorder, submitted } = await run(
        'policy',
        {},
        { ...(await read()), contract, name: `policy-${contract}` },
      )
      const [reading, answering] = recorder.done.map(({ reply }) => reply.ledger)
      expect(answered.details).toMatchObject({ folded: 3 })
      expect(answering!.shown).toBeLessThan(reading!.shown)
      expect(answering!.contract).toBe(contract)
      // Under exact the engine computes what stands behind the first fold again; under splice it computes the markers and the question.
      expect(answering!.recomputed > 0).toBe(contract === 'exact')
      expect(answering!.approximate > 0).toBe(contract === 'splice')
      expect(recorder.cost().work.submitted).toBe(submitted)
      await engine.check('books')
    },
  )

  it('is summarised by the model itself, which then answers from fewer tokens', async () => {
    const { answered, recorder } = await run('summary', { summaryTokens: 32 }, { ...(await read()), name: 'summary-logbook' })
    const [writing, answering] = recorder.done.map(({ reply }) => reply.ledger)
    expect(answered.details['summarised']).toBeGreaterThan(0)
    expect(answered.details['summaryTokens']).toBeLessThanOrEqual(32)
    expect(answering!.shown).toBeLessThan(writing!.shown)
    await engine.check('books')
  })
})

it('mem0 gets valid JSON where it asks for JSON, unless the reply is cut off', async () => {
  const { answered, recorder } = await run('mem0', { chunkTokens: 300, newTokens: 256 })
  const said = recorder.talks.flatMap(({ steps }) => steps).filter(({ said }) => said?.trimStart().startsWith('{') === true)
  expect(said).toHaveLength(recorder.done.length - 1)
  const whole = said.filter(({ finish }) => finish === 'stop')
  for (const step of whole) expect(() => JSON.parse(step.said!) as unknown).not.toThrow()
  expect(answered.details['unreadable']).toBe(said.length - whole.length)
})

/** Checks vectors: of a text alone and beside other texts, of a different text, and of a long one. */
async function isSound(embedder: OwnedTextEmbedder, long: string): Promise<void> {
  const embed = (texts: readonly string[], signal?: AbortSignal) => embedder.embed(texts, signal)
  const [vector, other, ofLong] = await embed(['The hat is red.', 'animal: amberbell; bird: ashbloom;', long])
  const [alone] = await embed(['The hat is red.'])
  const dot = (one: Float32Array, two: Float32Array) => one.reduce((sum, value, at) => sum + value * two[at]!, 0)
  for (const each of [vector!, other!, ofLong!]) expect(dot(each, each)).toBeCloseTo(1, 5)
  expect(dot(vector!, alone!)).toBeCloseTo(1, 5)
  expect(dot(vector!, other!)).toBeLessThan(0.999)
  expect(await embed([])).toEqual([])
  await expect(embed(['x'], AbortSignal.abort())).rejects.toMatchObject({ code: 'engine/cancelled' })
}

describe('text embedders', () => {
  it('can use an encoder in a GGUF', async () => {
    const path = join(folder, 'bert.gguf')
    await synthesizeEncoder(path, { architecture: 'bert' })
    const embedder = ggufEmbedder(await Embedder.load(native, path, { threads: 1, batchThreads: 1 }), 'bert')
    expect(embedder.name).toBe('bert')
    await isSound(embedder, 'Much too long for it. '.repeat(300))
    await embedder.dispose()
    await embedder.dispose()
    await expect(embedder.embed(['x'])).rejects.toMatchObject({ code: 'native/disposed' })
  })

  it('can use the model under evaluation itself, and are named accordingly', async () => {
    expect(fallback.name).toBe("fallback: mean of kvfold-tiny's own hidden states")
    await isSound(fallback, 'animal: amberbell; '.repeat(800))
  })

  it('of an ONNX model in Transformers.js', async () => {
    // The model that we ship has no hidden states among its outputs: what is pooled are its logits, and the name says so.
    const embedder = await onnxEmbedder(ONNX, 64)
    expect(embedder.name).toBe('onnx (Transformers.js, mean of logits: the model has no hidden states)')
    await isSound(embedder, 'animal: amberbell; bird: ashbloom; '.repeat(60))
    const { answered } = await run('rag-dense', small['rag-dense'], { embedder, name: 'on-onnx' })
    expect(answered.details['passages']).toBeGreaterThan(0)
    await embedder.dispose()
  })

  it('in ONNX need Transformers.js, which a plain installation does not include', async () => {
    vi.resetModules()
    vi.doMock('@huggingface/transformers', () => {
      throw new Error('Cannot find package')
    })
    const { onnxEmbedder: without } = await import('../../../src/lab/agents/embedders.js')
    await expect(without(ONNX)).rejects.toMatchObject({
      code: 'model/unsupported',
      message: /npm install @huggingface\/transformers/u,
    })
    vi.doUnmock('@huggingface/transformers')
  })

  it('refuse a folder without a model', async () => {
    await expect(onnxEmbedder(folder)).rejects.toMatchObject({ code: 'model/not-found', message: /config.json/u })
  })
})
