/** Tests the cost of folds and restores when the text after them stays, and which tokens are approximate, case by case. */
import { describe, expect, it } from 'vitest'
import { CONTRACTS, type Contract } from '../../../src/runtime/core/contract.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { OffloadTiers } from '../../../src/runtime/kv/offload.js'
import { CacheHarness, missing, shownOf, type HarnessOptions } from './support/cache-harness.js'
import { PromptDraft } from './support/prompt-draft.js'

/** Returns `count` tokens that occur in no other text. */
const text = (from: number, count: number): number[] => Array.from({ length: count }, (_, offset) => from + offset)

const system = text(100, 10)
const long = text(200, 40)
const tail = text(300, 15)
const marker = [900, 901, 902]

/** A conversation of 10 + 40 + 15 tokens, and two that begin every answer: places [0, 67). */
const conversation = () => new PromptDraft([system, long, tail], [1, 2])

const spliced = (options: HarnessOptions = {}) => {
  const harness = new CacheHarness(options)
  harness.terms = { contract: 'splice' }
  return harness
}

/** Returns a harness whose conversation `a` has run one step, with its prompt. */
const begun = (options: HarnessOptions = {}) => {
  const harness = spliced(options)
  const prompt = conversation()
  harness.step('a', prompt.shown)
  return { harness, prompt }
}

describe('a fold', () => {
  it('computes its marker and nothing else', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({
      contract: 'splice',
      fallback: null,
      shown: 50,
      reused: 47,
      fresh: 3,
      recomputed: 0,
      side: 1,
      submitted: 4,
      // The last token saw the hidden text, so its cell is parked, too.
      parked: 20 + 1,
      // The marker is exact. The tokens after it were computed with the folded text in sight.
      approximate: 27,
      positions: 67,
    })
    expect(harness.cache.totals).toMatchObject({ used: 71, parked: 21, versions: 1, sequences: { used: 2 } })
  })

  it('names the messages that are approximate', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    const entry = harness.step('a', prompt.shown, [50])
    expect(entry.messages.map(({ shown, approximate }) => [shown, approximate])).toEqual([
      [10, 0],
      [23, 10],
      [15, 15],
      [3, 3],
    ])
  })

  it('with new text behind it computes the marker and the text', () => {
    const { harness, prompt } = begun()
    const first = prompt.shown
    harness.step('a', first, [50, 51])
    prompt.say([50, 51, 3], text(400, 6))
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({ fresh: 3 + 1 + 6 + 2, recomputed: 0, submitted: 12, side: 0 })
  })

  it('at the very end or beginning of the text costs the same', () => {
    for (const [start, end] of [
      [50, 65],
      [0, 10],
    ] as const) {
      const { harness, prompt } = begun()
      prompt.fold(start, end, marker)
      expect(harness.step('a', prompt.shown)).toMatchObject({ fresh: 3, recomputed: 0, submitted: 4, approximate: 67 - end })
    }
  })

  it('without a marker computes only the last token', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, [])
    expect(harness.step('a', prompt.shown)).toMatchObject({ fresh: 0, submitted: 1, approximate: 27, positions: 67 })
  })

  it('with a marker as long as the hidden text fits', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, text(900, 20))
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', fresh: 20, submitted: 21, positions: 67 })
  })

  it('made together with others costs the sum of the markers', () => {
    const { harness, prompt } = begun()
    prompt.fold(15, 20, [900])
    prompt.fold(30, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({
      fresh: 4,
      submitted: 5,
      parked: 15 + 1,
      approximate: 56 - 16,
    })
  })

  it('in one message affects no other message: a read-only step recomputes nothing', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown, [50])
    prompt.say([50, 3])
    expect(harness.step('a', prompt.shown)).toMatchObject({ recomputed: 0, fresh: 1 + 2, side: 0 })
  })

  it('whose summary replaces its marker computes the summary', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    prompt.fold(20, 40, [900, 950, 951, 952])
    // The new one begins as the old one did.
    expect(harness.step('a', prompt.shown)).toMatchObject({ fresh: 3, recomputed: 0, submitted: 4, parked: 3 })
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', submitted: 1, approximate: 27 })
  })
})

