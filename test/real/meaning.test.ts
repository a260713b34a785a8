/** Search by meaning in folded text, with all-MiniLM-L6-v2: questions in other words than their answers find them. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Conversation } from '../../src/runtime/context/conversation.js'
import { contextTools } from '../../src/runtime/context/tools.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { Embedder } from '../../src/runtime/engine/embedder.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { wordsOf } from '../../src/runtime/tools/catalogue.js'
import { NEEDED, REAL_MODELS } from './support/models.js'

const MODEL = REAL_MODELS['minilm']
if (MODEL === undefined) it.skip(NEEDED)

/** A question, and a note that answers it in other words. */
const PAIRS = [
  ['How much did the flight cost?', 'We paid 312 euros for both plane tickets to Lisbon.'],
  ['Which database do we use?', 'Orders are kept in PostgreSQL 16 on the machine in the cellar.'],
  ['When does the shop open?', 'Customers may come in from half past eight in the morning.'],
  ['Who leads the project?', 'Marta is in charge of everything until the end of spring.'],
  ['Why did the build fail?', 'The compiler stopped because a header file was missing.'],
  ['What is the dog called?', 'Our puppy listens to the name of Biscuit, at least sometimes.'],
  ['Is anyone allergic?', 'Tom must not eat peanuts, or he gets a rash.'],
  ['How do I log in to the server?', 'Take the SSH key from the vault and connect as the user deploy.'],
  ['What was the weather like?', 'It rained all afternoon and the wind broke two umbrellas.'],
  ['What is the deadline?', 'Everything has to be handed in by Friday at noon.'],
] as const
const FILLER = 'The minutes of the third meeting say little about this. People spoke at length, and they took no decision. '

describe.skipIf(MODEL === undefined)('search_context with a model for embeddings', { timeout: 120_000 }, () => {
  let embedder: Embedder
  beforeAll(async () => {
    embedder = await Embedder.load(await openNative({ gpu: 'cpu' }), MODEL!, { threads: 2, batchThreads: 2 })
  }, 120_000)
  afterAll(() => embedder.dispose())

  it('finds the folded note that answers a question in other words, among the first three', async () => {
    const conversation = new Conversation(conversationId('notes'), {
      embed: async (texts) => (await embedder.embed(texts)).vectors,
    })
    for (const [at, [, note]] of PAIRS.entries())
      conversation.add({ role: at % 2 === 0 ? 'user' : 'assistant', content: `${note} ${FILLER.repeat(3)}` })
    for (const [, note] of PAIRS) {
      const cut = conversation.fragment({ startMarker: note.slice(0, 20), endMarker: 'decision.', numFragments: 1, role: 'all' })
      if (cut.ok) conversation.fold(cut.fragments[0]!.id)
    }
    expect(conversation.fragments.filter(({ state }) => state.kind === 'folded')).toHaveLength(PAIRS.length)
    const search = contextTools.find(({ definition }) => definition.name === 'search_context')!
    const found = []
    for (const [query, note] of PAIRS) {
      const { text } = await search.run(conversation, { query, role: 'all' })
      found.push(text.includes(note) && text.includes('in folded fragment'))
    }
    expect(found.filter(Boolean).length).toBeGreaterThanOrEqual(9)
    // The control: no content word of a question is in its note, so a search by words finds none.
    const content = (text: string) => wordsOf(text.toLowerCase()).split(' ')
    const shared = PAIRS.map(([query, note]) => content(query).filter((word) => word.length > 4 && content(note).includes(word)))
    expect(shared.flat()).toEqual([])
  })
})
