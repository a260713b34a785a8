import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { sculptor } from '../../../src/runtime/agents/sculptor.js'
import { modelTokens, snapshots, type Snapshot, trajectoryOf, type TrajectoryStep } from '../../../src/lab/agents/snapshots.js'
import { Recorder } from '../../../src/lab/recorder.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { TaughtEngine, type Teacher } from '../../../src/lab/taught-engine.js'
import { realTemplates } from '../../support/bundle.js'
import { builtinTemplate, ruledFormat, type RuledFormat } from '../../support/chat-formats.js'

const TEXT = `Begin. ${Array.from({ length: 60 }, (_, at) => `Line ${at} says ${at * 7}.`).join(' ')} End. What does line 9 say?`

/** One step of the script. Whole numbers choose fragments. */
type Act =
  | { readonly act: 'cut'; readonly pieces: number }
  | { readonly act: 'fold' | 'restore' | 'summarize'; readonly which: readonly number[] }
  | { readonly act: 'search' }

/** Plays the acts in order, then answers. It also names fragments that do not exist, because refused calls belong to a trajectory, too. */
function teacherOf(acts: readonly Act[]): Teacher {
  let at = 0
  return ({ messages, kind }) => {
    if (kind === 'summary') return { content: 'Lines that say numbers.' }
    const ids = [...new Set(messages.flatMap(({ content }) => content.match(/\bf[0-9a-f]{5}\b/gu) ?? []))]
    const act = acts[at++]
    if (act === undefined) return { content: 'It says 63.' }
    switch (act.act) {
      case 'cut':
        return {
          content: at % 2 === 0 ? 'I cut it.' : '',
          calls: [
            { name: 'fragment_context', arguments: { start_marker: 'Begin.', end_marker: 'End.', num_fragments: act.pieces } },
          ],
        }
      case 'search':
        return { calls: [{ name: 'search_context', arguments: { query: 'Line 9' } }] }
      case 'fold':
      case 'restore':
      case 'summarize':
        return {
          calls: act.which.map((which) => ({
            name: `${act.act}_fragment`,
            arguments: {
              fragment_id: ids[which % Math.max(1, ids.length)] ?? 'f00000',
              ...(act.act === 'summarize' ? { focus: 'numbers' } : {}),
            },
          })),
        }
    }
  }
}

const acts = fc.array(
  fc.oneof(
    fc.record({ act: fc.constant('cut' as const), pieces: fc.integer({ min: 1, max: 6 }) }),
    fc.record({
      act: fc.constantFrom('fold' as const, 'restore' as const, 'summarize' as const),
      which: fc.array(fc.nat(6), { minLength: 1, maxLength: 3 }),
    }),
    fc.constant({ act: 'search' as const }),
  ),
  { maxLength: 7 },
)

async function playedBy({ format }: RuledFormat, teacher: Teacher): Promise<TrajectoryStep[]> {
  const info = { model: 'ruled', engine: 'none', release: 'none', context: 1 << 20 }
  const engine = new Recorder(new TaughtEngine({ format, info }, teacher))
  const outcome = await sculptor({ engine, id: conversationId('taped') }).ask(TEXT)
  return trajectoryOf(
    engine.done,
    outcome.steps.map(({ calls }) => calls),
  )
}

const wordingOf = ({ format, tokenizer }: RuledFormat) =>
  modelTokens({ format, isEndOfGeneration: (token: number) => tokenizer.isControl(token) })

/** Returns how often each completion is learned, by step; `-` where the tokens before it are not exactly its step's prompt. */
function timesLearned(made: readonly Snapshot[], steps: readonly TrajectoryStep[], { format }: RuledFormat): (number | '-')[] {
  const times = steps.map((): number | '-' => 0)
  for (const { tokens, learned } of made)
    for (const { step, span } of learned) {
      const { messages, edits, tools } = steps[step]!
      const prompt = format.render({ messages, edits, tools }).tokens
      const same = prompt.length === span.start && prompt.every((token, at) => tokens[at] === token)
      const before = times[step]!
      times[step] = same && before !== '-' ? before + 1 : '-'
    }
  return times
}