describe('a marker', () => {
  it('does not begin with the cells of another marker that ends alike', () => {
    const { harness, prompt } = begun()
    for (const words of [
      [900, 901, 902],
      [900, 901],
      [902, 901],
    ]) {
      prompt.fold(20, 40, words)
      const entry = harness.step('a', prompt.shown)
      expect(entry.approximate).toBe(27)
      expect(entry.submitted).toBe(words[0] === 902 ? 3 : words.length === 2 ? 1 : 4)
    }
  })
})

describe('a restore', () => {
  it('with no decode in between computes only the last token, and all is exact again', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({
      contract: 'splice',
      fallback: null,
      shown: 67,
      submitted: 1,
      recomputed: 0,
      side: 1,
      approximate: 0,
      sources: { own: 47, parked: 20, shared: 0 },
      parked: 3 + 1,
    })
  })

  it('after newly computed text leaves that text approximate', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown, [50, 51])
    prompt.say([50, 51, 3])
    prompt.restore(20)
    const entry = harness.step('a', prompt.shown)
    // The message's last token and the new opening are computed now, after approximate tokens.
    expect(entry).toMatchObject({ fresh: 3, recomputed: 0, submitted: 3, approximate: 2 + 1 + 2, shown: 72 })
    expect(entry.messages.map(({ approximate }) => approximate)).toEqual([0, 0, 0, 3, 2])
  })

  it.each([true, false])('in any order computes nothing, if its marker can move (fixed: %s)', (fixed) => {
    const orders = [0, 1, 2].flatMap((a) => [0, 1, 2].filter((b) => b !== a).map((b) => [a, b, 3 - a - b]))
    for (const order of orders) {
      const { harness, prompt } = begun({ fixed })
      // The first two folds touch.
      const holes = [12, 20, 52]
      prompt.fold(12, 20, [900, 901])
      prompt.fold(20, 28, marker)
      prompt.fold(52, 60, [903])
      expect(harness.step('a', prompt.shown)).toMatchObject({ fresh: 6, submitted: 7, parked: 24 + 1 })
      for (const hole of order) {
        // The second marker is right after the first, at positions of the first fold.
        const moved = hole === 0 && prompt.folds.some(({ start }) => start === 20) ? 3 : 0
        prompt.restore(holes[hole]!)
        const entry = harness.step('a', prompt.shown)
        const computed = fixed ? moved : 0
        const said = { submitted: 1 + computed, recomputed: computed, fresh: 0, turned: moved - computed }
        expect(entry, order.join()).toMatchObject({ contract: 'splice', ...said })
      }
      expect(harness.cache.ledger(conversationId('a')).at(-1)).toMatchObject({ approximate: 0, shown: 67, positions: 67 })
    }
  })

  it('and the fold again compute nothing', () => {
    const { harness, prompt } = begun()
    for (let round = 0; round < 3; round++) {
      prompt.fold(20, 40, marker)
      expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: round === 0 ? 4 : 1, approximate: 27 })
      prompt.restore(20)
      expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0 })
    }
  })

  it('of lost cells computes them in their place, at their old positions', () => {
    const { harness, prompt } = begun({ cells: 100 })
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    harness.step('b', shownOf(text(1000, 40)))
    expect(harness.cache.totals).toMatchObject({ parked: 0 })
    harness.forget('b')
    prompt.restore(20)
    // The text is the original one; only the last token was ever computed without it.
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 21, fresh: 20, positions: 67, approximate: 0 })
  })

  it('under `splice` of an `exact` fold is no fallback', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.terms = { contract: 'exact' }
    harness.step('a', prompt.shown)
    harness.terms = { contract: 'splice' }
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', fallback: null, submitted: 1, approximate: 0 })
  })
})

