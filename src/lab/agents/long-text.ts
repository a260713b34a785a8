/** Owns a text that is longer than what reads it: taken in parts that end with sentences, trimmed in the middle, told by its ends. */
import { setImmediate } from 'node:timers/promises'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { SampleEngine } from './define.js'

/** A stretch of the text. */
export interface TextChunk {
  readonly text: string
  readonly tokens: number
}

/** What counts, and may be cancelled meanwhile. */
export interface Counter {
  countText(text: string): number
  refuseCancelled(): void
}

/** Milliseconds of counting at a stretch; other samples run between. */
const STRETCH = 20
/** Guesses by proportion before the rest is halved. */
const GUESSES = 6

/** All of a chunk is counted at once, a few times, until it is as long as may be: counting every sentence alone takes much longer. */
export class LongText {
  /** Of all of it. */
  readonly tokens: number
  /** Sentences; one that is longer than what is asked for is cut where it stands. */
  readonly #parts: string[]

  constructor(
    readonly text: string,
    private readonly counter: Counter,
  ) {
    this.#parts = sentencesOf(text)
    this.tokens = counter.countText(text)
  }

  /**
   * The sentences from number `at` on that have at most `most` tokens together, a part of one where that alone has more; `end`: the number of the
   * next. Null at the end. May number those behind `at` anew.
   */
  take(at: number, most: number): (TextChunk & { readonly end: number }) | null {
    this.#cutLonger(at, most, 'first')
    const parts = this.#parts.slice(at)
    const { count, tokens } = this.#longest(parts.length, most, (many) => parts.slice(0, many).join(''))
    return count === 0 ? null : { text: parts.slice(0, count).join(''), tokens, end: at + count }
  }

  /** All of it in chunks of at most `most` tokens, as long as may be. @throws KvfoldError engine/cancelled */
  async chunks(most: number): Promise<TextChunk[]> {
    const chunks: TextChunk[] = []
    let rested = performance.now()
    for (let next = this.take(0, most); next !== null; next = this.take(next.end, most)) {
      chunks.push({ text: next.text, tokens: next.tokens })
      if (performance.now() - rested < STRETCH) continue
      await setImmediate()
      this.counter.refuseCancelled()
      rested = performance.now()
    }
    return chunks
  }

  /** At most `each` tokens from the beginning and from the end; what is in the one is not in the other. */
  ends(each: number): readonly [head: string, tail: string] {
    const head = this.take(0, each)
    if (head === null || head.end === this.#parts.length) return [head?.text ?? '', '']
    this.#cutLonger(this.#parts.length - 1, each, 'last')
    const parts = this.#parts.slice(head.end)
    const { count } = this.#longest(parts.length, each, (many) => parts.slice(-many).join(''))
    return [head.text, count === 0 ? '' : parts.slice(-count).join('')]
  }

  /** As much of the beginning as of the end, at most `most` tokens together; itself when it is not longer. */
  middleTrimmed(most: number): LongText {
    return this.tokens <= most ? this : new LongText(this.ends(Math.max(1, Math.floor(most / 2))).join(''), this.counter)
  }

  /** Cuts the part at `at` in halves until its first or last piece has at most `most` tokens, or cannot be cut. */
  #cutLonger(at: number, most: number, side: 'first' | 'last'): void {
    for (let index = at; ;) {
      const part = this.#parts[index]
      const halves = part === undefined || this.counter.countText(part) <= most ? null : halvesOf(part)
      if (halves === null) return
      this.#parts.splice(index, 1, ...halves)
      if (side === 'last') index++
    }
  }

