/**
 * Tests LoRA adapters in the engine: cells that were computed with one set of adapters never serve another, in any tier, and every step
 * predicts what a fresh prefill with its adapters does.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest'
import { sharedCells } from '../../../src/fleet/cells/shared-cells-folder.js'
import { sculptor } from '../../../src/runtime/agents/sculptor.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import type { BlockOutlet } from '../../../src/runtime/engine/block-watch.js'
import { SECRET_FILE } from '../../../src/runtime/engine/cache-secret.js'
import type { AdapterScale, EngineReply, EngineRequest } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import { proveModel } from '../../../src/runtime/engine/tried-models.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { adapterFor, merged } from '../../support/adapters.js'
import { TEST_GPU } from '../../support/device.js'
import { mambaModel, tinyModel } from '../../support/models.js'
import { firstPrediction, freshPrediction, largestDifference } from '../../support/predictions.js'

const OPTIONS = { cells: 4096, sequences: 12, threads: 1, batchThreads: 1, flashAttention: 'off', hostBytes: 1e8 } as const
/** The noise is the largest of a few differences, which is less than the largest of all. */
const MARGIN = 4
/** With keys and values in f16, a last bit of a product may move a whole step of f16. */
const F32 = { keyType: 'f32', valueType: 'f32' } as const
const A: readonly AdapterScale[] = [{ id: 0, scale: 1 }]
const B: readonly AdapterScale[] = [{ id: 1, scale: 1 }]
const NONE: readonly AdapterScale[] = []

const messages: ChatMessage[] = [
  { role: 'system', content: 'You are brief. '.repeat(10) },
  { role: 'user', content: 'Begin here. '.repeat(60) },
]

let native: Native
let model: string
let lora: { readonly path: string; readonly scale: number }[]
const open = new Set<LlamaEngine>()

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  model = await tinyModel()
  lora = await adaptersFor(model)
})
afterEach(async () => {
  for (const engine of open) await engine.dispose()
  open.clear()
})

async function adaptersFor(path: string) {
  const tensors = path.includes('mamba') ? /ssm_(?:in|out)\.weight$/ : undefined
  const options = (seed: number) => ({ seed, ...(tensors === undefined ? {} : { tensors }) })
  const files = [await adapterFor(path, 'anna', options(1)), await adapterFor(path, 'bert', options(2))]
  // Requests that name no adapters apply none.
  return files.map((file) => ({ path: file, scale: 0 }))
}

async function load(options: LlamaEngineOptions = {}, path = model): Promise<LlamaEngine> {
  const engine = await LlamaEngine.load(native, path, { ...OPTIONS, lora, ...options })
  open.add(engine)
  return engine
}

async function dispose(engine: LlamaEngine): Promise<void> {
  open.delete(engine)
  await engine.dispose()
}

const ask = (engine: LlamaEngine, name: string, scales: readonly AdapterScale[], more: Partial<EngineRequest> = {}) =>
  engine.respond({ conversation: conversationId(name), messages, maxTokens: 1, lora: scales, ...more }).reply

describe.each([
  ['cells', tinyModel],
  ['states that can only be extended', mambaModel],
])('adapters on a model with %s', (_, of) => {
  it('never lend cells to each other, and a conversation that comes back to one finds its cells', async () => {
    const path = await of()
    const engine = await load({ lora: await adaptersFor(path) }, path)
    const submitted = async (name: string, scales: readonly AdapterScale[]) => {
      const before = engine.submitted
      const { ledger } = await ask(engine, name, scales)
      await engine.check('full')
      return { submitted: engine.submitted - before, reused: ledger.reused }
    }
    const whole = await submitted('first', A)
    expect(whole).toEqual({ submitted: expect.any(Number) as number, reused: 0 })
    expect(whole.submitted).toBeGreaterThan(100)
    // Another conversation of the same text and adapters shares the cells; one with other adapters does not.
    const again = await submitted('second', A)
    expect(again.submitted).toBeLessThan(20)
    for (const other of [B, NONE, [{ id: 0, scale: 0.5 }], [...A, ...B]]) expect(await submitted('third', other)).toEqual(whole)
    // The first conversation, too, changes its adapters and comes back.
    expect((await submitted('first', [{ id: 0, scale: -1 }])).reused).toBe(0)
    expect((await submitted('first', A)).submitted).toBeLessThan(20)
    // Scale 0 is no adapter, and the order of a list does not matter.
    expect((await submitted('fourth', [{ id: 1, scale: 0 }])).submitted).toBeLessThan(20)
    expect((await submitted('fourth', [...B, ...A])).submitted).toBeLessThan(20)
    expect(engine.ledger(conversationId('first'))).toHaveLength(3)
    engine.forget(conversationId('first'))
    for (const name of ['second', 'third', 'fourth']) engine.forget(conversationId(name))
    await engine.check('full')
    expect(engine.cacheTotals.used).toBe(0)
    expect(await submitted('first', A)).toEqual(whole)
  })
})