describe('approximate cells', () => {
  it('are not used by an `exact` step, not even from its own live sequence', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    harness.terms = { contract: 'exact' }
    expect(harness.step('a', prompt.shown)).toMatchObject({
      contract: 'exact',
      reused: 23,
      recomputed: 27,
      approximate: 0,
      positions: 50,
    })
  })

  it('are not lent to another conversation, whatever its contract', () => {
    for (const contract of ['exact', 'splice', 'blend'] as const) {
      const { harness, prompt } = begun()
      prompt.fold(20, 40, marker)
      harness.step('a', prompt.shown)
      harness.terms = { contract }
      const entry = harness.step('b', shownOf([...prompt.shown.tokens]))
      expect(entry, contract).toMatchObject({ sources: { own: 0, shared: 23 }, fresh: 27, approximate: 0 })
    }
  })

  it('are replaced by exact cells of another conversation only if the conversation has none of its own', () => {
    const { harness, prompt } = begun()
    harness.step('b', shownOf([...prompt.shown.tokens, ...text(700, 5)]))
    const c = spliced()
    c.step('b', shownOf([...system, ...long]))
    expect(c.step('a', prompt.shown)).toMatchObject({ contract: 'splice', sources: { shared: 50 }, approximate: 0 })
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({ sources: { shared: 0 }, approximate: 27 })
  })

  it('are replaced by exact cells of another conversation that has the same text', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, [])
    harness.step('a', prompt.shown)
    harness.step('b', shownOf([...prompt.shown.tokens, ...text(700, 5)]))
    prompt.add(text(700, 5))
    const entry = harness.step('a', prompt.shown)
    expect(entry).toMatchObject({ sources: { shared: 25 }, contract: 'splice', submitted: 7, approximate: 0 })
  })

  it('are replaced by exact cells of another conversation, while its own exact cells stay', () => {
    const { harness, prompt } = begun({ sequences: 2 })
    harness.forget('a')
    const wide = spliced({ cells: 256, sequences: 4 })
    wide.start('c', shownOf(text(1, 3)))
    wide.step('a', prompt.shown)
    wide.step('b', shownOf([...prompt.shown.tokens]))
    prompt.fold(20, 40, marker)
    // No id is left to park the hidden cells, so only the other conversation keeps them.
    expect(wide.step('a', prompt.shown)).toMatchObject({ parked: 0, submitted: 4 })
    prompt.restore(20)
    expect(wide.step('a', prompt.shown)).toMatchObject({
      sources: { own: 47, shared: 20 },
      submitted: 1,
      approximate: 0,
      parked: 3 + 1,
    })
  })
})

describe('a refresh', () => {
  it('shows the same by exact cells, and closes the gaps', async () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown, [50, 51])
    const shown = harness.cache.prompt(conversationId('a'))!
    harness.terms = { contract: 'exact' }
    const running = (await harness.fetch('a', shown, 'refresh'))!
    while (missing(running) > 0) harness.decode(running, 10)
    expect(harness.finish('a')).toMatchObject({
      kind: 'refresh',
      shown: 52,
      reused: 23,
      recomputed: 29,
      fresh: 0,
      approximate: 0,
      positions: 52,
    })
    harness.terms = { contract: 'splice' }
    prompt.say([50, 51, 3])
    expect(harness.step('a', prompt.shown)).toMatchObject({ recomputed: 0, fresh: 3, approximate: 0 })
  })
})

describe('a prompt that became a different one', () => {
  it('keeps nothing after the first difference, even if later tokens are equal at equal places', () => {
    const { harness } = begun()
    const other = new PromptDraft([system, [...long.slice(0, 20), 777, ...long.slice(21)], tail], [1, 2])
    other.fold(12, 15, [900])
    expect(harness.step('a', other.shown)).toMatchObject({
      contract: 'splice',
      submitted: 1 + 1 + 19 + 15 + 2,
      fresh: 2,
      recomputed: 36,
    })
  })

  it('has its places counted anew after an answer that is not shown as it was generated', () => {
    const { harness, prompt } = begun()
    harness.step('a', prompt.shown, [50, 51, 52])
    // The first token of the answer is left out, so the tokens after it are one place earlier.
    prompt.say([51, 52, 3], text(400, 5))
    harness.step('a', prompt.shown)
    prompt.fold(20, 40, marker)
    prompt.fold(73, 75, [904])
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', fresh: 4, recomputed: 0, submitted: 5 })
    prompt.restore(20)
    prompt.restore(73)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0 })
  })
})

