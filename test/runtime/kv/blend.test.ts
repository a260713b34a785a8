/** Tests which tokens `blend` computes again behind a hole, and what its steps cost. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { BlendChoice } from '../../../src/runtime/core/contract.js'
import { BLEND_DEFAULT } from '../../../src/runtime/kv/plan/blend.js'
import { CacheHarness } from './support/cache-harness.js'
import { PromptDraft } from './support/prompt-draft.js'

/** Returns `count` tokens that occur in no other text. */
const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const marker = [900, 901, 902]

/** A conversation of 10 + 40 + 15 tokens, and two that begin every answer: places [0, 67). Its text has been read. */
const begun = (messages = [text(100, 10), text(200, 40), text(300, 15)]) => {
  const harness = new CacheHarness({ cells: 2000 })
  const prompt = new PromptDraft(messages, [1, 2])
  harness.step('a', prompt.shown)
  return { harness, prompt }
}

const blended = (choice?: BlendChoice, messages?: number[][]) => {
  // Decodes cost nothing, so that nothing between two chosen places is computed.
  const blend = choice === undefined ? undefined : { decode: 0, ...choice }
  const { harness, prompt } = begun(messages)
  prompt.fold(20, 40, marker)
  harness.terms = { contract: 'blend', ...(blend === undefined ? {} : { blend }) }
  return { harness, prompt, entry: harness.step('a', prompt.shown) }
}

/** The shown places whose cells were computed after the first step. */
const computedPlaces = (harness: CacheHarness, before: number) => {
  const live = harness.memory.sequence(harness.cache.live(conversationId('a'))!.seq)
  return live.flatMap(({ id }, place) => (id >= before ? [place] : []))
}

