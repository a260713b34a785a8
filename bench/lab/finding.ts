/**
 * Milliseconds to find a request's thread and the client's changes. A client with 2,000 messages, among 1,000 threads of its tenant,
 * continues, prunes a message every turn, or leaves out its last answer. Figures are medians. Each request's messages are fresh copies, as
 * they are over HTTP.
 * `npm run --silent bench -- finding [--json]`
 */
import type { ChatMessage } from '../../src/runtime/chat/message.js'
import { ThreadManager } from '../../src/runtime/server/threads/thread-manager.js'
import { MemoryStore } from '../../src/runtime/server/threads/memory-store.js'
import { words } from '../runtime/client-edits/clients.js'

const THREADS = 1000
const MESSAGES = 2000
const TIMES = 15

const turn = (seed: number): ChatMessage[] => [
  { role: 'user', content: words(seed, 300) },
  { role: 'assistant', content: '', toolCalls: [{ id: `call_${seed}`, name: 'read', arguments: { file: seed } }] },
  { role: 'tool', content: words(seed + 1, 900), toolCallId: `call_${seed}` },
  { role: 'assistant', content: words(seed + 2, 100) },
]

export async function finding(json: boolean): Promise<void> {
  const book = await ThreadManager.open({
    store: new MemoryStore(),
    portsOf: () => ({}),
    forget: () => undefined,
    erase: () => Promise.resolve(),
  })
  const timed = async (messages: readonly ChatMessage[]) => {
    const request = { tenant: 'bench', model: 'm', messages: structuredClone(messages), tools: [] }
    const begun = performance.now()
    // `take` decides before its first await, so this measures the whole decision.
    const taking = book.take(request)
    const milliseconds = performance.now() - begun
    const { thread, edits } = await taking
    thread.conversation.add({ role: 'assistant', content: `Answer to ${messages.length}.` })
    const answer = thread.conversation.messages.at(-1)!
    thread.answered(thread.conversation.messages.length - 1, answer)
    await book.save(thread, 'message')
    await book.give(thread)
    return { milliseconds, thread: thread.id, edits: edits.length, answer }
  }
  for (let at = 0; at < THREADS; at++) await timed(turn(10 * at))
  const messages: ChatMessage[] = []
  for (let at = 0; messages.length < MESSAGES; at++) messages.push(...turn(1_000_000 + 10 * at))
  let before = await timed(messages)
  const medians: Record<string, number> = {}
  for (const kind of ['goes on', 'prunes', 'leaves its last answer out'] as const) {
    const taken: number[] = []
    for (let time = 0; time < TIMES; time++) {
      if (kind === 'leaves its last answer out') messages.splice(-1, 1)
      else messages.push(before.answer)
      if (kind === 'prunes') messages[2 + 4 * time] = { ...messages[2 + 4 * time]!, content: '[cleared]' }
      messages.push({ role: 'user', content: `Go on, ${kind} ${time}.` })
      before = await timed(messages)
      taken.push(before.milliseconds)
    }
    medians[kind] = Number(taken.sort((a, b) => a - b)[TIMES >> 1]!.toFixed(2))
  }
  if (json) console.log(JSON.stringify({ threads: THREADS, messages: MESSAGES, milliseconds: medians }))
  else for (const [kind, milliseconds] of Object.entries(medians)) console.log(`${kind.padEnd(28)}${milliseconds} ms`)
}
