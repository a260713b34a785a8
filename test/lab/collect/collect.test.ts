import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { CallReport } from '../../../src/runtime/agents/tool-loop.js'
import { sculptor } from '../../../src/runtime/agents/sculptor.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { TaughtEngine } from '../../../src/lab/taught-engine.js'
import { teacherOf } from '../../../src/lab/collect/lessons.js'
import type { PiOrder, PiTruth } from '../../../src/lab/pi-llm.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { builtinTemplate, ruledFormat } from '../../support/chat-formats.js'

const { format } = ruledFormat(builtinTemplate)
const info = { model: 'ruled', engine: 'none', release: 'none', context: 1 << 22 }

interface Stream {
  readonly order: PiOrder
  readonly updates: number
  readonly keys?: number
  readonly seed?: number
}

/** Plays one stream with the scripted teacher. */
async function played({ order, updates, ...options }: Stream) {
  const task = await openTask({ task: 'pi-llm', options: { updates: [updates], samples: 1, order, ...options } })
  const sample = await task.sample(0)
  const engine = new TaughtEngine({ format, info }, teacherOf('pi-llm', 'sculptor', sample))
  const { conversation, ...session } = await playedBy(engine, sample.messages[0]!.content)
  const { fragments } = conversation
  const text = conversation.messages.find(({ role }) => role === 'user')!.content
  const open = fragments.filter(({ state }) => state.kind === 'open')
  return {
    ...session,
    points: task.score(sample, session.answer).points,
    /** The calls of each step, each with the number of its fragment, from 0. */
    script: session.steps.map(({ calls }) =>
      calls.map((call) =>
        said(
          call,
          fragments.map(({ id }) => id),
        ),
      ),
    ),
    fragments: fragments.length,
    shown: open.map(({ span }) => text.slice(span.start, span.end)).join(''),
    last: (sample.truth as PiTruth).last,
  }
}

async function playedBy(engine: TaughtEngine, content: string) {
  const session = sculptor({ engine, id: conversationId('taught'), prompt: 'pi-llm' })
  return { ...(await session.ask(content)), conversation: session.conversation }
}

function said({ call: { name, arguments: args } }: CallReport, ids: readonly string[]): string {
  return name === 'fragment_context'
    ? `cut ${String(args['num_fragments'])}`
    : `${name.split('_')[0]!} ${ids.indexOf(String(args['fragment_id']))}`
}

describe('the teacher of streams', () => {
  it.each([
    ['shuffled', 8, [['cut 1'], []]],
    ['shuffled', 24, [['cut 4'], ['fold 0', 'fold 1', 'fold 2'], []]],
    ['start-last', 8, [['cut 1'], []]],
    // The newer half has most of the keys that count.
    ['middle-last', 10, [['cut 2'], ['fold 0'], []]],
    // The newest third has a few of the keys.
    ['middle-last', 16, [['cut 3'], ['fold 0', 'fold 1'], ['restore 1'], []]],
    // The newest quarter has none.
    ['middle-last', 24, [['cut 4'], ['fold 0', 'fold 1', 'fold 2'], ['restore 2', 'fold 3'], []]],
    ['start-last', 10, [['cut 2'], ['fold 0'], ['restore 0', 'fold 1'], []]],
    ['start-last', 16, [['cut 3'], ['fold 0', 'fold 1'], ['restore 1', 'fold 2'], ['restore 0'], []]],
    ['start-last', 24, [['cut 4'], ['fold 0', 'fold 1', 'fold 2'], ['restore 2', 'fold 3'], ['restore 1', 'fold 2'], []]],
  ] as const)('in the order %s plays %i updates a key as %j', async (order, updates, script) => {
    const made = await played({ order, updates })
    expect(made.script).toEqual(script)
    expect(made.points).toBe(1)
  })

  it('answers right with the last value of every requested key visible, and all its calls succeed', async () => {
    const streams = fc.record({
      order: fc.constantFrom('middle-last' as const, 'start-last' as const),
      updates: fc.integer({ min: 9, max: 60 }),
      keys: fc.integer({ min: 6, max: 46 }),
      seed: fc.nat(10_000),
    })
    await fc.assert(
      fc.asyncProperty(streams, async (stream) => {
        const { points, steps, refusedCalls, shown, last } = await played(stream)
        expect({ points, refusedCalls }).toEqual({ points: 1, refusedCalls: 0 })
        expect(steps.flatMap(({ calls }) => calls).filter(({ failed }) => failed)).toEqual([])
        for (const [key, value] of Object.entries(last))
          expect(shown.slice(shown.lastIndexOf(` ${key}: `))).toMatch(new RegExp(`^ ${key}: ${value};`, 'u'))
      }),
      { numRuns: 30 },
    )
  })

  it('restores as much as the calls of a turn allow, and never needs all of them', async () => {
    const { fragments, calls, refusedCalls, points } = await played({ order: 'start-last', updates: 256, keys: 12 })
    expect(fragments).toBe(7)
    expect(calls).toBeLessThanOrEqual(20)
    expect({ refusedCalls, points }).toEqual({ refusedCalls: 0, points: 1 })
  })

  it('answers right after the folds in a shuffled stream, even where keys are lost', async () => {
    const seeds = Array.from({ length: 12 }, (_, seed) => seed)
    const made = await Promise.all(seeds.map((seed) => played({ order: 'shuffled', updates: 9, keys: 46, seed })))
    const lost = made.filter(({ shown, last }) => Object.keys(last).some((key) => !shown.includes(` ${key}: `)))
    expect(lost.length).toBeGreaterThan(0)
    for (const { script } of made) expect(script).toEqual([['cut 2'], ['fold 0'], []])
  })
})
