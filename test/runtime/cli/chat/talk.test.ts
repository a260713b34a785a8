/** Tests what a failed turn leaves of a conversation of `kvfold chat`. */
import { afterEach, expect, it } from 'vitest'
import { plain } from '../../../../src/runtime/agents/sculptor.js'
import { ChatSession } from '../../../../src/runtime/cli/chat/talk.js'
import { Interrupt } from '../../../../src/runtime/cli/shell.js'
import { Terminal } from '../../../../src/runtime/cli/terminal.js'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { freshConversation } from '../../../../src/runtime/core/ids.js'
import type { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { ScriptedEngine } from '../../../support/scripted.js'

const interrupt = new Interrupt()
afterEach(() => {
  interrupt.release()
})

it('a question that failed leaves the conversation, and the next one is answered', async () => {
  const engine = new ScriptedEngine(({ messages }) => {
    if (messages.some(({ content }) => content === 'Too long')) throw new KvfoldError('context/full', 'It does not fit.')
    return { content: 'Yes.' }
  })
  let printed = ''
  const talk = new ChatSession({
    // Questions as short as these need no tokenizer.
    engine: Object.assign(engine, { model: null }) as unknown as LlamaEngine,
    out: new Terminal({ write: (text: string) => (printed += text) }, {}),
    interrupt,
    begin: (before) => plain({ engine, id: before?.conversation.id ?? freshConversation(), ...before }),
    servers: null,
  })
  await talk.say('One?')
  await expect(talk.say('Too long')).rejects.toMatchObject({ code: 'context/full' })
  await talk.say('Two?')
  const asked = engine.requests.at(-1)!
  expect(asked.messages.map(({ content }) => content)).toEqual(['One?', 'Yes.', 'Two?'])
  // The cache of the conversation goes on, and so does its ledger.
  expect(new Set(engine.requests.map(({ conversation }) => conversation)).size).toBe(1)
  printed = ''
  await talk.command({ name: 'ledger' })
  expect(printed.match(/answer/g)).toHaveLength(2)
})
