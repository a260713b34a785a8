/** How agents cut long texts and rank the parts. */
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { bestFirst, Bm25, wordsOf, type Bm25Options } from '../../../src/lab/agents/rag.js'
import { decisionsIn, factsIn, FactStore } from '../../../src/lab/agents/memory.js'
import { halvesOf, LongText, sentencesOf } from '../../../src/lab/agents/long-text.js'
import { embedWhole } from '../../../src/lab/agents/embedders.js'

/** A token is a word with the space before it. */
const counter = { countText: (text: string) => text.match(/\s*\S+/gu)?.length ?? 0, refuseCancelled: () => undefined }
const prose = fc.string({
  unit: fc.constantFrom('a', 'B', ' ', '. ', '; ', '\n', '?', '。', '東', '😀', 'Dr. ', '3.5', '…', '\u0301'),
  maxLength: 200,
})
const lone = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/

describe('sentencesOf', () => {
  it('ends sentences where people do, and at semicolons and lines', () => {
    expect(sentencesOf('It rained. Who knew? X; who? A line\n\nAnother 3.5 metres. Key: blue; key: red;\n')).toEqual([
      'It rained.',
      ' Who knew?',
      ' X;',
      ' who?',
      ' A line',
      '\n\nAnother 3.5 metres.',
      ' Key: blue;',
      ' key: red;\n',
    ])
    expect(sentencesOf(' \n ')).toEqual([' \n '])
    expect(sentencesOf('')).toEqual([])
  })

  it('loses nothing', () => {
    fc.assert(
      fc.property(prose, (text) => {
        expect(sentencesOf(text).join('')).toBe(text)
      }),
    )
  })
})

describe('halvesOf', () => {
  it('cuts at the space nearest to the middle or, without a space, between two characters, but never within a character', () => {
    expect(halvesOf('one two three')).toEqual(['one two', ' three'])
    expect(halvesOf('abcd')).toEqual(['ab', 'cd'])
    expect(halvesOf('a')).toBeNull()
    expect(halvesOf('😀')).toBeNull()
    fc.assert(
      fc.property(prose, (text) => {
        const halves = halvesOf(text)
        if (halves === null) {
          expect(Array.from(text).length).toBeLessThan(2)
          return
        }
        expect(halves.join('')).toBe(text)
        for (const half of halves) {
          expect(half.length).toBeGreaterThan(0)
          expect(half).not.toMatch(lone)
        }
      }),
    )
  })
})