describe('the report of a live sequence', () => {
  const live = (harness: CacheHarness) => harness.cache.live(conversationId('a'))!

  it('includes its gaps', () => {
    const { harness, prompt } = begun()
    expect([live(harness).exact, live(harness).next, live(harness).held]).toEqual([67, 67, 67])
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    expect([live(harness).exact, live(harness).next, live(harness).held]).toEqual([23, 67, 50])
    harness.closeGaps('a')
    expect([live(harness).exact, live(harness).next, live(harness).held]).toEqual([23, 50, 50])
  })
})

describe('a parked version', () => {
  it('is dropped when the live sequence holds the same cells, not when it holds the same tokens by other cells', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    expect(harness.cache.totals).toMatchObject({ versions: 1 })
    harness.terms = { contract: 'exact' }
    // The approximate tail, parked with its old values, differs from the tail that the live sequence computed.
    harness.step('a', prompt.shown)
    expect(harness.cache.totals).toMatchObject({ versions: 2, parked: 21 + 27 })
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ approximate: 0, submitted: 1, sources: { own: 20, parked: 47 } })
  })
})

describe('a marker that is longer than the hidden text', () => {
  /** The ledger's entry for a fold of two tokens behind a marker of three, and for the restore after it. */
  const short = { contract: 'splice', fallback: null, fresh: 3, recomputed: 0, submitted: 4 }
  const restored = { contract: 'splice', submitted: 1, turned: 0, approximate: 0 }

  it('is all that is computed: later cells are copied to new positions, and the restore finds the old ones', () => {
    const { harness, prompt } = begun()
    const before = harness.memory.readback().length
    for (let round = 0; round < 3; round++) {
      prompt.fold(20, 22, marker)
      const entry = harness.step('a', prompt.shown)
      // The last token is computed again. The folded cells and the originals of the copies are parked.
      if (round === 0) expect(entry).toMatchObject({ ...short, turned: 44, parked: 47, approximate: 45, positions: 68 })
      else expect(entry).toMatchObject({ submitted: 1, turned: 0, approximate: 45 })
      prompt.restore(20)
      expect(harness.step('a', prompt.shown)).toMatchObject({ ...restored, positions: 67 })
    }
    expect(harness.memory.readback().length).toBeGreaterThan(before + 44)
  })

  it('moves nothing behind a gap that absorbs it', () => {
    const { harness, prompt } = begun()
    prompt.fold(30, 48, [900])
    harness.step('a', prompt.shown)
    prompt.fold(20, 22, marker)
    // The eight tokens between the two folds, and the second marker, move by one.
    expect(harness.step('a', prompt.shown)).toMatchObject({ ...short, turned: 9, positions: 67 })
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, turned: 0, approximate: 19 })
    prompt.restore(30)
    expect(harness.step('a', prompt.shown)).toMatchObject(restored)
  })

  it('is followed by new text that is computed at the new positions, and by an answer', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 22, marker)
    prompt.say([50], text(400, 6))
    expect(harness.step('a', prompt.shown, [60])).toMatchObject({
      turned: 45,
      submitted: 3 + 1 + 6 + 2 + 1,
      positions: 68 + 9 + 1,
    })
  })

  it('moves cells in host memory, too', async () => {
    const harness = new CacheHarness({ cells: 140, options: { offload: new OffloadTiers({ hostBytes: 1e6 }) } })
    harness.terms = { contract: 'splice' }
    const prompt = conversation()
    const show = async () => {
      const running = (await harness.fetch('a', prompt.shown))!
      while (missing(running) > 0) harness.decode(running, 16)
      return harness.finish('a')
    }
    await show()
    harness.step('b', shownOf(text(1000, 110)))
    harness.forget('b')
    prompt.fold(20, 22, marker)
    expect(await show()).toMatchObject({ ...short, turned: 44, tiers: { host: 64 } })
    prompt.restore(20)
    expect(await show()).toMatchObject(restored)
  })

  it('fits where two versions do not: the originals of the copies are evicted', () => {
    const { harness, prompt } = begun({ cells: 70 })
    prompt.fold(20, 22, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({ ...short, turned: 44, evicted: 47 })
  })

  it('is refused after a move without a decode, because there is no state to copy', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 22, marker)
    harness.start('a', prompt.shown)
    expect(harness.finish('a', 'cancelled')).toMatchObject({ kind: 'cancelled', turned: 44 })
    prompt.fold(18, 20, marker)
    const entry = harness.step('a', prompt.shown)
    expect(entry).toMatchObject({ contract: 'exact', approximate: 0, turned: 0 })
    expect(entry.fallback).toContain('just moved')
    prompt.restore(18)
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('moved cells without a decode are not saved, and are lost with their sequence; those before them are saved', () => {
    const offload = new OffloadTiers({ hostBytes: 1e6 })
    const { harness, prompt } = begun({ cells: 130, options: { offload } })
    prompt.fold(20, 22, marker)
    harness.start('a', prompt.shown)
    harness.finish('a', 'cancelled')
    expect(harness.compact('a')).toBe(0)
    // The parked cells and the first 20 of the live sequence go to host memory; the rest is gone.
    expect(harness.step('b', shownOf(text(1000, 100)), [], 100)).toMatchObject({ moved: 47 + 20, evicted: 44 })
    expect(offload.totals.host.tokens).toBe(67)
  })
})

