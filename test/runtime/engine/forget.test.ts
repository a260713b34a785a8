/**
 * Tests a fold that forgets: no cell of the hidden text, or of tokens that have seen it, stays on the device, in host memory or on disk.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { synthesizeOther } from '../../support/synthetic-others.js'

const ID = conversationId('c')
const SECRET = 'The password of the harbour is coralgate.'
const TEXT = [
  ...Array.from({ length: 12 }, (_, at) => `Line ${at} is here before it.`),
  SECRET,
  ...Array.from({ length: 12 }, (_, at) => `Line ${at} has read it.`),
].join(' ')
const messages: ChatMessage[] = [{ role: 'user', content: TEXT }]

let engine: LlamaEngine
const folder = mkdtempSync(join(tmpdir(), 'kvfold-forget-'))
afterEach(async () => {
  await engine.dispose()
  rmSync(folder, { recursive: true, force: true })
})

async function load(options: LlamaEngineOptions = {}, model = builtinModel()): Promise<void> {
  const settings = { cells: 4096, threads: 1, batchThreads: 1, slots: 2, contract: 'splice' } as const
  engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), model, { ...settings, ...options })
}

function talk(said: readonly ChatMessage[] = messages) {
  const conversation = new Conversation(ID, portsOf(engine, ID))
  for (const message of said) conversation.add(message)
  const cut = conversation.fragment({ startMarker: 'The password', endMarker: 'coralgate.', numFragments: 1 })
  if (!cut.ok) throw new Error(cut.message)
  const { id } = cut.fragments[0]!
  const show = async (more: Partial<EngineRequest> = {}) => {
    const edits = conversation.edits()
    const { ledger } = await engine.respond({ conversation: ID, messages: said, edits, maxTokens: 4, ...more }).reply
    return ledger
  }
  const where = () => engine.residency(ID, messages, [], plainly(conversation.edits()))![0]!
  /** The tokens of the folded text that comes last. */
  const secretOf = () => {
    const { base, holes } = engine.format.render({ messages: said, edits: plainly(conversation.edits()) }).origin
    const { start, end } = holes.at(-1)!.span
    return base.slice(start, end)
  }
  return { conversation, id, show, where, secretOf }
}

/** Returns the edits without `forget`, to ask where the text's cells are. */
const plainly = (edits: ReturnType<Conversation['edits']>) =>
  edits.map(({ message, span, replacement }) => ({ message, span, replacement }))

/** Returns how often the secret's tokens occur in the files of the disk cache. */
function onDisk(tokens: Int32Array, within = folder): number {
  const bytes = Buffer.from(tokens.buffer)
  return readdirSync(within).filter((name) => readFileSync(join(within, name)).includes(bytes)).length
}