describe('LongText', () => {
  const most = fc.integer({ min: 1, max: 30 })
  const texts = fc.array(prose, { maxLength: 8 }).map((parts) => parts.join(''))
  const { countText } = counter

  it('comes in chunks that make up the text and are never too long', async () => {
    await fc.assert(
      fc.asyncProperty(texts, most, async (text, limit) => {
        const chunks = await new LongText(text, counter).chunks(limit)
        expect(chunks.map((chunk) => chunk.text).join('')).toBe(text)
        for (const chunk of chunks) {
          expect(chunk.tokens).toBe(countText(chunk.text))
          expect(chunk.tokens).toBeLessThanOrEqual(limit)
        }
      }),
      { numRuns: 300 },
    )
  })

  it('comes in chunks that have no room for another sentence', async () => {
    const sentences = fc.array(fc.integer({ min: 1, max: 20 }), { maxLength: 60 })
    await fc.assert(
      fc.asyncProperty(sentences, fc.integer({ min: 20, max: 90 }), async (lengths, limit) => {
        const text = lengths.map((length) => `${' Wo'.repeat(length)}.`).join('')
        const naive: number[] = []
        for (const length of lengths)
          if (naive.length > 0 && naive.at(-1)! + length <= limit) naive.push(naive.pop()! + length)
          else naive.push(length)
        expect((await new LongText(text, counter).chunks(limit)).map(({ tokens }) => tokens)).toEqual(naive)
      }),
    )
  })

  it('counts tokens only a few times for each chunk', async () => {
    const sentences = Array.from({ length: 2000 }, (_, at) => ` This is sentence ${'so '.repeat(at % 7)}number ${at}.`)
    let counted = 0
    const chunks = await new LongText(sentences.join(''), {
      ...counter,
      countText: (text) => {
        counted++
        return countText(text)
      },
    }).chunks(200)
    expect(chunks.length).toBeGreaterThan(60)
    expect(counted / chunks.length).toBeLessThan(8)
  })

  it('can be cancelled between chunks', async () => {
    const slow = {
      countText: (text: string) => {
        const until = performance.now() + 2
        while (performance.now() < until);
        return countText(text)
      },
      refuseCancelled: () => {
        throw new Error('cancelled')
      },
    }
    await expect(new LongText('A word. '.repeat(200), slow).chunks(5)).rejects.toThrow('cancelled')
  })

  it('loses only its middle when it is too long, and keeps as much on either side', () => {
    fc.assert(
      fc.property(texts, most, (text, limit) => {
        const long = new LongText(text, counter)
        const trimmed = long.middleTrimmed(limit)
        if (countText(text) <= limit) {
          expect(trimmed.text).toBe(text)
          return
        }
        const half = Math.max(1, Math.floor(limit / 2))
        const [head, tail] = new LongText(text, counter).ends(half)
        expect(trimmed.text).toBe(head + tail)
        expect(text.startsWith(head) && text.endsWith(tail)).toBe(true)
        expect(head.length + tail.length).toBeLessThanOrEqual(text.length)
        expect(countText(head)).toBeLessThanOrEqual(half)
        expect(countText(tail)).toBeLessThanOrEqual(half)
        expect(countText(head)).toBeGreaterThan(0)
      }),
      { numRuns: 300 },
    )
  })

  it('has ends of a given length, cut at sentences where possible', () => {
    const text = new LongText('One two. Three four five. Six. Seven eight. Nine.', counter)
    expect(text.ends(5)).toEqual(['One two. Three four five.', ' Six. Seven eight. Nine.'])
    expect(text.ends(2)).toEqual(['One two.', ' Nine.'])
    expect(text.ends(1)).toEqual(['One', ' Nine.'])
    expect(new LongText('One two three four', counter).ends(2)).toEqual(['One two', ' three four'])
    expect(new LongText('', counter).ends(2)).toEqual(['', ''])
    expect(new LongText('One two.', counter).ends(9)).toEqual(['One two.', ''])
  })
})

interface Golden {
  readonly texts: readonly (readonly string[])[]
  readonly query: readonly string[]
  readonly settings: Bm25Options
  readonly scores: readonly number[]
}

describe('Bm25', () => {
  it('scores as rank_bm25 does (bm25.py)', () => {
    const cases = JSON.parse(readFileSync(new URL('../../golden/eval/agents/bm25.json', import.meta.url), 'utf8')) as Golden[]
    expect(cases.length).toBeGreaterThan(50)
    for (const { texts, query, settings, scores } of cases)
      for (const [text, score] of new Bm25(texts, settings).scores(query).entries()) expect(score).toBeCloseTo(scores[text]!, 9)
  })

  it('scores as the formula says, term by term', () => {
    const words = fc.array(fc.constantFrom('a', 'b', 'c', 'd', 'e'), { maxLength: 8 })
    const texts = fc.array(words, { minLength: 1, maxLength: 8 })
    fc.assert(
      fc.property(texts, words, (all, query) => {
        const scores = new Bm25(all).scores(query)
        for (const text of all.keys()) expect(scores[text]).toBeCloseTo(naive(all, query, text), 9)
      }),
    )
  })

  it('reads words in lower case, and Chinese characters as words', () => {
    expect(wordsOf('Key_1: Élan 12.5 東京tower!')).toEqual(['key_1', 'élan', '12', '5', '東', '京', 'tower'])
  })

  it('puts the best first and keeps the order of equals', () => {
    expect(bestFirst([1, 3, 1, 3, 2])).toEqual([1, 3, 4, 0, 2])
  })
})

