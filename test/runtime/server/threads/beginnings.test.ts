/** Tests the search for the thread with the longest common beginning, against a search through all threads. */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { Beginnings } from '../../../../src/runtime/server/threads/beginnings.js'
import { type Chain, chainOf, common } from '../../../../src/runtime/server/threads/message-match.js'
import { UseOrder } from '../../../../src/runtime/server/threads/use-order.js'

interface Candidate {
  chain: Chain
  view: readonly ChatMessage[]
  used: number
  free: boolean
}

const same = (a: ChatMessage, b: ChatMessage) =>
  a.role === b.role && (a.role === 'assistant' ? a.content.trim() === b.content.trim() : a.content === b.content)

function sharedBy(view: readonly ChatMessage[], request: readonly ChatMessage[]): number {
  let shared = 0
  while (shared < view.length && shared < request.length && same(view[shared]!, request[shared]!)) shared++
  return shared
}

/** Few texts, so that threads often share a beginning. */
const messages = fc.array(
  fc.record({ role: fc.constantFrom('user' as const, 'assistant' as const), content: fc.constantFrom('a', 'b', ' a') }),
  { maxLength: 6 },
)

const doings = fc.array(
  fc.record({
    what: fc.constantFrom('add' as const, 'add' as const, 'change' as const, 'delete' as const, 'use' as const),
    which: fc.nat(1000),
    view: messages,
    free: fc.boolean(),
  }),
  { maxLength: 30 },
)

/**
 * Compares both searches after these operations.
 * @param copies How many copies of each thread exist; with many, not all threads with an equal beginning are visited.
 */
function check(
  list: typeof doings extends fc.Arbitrary<infer T> ? T : never,
  request: readonly ChatMessage[],
  copies: number,
): void {
  const uses = new UseOrder<Candidate>()
  const beginnings = new Beginnings<Candidate>(() => uses.fromNewest())
  const all: Candidate[] = []
  let clock = 0
  const use = (candidate: Candidate) => {
    candidate.used = clock++
    uses.use(candidate)
  }
  for (const { what, which, view, free } of list) {
    const candidate = all[which % Math.max(1, all.length)]
    if (what === 'add')
      for (let copy = 0; copy < copies; copy++) {
        const added = { chain: chainOf(view), view, used: 0, free }
        all.push(added)
        use(added)
        beginnings.note(added)
      }
    else if (candidate === undefined) continue
    else if (what === 'use') use(candidate)
    else if (what === 'change') {
      Object.assign(candidate, { chain: chainOf(view), view })
      beginnings.note(candidate)
    } else {
      all.splice(all.indexOf(candidate), 1)
      uses.delete(candidate)
      beginnings.delete(candidate)
    }
  }
  expect(beginnings.size).toBe(all.length)
  const chain = chainOf(request)
  const shared = all.map(({ view }) => sharedBy(view, request))
  for (const [at, candidate] of all.entries()) expect(common(candidate.chain, chain)).toBe(shared[at])
  const most = Math.max(0, ...shared)
  const longest = all.filter((_, at) => shared[at] === most)
  const whole = longest.filter(({ view }) => view.length === most)
  const last = (of: readonly Candidate[]) => of.toSorted((a, b) => b.used - a.used)[0] ?? null
  expect(beginnings.best(chain)).toEqual(
    most === 0 ? null : { candidate: last(whole.length > 0 ? whole : longest), common: most },
  )
  for (let count = 1; count <= request.length; count++) {
    const ending = all.filter(({ view, free }, at) => free && view.length === count && shared[at] === count)
    expect(beginnings.ending(chain, count, ({ free }) => free)).toBe(last(ending))
  }
}

it('finds the same as a search through all threads', () => {
  fc.assert(
    fc.property(doings, messages, (list, request) => {
      check(list, request, 1)
    }),
    { numRuns: 500 },
  )
})

it('finds it among hundreds with the same beginning', () => {
  fc.assert(
    fc.property(doings, messages, (list, request) => {
      check(list, request, 300)
    }),
    { numRuns: 10 },
  )
})
