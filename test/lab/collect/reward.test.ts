import { describe, expect, it } from 'vitest'
import type { CallReport, StepReport, TurnOutcome } from '../../../src/runtime/agents/tool-loop.js'
import { outcomesOf, partsOfTurns, rewardOf, rewardParts } from '../../../src/lab/collect/trajectory.js'

/** One call of a tool: `fold` succeeded, `fold!` failed, `fold?` had arguments that are not JSON. */
const report = (said: string): CallReport => ({
  call: {
    id: said,
    name: said.replace(/[!?]$/u, ''),
    arguments: {},
    ...(said.endsWith('?') ? { malformed: '{"fragment_id": f' } : {}),
  },
  text: '',
  modifies: false,
  failed: /[!?]$/u.test(said),
})
const step = (...said: string[]): StepReport => ({ calls: said.map(report) }) as unknown as StepReport
const turn = (steps: readonly StepReport[], more: Partial<TurnOutcome> = {}): TurnOutcome =>
  ({ steps, refusedCalls: 0, end: 'stop', ...more }) as TurnOutcome
const right = { points: 1, outcome: 'right', details: {} } as const
const wrong = { points: 0.5, outcome: 'partial', details: {} } as const

describe('the reward', () => {
  it.each([
    { what: 'a right answer', steps: [step('cut'), step()], score: right, reward: 1 },
    { what: 'a wrong answer', steps: [step('cut'), step()], score: wrong, reward: 0 },
    { what: 'a failed call that nothing makes up for', steps: [step('cut', 'fold!'), step()], score: right, reward: -1 },
    { what: 'a failed call that is made again', steps: [step('fold!'), step('fold'), step()], score: right, reward: 1 },
    { what: 'a malformed call that is made again', steps: [step('fold?'), step('fold'), step()], score: right, reward: 1 },
    { what: 'one made up for by another tool', steps: [step('fold!'), step('cut'), step()], score: right, reward: -1 },
    { what: 'one that went well before', steps: [step('fold'), step('fold!'), step()], score: right, reward: -1 },
    { what: 'one beside it in the same step', steps: [step('fold!', 'fold'), step()], score: right, reward: -1 },
    { what: 'made up for, and wrong all the same', steps: [step('fold!'), step('fold'), step()], score: wrong, reward: 0 },
  ])('of $what is $reward', ({ steps, score, reward }) => {
    expect(rewardOf(rewardParts(score, turn(steps)))).toBe(reward)
  })

  it('is -1 when the turn has more calls than allowed, or a step more tokens', () => {
    expect(rewardOf(rewardParts(right, turn([step('cut', 'fold!'), step()], { refusedCalls: 1 })))).toBe(-1)
    expect(rewardOf(rewardParts(right, turn([step()], { end: 'length' })))).toBe(-1)
    expect(rewardOf(rewardParts(right, turn([{ ...step('cut'), finish: 'length' }, step()])))).toBe(-1)
    expect(rewardParts(right, turn([step('cut', 'fold!'), step()], { refusedCalls: 1 }))).toMatchObject({ failed: 0, refused: 1 })
  })

  it('is -1 for more calls than allowed, though the turn itself counts one failed call a step', () => {
    const many = turn([step(...Array<string>(30).fill('fold?')), step('fold'), step()])
    expect(rewardParts(right, many, { maxCalls: 20 })).toMatchObject({ failed: 30, recovered: 30, refused: 11 })
    expect(rewardOf(rewardParts(right, many, { maxCalls: 20 }))).toBe(-1)
    expect(rewardOf(rewardParts(right, many, { maxCalls: 31 }))).toBe(1)
    // Refused calls are among those of the steps, and count once.
    const refused = turn([step('cut', 'fold', 'fold!'), step()], { refusedCalls: 1 })
    expect(rewardParts(right, refused, { maxCalls: 2 })).toMatchObject({ failed: 0, refused: 1 })
  })

  it('counts failures by kind, and does not count a call before the turn as the model’s', () => {
    const parts = rewardParts(right, turn([step('fold?', 'cut!'), step('fold'), step()]), { before: step('cut!') })
    expect(parts).toMatchObject({ right: true, failed: 2, malformed: 1, recovered: 1, stumbled: false })
    const mended = rewardParts(right, turn([step('cut'), step()]), { before: step('cut!') })
    expect(mended).toMatchObject({ failed: 0, stumbled: true })
  })

  it('distinguishes failed calls, calls that are not JSON, and recovered calls, call by call', () => {
    expect(outcomesOf([step('fold?', 'cut!'), step('fold'), step()])).toEqual([
      [
        { name: 'fold', outcome: 'malformed', recovered: true },
        { name: 'cut', outcome: 'failed' },
      ],
      [{ name: 'fold', outcome: 'done' }],
      [],
    ])
  })

  it('of a session sums up its turns; a call can only be recovered within its own turn', () => {
    const failing = rewardParts(right, turn([step('fold!'), step()]))
    const mending = rewardParts(right, turn([step('fold!'), step('fold'), step()]))
    expect(partsOfTurns([mending, mending])).toMatchObject({ right: true, failed: 2, recovered: 2 })
    expect(rewardOf(partsOfTurns([mending, mending]))).toBe(1)
    expect(rewardOf(partsOfTurns([failing, mending]))).toBe(-1)
    expect(partsOfTurns([rewardParts(wrong, turn([step()])), mending]).right).toBe(false)
  })
})