  /** The largest number of parts, up to `all`, that have at most `most` tokens; 1 when one alone has more. */
  #longest(all: number, most: number, textOf: (many: number) => string): { readonly count: number; readonly tokens: number } {
    if (all === 0) return { count: 0, tokens: 0 }
    let fits = { count: 0, tokens: 0 }
    let over = { count: all + 1, tokens: Math.max(most + 1, (this.tokens * (all + 1)) / this.#parts.length) }
    for (let guess = 0; over.count - fits.count > 1; guess++) {
      const share = guess < GUESSES ? (most - fits.tokens) / (over.tokens - fits.tokens) : 0.5
      const step = Math.floor(share * (over.count - fits.count))
      const count = Math.min(over.count - 1, Math.max(fits.count + 1, fits.count + step))
      const measured = { count, tokens: this.counter.countText(textOf(count)) }
      if (measured.tokens <= most) fits = measured
      else over = measured
    }
    return fits.count > 0 ? fits : { count: 1, tokens: over.tokens }
  }
}

// Where a long text may be cut: behind sentences, and behind what LongBench's splitter takes for their ends.

const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' })

/**
 * The text's sentences, each with the space before it, as tokenizers have it; joined they are the text. Semicolons and line ends end one, too: a
 * list would be one sentence otherwise.
 */
export function sentencesOf(text: string): string[] {
  const ends = Array.from(segmenter.segment(text), ({ index, segment }) => index + segment.trimEnd().length)
  for (const { index, 0: border } of text.matchAll(/[;；]|(?<=\S)\n/gu)) ends.push(border === '\n' ? index : index + 1)
  return cutAt(text, ends)
}

/** Two parts, cut before the space nearest to the middle, else in the middle; null for a single character. Joined they are the text. */
export function halvesOf(text: string): readonly [string, string] | null {
  const middle = text.length / 2
  let best: number | null = null
  for (const { index } of text.matchAll(/(?<=\S)\s/gu))
    if (best === null || Math.abs(index - middle) < Math.abs(best - middle)) best = index
  const at = best ?? wholeCharacter(text, Math.floor(middle))
  return at <= 0 || at >= text.length ? null : [text.slice(0, at), text.slice(at)]
}

/** The text cut at these places, in any order; a part of nothing but space goes with the next, or with the last where there is none. */
function cutAt(text: string, places: readonly number[]): string[] {
  const parts: string[] = []
  let start = 0
  for (const end of [...new Set(places)].sort((one, other) => one - other)) {
    if (text.slice(start, end).trim() === '') continue
    parts.push(text.slice(start, end))
    start = end
  }
  const rest = text.slice(start)
  if (rest.trim() !== '' || (rest !== '' && parts.length === 0)) parts.push(rest)
  else if (rest !== '') parts.push((parts.pop() ?? '') + rest)
  return parts
}

/** The place itself, or the one before it when it stands within a surrogate pair; behind the pair where that is the beginning. */
function wholeCharacter(text: string, at: number): number {
  const isInside = /[\uD800-\uDBFF]/.test(text[at - 1] ?? '') && /[\uDC00-\uDFFF]/.test(text[at] ?? '')
  if (!isInside) return at
  return at - 1 > 0 ? at - 1 : at + 1
}

// What of a text or a list goes into a prompt so that the window holds it and an answer.

/**
 * The first of `items`, as many as fit a prompt with `reserve` tokens after it (at most a quarter of the window is reserved). Pure.
 * @throws KvfoldError context/full when not even one does, and there is one
 */
export function fitting<Item>(
  engine: SampleEngine,
  items: readonly Item[],
  promptOf: (items: readonly Item[]) => readonly ChatMessage[],
  reserve: number,
): readonly Item[] {
  const room = engine.window - Math.min(reserve, Math.floor(engine.window / 4))
  let kept = items.length
  while (kept > 0 && engine.count(promptOf(items.slice(0, kept)), []) > room) kept--
  if (kept === 0 && items.length > 0) throw full(engine.window, 'the question and what was found for it')
  return items.slice(0, kept)
}

export interface PartOptions {
  /** Tokens. */
  readonly most: number
  /** Tokens kept free behind the prompt. */
  readonly reserve: number
  readonly promptOf: (text: string) => readonly ChatMessage[]
}

/**
 * The part of the text from sentence `at` on that goes into the next prompt: at most `most` tokens, fewer where the window does not hold them.
 * Null at the end of the text.
 * @throws KvfoldError context/full when there is no room for any
 */
export function nextPart(
  engine: SampleEngine,
  text: LongText,
  at: number,
  { most, reserve, promptOf }: PartOptions,
): (TextChunk & { readonly end: number }) | null {
  const room = engine.window - engine.count(promptOf(''), []) - reserve
  const part = text.take(at, Math.max(1, Math.min(most, room)))
  if (part !== null && part.tokens > room) throw full(engine.window, 'a part of the text beside the question')
  return part
}

const full = (window: number, what: string): KvfoldError =>
  new KvfoldError('context/full', `The window of ${window} tokens has no room for ${what}; take a larger one.`)
