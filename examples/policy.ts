/**
 * A policy of your own: before each step the program folds old text, here all tool results except the newest two.
 * Run it with `node --import tsx examples/policy.ts`.
 */
import { builtinModel, conversationId, LlamaEngine, openNative, plain, type Conversation } from 'kvfold'

/** Folds every tool result except the newest `keep`. Returns how many were folded. If a fold is refused, nothing changes. */
function foldOldResults(conversation: Conversation, keep: number): number {
  const results = conversation.messages.flatMap(({ role }, message) => (role === 'tool' ? [message] : []))
  const old = results.slice(0, -keep)
  const touched = new Set(conversation.fragments.map(({ message }) => message))
  let folded = 0
  for (const message of old.filter((each) => !touched.has(each))) {
    // Make the whole message one fragment.
    const { length } = conversation.messages[message]!.content
    const cut = conversation.cut([{ message, span: { start: 0, end: length } }], 1)
    if (cut.ok && conversation.fold(cut.fragments[0]!.id).ok) folded += 1
  }
  return folded
}

const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { cells: 16_384, threads: 1 })
const session = plain({
  engine,
  id: conversationId('policy'),
  generation: { contract: 'splice', maxTokens: 16, sampling: { temperature: 0 } },
})
const { conversation } = session

console.log('turn  folded  shown  computed')
for (let turn = 1; turn <= 8; turn++) {
  // The agent reads a file in every turn. The program adds the calls itself, so that the example does not depend on the model.
  const id = `call-${turn}`
  conversation.add({ role: 'user', content: `Look at file ${turn}.` })
  conversation.add({ role: 'assistant', content: '', toolCalls: [{ id, name: 'read_file', arguments: { number: turn } }] })
  const file = Array.from({ length: 60 }, (_, line) => `line ${line}: value ${line * turn}`).join('\n')
  conversation.add({ role: 'tool', toolCallId: id, name: 'read_file', content: file })

  const folded = foldOldResults(conversation, 2)
  const { ledger } = await session.resume()
  const { shown, submitted } = ledger[0]!
  console.log([String(turn).padStart(4), ...[folded, shown, submitted].map((count) => String(count).padStart(7))].join(' '))
}
await engine.dispose()