describe('text that was shown before', () => {
  /** Returns the cells of the live sequence except that of the last token, which every step computes. */
  const cellsOf = (harness: CacheHarness) => {
    const held = harness.memory.sequence(harness.cache.live(conversationId('a'))!.seq)
    return held.slice(0, -1).map(({ id, trace }) => [id, trace])
  }

  it.each([true, false])('is shown by the same cells again, not by the copies of a later fold (fixed: %s)', (fixed) => {
    const { harness, prompt } = begun({ fixed })
    prompt.fold(12, 20, [900, 901])
    harness.step('a', prompt.shown)
    const before = cellsOf(harness)
    prompt.fold(30, 32, text(910, 9))
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', replaced: 0 })
    prompt.restore(30)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, turned: 0, replaced: 0 })
    expect(cellsOf(harness)).toEqual(before)
  })

  it('is shown by the copies if its cells were lost, and the ledger counts those tokens', () => {
    const { harness, prompt } = begun({ cells: 90 })
    prompt.fold(12, 20, [900, 901])
    harness.step('a', prompt.shown)
    prompt.fold(30, 32, text(910, 9))
    harness.step('a', prompt.shown)
    harness.step('b', shownOf(text(1000, 20)))
    expect(harness.cache.totals).toMatchObject({ parked: 0 })
    prompt.restore(30)
    // Places 26 to 59 of the prompt were copied for the marker; the text of places 30 and 31 is computed.
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 3, replaced: 34 })
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, replaced: 0 })
  })

  it.each([false, true])(
    'exactly is shown by other cells where the exact ones were lost, and the ledger says of how many tokens (evicted before: %s)',
    (evicted) => {
      const { harness, prompt } = begun({ cells: 90, fixed: true })
      if (evicted) harness.step('b', shownOf(text(1000, 80)))
      prompt.fold(20, 22, marker)
      expect(harness.step('a', prompt.shown)).toMatchObject({ approximate: 0, replaced: 0 })
      expect(harness.cache.totals).toMatchObject({ parked: 0 })
      prompt.restore(20)
      // The text of 20 and 21 and the last token are computed. The others behind stay where they stood behind the marker.
      expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', submitted: 3, replaced: 44 })
    },
  )

  it('of a marker is found whole though a shorter one, its beginning, was shown since', () => {
    const { harness, prompt } = begun()
    const words = text(900, 6)
    prompt.fold(20, 30, words)
    harness.step('a', prompt.shown)
    for (const shown of [words.slice(0, 2), words]) {
      prompt.restore(20)
      prompt.fold(20, 30, shown)
      expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, replaced: 0 })
    }
  })

  it('of a marker is found whole though another version has its beginning', () => {
    const { harness, prompt } = begun()
    const show = () => harness.step('a', prompt.shown)
    show()
    for (const words of [[900], marker]) {
      prompt.fold(20, 24, words)
      show()
      prompt.restore(20)
      show()
    }
    prompt.fold(20, 24, marker)
    expect(show()).toMatchObject({ submitted: 1, replaced: 0 })
  })
})