describe('snapshots of a trajectory', () => {
  it('teach every completion once, after exactly the tokens of its prompt', async () => {
    const ruled = ruledFormat(builtinTemplate)
    await fc.assert(
      fc.asyncProperty(acts, async (list) => {
        const steps = await playedBy(ruled, teacherOf(list))
        const made = snapshots(steps, wordingOf(ruled))
        expect(timesLearned(made, steps, ruled)).toEqual(steps.map(() => 1))
        for (const { tokens, learned } of made) expect(learned.at(-1)?.span.end).toBe(tokens.length)
      }),
      { numRuns: 60 },
    )
  }, 60_000)

  it('end at the steps that change the context and at the end; steps that only read are part of them', async () => {
    const ruled = ruledFormat(builtinTemplate)
    const steps = await playedBy(
      ruled,
      teacherOf([
        { act: 'search' },
        { act: 'cut', pieces: 4 },
        { act: 'search' },
        { act: 'fold', which: [0, 1] },
        { act: 'search' },
      ]),
    )
    const made = snapshots(steps, wordingOf(ruled))
    expect(made.map(({ learned }) => learned.map(({ step }) => step))).toEqual([
      [0, 1],
      [2, 3],
      [4, 5],
    ])
    const text = ruled.tokenizer.text(made[1]!.tokens)
    const [search, fold] = made[1]!.learned.map(({ span }) =>
      ruled.tokenizer.text(made[1]!.tokens.subarray(span.start, span.end)),
    )
    expect(search).toMatch(/^<tool_call>\n\{"name": "search_context".*<\/tool_call><\|im_end\|>$/su)
    expect(fold).toMatch(/^<tool_call>.*fold_fragment.*fold_fragment.*<\|im_end\|>$/su)
    const last = ruled.tokenizer.text(made[2]!.tokens)
    // The text stands there once, once in the list of fragments, and once for each search. In the last snapshot it is folded, and there is
    // another search.
    for (const [shown, times, markers] of [
      [text, 4, 0],
      [last, 4, 2],
    ] as const) {
      expect(shown.match(/\[folded f[0-9a-f]{5}/gu) ?? []).toHaveLength(markers)
      expect(shown.match(/Line 0 says 0\./gu)).toHaveLength(times)
    }
    expect(last).toMatch(/It says 63\.<\|im_end\|>$/u)
  })

  it('of a summary also teach the summary itself', async () => {
    const ruled = ruledFormat(builtinTemplate)
    const steps = await playedBy(
      ruled,
      teacherOf([
        { act: 'cut', pieces: 3 },
        { act: 'summarize', which: [1] },
      ]),
    )
    const made = snapshots(steps, wordingOf(ruled))
    const aside = made.find(({ tokens }) => ruled.tokenizer.text(tokens).includes('Summarize the text below'))
    expect(aside?.learned).toHaveLength(1)
    expect(timesLearned(made, steps, ruled)).toEqual([1, 1, 1, 1])
  })

  it('do not teach an end of turn that was never sampled, because the answer was cut off at the token limit', async () => {
    const ruled = ruledFormat(builtinTemplate)
    const [step] = await playedBy(ruled, teacherOf([]))
    const [made] = snapshots([{ ...step!, finish: 'length' }], wordingOf(ruled))
    const { span } = made!.learned[0]!
    expect(ruled.tokenizer.text(made!.tokens.subarray(span.start, span.end))).toBe('It says 63.')
  })

  it('teach the sampled end token where the template shows another one, and begin a new snapshot after it', async () => {
    const ruled = ruledFormat(builtinTemplate)
    const { tokenizer } = ruled
    const drawn = tokenizer.tokenize('.')[0]!
    const steps = (await playedBy(ruled, teacherOf([{ act: 'search' }]))).map((step): TrajectoryStep => {
      const [{ tokens, learned }] = snapshots([step], wordingOf(ruled)) as [Snapshot]
      const { start, end } = learned[0]!.span
      const sampled = { text: tokenizer.text(tokens.subarray(start, end - 1)), tokens: tokens.slice(start, end - 1) }
      const logprobs = Array.from({ length: end - start }, () => -1)
      return { ...step, completion: { ...step.completion, sampled }, end: drawn, logprobs }
    })
    const made = snapshots(steps, wordingOf(ruled))
    expect(made).toHaveLength(2)
    for (const { tokens, learned } of made) {
      expect(learned).toHaveLength(1)
      const [{ span, logprobs }] = learned as [(typeof learned)[number]]
      expect(tokens[span.end - 1]).toBe(drawn)
      expect(span.end).toBe(tokens.length)
      expect(logprobs).toHaveLength(span.end - span.start)
    }
  })

  it('do not teach an end of turn that a model did not sample, because the runtime ended the step behind a call', async () => {
    const ruled = ruledFormat(builtinTemplate)
    const [step] = await playedBy(ruled, teacherOf([{ act: 'search' }]))
    const [{ tokens, learned }] = snapshots([step!], wordingOf(ruled)) as [Snapshot]
    const { start, end } = learned[0]!.span
    const said = tokens.slice(start, end - 1)
    const completion = { ...step!.completion, sampled: { text: ruled.tokenizer.text(said), tokens: said } }
    const [made] = snapshots([{ ...step!, completion, logprobs: Array.from(said, () => -1) }], wordingOf(ruled))
    expect(made!.learned[0]!.span).toEqual({ start, end: end - 1 })
    expect(made!.learned[0]!.logprobs).toHaveLength(said.length)
  })

  it('hold under real templates, or the completion is refused with a message', async () => {
    const list: Act[] = [{ act: 'cut', pieces: 3 }, { act: 'fold', which: [0] }, { act: 'search' }]
    const outcomes = await Promise.all(
      realTemplates().map(async ({ name, source }) => {
        const ruled = ruledFormat(source)
        if (ruled.format.capabilities.trouble !== null) return { name, outcome: 'no tools' }
        try {
          const steps = await playedBy(ruled, teacherOf(list))
          const times = timesLearned(snapshots(steps, wordingOf(ruled)), steps, ruled)
          return { name, outcome: times.every((count) => count === 1) ? 'once' : times.join(' ') }
        } catch (error) {
          return { name, outcome: error instanceof Error ? error.message.slice(0, 60) : 'thrown' }
        }
      }),
    )
    const odd = outcomes.filter(({ outcome }) => outcome !== 'once' && outcome !== 'no tools')
    for (const { outcome } of odd) expect(outcome).toMatch(/^The template/u)
    expect(outcomes.filter(({ outcome }) => outcome === 'once').length).toBeGreaterThanOrEqual(39)
  }, 120_000)
})