function naive(texts: readonly (readonly string[])[], query: readonly string[], text: number): number {
  const idf = (term: string) => {
    const having = texts.filter((terms) => terms.includes(term)).length
    return Math.log((texts.length - having + 0.5) / (having + 0.5))
  }
  const known = [...new Set(texts.flat())]
  const mean = known.reduce((sum, term) => sum + idf(term), 0) / known.length
  const meanLength = texts.flat().length / texts.length
  const own = texts[text]!
  return query
    .filter((term) => own.includes(term))
    .reduce((sum, term) => {
      const frequency = own.filter((other) => other === term).length
      const weight = idf(term) < 0 ? 0.25 * mean : idf(term)
      return sum + (weight * frequency * 2.5) / (frequency + 1.5 * (0.25 + (0.75 * own.length) / meanLength))
    }, 0)
}

describe('FactStore', () => {
  const unit = (angle: number) => Float32Array.of(Math.cos(angle), Math.sin(angle))

  it('finds the most similar facts, and changes only existing ones', () => {
    const store = new FactStore()
    for (const angle of [0, 1, 2]) store.add(`at ${angle}`, unit(angle))
    expect(store.nearest(unit(1.1), 2).map(({ text }) => text)).toEqual(['at 1', 'at 2'])
    expect(store.update(0, 'moved', unit(1.1))).toBe(true)
    expect(store.nearest(unit(1.1), 1)).toEqual([{ id: 0, text: 'moved' }])
    expect(store.delete(0)).toBe(true)
    expect([store.delete(0), store.update(0, 'x', unit(0)), store.size]).toEqual([false, false, 2])
    store.add('new', unit(3))
    expect(store.nearest(unit(3), 1)).toEqual([{ id: 3, text: 'new' }])
    expect(() => store.nearest(Float32Array.of(1), 1)).toThrow('cannot be compared')
  })
})

describe('replies in JSON', () => {
  it('are read inside a code fence, and blank facts are dropped', () => {
    expect(factsIn('```json\n{"facts": [" a ", "", "b"]}\n```')).toEqual(['a', 'b'])
    expect(decisionsIn('So: {"decisions": [{"event": "ADD", "id": "", "text": "t"}]}')).toEqual([
      { event: 'ADD', id: '', text: 't' },
    ])
  })

  it.each(['', '{"facts": ["cut', '{"facts": "a"}', '[]', 'no json', '{"facts": [1]}', '}{'])('are refused: %s', (said) => {
    expect(factsIn(said)).toBeNull()
    expect(decisionsIn(said)).toBeNull()
  })

  it('are refused with unknown events', () => {
    expect(decisionsIn('{"decisions": [{"event": "DROP", "id": "0", "text": ""}]}')).toBeNull()
  })
})

describe('embedWhole', () => {
  it('leaves short texts unchanged, and makes one vector of a long text from its parts, weighted by their tokens', async () => {
    const asked: string[] = []
    const embed = (parts: readonly string[]) => {
      asked.push(...parts)
      return Promise.resolve(parts.map((part) => (part.includes('x') ? Float32Array.of(1, 0) : Float32Array.of(0, 1))))
    }
    const vectors = await embedWhole(['x', 'x x x z y y y', 'y'], { length: counter.countText, most: 4, embed })
    expect(asked).toEqual(['x', 'x x x z', ' y y y', 'y'])
    expect([...vectors[0]!]).toEqual([1, 0])
    expect(vectors[1]![0]! / vectors[1]![1]!).toBeCloseTo(4 / 3, 6)
    expect(Math.hypot(...vectors[1]!)).toBeCloseTo(1, 6)
    expect([...vectors[2]!]).toEqual([0, 1])
  })
})
