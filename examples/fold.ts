/**
 * A fold in a program: cuts a long message into fragments and folds the old ones. The ledger shows the cost.
 * Run it with `node --import tsx examples/fold.ts`.
 */
import { builtinModel, conversationId, LlamaEngine, openNative, plain, type LedgerEntry } from 'kvfold'
import { ownWords, piSample } from 'kvfold/lab'

// The built-in model reads streams of updates, in which only each key's last value counts.
const { prompt, answer: truth } = piSample({ words: ownWords(), updates: 24, keys: 12, seed: 1 })

const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { cells: 16_384, threads: 1 })
const session = plain({
  engine,
  id: conversationId('fold'),
  // Under `splice` a fold computes only its marker. Try `exact`.
  generation: { contract: 'splice', maxTokens: 200, sampling: { temperature: 0 } },
})

const right = (answer: string) => {
  const sentences = truth.split('\n')
  return `${sentences.filter((sentence) => answer.includes(sentence)).length} of ${sentences.length} values right`
}
const line = (name: string, { shown, reused, recomputed, fresh }: LedgerEntry) => {
  console.log(`${name.padEnd(10)} ${shown} tokens shown: ${reused} reused, ${recomputed} computed again, ${fresh} new`)
}

const first = await session.ask(prompt)
line('all of it', first.ledger[0]!)
console.log(`           ${right(first.answer)}`)

// Cut the stream into eight fragments. The prompt stays the same.
const { conversation } = session
const cut = conversation.fragment({
  startMarker: 'The stream of updates starts here.',
  endMarker: 'The stream of updates ends here.',
  numFragments: 8,
})
if (!cut.ok) throw new Error(cut.message)

// Fold the first six: each is replaced by a short marker. The cache follows at the next step.
for (const { id } of cut.fragments.slice(0, 6)) conversation.fold(id)
const folded = await session.ask('And now?')
line('folded', folded.ledger[0]!)
console.log(`           the model sees ${/\[folded.*?\]/.exec(conversation.shown(0))?.[0] ?? ''} and five more like it`)

// Restore one. Its cells were parked, so none of its tokens is computed again.
conversation.restore(cut.fragments[5]!.id)
line('restored', (await session.ask('And now?')).ledger[0]!)

await engine.dispose()
