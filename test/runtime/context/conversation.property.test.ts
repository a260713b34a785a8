/** Runs random operations on a conversation beside a naive model of it, which keeps the fragment of every single character. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Conversation, type Snap } from '../../../src/runtime/context/conversation.js'
import type { Scope } from '../../../src/runtime/context/stretch.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { ScriptedEngine } from '../../support/scripted.js'

const LENGTH = 60
const words = fc.string({ unit: fc.constantFrom(...Array.from('abcdefghijklm  ..\n')), minLength: LENGTH, maxLength: LENGTH })
const messages = fc.array(
  fc.record({ role: fc.constantFrom('user', 'user', 'assistant', 'tool', 'system' as const), content: words }),
  {
    minLength: 1,
    maxLength: 4,
  },
)
const place = fc.nat(LENGTH * 4)

type Operation =
  | { readonly kind: 'fragment'; readonly from: number; readonly to: number; readonly count: number; readonly role: Scope }
  | { readonly kind: 'fold' | 'restore' | 'summarize'; readonly which: number }
  | { readonly kind: 'search'; readonly from: number; readonly size: number }
  | { readonly kind: 'add'; readonly content: string }

const operation: fc.Arbitrary<Operation> = fc.oneof(
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('fragment' as const),
      from: place,
      /** In half of the cases the end is in another message. */
      to: fc.oneof(fc.integer({ min: 0, max: 30 }), place),
      count: fc.integer({ min: 1, max: 5 }),
      role: fc.constantFrom<Scope>('user', 'assistant', 'all'),
    }),
  },
  { weight: 6, arbitrary: fc.record({ kind: fc.constantFrom('fold', 'restore', 'summarize'), which: fc.nat(60) }) },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('search' as const), from: place, size: fc.integer({ min: 1, max: 6 }) }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('add' as const), content: words }) },
)

/**
 * Keeps, for each character of all messages, the id of its fragment; and for every fragment the text shown for it, null for the original.
 */
class Naive {
  readonly owners: (string | null)[][] = []
  readonly shownAs = new Map<string, string | null>()

  constructor(private readonly conversation: Conversation) {}

  add(content: string): void {
    this.owners.push(Array.from({ length: content.length }, () => null))
  }

  shown(message: number): string {
    const content = this.conversation.messages[message]?.content ?? ''
    const seen = new Set<string>()
    let text = ''
    for (const [at, owner] of this.owners[message]!.entries()) {
      const marker = owner === null ? null : (this.shownAs.get(owner) ?? null)
      if (marker === null) text += content.charAt(at)
      else if (!seen.has(owner!)) text += marker
      if (owner !== null) seen.add(owner)
    }
    return text
  }

  size(id: string): number {
    return this.owners.flat().filter((owner) => owner === id).length
  }
}

const scripted = new ScriptedEngine([])
const borders: Record<string, Snap> = {
  'every character': (_messages, _message, chars) => chars,
  words: (all, message, chars) => scripted.snap(all, [], message, chars),
}

describe.each(Object.entries(borders))('Conversation under random operations, borders at %s', (_, snap) => {
  it('shows what a naive model shows, refuses without changes, and restores everything', async () => {
    let summaries = 0
    const done = { fragment: 0, fold: 0, restore: 0, summarize: 0, search: 0, add: 0 }
    await fc.assert(
      fc.asyncProperty(messages, fc.array(operation, { minLength: 10, maxLength: 25 }), async (originals, operations) => {
        const summarize = () => Promise.resolve({ ok: true as const, summary: `Summary ${++summaries}`, ledger: [] })
        const conversation = new Conversation(conversationId('property'), { snap, summarize })
        const naive = new Naive(conversation)
        const add = (role: 'user' | 'assistant' | 'tool' | 'system', content: string) => {
          conversation.add({ role, content })
          naive.add(content)
        }
        for (const { role, content } of originals) add(role, content)

        for (const one of operations) {
          const before = conversation.snapshot()
          const applied = await apply(conversation, naive, one, add)
          if (applied) done[one.kind]++
          else expect(conversation.snapshot()).toEqual(before)

          for (const index of conversation.messages.keys()) expect(conversation.shown(index)).toBe(naive.shown(index))
          const edits = conversation.edits()
          for (const [at, edit] of edits.entries()) {
            const previous = edits[at - 1]
            expect(edit.span.start).toBeLessThan(edit.span.end)
            if (previous?.message === edit.message) expect(previous.span.end).toBeLessThanOrEqual(edit.span.start)
            else if (previous !== undefined) expect(previous.message).toBeLessThan(edit.message)
            expect(snap(conversation.messages, edit.message, edit.span)).toEqual(edit.span)
          }
        }

        for (const { id, state } of conversation.fragments)
          if (state.kind !== 'open') expect(conversation.restore(id).ok).toBe(true)
        for (const [index, { content }] of conversation.messages.entries()) expect(conversation.shown(index)).toBe(content)
        expect(conversation.messages.slice(0, originals.length)).toEqual(originals)
      }),
      { numRuns: 300 },
    )
    // The test has a value only if operations are carried out and not only refused.
    for (const count of Object.values(done)) expect(count).toBeGreaterThan(10)
  })
})