describe('a blend', () => {
  it('of nothing is a splice, of everything exact', () => {
    expect(blended({ spread: 0 }).entry).toMatchObject({ contract: 'blend', submitted: 4, approximate: 27 })
    const { entry } = blended({ spread: 1 })
    expect(entry).toMatchObject({ contract: 'blend', submitted: 3 + 27, recomputed: 26, side: 1, approximate: 0 })
  })

  it('recomputes the first tokens after the fold, in order, right after the marker', () => {
    const { entry, harness } = blended({ first: 5 })
    expect(entry).toMatchObject({ submitted: 3 + 5 + 1, recomputed: 5, approximate: 22, side: 1 })
    const held = harness.memory.sequence(harness.cache.live(conversationId('a'))!.seq)
    expect(held.map(({ position }) => position)).toEqual([...text(0, 28), ...text(45, 22)])
  })

  it('recomputes the first tokens after every hole', () => {
    const { harness, prompt } = begun()
    prompt.fold(12, 20, marker)
    prompt.fold(30, 44, [903])
    harness.terms = { contract: 'blend', blend: { first: 4, decode: 0 } }
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'blend', submitted: 4 + 8 + 1 })
    expect(computedPlaces(harness, 67)).toEqual([...text(12, 3 + 4), ...text(25, 1 + 4), 48])
  })

  it('recomputes the last messages, or the last tokens', () => {
    const { entry } = blended({ messages: 1 })
    expect(entry).toMatchObject({ submitted: 3 + 17, recomputed: 16, side: 1 })
    expect(entry.messages.map(({ recomputed }) => recomputed)).toEqual([0, 0, 15, 1])
    expect(computedPlaces(blended({ ending: 6 }).harness, 67)).toEqual([20, 21, 22, ...text(44, 6)])
  })

  it('recomputes echoes: pairs of tokens that the hidden text has and the shown text before them has not', () => {
    // The hidden text is 210 to 229. 215 216 repeats it; 305 306 repeats nothing; 202 203 stands before the hole, too.
    const tail = [301, 215, 216, 302, 303, 202, 203, 304, 215, 216, 305, 306, 220, 307, 308]
    const echoes = (echo: number) => computedPlaces(blended({ echo }, [text(100, 10), text(200, 40), tail]).harness, 67)
    // The tail begins at place 33; the second 215 216 repeats shown text.
    expect(echoes(0)).toEqual([20, 21, 22, 35, 49])
    expect(echoes(1)).toEqual([20, 21, 22, 34, 35, 36, 49])
  })

  it('recomputes what the ending asks about', () => {
    const tail = [...text(400, 80), 501, 502, ...text(600, 60), 501, 502, 700]
    const { harness } = blended({ asked: 3 }, [text(100, 10), text(200, 40), tail])
    const pair = 33 + 81
    expect(computedPlaces(harness, 52 + tail.length)).toEqual([20, 21, 22, ...text(pair - 3, 7), 33 + tail.length + 1])
  })

  it('says on the ledger which tokens it chose', () => {
    const tail = [301, 215, 216, 302, ...text(310, 60)]
    const { entry } = blended({ echo: 0, first: 2, ending: 4 }, [text(100, 10), text(200, 40), tail])
    expect(entry.recomputeReason).toBe(
      '2 tokens: blend: they stand right behind hidden text; 1 tokens: blend: they repeat hidden text; 3 tokens: blend: they end the prompt',
    )
  })

  it('chooses echoes, the first tokens and the ending by default', () => {
    const { echo, first, ending } = BLEND_DEFAULT
    const tail = [...text(400, 200), 215, 216, ...text(700, 199)]
    const { entry, harness } = blended(undefined, [text(100, 10), text(200, 40), tail])
    expect(entry).toMatchObject({ contract: 'blend', fallback: null })
    const end = 10 + 20 + 3 + tail.length + 2
    const pair = 33 + 201
    const chosen = [...text(20, 3), ...text(23, first), ...text(pair - echo, 2 * echo + 1), ...text(end - ending, ending)]
    expect(computedPlaces(harness, 52 + tail.length)).toEqual(chosen)
  })

  it('is exact where it would compute more of the tail than allowed', () => {
    const { entry } = blended()
    expect(entry).toMatchObject({ contract: 'exact', approximate: 0 })
    expect(entry.fallback).toMatch(/^it would compute \d+ of 26 tokens behind the hidden text again/)
    expect(blended({ most: 1 }).entry).toMatchObject({ contract: 'blend', fallback: null })
    expect(blended({ first: 5, most: 0.1 }).entry).toMatchObject({ contract: 'exact', approximate: 0 })
  })

  it('computes what stands between two chosen places where that is faster than another decode', () => {
    const tail = [301, 215, 216, ...text(400, 6), 218, 219, ...text(500, 40)]
    const places = (decode: number) =>
      computedPlaces(blended({ echo: 0, decode }, [text(100, 10), text(200, 40), tail]).harness, 52 + tail.length)
    const end = 33 + tail.length + 1
    expect(places(6)).toEqual([20, 21, 22, 35, 43, end])
    expect(places(7)).toEqual([20, 21, 22, ...text(35, 9), end])
  })

  it('counts decodes as tokens where it decides to be exact', () => {
    const choice = { echo: 0, most: 0.3 }
    const tail = [301, 215, 216, ...text(400, 12), 218, 219, ...text(500, 40)]
    const contract = (decode: number) => blended({ ...choice, decode }, [text(100, 10), text(200, 40), tail]).entry.contract
    expect(contract(4)).toBe('blend')
    expect(contract(30)).toBe('exact')
  })

  it.each([1, 2, 3, 4])('recomputes the same tokens after it was cancelled in pass %i', async (passes) => {
    const choice = { first: 3, messages: 1, spread: 0, decode: 0 }
    const { harness, prompt } = begun([text(100, 10), text(200, 40), text(300, 15), text(400, 15), text(500, 6)])
    prompt.fold(20, 40, marker)
    harness.terms = { contract: 'blend', blend: choice }
    const running = (await harness.fetch('a', prompt.shown))!
    for (let pass = 0; pass < passes; pass++) harness.decode(running, 2)
    harness.finish('a', 'cancelled')
    const { contract } = harness.step('a', prompt.shown)
    const { harness: other } = blended(choice, [text(100, 10), text(200, 40), text(300, 15), text(400, 15), text(500, 6)])
    expect([contract, computedPlaces(harness, 88)]).toEqual(['blend', computedPlaces(other, 88)])
  })

  it('recomputes nothing in a step that hides and restores nothing', () => {
    const { harness, prompt } = blended({ first: 5 })
    prompt.say([50])
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'blend', recomputed: 0 })
  })

  it('recomputes its share once, even after two adjacent folds with longer markers', () => {
    const { harness, prompt } = begun()
    harness.terms = { contract: 'blend', blend: { first: 3 } }
    prompt.fold(20, 22, marker)
    prompt.fold(22, 24, text(910, 4))
    expect(harness.step('a', prompt.shown).recomputed).toBeGreaterThan(0)
    for (let step = 0; step < 3; step++)
      expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'blend', submitted: 1, recomputed: 0 })
    prompt.restore(22)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, recomputed: 0 })
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('parks the hidden and the recomputed cells, so that a restore computes nothing', () => {
    const { harness, prompt, entry } = blended({ first: 5 })
    expect(entry.parked).toBe(20 + 5 + 1)
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'blend', submitted: 1, approximate: 0 })
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'blend', submitted: 1, approximate: 22 })
  })

  it('finds the echoes that a plain search finds', () => {
    const token = fc.integer({ min: 10, max: 14 })
    const some = (least: number) => fc.array(token, { minLength: least, maxLength: 30 })
    fc.assert(
      fc.property(some(1), some(2), some(3), (open, hidden, tail) => {
        const { harness, prompt } = begun([[...open, ...hidden, ...tail]])
        const before = open.length + hidden.length + tail.length + 2
        prompt.fold(open.length, open.length + hidden.length, marker)
        harness.terms = { contract: 'blend', blend: { echo: 0, decode: 0 } }
        harness.step('a', prompt.shown)
        const shown = [...prompt.shown.tokens]
        const pairs = (of: readonly number[]) => of.slice(1).map((token, at) => `${of[at]!} ${token}`)
        const start = open.length + marker.length
        const wanted = [...shown.keys()].filter((at) => {
          const pair = `${shown[at - 1]!} ${shown[at]!}`
          const isEcho = at >= start && pairs(hidden).includes(pair) && !pairs(shown.slice(0, at)).includes(pair)
          return isEcho || (at >= open.length && at < start) || at === shown.length - 1
        })
        expect(computedPlaces(harness, before)).toEqual(wanted)
      }),
    )
  })
})
