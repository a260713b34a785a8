/** Divides a text that is too long for a prompt into chunks that end at sentences, or keeps only its beginning and end. */
import { setImmediate } from 'node:timers/promises'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { SampleEngine } from './define.js'

/** A chunk of a long text, with its number of tokens. */
export interface TextChunk {
  readonly text: string
  readonly tokens: number
}

/** Counts tokens. `refuseCancelled` throws if the sample was cancelled. */
export interface Counter {
  countText(text: string): number
  refuseCancelled(): void
}

/** Milliseconds of counting after which `chunks` yields to the event loop, so that other samples can run. */
const STRETCH = 20
/** How many times `#longest` guesses by proportion. After that it bisects. */
const GUESSES = 6

/**
 * A long text, divided into sentences. To find the longest chunk within a limit, it counts the tokens of a few candidate chunks. Counting
 * every sentence alone would take much longer.
 */
export class LongText {
  readonly tokens: number
  /** The sentences. A sentence longer than a requested chunk is replaced by its pieces. */
  readonly #parts: string[]

  constructor(
    readonly text: string,
    private readonly counter: Counter,
  ) {
    this.#parts = sentencesOf(text)
    this.tokens = counter.countText(text)
  }

  /**
   * Takes as many sentences as fit into `most` tokens, from index `at` on. If the first of them alone is longer, takes a piece of it, and
   * the indexes of later sentences increase. `end`: index of the next sentence. Returns null at the end of the text.
   */
  take(at: number, most: number): (TextChunk & { readonly end: number }) | null {
    this.#cutLonger(at, most, 'first')
    const parts = this.#parts.slice(at)
    const { count, tokens } = this.#longest(parts.length, most, (many) => parts.slice(0, many).join(''))
    return count === 0 ? null : { text: parts.slice(0, count).join(''), tokens, end: at + count }
  }

  /** Returns the whole text as chunks, each with as many sentences as fit into `most` tokens. @throws KvfoldError engine/cancelled */
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

  /** Returns the beginning and the end of the text, at most `each` tokens each. The two do not overlap. */
  ends(each: number): readonly [head: string, tail: string] {
    const head = this.take(0, each)
    if (head === null || head.end === this.#parts.length) return [head?.text ?? '', '']
    this.#cutLonger(this.#parts.length - 1, each, 'last')
    const parts = this.#parts.slice(head.end)
    const { count } = this.#longest(parts.length, each, (many) => parts.slice(-many).join(''))
    return [head.text, count === 0 ? '' : parts.slice(-count).join('')]
  }

  /** Returns the text's beginning and end, at most `most` tokens together. Returns the text itself if it is not longer. */
  middleTrimmed(most: number): LongText {
    return this.tokens <= most ? this : new LongText(this.ends(Math.max(1, Math.floor(most / 2))).join(''), this.counter)
  }

  /** Halves the sentence at index `at` until its first or last piece (`side`) has at most `most` tokens, or is a single character. */
  #cutLonger(at: number, most: number, side: 'first' | 'last'): void {
    for (let index = at; ;) {
      const part = this.#parts[index]
      const halves = part === undefined || this.counter.countText(part) <= most ? null : halvesOf(part)
      if (halves === null) return
      this.#parts.splice(index, 1, ...halves)
      if (side === 'last') index++
    }
  }

  /**
   * Returns how many sentences, up to `all`, fit into `most` tokens together; 1 if one sentence alone has more. `textOf`: the text of the
   * first or last `many` sentences.
   */
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

// Below: the positions at which a long text may be divided: after sentences, semicolons and line ends. LongBench's splitter uses the same.

const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' })

/**
 * Returns the text's sentences; joined, they are the text. White space between two sentences belongs to the later one, as in tokenizers. A
 * semicolon or a line end also ends a sentence, because a whole list would otherwise be one.
 */
export function sentencesOf(text: string): string[] {
  const ends = Array.from(segmenter.segment(text), ({ index, segment }) => index + segment.trimEnd().length)
  for (const { index, 0: border } of text.matchAll(/[;；]|(?<=\S)\n/gu)) ends.push(border === '\n' ? index : index + 1)
  return cutAt(text, ends)
}

/** Divides a text in two at the white space nearest to its middle, or in the middle if it has none. Returns null for a single character. */
export function halvesOf(text: string): readonly [string, string] | null {
  const middle = text.length / 2
  let best: number | null = null
  for (const { index } of text.matchAll(/(?<=\S)\s/gu))
    if (best === null || Math.abs(index - middle) < Math.abs(best - middle)) best = index
  const at = best ?? wholeCharacter(text, Math.floor(middle))
  return at <= 0 || at >= text.length ? null : [text.slice(0, at), text.slice(at)]
}

/**
 * Divides the text at these positions, in any order. White space alone makes no piece: it joins the next piece, at the end the previous
 * one.
 */
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

/** Returns `at`, or an adjacent index if `at` would divide a surrogate pair. */
function wholeCharacter(text: string, at: number): number {
  const isInside = /[\uD800-\uDBFF]/.test(text[at - 1] ?? '') && /[\uDC00-\uDFFF]/.test(text[at] ?? '')
  if (!isInside) return at
  return at - 1 > 0 ? at - 1 : at + 1
}

// Below: how many items or how much text fits into a prompt whose answer must fit into the window too.

/**
 * Returns as many of the first items as fit into a prompt that leaves `reserve` tokens of the window free. The reserve is at most a quarter
 * of the window.
 * @throws KvfoldError context/full when not even one item fits
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
  if (kept === 0 && items.length > 0) throw full(engine.window, 'the question and the best passage')
  return items.slice(0, kept)
}

export interface PartOptions {
  /** The most tokens of the chunk. */
  readonly most: number
  /** Tokens of the window that stay free for the answer. */
  readonly reserve: number
  readonly promptOf: (text: string) => readonly ChatMessage[]
}

/**
 * Returns the next chunk of the text, from sentence index `at` on: at most `most` tokens, fewer if the window lacks room. Returns null at
 * the end of the text.
 * @throws KvfoldError context/full when the window has no room for any chunk
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
  new KvfoldError('context/full', `The window of ${window} tokens has no room for ${what}; use a larger one.`)