describe('predictions with an adapter', () => {
  /** Returns functions that prefill afresh on a model into which these adapters were merged: in one batch, and in small ones. */
  async function reference(scales: readonly AdapterScale[]) {
    const path = merged(
      model,
      scales.map(({ id, scale }) => ({ path: lora[id]!.path, scale })),
    )
    const of = await native.loadModel(path)
    const settings = { cells: 2048, threads: 1, batchThreads: 1, flashAttention: 'off', ...F32 } as const
    const whole = await of.createContext({ ...settings, sequences: 1 })
    const chunked = await of.createContext({ ...settings, sequences: 2, batch: 61, ubatch: 61 })
    return {
      model: of,
      whole: (tokens: Int32Array) => freshPrediction(whole, tokens),
      chunked: (tokens: Int32Array) => freshPrediction(chunked, tokens, 7),
    }
  }

  it('equal those of a merged model after folds, restores and a refresh, with each set in turn', async () => {
    const engine = await load({ ubatch: 64, batch: 64, ...F32 })
    const { vocabulary } = engine.modelInfo
    const sets = [A, B, [{ id: 0, scale: 0.5 }, ...B], NONE]
    let [noise, worst] = [0, 0]
    const at = engine.snap(messages, [], 1, { start: 12, end: 400 })
    const fold: Edit[] = [{ message: 1, span: at, replacement: '[...]' }]
    const longer: ChatMessage[] = [
      ...messages,
      { role: 'assistant', content: 'Yes.' },
      { role: 'user', content: 'And then? '.repeat(20) },
    ]
    const references = await Promise.all(sets.map(reference))
    const look = async (
      set: number,
      shown: readonly ChatMessage[],
      edits: readonly Edit[],
      more: Partial<EngineRequest> = {},
    ) => {
      const { logprobs, ledger } = await ask(engine, 'talk', sets[set]!, {
        messages: shown,
        edits,
        logprobs: vocabulary,
        ...more,
      })
      const { tokens } = engine.format.render({ messages: shown, tools: [], edits })
      const { whole, chunked } = references[set]!
      const fresh = await whole(tokens)
      if (ledger.approximate === 0) {
        noise = Math.max(noise, largestDifference(fresh, await chunked(tokens)))
        worst = Math.max(worst, largestDifference(fresh, firstPrediction(logprobs, vocabulary)))
      }
      return ledger
    }
    // Every set goes through the same steps, and the sets take turns.
    for (const [shown, edits] of [
      [messages, []],
      [messages, fold],
      [longer, fold],
      [longer, []],
      [longer, fold],
    ] as const)
      for (const set of sets.keys()) {
        const ledger = await look(set, shown, edits)
        expect(ledger.approximate).toBe(0)
      }
    for (const set of sets.keys()) {
      await look(set, longer, [])
      const spliced = await look(set, longer, fold, { contract: 'splice' })
      const { exact } = await engine.refresh(conversationId('talk'))
      expect(exact).toBe(true)
      const after = await look(set, longer, fold)
      expect([after.approximate, after.recomputed], `spliced: ${spliced.approximate}`).toEqual([0, 0])
    }
    await engine.check('full')
    for (const each of references) await each.model.dispose()
    expect(worst, `two fresh prefills differ by ${noise}`).toBeLessThan(MARGIN * noise)
  })

  it('are right for streams of several sets at once, and equal those of each alone', async () => {
    const engine = await load()
    const sets = [A, B, NONE, A]
    const said = (reply: EngineReply) => reply.message.sampled?.tokens ?? reply.message.content
    const alone: unknown[] = []
    const own = (at: number): ChatMessage[] => [...messages, { role: 'user', content: `Number ${at % 3}.` }]
    const request = (at: number) => ({ messages: own(at), maxTokens: 60, logprobs: 1, grammar: 'root ::= [a-z ] root' })
    for (const [at, set] of sets.entries()) alone.push(said(await ask(engine, `alone ${at}`, set, request(at))))
    const together = await Promise.all(sets.map((set, at) => ask(engine, `together ${at}`, set, request(at))))
    expect(together.map(said)).toEqual(alone)
    expect(new Set(alone.map(String)).size).toBeGreaterThan(2)
    await engine.check('full')
  })

  it('come from all adapters at their own scales where a request names none', async () => {
    const engine = await load({ lora: lora.map(({ path }, id) => ({ path, scale: 1 - id })) })
    expect(engine.adapters.map(({ id, name, scale }) => ({ id, name, scale }))).toEqual([
      { id: 0, name: 'anna', scale: 1 },
      { id: 1, name: 'bert', scale: 0 },
    ])
    expect(engine.info).toMatchObject({ model: 'kvfold synthetic + anna', base: 'kvfold synthetic' })
    const first = await ask(engine, 'named', A)
    const { ledger } = await engine.respond({ conversation: conversationId('unnamed'), messages, maxTokens: 1 }).reply
    expect(ledger.reused).toBeGreaterThan(100)
    expect(first.ledger.reused).toBe(0)
  })

  it('leave a trained model the tools that it was trained on', async () => {
    const trained = builtinModel()
    const engine = await load({ lora: [{ path: await adapterFor(trained, 'carl') }] }, trained)
    expect(engine.info).toMatchObject({ model: 'kvfold-tiny + carl', base: 'kvfold-tiny' })
    const { definitions } = sculptor({ engine, id: conversationId('trained') }).toolbox
    expect(definitions).toEqual(contextTools.map(({ definition }) => definition))
  })
})