describe('a splice falls back', () => {
  it('if a marker is longer than the hidden text and keys cannot be shifted', () => {
    const { harness, prompt } = begun({ fixed: true })
    prompt.fold(20, 22, marker)
    const entry = harness.step('a', prompt.shown)
    expect(entry).toMatchObject({ contract: 'exact', fresh: 3, recomputed: 45, approximate: 0, positions: 68 })
    expect(entry.fallback).toMatch(/longer marker than the hidden text.*cannot be rotated/)
  })

  it('but not if a later gap absorbs the marker', () => {
    const { harness, prompt } = begun({ fixed: true })
    prompt.fold(30, 40, [900])
    harness.step('a', prompt.shown)
    prompt.fold(20, 22, marker)
    // The eight tokens between the two folds move by one.
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', fallback: null, recomputed: 9, positions: 67 })
  })

  it('if there is no sequence id to work in', () => {
    const { harness, prompt } = begun({ sequences: 2 })
    harness.start('b', shownOf(text(1, 3)))
    prompt.fold(20, 40, marker)
    const entry = harness.step('a', prompt.shown)
    expect(entry).toMatchObject({ contract: 'exact', recomputed: 27, approximate: 0 })
    expect(entry.fallback).toContain('all 2 sequences of the context are in use')
  })

  it('but not if a parked version or an idle live sequence can give its id', () => {
    const { harness, prompt } = begun({ sequences: 2 })
    harness.step('b', shownOf(text(1, 3)))
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', fallback: null, submitted: 4, evicted: 3 })
  })

  it('but not if nothing is computed in the middle', () => {
    const { harness, prompt } = begun({ sequences: 2 })
    harness.start('b', shownOf(text(1, 3)))
    prompt.fold(20, 40, [])
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', fallback: null, submitted: 1 })
  })

  it('at positions beyond the trained ones if keys cannot be shifted', () => {
    const { harness, prompt } = begun({ fixed: true, options: { positions: 70 } })
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown, [50, 51])).toMatchObject({ contract: 'splice', positions: 69 })
    prompt.say([50, 51, 3])
    const entry = harness.step('a', prompt.shown)
    expect(entry).toMatchObject({ contract: 'exact', approximate: 0, positions: 55 })
    expect(entry.fallback).toMatch(/position 72 of the 70 .*cannot be rotated/)
  })

  it('but not if the text itself is that long', () => {
    const { harness, prompt } = begun({ options: { positions: 50 } })
    prompt.say([50])
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', fallback: null })
  })
})

