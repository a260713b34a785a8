/**
 * Tests random client edits under every contract. Over a session, kvfold computes no more than a plain prefix cache that keeps every prompt
 * for ever. The addon counts, over the real engine.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import type { ContractChoice } from '../../../src/runtime/core/contract.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { commonPrefix } from '../../../src/runtime/kv/prompt.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { LONG } from '../../support/long.js'

/** Sessions for each contract; each has a dozen steps. */
const SESSIONS = LONG ? 400 : 4

let engine: LlamaEngine

beforeAll(async () => {
  const native = await openNative({ gpu: TEST_GPU })
  engine = await LlamaEngine.load(native, await tinyModel(), { cells: 4096, sequences: 24, threads: 1, batchThreads: 1 })
})
afterAll(() => engine.dispose())

/** Counts what a plain prefix cache would compute. */
class PlainPrefixCache {
  readonly #seen: Int32Array[] = []

  /** Returns the count for this prompt and the generated tokens that were submitted. */
  computes(prompt: Int32Array, generated: Int32Array): number {
    const known = this.#seen.reduce((most, each) => Math.max(most, commonPrefix(each, prompt)), 0)
    this.#seen.push(Int32Array.from([...prompt, ...generated]))
    return Math.max(1, prompt.length - known) + generated.length
  }
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const text = (random: Random, words: number): string => {
  const list = ['red', 'stone', 'river', 'a', '42', '\n', 'light', ';', '{"x": 1}', 'quiet', '日本']
  return Array.from({ length: words }, () => list[random.below(list.length)]!).join(' ')
}

/** Makes a random edit that a client may make; `ever` has all messages that it ever sent. */
function edit(random: Random, messages: ChatMessage[], ever: readonly ChatMessage[]): void {
  const at = random.below(messages.length)
  const { role, content } = messages[at]!
  const say = (said: string): void => void (messages[at] = { role, content: said })
  const kind = random.below(8)
  if (kind === 0) say('[cleared]')
  else if (kind === 1) say(content.slice(0, content.length >> 1))
  else if (kind === 2) say('')
  else if (kind === 3) say(`${content} ${text(random, 4)}`)
  else if (kind === 4 && messages.length > 2) messages.splice(at, 1 + random.below(2))
  else if (kind === 5) messages.splice(at, 0, user(text(random, 3)))
  else if (kind === 6 && messages.length > 4) messages.splice(random.below(2), 3, user('Summary.'))
  else if (kind === 7) messages.splice(at, random.below(2), ever[random.below(ever.length)]!)
}

describe('never worse than a plain prefix cache', () => {
  it.each<ContractChoice>(['exact', 'splice', 'blend', 'auto'])('%s', { timeout: LONG ? 3_600_000 : 120_000 }, async (terms) => {
    for (let seed = 1; seed <= SESSIONS; seed++) {
      const random = new Random(seed, 31)
      const plain = new PlainPrefixCache()
      let messages: ChatMessage[] = [user(`Session ${seed}.`), user(text(random, 20))]
      const ever = [...messages]
      const ids = [`${terms}${seed}`]
      let [computed, allowance] = [0, 0]
      const told: string[] = []
      for (let step = 0; step < 12; step++) {
        const [id, parent] = [ids.at(-1)!, ids.at(-2)]
        const prompt = engine.format.render({ messages }).tokens
        const { reply } = engine.respond({
          conversation: conversationId(id),
          messages,
          clientEdits: terms,
          ...(parent === undefined ? {} : { parent: conversationId(parent) }),
          maxTokens: 1 + random.below(4),
        })
        const { ledger, message } = await reply
        const generated = ledger.shown - prompt.length
        const plainly = plain.computes(prompt, Int32Array.from(message.sampled?.tokens ?? []).slice(0, generated))
        computed += ledger.submitted
        allowance += plainly
        told.push(`${ledger.contract}: ${ledger.submitted} for a prompt of ${prompt.length}, plain ${plainly}`)
        expect(computed, `session ${seed}:\n${told.join('\n')}`).toBeLessThanOrEqual(allowance)
        messages = [...messages, message, user(text(random, 5 + random.below(20)))]
        ever.push(...messages)
        for (let edits = random.below(4); edits > 0; edits--) edit(random, messages, ever)
        if (messages.length === 0) messages.push(user('Anew.'))
        if (random.below(6) === 0) ids.push(`${id}f`)
      }
      for (const id of ids) engine.forget(conversationId(id))
    }
  })
})