/** Carries an operation out on both, and checks its result. Returns false when it was refused. */
async function apply(
  conversation: Conversation,
  naive: Naive,
  one: Operation,
  add: (role: 'user', content: string) => void,
): Promise<boolean> {
  switch (one.kind) {
    case 'add':
      add('user', one.content)
      return true
    case 'search': {
      const query = textAt(conversation, one.from, one.size)
      const result = conversation.search({ query, role: 'all', maxResults: 50 })
      if (!result.ok) return false
      for (const hit of result.hits) {
        const { start, end } = hit.span
        expect(conversation.messages[hit.message]?.content.slice(start, end)).toBe(query)
        const hidden = naive.owners[hit.message]!.slice(start, end).filter(
          (owner) => owner !== null && naive.shownAs.get(owner) !== null,
        )
        expect(hit.standing).toEqual(
          hidden.length === 0
            ? { kind: 'shown' }
            : { kind: naive.shownAs.get(hidden[0]!)!.startsWith('[folded') ? 'folded' : 'summarised', fragment: hidden[0] },
        )
      }
      return true
    }
    case 'fragment': {
      const startMarker = textAt(conversation, one.from, 3)
      const endMarker = textAt(conversation, one.from + one.to, 3)
      const result = conversation.fragment({ startMarker, endMarker, numFragments: one.count, role: one.role })
      if (!result.ok) return false
      for (const { id, message, span } of result.fragments) {
        const owners = naive.owners[message]!
        for (let at = span.start; at < span.end; at++) {
          expect(owners[at]).toBeNull()
          owners[at] = id
        }
        naive.shownAs.set(id, null)
      }
      const stretches = [...new Set(result.fragments.map(({ message }) => message))]
      expect(result.fragments.length).toBeLessThanOrEqual(Math.max(one.count, stretches.length))
      const text = result.fragments.map((fragment) => conversation.text(fragment)).join('')
      expect(text).toContain(startMarker)
      expect(text).toContain(endMarker)
      return true
    }
    case 'fold':
    case 'restore':
    case 'summarize': {
      // One index past the end stands for an unknown id.
      const fragment = conversation.fragments[one.which % (conversation.fragments.length + 1)]
      const id = fragment?.id ?? 'f00000'
      const result = one.kind === 'summarize' ? await conversation.summarize(id, 'all') : conversation[one.kind](id)
      const shownAs = naive.shownAs.get(id)
      const possible =
        shownAs !== undefined &&
        (one.kind === 'summarize' || (one.kind === 'restore' ? shownAs !== null : shownAs?.startsWith('[folded') !== true))
      expect(result.ok).toBe(possible)
      if (!result.ok) return false
      const { state } = result.fragment
      const size = `${naive.size(id)} characters, restore_fragment shows them`
      if (one.kind === 'fold') naive.shownAs.set(id, `[folded ${id}: ${size}]`)
      else if (one.kind === 'restore') naive.shownAs.set(id, null)
      else if (state.kind === 'summarised') naive.shownAs.set(id, `[summary of ${id}, ${size}: ${state.summary}]`)
      return true
    }
  }
}

/** Returns some text of the conversation, as a model would copy it. */
function textAt({ messages: all }: Conversation, at: number, size: number): string {
  const content = all[Math.floor(at / LENGTH) % all.length]?.content ?? ''
  return content.slice(at % LENGTH, (at % LENGTH) + size)
}