describe('gaps', () => {
  it('are closed before positions exceed the trained ones, and a restore is still exact', () => {
    const { harness, prompt } = begun({ options: { positions: 70 } })
    prompt.fold(20, 40, marker)
    // 67 of 70 positions are used, 17 of them by the gap.
    const entry = harness.step('a', prompt.shown, [50, 51])
    expect(entry).toMatchObject({ contract: 'splice', fallback: null, submitted: 4 + 2, turned: 26, positions: 52 })
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'splice', submitted: 1, approximate: 0, positions: 67 })
  })

  it('stay while there is room for an answer, or they are small', () => {
    const { harness, prompt } = begun({ options: { positions: 80 } })
    prompt.fold(20, 40, marker)
    expect(harness.step('a', prompt.shown)).toMatchObject({ turned: 0, positions: 67 })
    const small = begun({ options: { positions: 70 } })
    small.prompt.fold(20, 30, marker)
    expect(small.harness.step('a', small.prompt.shown)).toMatchObject({ turned: 0, positions: 67 })
  })

  it('never use up all positions: folds of new text, one step each, compute the text and the markers', () => {
    const { harness, prompt } = begun({ cells: 400, options: { positions: 256 } })
    let closed = 0
    for (let round = 0; round < 50; round++) {
      const start = prompt.base.length
      prompt.say([3], text(1000 + 20 * round, 17))
      const whole = harness.step('a', prompt.shown)
      expect(whole).toMatchObject({ contract: 'splice', fallback: null, recomputed: 0 })
      prompt.fold(start + 1, start + 18, marker)
      // Old folds are removed completely, with the answer before them.
      const long = start - 8 * 20
      if (long > 66) {
        prompt.fold(long - 2, long + 1, [])
        prompt.fold(long + 1, long + 18, [])
      }
      const entry = harness.step('a', prompt.shown)
      expect(entry).toMatchObject({ contract: 'splice', fallback: null, recomputed: 0 })
      expect(entry.submitted).toBeLessThanOrEqual(3 + 3 + 1)
      expect(entry.positions).toBeLessThanOrEqual(256)
      if (entry.turned! + whole.turned! > 0) closed++
    }
    // A fold costs 14 positions; the rest beside the shown tokens is their room.
    expect(closed).toBeGreaterThan(2)
    expect(closed).toBeLessThan(15)
  })
})

describe("an edit's own contract", () => {
  const fold = (of: Contract | undefined, step: Contract) => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker, of)
    harness.terms = { contract: step, blend: { first: 5 } }
    return { harness, prompt, entry: harness.step('a', prompt.shown) }
  }

  it("takes precedence over the step's, stricter or not", () => {
    const of = (edit: Contract | undefined, step: Contract) => fold(edit, step).entry.contract
    for (const step of CONTRACTS) for (const edit of CONTRACTS) expect(of(edit, step)).toBe(edit)
    for (const step of CONTRACTS) expect(of(undefined, step)).toBe(step)
  })

  it('holds as long as the edit; of several, the strictest holds', () => {
    const { harness, prompt } = fold('splice', 'splice')
    const contracts: Contract[] = []
    const show = () => contracts.push(harness.step('a', prompt.shown).contract)
    prompt.fold(50, 55, [903], 'exact')
    show()
    prompt.fold(56, 60, [904])
    show()
    prompt.restore(50)
    show()
    harness.terms = { contract: 'exact' }
    show()
    prompt.restore(56)
    show()
    prompt.restore(20)
    show()
    expect(contracts).toEqual(['exact', 'exact', 'splice', 'exact', 'splice', 'exact'])
  })

  it('is not the fallback when there is no sequence to work in', () => {
    const { harness, prompt } = begun({ sequences: 2 })
    harness.start('b', shownOf(text(1, 3)))
    prompt.fold(20, 40, marker, 'splice')
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'exact', approximate: 0 })
  })

  it('does not keep a refresh from being exact', async () => {
    const { harness } = fold('splice', 'exact')
    harness.terms = { contract: 'exact' }
    const running = (await harness.fetch('a', harness.cache.prompt(conversationId('a'))!, 'refresh'))!
    while (missing(running) > 0) harness.decode(running, 10)
    expect(harness.finish('a')).toMatchObject({ kind: 'refresh', contract: 'exact', approximate: 0 })
  })

  it('holds for a fold that replaces a summary', () => {
    const { harness, prompt } = fold('splice', 'splice')
    prompt.fold(20, 40, [910, 911], 'exact')
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'exact', approximate: 0 })
  })

  it('holds after a cancelled step under it', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker, 'exact')
    const running = harness.start('a', prompt.shown)!
    harness.decode(running, 10)
    harness.finish('a', 'cancelled')
    expect(harness.step('a', prompt.shown)).toMatchObject({ contract: 'exact', approximate: 0 })
  })
})

