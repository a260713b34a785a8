/** Tests that a thread's view is the same whether it is computed from its messages or taken over from the previous thread. */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { messageKey } from '../../../../src/runtime/server/threads/message-match.js'
import { View } from '../../../../src/runtime/server/threads/thread-state.js'
import type { StoredMessage } from '../../../../src/runtime/store/port.js'

const answer: ChatMessage = { role: 'assistant', content: 'as clients know it' }
const POOL: readonly StoredMessage[] = Array.from({ length: 12 }, (_, at): StoredMessage => ({
  message: { role: at % 2 === 0 ? 'user' : 'assistant', content: `${at % 5}`, ...(at % 3 === 0 ? { reasoning: 'Hm.' } : {}) },
  seen: at === 4 ? 'nothing' : at === 7 ? answer : 'same',
}))
const stored = fc.array(fc.constantFrom(...POOL), { maxLength: 9 })
const told = ({ seen, messages, keys, places, chain, size }: View) => ({ seen, messages, keys, places, chain: chain.bytes, size })

it('a view taken over from another one equals the one computed from the messages, and grows the same', () => {
  fc.assert(
    fc.property(stored, stored, stored, (before, prefix, rest) => {
      const known = View.of([...prefix, ...before])
      const [over, anew] = [View.of([...prefix, ...rest], known), View.of([...prefix, ...rest])]
      for (const { message, seen } of before) for (const view of [over, anew]) view.note(message, seen)
      expect(told(over)).toEqual(told(anew))
      expect(over.keys).toEqual(over.messages.map(messageKey))
      expect(told(known)).toEqual(told(View.of([...prefix, ...before])))
    }),
  )
})