describe('lower tiers', () => {
  let folder: string
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'kvfold-lora-'))
  })
  afterAll(() => {
    rmSync(folder, { recursive: true })
  })

  it('keep each set apart on disk over a restart, and forget all sets of a conversation', async () => {
    const disk = { folder: join(folder, 'disk'), bytes: 1e9 }
    const before = await load({ disk })
    await ask(before, 'kept', A)
    await ask(before, 'kept', NONE)
    await dispose(before)
    const after = await load({ disk })
    const b = await ask(after, 'other', B)
    expect([b.ledger.reused, b.ledger.tiers.disk]).toEqual([0, 0])
    const a = await ask(after, 'again', A)
    expect(a.ledger.tiers.disk).toBeGreaterThan(100)
    const plain = await ask(after, 'plain', NONE)
    expect(plain.ledger.tiers.disk).toBeGreaterThan(100)
    await dispose(after)
    const last = await load({ disk })
    for (const name of ['kept', 'other', 'again', 'plain']) await last.erase(conversationId(name))
    expect(readdirSync(disk.folder).filter((name) => name !== SECRET_FILE && name.endsWith('.kvshelf'))).toEqual([])
  })

  it('tell the blocks of requests without adapters apart from those of the usual ones', async () => {
    const told = new Set<string>()
    const outlet: BlockOutlet = {
      tell: (events) => {
        for (const event of events) if (event.kind === 'stored') told.add(event.adapters)
        return Promise.resolve()
      },
    }
    const engine = await load({ blocks: outlet, lora: lora.map(({ path }) => ({ path, scale: 1 })) })
    for (const name of ['usual', 'none'])
      await engine.respond({
        conversation: conversationId(name),
        messages,
        maxTokens: 2,
        ...(name === 'none' ? { lora: [] } : {}),
      }).reply
    await vi.waitFor(() => {
      expect([...told].sort()).toEqual(['', 'none'])
    })
  })

  it('are where the hidden text of a conversation is looked for after a restart, under the usual adapters', async () => {
    const usual = { disk: { folder: join(folder, 'usual'), bytes: 1e9 }, lora: lora.map(({ path }) => ({ path, scale: 1 })) }
    const edits: readonly Edit[] = [{ message: 1, span: span(0, 400), replacement: '[hidden]' }]
    const conversation = conversationId('folded')
    const before = await load(usual)
    for (const shown of [{}, { edits }]) await before.respond({ conversation, messages, maxTokens: 2, ...shown }).reply
    await dispose(before)
    const after = await load(usual)
    const [where] = after.residency(conversation, messages, [], edits) ?? []
    expect(where!.disk).toBeGreaterThan(10)
    expect(where!.gone).toBe(0)
  })

  it('keep each set apart in a folder that engines share', async () => {
    const shared = () => sharedCells({ folder: join(folder, 'shared'), bytes: 1e9, secret: Buffer.alloc(32, 7) })
    const long: ChatMessage[] = [{ role: 'user', content: 'Begin here. '.repeat(200) }]
    const [one, two] = [await load({ shared: shared() }), await load({ shared: shared() })]
    await ask(one, 'first', A, { messages: long })
    await one.published()
    const b = await ask(two, 'second', B, { messages: long })
    const none = await ask(two, 'second', NONE, { messages: long })
    expect([b.ledger.reused, none.ledger.reused]).toEqual([0, 0])
    const a = await ask(two, 'third', A, { messages: long })
    expect(a.ledger.tiers.shared).toBeGreaterThan(200)
  })

  it('lose a forgotten text under every set', async () => {
    const engine = await load({ disk: { folder: join(folder, 'forgets'), bytes: 1e9 } })
    await ask(engine, 'secret', A)
    await ask(engine, 'secret', NONE)
    const edits: Edit[] = [
      { message: 1, span: engine.snap(messages, [], 1, { start: 0, end: 600 }), replacement: '[gone]', forget: true },
    ]
    await ask(engine, 'secret', A, { edits })
    const { ledger } = await ask(engine, 'copy', NONE)
    // Only the text before the forgotten one is left.
    expect(ledger.reused).toBeLessThan(200)
    await engine.check('full')
  })
})