describe('a fold that forgets', () => {
  it('has nothing left to forget once the engine is disposed', async () => {
    await load({ hostBytes: 2 ** 26 })
    const { show } = talk()
    await show()
    await engine.dispose()
    engine.forget(ID)
    await engine.erase(ID)
  })

  it('keeps a refresh from computing its text again', async () => {
    await load({ hostBytes: 2 ** 26 })
    const { conversation, id, show } = talk()
    await show()
    const other = conversation.fragment({ startMarker: 'Line 2 is', endMarker: 'Line 4 is', numFragments: 1 })
    conversation.fold(other.ok ? other.fragments[0]!.id : '')
    expect((await show()).approximate).toBeGreaterThan(0)
    conversation.fold(id, { forget: true })
    await engine.forgetHidden(ID, messages, [], conversation.edits())
    await engine.refresh(ID)
    const { tokens, gone } = engine.residency(ID, messages, [], plainly(conversation.edits()))!.at(-1)!
    expect(tokens).toBeGreaterThan(5)
    expect(gone).toBe(tokens)
  })

  it.each([false, true])('ends a refresh that would compute its text again (running: %s)', async (isRunning) => {
    await load({ hostBytes: 2 ** 26 })
    const { conversation, id, show } = talk()
    await show()
    const other = conversation.fragment({ startMarker: 'Line 2 is', endMarker: 'Line 4 is', numFragments: 1 })
    conversation.fold(other.ok ? other.fragments[0]!.id : '')
    expect((await show()).approximate).toBeGreaterThan(0)
    conversation.fold(id, { forget: true })
    const refreshing = engine.refresh(ID)
    if (isRunning) await new Promise((resolve) => setImmediate(resolve))
    await engine.forgetHidden(ID, messages, [], conversation.edits())
    expect(await refreshing).toMatchObject({ exact: false })
    const { tokens, gone } = engine.residency(ID, messages, [], plainly(conversation.edits()))!.at(-1)!
    expect(gone).toBe(tokens)
  })

  it('ends a refresh that would compute its text again while a long prompt is rendered', async () => {
    await load({ ubatch: 16, disk: { folder, bytes: 2 ** 28 } })
    // The template shows no earlier reasoning.
    const thought = { role: 'assistant', content: 'I have read it.', reasoning: 'Long. '.repeat(3000) } as const
    const said = [...messages, thought, { role: 'user', content: 'Go on.' }] as const
    const { conversation, id, show, secretOf } = talk(said)
    await show()
    const other = conversation.fragment({ startMarker: 'Line 2 is', endMarker: 'Line 4 is', numFragments: 1 })
    conversation.fold(other.ok ? other.fragments[0]!.id : '')
    expect((await show()).approximate).toBeGreaterThan(0)
    const refreshing = engine.refresh(ID)
    const turn = () => new Promise((resolve) => setImmediate(resolve))
    await turn()
    const { format, submitted } = engine
    const render = format.renderInTurns.bind(format)
    vi.spyOn(format, 'renderInTurns').mockImplementation(async (asked) => {
      while (engine.submitted < submitted + 160) await turn()
      return render(asked)
    })
    conversation.fold(id, { forget: true })
    const secret = secretOf()
    expect(secret.length).toBeGreaterThan(5)
    await show()
    expect(await refreshing).toMatchObject({ exact: false })
    await engine.dispose()
    expect(readdirSync(folder).length).toBeGreaterThan(1)
    expect(onDisk(secret)).toBe(0)
  })

  it('is exact under splice, and drops the cells that an earlier fold parked on the device', async () => {
    await load({ hostBytes: 2 ** 26 })
    const { conversation, id, show, where } = talk()
    await show()
    expect(conversation.fold(id).ok).toBe(true)
    const spliced = await show()
    expect(spliced).toMatchObject({ contract: 'splice' })
    expect(spliced.approximate).toBeGreaterThan(0)
    expect(where()).toMatchObject({ gone: 0 })
    expect(conversation.fold(id, { forget: true }).ok).toBe(true)
    const forgotten = await show()
    expect(forgotten).toMatchObject({ contract: 'exact', approximate: 0 })
    const { tokens, gone } = where()
    expect(gone).toBe(tokens)
    expect(engine.cacheTotals).toMatchObject({ parked: 0, versions: 0, tiers: { host: { sequences: 0, bytes: 0 } } })
    // The cells before the secret are not recomputed.
    expect(forgotten.reused).toBeGreaterThan(60)
    await engine.check('full')
  })

  it('drops cells in host memory and on disk at once; later files do not have its tokens', async () => {
    await load({ cells: 2048, hostBytes: 2 ** 17, disk: { folder, bytes: 2 ** 28 } })
    const { conversation, id, show, secretOf } = talk()
    await show()
    conversation.fold(id)
    await show()
    const secret = secretOf()
    // Other conversations push it off the device, and then out of memory.
    for (let at = 0; at < 4; at++) {
      const content = `Somebody ${at} writes quite other words. `.repeat(60)
      await engine.respond({ conversation: conversationId(`other ${at}`), messages: [{ role: 'user', content }], maxTokens: 1 })
        .reply
    }
    await vi.waitFor(() => {
      expect(onDisk(secret)).toBeGreaterThan(0)
    })
    conversation.fold(id, { forget: true })
    await engine.forgetHidden(ID, messages, [], conversation.edits())
    const whole = talk()
    expect(whole.conversation.fold(whole.id).ok).toBe(true)
    expect(whole.where()).toMatchObject({ live: 0, parked: 0, host: 0, disk: 0 })
    expect(onDisk(secret)).toBe(0)
    await show()
    await engine.dispose()
    expect(readdirSync(folder).length).toBeGreaterThan(1)
    expect(onDisk(secret)).toBe(0)
  })

  it('leaves none of its tokens in files of an earlier fold, which hold other text', async () => {
    await load({ cells: 2048, disk: { folder, bytes: 2 ** 28 } })
    const said = [...messages]
    const { conversation, id, show, secretOf } = talk(said)
    const { message } = await engine.respond({ conversation: ID, messages: said, maxTokens: 4 }).reply
    for (const next of [message, { role: 'user', content: 'Go on.' } as const]) {
      said.push(next)
      conversation.add(next)
    }
    const other = conversation.fragment({ startMarker: 'Line 2 is', endMarker: 'Line 4 is', numFragments: 1 })
    conversation.fold(other.ok ? other.fragments[0]!.id : '')
    await show()
    conversation.fold(id, { forget: true })
    const secret = secretOf()
    expect(secret.length).toBeGreaterThan(5)
    await show()
    expect(engine.cacheTotals.versions).toBeGreaterThan(0)
    await engine.dispose()
    expect(readdirSync(folder).length).toBeGreaterThan(1)
    expect(onDisk(secret)).toBe(0)
  })

  it("forgets a restored text again where the client's edits are spliced", async () => {
    await load({ contract: 'exact', disk: { folder, bytes: 2 ** 28 } })
    const said = [...messages, { role: 'assistant', content: 'I have read it.' }, { role: 'user', content: 'Go on.' }] as const
    const { conversation, id, show, secretOf } = talk(said)
    const edited = { clientEdits: 'splice' } as const
    await show(edited)
    conversation.fold(id, { forget: true })
    const secret = secretOf()
    expect(secret.length).toBeGreaterThan(5)
    await show(edited)
    conversation.restore(id)
    expect(await show(edited)).toMatchObject({ contract: 'exact', approximate: 0 })
    conversation.fold(id, { forget: true })
    await engine.forgetHidden(ID, said, [], conversation.edits())
    await show(edited)
    await engine.dispose()
    expect(readdirSync(folder).length).toBeGreaterThan(1)
    expect(onDisk(secret)).toBe(0)
  })

  it.each(['mamba', 'jamba'] as const)('leaves none of its tokens in the checkpoints of %s', async (architecture) => {
    mkdirSync(folder, { recursive: true })
    const path = join(folder, 'model.gguf')
    await synthesizeOther(path, architecture)
    await load({ cells: 2048, contract: 'exact', disk: { folder: join(folder, 'cells'), bytes: 2 ** 28 } }, path)
    const { conversation, id, show, secretOf } = talk([{ role: 'system', content: 'You keep the log.' }, ...messages])
    await show()
    conversation.fold(id, { forget: true })
    const secret = secretOf()
    expect(secret.length).toBeGreaterThan(5)
    await show()
    await engine.dispose()
    // The checkpoint at the end of the system message stays.
    expect(readdirSync(join(folder, 'cells')).length).toBeGreaterThan(1)
    expect(onDisk(secret, join(folder, 'cells'))).toBe(0)
  })

  it('is refused under splice, and may be undone by computing the text again', async () => {
    await load()
    const { conversation, id, show } = talk()
    expect(conversation.fold(id, { contract: 'splice', forget: true })).toMatchObject({ ok: false, code: 'tool/bad-arguments' })
    const shown = await show()
    conversation.fold(id, { forget: true })
    await show()
    expect(conversation.fold(id, { forget: true })).toMatchObject({ ok: false, code: 'tool/refused' })
    conversation.restore(id)
    const restored = await show()
    expect(restored.approximate).toBe(0)
    expect(restored.recomputed + restored.fresh).toBeGreaterThan(shown.shown / 3)
  })
})