describe('a step that ends in the middle', () => {
  it('of a marker can be continued from there', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, text(900, 8))
    const running = harness.start('a', prompt.shown)!
    harness.decode(running, 3)
    harness.decode(running, 3, 1)
    expect(harness.finish('a', 'cancelled')).toMatchObject({ kind: 'cancelled', submitted: 4, side: 4 })
    expect(harness.step('a', prompt.shown)).toMatchObject({
      contract: 'splice',
      submitted: 5,
      approximate: 27,
      recomputed: 0,
      side: 1,
    })
  })

  it('of a marker can be undone at no cost', () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, text(900, 8))
    const running = harness.start('a', prompt.shown)!
    harness.decode(running, 3)
    harness.finish('a', 'cancelled')
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('because cells are short keeps the cells that it has', () => {
    const { harness, prompt } = begun({ cells: 70, sequences: 4 })
    harness.start('b', shownOf(text(1, 3)))
    expect(harness.decode(harness.running.get(conversationId('b'))!, 3)).toBe(true)
    prompt.fold(20, 40, marker)
    const running = harness.start('a', prompt.shown)!
    // The cells just parked are evicted.
    expect(harness.decode(running, 3)).toBe(true)
    expect(harness.finish('a', 'cancelled')).toMatchObject({ evicted: 21 })
  })
})

describe('moving the cells of a live sequence', () => {
  const folded = () => {
    const { harness, prompt } = begun()
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    return { harness, prompt }
  }

  it('to lower places changes nothing', () => {
    const { harness, prompt } = folded()
    expect(harness.compact('a')).toBe(50)
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('is refused while it runs', () => {
    const { harness, prompt } = folded()
    const running = harness.start('a', prompt.shown)!
    expect([harness.compact('a'), harness.closeGaps('a')]).toEqual([0, 0])
    harness.decode(running, 1)
    harness.finish('a')
    expect([harness.compact('nobody'), harness.closeGaps('nobody')]).toEqual([0, 0])
  })

  it('closes gaps behind cells that other sequences hold, and leaves those cells', () => {
    const { harness, prompt } = folded()
    harness.step('b', shownOf(system))
    expect(harness.closeGaps('a')).toBeGreaterThan(0)
    const { shown, positions } = harness.step('a', prompt.shown)
    expect(positions).toBe(shown)
    expect(harness.step('b', shownOf(system))).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('skips cells that other sequences hold', () => {
    const { harness, prompt } = folded()
    harness.step('b', shownOf(system))
    const { used } = harness.cache.totals
    // `b` holds all of the system message but the last token, which it computed again.
    expect(harness.compact('a')).toBe(50 - 9)
    expect(harness.cache.totals).toMatchObject({ used, sequences: { used: 3 } })
    expect(harness.step('b', shownOf(system))).toMatchObject({ submitted: 1 })
    prompt.restore(20)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 0 })
  })

  it('moves nothing while there is no memory for the copy', () => {
    const { harness, prompt } = folded()
    harness.step('b', shownOf(system))
    const { used } = harness.cache.totals
    harness.memory.saveSequence = () => {
      throw new KvfoldError('memory/insufficient', 'There is no memory for that.')
    }
    expect(harness.compact('a')).toBe(0)
    expect(harness.cache.totals).toMatchObject({ used, sequences: { used: 3 } })
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1 })
    harness.forget('a')
  })

  it('is refused without a free sequence if other sequences hold its cells', () => {
    const { harness, prompt } = begun({ sequences: 3 })
    prompt.fold(20, 40, marker)
    harness.step('a', prompt.shown)
    harness.step('b', shownOf(system))
    expect(harness.compact('a')).toBe(0)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1 })
  })

  it('to lower positions is approximate, is reported in the ledger, and never counts as exact', () => {
    const { harness, prompt } = folded()
    expect(harness.closeGaps('a')).toBe(17)
    expect(harness.closeGaps('a')).toBe(0)
    expect(harness.step('a', prompt.shown)).toMatchObject({ submitted: 1, approximate: 27, positions: 50 })
    expect(harness.step('b', shownOf([...prompt.shown.tokens]))).toMatchObject({ sources: { shared: 23 }, fresh: 27 })
    harness.terms = { contract: 'exact' }
    expect(harness.step('a', prompt.shown)).toMatchObject({ approximate: 0 })
  })
})