describe('bad adapters', () => {
  it('are refused by their names, and requests by ids and scales', async () => {
    const { path } = lora[0]!
    await expect(load({ lora: [{ path }, { path }] })).rejects.toMatchObject({
      code: 'engine/bad-request',
      message: expect.stringContaining('Two adapters are called anna') as string,
    })
    await expect(load({ lora: [{ path, scale: NaN }] })).rejects.toMatchObject({ code: 'engine/bad-request' })
    await expect(load({ lora: [{ path: model }] })).rejects.toMatchObject({ code: 'model/bad-file' })
    const engine = await load()
    for (const [scales, sentence] of [
      [[{ id: 2, scale: 1 }], 'lora[0] names the adapter 2, but the model has the adapters 0 to 1.'],
      [[...A, ...A], 'lora[1] names the adapter 0 a second time; name it once.'],
      [[{ id: 0, scale: 1e9 }], 'lora[0].scale is 1000000000; give a number up to 1000.'],
    ] as const)
      await expect(ask(engine, 'bad', scales)).rejects.toMatchObject({ code: 'engine/bad-request', message: sentence })
    const bare = await load({ lora: [] })
    await expect(ask(bare, 'bad', A)).rejects.toMatchObject({ code: 'engine/bad-request' })
    expect((await ask(bare, 'good', NONE)).ledger.shown).toBeGreaterThan(100)
  })

  it('are found out in a process of their own, and good ones are tried once', async () => {
    const file = join(mkdtempSync(join(tmpdir(), 'kvfold-lora-trial-')), 'tried.json')
    const trial = { path: model, backend: native.backend, version: 'test' }
    let trials = 0
    const onTrial = () => {
      trials++
    }
    await expect(proveModel({ ...trial, options: { lora: [model] }, onTrial }, file)).rejects.toMatchObject({
      code: 'model/bad-file',
    })
    const good = { ...trial, options: { lora: lora.map(({ path }) => path) }, onTrial }
    await proveModel(good, file)
    await proveModel(good, file)
    expect(trials).toBe(2)
  })
})
