/** Tests how many prompt tokens run beside streams: on simulated machines with known costs, and on a real GGUF. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { PrefillBudget } from '../../../src/runtime/engine/batch.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { tinyModel } from '../../support/models.js'
import { neverEnding } from '../../../bench/random-tokens.js'

/** A machine that takes `alone` milliseconds for the streams' tokens and `each` for a prompt token. */
interface Machine {
  readonly alone: number
  readonly each: number
}

const machines = fc.record({
  alone: fc.double({ min: 0.2, max: 300, noNaN: true }),
  each: fc.double({ min: 0.002, max: 20, noNaN: true }),
})

/** Runs `count` turns with prompts always waiting. Returns how many prompt tokens each turn had. */
function turns(budget: PrefillBudget, { alone, each }: Machine, count: number, streams = 4): number[] {
  return Array.from({ length: count }, () => {
    const prompt = budget.tokens(streams)
    budget.took({ prompt, streams, milliseconds: alone + prompt * each })
    return prompt
  })
}

describe('prompt tokens beside streams', () => {
  it('keep a turn within four times the time of the streams alone, and use that time', () => {
    fc.assert(
      fc.property(machines, (machine) => {
        const settled = turns(new PrefillBudget(4 * machine.alone), machine, 40)
          .slice(20)
          .filter((prompt) => prompt > 0)
        const { alone, each } = machine
        for (const prompt of settled) {
          expect(prompt === 16 || prompt * each <= 3 * alone * 1.01).toBe(true)
          // Chunks are whole tiles, so less than one tile is lost.
          expect((prompt + 16) * each).toBeGreaterThan(3 * alone * 0.9)
        }
      }),
    )
  })

  it('keep a turn within the requested gap, but always progress', () => {
    fc.assert(
      fc.property(machines, fc.double({ min: 1, max: 500, noNaN: true }), (machine, maxGap) => {
        const { alone, each } = machine
        const settled = turns(new PrefillBudget(maxGap), machine, 40)
          .slice(20)
          .filter((prompt) => prompt > 0)
        expect(settled.length).toBeGreaterThan(17)
        for (const prompt of settled) expect(prompt <= 16 || prompt * each <= (maxGap - alone) * 1.01).toBe(true)
      }),
    )
  })

  it('follow a machine that becomes slower, and are not misled by one slow turn', () => {
    const machine = { alone: 5, each: 0.1 }
    const budget = new PrefillBudget(25)
    expect(turns(budget, machine, 20).at(-1)).toBe(192)
    budget.took({ prompt: 192, streams: 4, milliseconds: 2000 })
    const [next = 0] = turns(budget, machine, 1)
    expect(next).toBeGreaterThanOrEqual(144)
    expect(turns(budget, machine, 20).at(-1)).toBeGreaterThanOrEqual(176)
    const slow = turns(budget, { alone: 5, each: 0.4 }, 20).at(-1)!
    expect(slow).toBeGreaterThanOrEqual(32)
    expect(slow).toBeLessThanOrEqual(48)
  })

  it('begin with a turn without prompts, and skip one now and then, to measure the streams alone', () => {
    const budget = new PrefillBudget(8)
    const machine = { alone: 2, each: 0.1 }
    const zeros = turns(budget, machine, 90).flatMap((prompt, turn) => (prompt === 0 ? [turn] : []))
    expect(zeros).toEqual([0, 1, 34, 67])
    // Another number of streams has another cost.
    expect(budget.tokens(3)).toBe(0)
    // Prompts without streams take a whole batch, which delays no stream.
    budget.took({ prompt: 512, streams: 0, milliseconds: 1000 })
    expect(budget.tokens(4)).toBeGreaterThan(0)
  })
})

describe('on a real model', () => {
  const tokens = (size: number, salt: number) =>
    Int32Array.from({ length: size }, (_, at) => 1 + ((at * 7 + salt * 13 + ((at * at) % 11)) % 250))

  /**
   * Runs prompts beside a stream. Returns the prompt tokens between two tokens of the stream, where there were some; the answers; and the
   * tokens computed in all.
   */
  async function beside(
    maxGap: number,
  ): Promise<{ readonly chunks: readonly number[]; readonly answers: readonly string[]; readonly computed: number }> {
    const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), await tinyModel(), {
      cells: 2048,
      threads: 1,
      batchThreads: 1,
      maxGap,
    })
    try {
      const sampling = { logitBias: neverEnding(engine.model) }
      let computed = 0
      const chunks: number[] = []
      const prompts: ReturnType<LlamaEngine['complete']>[] = []
      const stream = engine.complete({
        conversation: conversationId('stream'),
        tokens: tokens(20, 1),
        maxTokens: 60,
        sampling,
        onText: () => {
          if (prompts.length > 0 && computed > 0) chunks.push(computed)
          computed = 0
          for (let salt = prompts.length; salt < 2; salt++) {
            let before = 0
            const onPrefill = (done: number) => {
              computed += done - before
              before = done
            }
            const conversation = conversationId(`prompt${salt}`)
            prompts.push(engine.complete({ conversation, tokens: tokens(800, 2 + salt), maxTokens: 1, sampling, onPrefill }))
          }
          return undefined
        },
      })
      const results = [await stream, ...(await Promise.all(prompts))]
      await engine.check('full')
      const submitted = results.reduce((sum, { ledger }) => sum + ledger.submitted, 0)
      expect(submitted).toBe(engine.submitted)
      return { chunks, answers: results.slice(1).map(({ text }) => text), computed: submitted }
    } finally {
      await engine.dispose()
    }
  }

  it('the least gap makes the smallest chunks, a large one whole batches; answers and counts are the same', async () => {
    const small = await beside(0.001)
    const large = await beside(1e6)
    expect(Math.max(...large.chunks)).toBeGreaterThan(512)
    expect(Math.max(...large.chunks)).toBeLessThanOrEqual(2048)
    expect(new Set(small.chunks)).toEqual(new Set([16]))
    expect(small.computed).toBe(large.computed)
    expect(small.answers).toEqual(large.answers)
  })
})
