/** Tests folds that an engine carries out as AKV's drops. kvfold's own server takes these fields, so it stands for such an engine. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { DroppedMessages } from '../../../src/fleet/engines/drops.js'
import { RemoteEngine } from '../../../src/fleet/engines/remote.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { serving, type Serving } from '../../runtime/server/support/serving.js'
import { TEST_GPU } from '../../support/device.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const said = (content: string): ChatMessage => ({ role: 'assistant', content })
const page = (of: string) => `${of}. ${'Some words that fill the page, one after another. '.repeat(8)}`
const gone = (...messages: readonly number[]): Edit[] =>
  messages.map((message) => ({ message, span: { start: 0, end: 0 }, replacement: '', omits: { part: 'message' } }))

describe('over a server that takes drops', () => {
  let own: LlamaEngine
  let served: Serving
  let remote: RemoteEngine
  beforeAll(async () => {
    const options = { threads: 1, batchThreads: 1, contract: 'splice' } as const
    own = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), options)
    served = await serving({ engine: () => own })
    remote = await RemoteEngine.connect({ url: served.url, flavour: 'akv' })
  })
  afterAll(async () => {
    await remote.dispose()
    await served.close()
  })

  /** Has two turns, then a third without messages 1 and 2. Returns its ledger, that of a fourth, and what the third computed. */
  async function folded(of: string, contract: 'exact' | 'splice') {
    const conversation = conversationId(of)
    let messages: ChatMessage[] = [{ role: 'system', content: `You read ${of}.` }]
    const ask = (edits: readonly Edit[]) => remote.respond({ conversation, messages, edits, contract, maxTokens: 4 }).reply
    for (const at of [0, 1]) {
      messages = [...messages, user(page(`Part ${at} of ${of}`))]
      messages = [...messages, (await ask([])).message]
    }
    messages = [...messages, user('And now?')]
    const before = own.submitted
    const third = await ask(gone(1, 2))
    const computed = own.submitted - before
    messages = [...messages, third.message, user('Then?')]
    return { third: third.ledger, computed, fourth: (await ask(gone(1, 2))).ledger }
  }

  it('keeps the cells behind a message that leaves, and counts them as approximate', async () => {
    const { third, computed, fourth } = await folded('what is dropped', 'splice')
    expect(third).toMatchObject({ contract: 'splice', fallback: null })
    expect(third.approximate).toBeGreaterThan(100)
    expect(third.submitted).toBe(computed)
    // The question and the answer, and not the page behind the fold.
    expect(computed).toBeLessThan(40)
    expect(fourth.submitted).toBeLessThan(40)
    expect(fourth.contract).toBe('splice')
    expect(fourth.approximate).toBeGreaterThan(100)
  })

  it('numbers the messages in the ledger as the conversation does', async () => {
    const { third } = await folded('what is numbered', 'exact')
    expect(third.messages.map(({ index, role }) => [index, role])).toEqual([
      [0, 'system'],
      [3, 'user'],
      [4, 'assistant'],
      [5, 'user'],
      [6, 'assistant'],
    ])
  })

  it('sends folds under exact as text, and the engine computes what follows', async () => {
    const { third, computed } = await folded('what is cut out', 'exact')
    expect(third).toMatchObject({ contract: 'exact', approximate: 0 })
    expect(computed).toBeGreaterThan(100)
  })
})

describe('the fields', () => {
  const conversation = conversationId('fields')
  const messages = [user('One'), said('Two'), user('Three'), said('Four'), user('Five')]
  const split = (dropped: DroppedMessages, all: readonly ChatMessage[], edits: readonly Edit[], shown: readonly Edit[] = []) => {
    const left = all.filter((_, at) => !edits.some(({ message }) => message === at))
    return dropped.split({ conversation, messages: all, edits, contract: 'splice' }, left, shown)
  }

  it('name a message from the step on that drops it, and no more once it is shown again', () => {
    const dropped = new DroppedMessages()
    expect(split(dropped, messages.slice(0, 3), [])).toBeNull()
    const first = split(dropped, messages, gone(0, 1))
    expect(first).toMatchObject({ messages, first: 0, fields: { drop_message: { '4': [0, 1] }, reposition: [4] } })
    const longer = [...messages, said('Six'), user('Seven')]
    expect(split(dropped, longer, gone(0, 1, 2))?.fields).toEqual({ drop_message: { '4': [0, 1], '6': [2] }, reposition: [4, 6] })
    // A restore is sent whole: the message is in the request, and nothing names it.
    const restored = split(dropped, longer, gone(2))
    expect(restored).toMatchObject({ messages: longer, fields: { drop_message: { '6': [2] } } })
    expect(split(dropped, longer, [])).toBeNull()
  })

  it('leave messages out that go under exact, and count the places of the others without them', () => {
    const edits = [...gone(1), { ...gone(0)[0]!, contract: 'exact' as const }]
    const text: Edit = { message: 1, span: { start: 0, end: 4 }, replacement: 'IV' }
    const { messages: sent, edits: shown, fields } = split(new DroppedMessages(), messages, edits, [text])!
    expect(sent.map(({ content }) => content)).toEqual(['Two', 'Three', 'Four', 'Five'])
    expect(shown).toEqual([{ ...text, message: 2 }])
    expect(fields.drop_message).toEqual({ '1': [0] })
  })
})
