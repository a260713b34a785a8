/**
 * Tokenizes a rendered prompt in stretches between control tokens. So text from outside never becomes a control token, and unchanged
 * stretches come from a cache. Also declares the tokenizer interface.
 */
import { atOnce, inTurns, type Steps, turn } from '../../core/turns.js'
import { joined } from '../../core/vectors.js'
import type { Tracked } from '../tracked.js'
import { align, alignSteps, type Aligned, concatenateSteps, type Habits } from './aligned.js'

/** A span of the text whose tokens are given. If `tokens` is null, the span is tokenized apart from the text around it. */
export interface Fixed {
  readonly start: number
  readonly end: number
  readonly tokens: Int32Array | null
}

/** A control token: its text, and whether it swallows white space before and after it. */
interface Control {
  readonly token: number
  readonly text: string
  readonly stripsBefore: boolean
  readonly stripsAfter: boolean
}

/** A control token and its offset in the text. */
interface Occurrence {
  readonly at: number
  readonly control: Control
}

/** A piece of a prompt: its tokens, or the text that must still be tokenized. */
interface Part {
  readonly at: number
  readonly made: Aligned | { readonly text: string; readonly inner: boolean }
}

/** How many pieces, parts or texts are handled between two yields to the event loop. */
const STEP = 1024
/** The size of the token cache, in characters of text. */
const CACHE_CHARACTERS = 32 << 20
const decoder = new TextDecoder()

/** Control tokens of gpt-oss. llama.cpp changes their type, so that it matches them in plain text, too. */
const HARMONY_TEXTS = ['<|start|>', '<|channel|>', '<|message|>', '<|constrain|>']
const HARMONY = /<\|(?:start|channel|message|constrain)\|>/g

export class Encoder {
  readonly #pieces = new Map<number, Uint8Array>()
  readonly #controls = new Map<number, Control>()
  /** For each token: its properties if the tokenizer matches it as a whole even in plain text; null for other tokens. */
  readonly #wholes = new Map<number, Control | null>()
  readonly #stretches = new Recent<Aligned>(CACHE_CHARACTERS)
  readonly #answers = new WeakMap<Int32Array, { readonly text: string; readonly aligned: Aligned }>()
  readonly #literals = new Recent<readonly Occurrence[]>(CACHE_CHARACTERS / 8)
  readonly #habits: Habits
  /** The tokens of HARMONY_TEXTS that the tokenizer matches in plain text, too. They are control tokens here all the same. */
  readonly #harmony: ReadonlySet<number>

  constructor(private readonly tokenizer: Tokenizer) {
    const [first] = tokenizer.tokenize('x')
    this.#habits = {
      prefixesSpace: first !== undefined && this.piece(first)[0] === 0x20,
      matched: (token) => this.#matched(token),
    }
    // These tokens exist in byte-level vocabularies only. Others would add a space before each part of a cut text.
    const texts = this.#habits.prefixesSpace ? [] : HARMONY_TEXTS
    const made = texts.map((text) => tokenizer.tokenize(text)).filter(({ length }) => length === 1)
    this.#harmony = new Set(made.map(([token]) => token!))
  }

  /** Returns the bytes of a token. A control token is written as text, such as `<|im_end|>`. */
  readonly piece = (token: number): Uint8Array => {
    let bytes = this.#pieces.get(token)
    if (bytes === undefined) this.#pieces.set(token, (bytes = this.tokenizer.piece(token, true)))
    return bytes
  }

  /** Finds the control tokens in text that the template itself writes. */
  controls(text: Tracked): Occurrence[] {
    return atOnce(this.#controlSteps(atOnce(literalsIn(text))))
  }

  *#controlSteps(literals: readonly Literal[], ready?: ReadonlyMap<string, readonly Occurrence[]>): Steps<Occurrence[]> {
    const found: Occurrence[] = []
    for (const [index, { at, text }] of literals.entries()) {
      if (index % STEP === STEP - 1) yield
      const inside = ready?.get(text) ?? this.#inLiteral(text)
      for (const { at: place, control } of inside) found.push({ at: at + place, control })
    }
    return found
  }

  /**
   * Finds the control tokens in long literals (text that the template itself writes), on another thread if the tokenizer can. Literals can
   * be long, because numbers in a request become literals.
   */
  async #inLongLiterals(literals: readonly Literal[]): Promise<ReadonlyMap<string, readonly Occurrence[]>> {
    const long = [...new Set(literals.filter(({ text }) => text.length > LONG_LITERAL).map(({ text }) => text))]
    const all = long.length === 0 ? [] : ((await this.tokenizer.tokenizeAll?.(long, { parseSpecial: true })) ?? [])
    const ready = new Map<string, readonly Occurrence[]>()
    for (const [index, tokens] of all.entries()) {
      await turn()
      const text = long[index]!
      const found = this.#occurrences(text, tokens)
      ready.set(text, found)
      this.#literals.put(text, found)
    }
    return ready
  }

  /**
   * Tokenizes a whole prompt, with BOS if the model wants it. `fixed` must be disjoint and in order. Without `fixed`, the result is that of
   * tokenizing the whole text at once, unless content looks like a control token.
   */
  encode(text: Tracked, fixed: readonly Fixed[] = []): Aligned {
    return atOnce(this.#joined(atOnce(this.#parts(text, fixed, this.controls(text))), text.length))
  }

  /** Like `encode`, but yields to the event loop while it tokenizes long texts. */
  async encodeInTurns(text: Tracked, fixed: readonly Fixed[] = []): Promise<Aligned> {
    const literals = await inTurns(literalsIn(text))
    const controls = await inTurns(this.#controlSteps(literals, await this.#inLongLiterals(literals)))
    const planned = await inTurns(this.#parts(text, fixed, controls))
    const ready = new Map<string, Aligned>()
    const missing = await inTurns(this.#missing(planned, ready))
    for (let at = 0; at < missing.length; at += STEP) await this.#tokenizeInTurns(missing.slice(at, at + STEP), ready)
    return inTurns(this.#joined(planned, text.length, ready))
  }

  /** Puts what the cache has for the texts of the parts into `ready`. Returns the texts that it does not have, each once. */
  *#missing(parts: readonly Part[], ready: Map<string, Aligned>): Steps<string[]> {
    const missing = new Set<string>()
    for (const [index, { made }] of parts.entries()) {
      if (index % STEP === STEP - 1) yield
      if ('tokens' in made) continue
      const text = this.#key(made)
      const known = this.#stretches.find(text)
      if (known === undefined) missing.add(text)
      else ready.set(text, known)
    }
    return [...missing]
  }

  /** Tokenizes texts, on another thread if the tokenizer can. */
  async #tokenizeInTurns(texts: readonly string[], ready: Map<string, Aligned>): Promise<void> {
    const { tokenizer } = this
    const cut = this.#harmony.size === 0 ? texts.map((text) => [text]) : await inTurns(this.#cutAll(texts))
    const parts = cut.flat()
    const made = (await tokenizer.tokenizeAll?.(parts)) ?? parts.map((text) => tokenizer.tokenize(text))
    const { piece } = this
    const habits = this.#habits
    const stretches = this.#stretches
    await inTurns(
      (function* () {
        let at = 0
        for (const [index, text] of texts.entries()) {
          const tokens = joined(made.slice(at, (at += cut[index]!.length)))
          const aligned = yield* alignSteps(text, tokens, piece, habits)
          ready.set(text, aligned)
          stretches.put(text, aligned)
          yield
        }
      })(),
    )
  }

  *#joined(planned: readonly Part[], length: number, ready?: ReadonlyMap<string, Aligned>): Steps<Aligned> {
    const parts: { readonly at: number; readonly aligned: Aligned }[] = []
    for (const { at, made } of planned) {
      if (parts.length % STEP === STEP - 1) yield
      parts.push({ at, aligned: this.#made(made, ready) })
    }
    return yield* concatenateSteps(parts, length)
  }

  *#parts({ value }: Tracked, fixed: readonly Fixed[], controls: readonly Occurrence[]): Steps<Part[]> {
    const { bos, addBos } = this.tokenizer.special
    const parts: Part[] = []
    const writesBos = controls[0]?.at === 0 && controls[0].control.token === bos
    if (bos !== null && addBos && !writesBos) parts.push({ at: 0, made: single(bos, 0) })
    // The sort is stable. So a fixed span stays before the control token that it begins with, and covers it.
    const stops = [
      ...fixed.map(({ start, end, tokens }) => ({
        at: start,
        end,
        made: tokens === null ? { text: value.slice(start, end), inner: true } : this.#given(value.slice(start, end), tokens),
        control: null,
      })),
      ...controls.map(({ at, control }) => ({
        at,
        end: at + control.text.length,
        made: single(control.token, control.text.length),
        control,
      })),
    ].sort((a, b) => a.at - b.at)
    let at = 0
    let previous: Control | 'start' | 'fixed' = 'start'
    for (const [index, stop] of stops.entries()) {
      if (index % STEP === STEP - 1) yield
      if (stop.at < at) continue
      parts.push(...this.#between(value, at, stop.at, previous, stop.control))
      parts.push({ at: stop.at, made: stop.made })
      at = stop.end
      previous = stop.control ?? 'fixed'
    }
    parts.push(...this.#between(value, at, value.length, previous, null))
    return parts
  }

  /** Aligns given tokens with their text. Alignments of sampled answers are cached, because each step builds its prompt anew. */
  #given(text: string, tokens: Int32Array): Aligned {
    const known = this.#answers.get(tokens)
    if (known?.text === text) return known.aligned
    const aligned = align(text, tokens, this.piece, this.#habits)
    this.#answers.set(tokens, { text, aligned })
    return aligned
  }

  #made(made: Part['made'], ready?: ReadonlyMap<string, Aligned>): Aligned {
    if ('tokens' in made) return made
    return made.inner ? this.#innerAligned(made.text, ready) : (ready?.get(made.text) ?? this.#stretch(made.text))
  }

  /** Returns the text to tokenize for a part. It is also the key in the cache. */
  #key({ text, inner }: { readonly text: string; readonly inner: boolean }): string {
    return inner && this.#habits.prefixesSpace ? ANCHORS[0] + text : text
  }

  /** Tokenizes text that stands in the middle of a prompt: no control tokens, and no space added before it. */
  inner(text: string, ready?: ReadonlyMap<string, Aligned>): Int32Array {
    if (text === '') return new Int32Array()
    const stretch = (of: string) => ready?.get(of) ?? this.#stretch(of)
    if (!this.#habits.prefixesSpace) return stretch(text).tokens
    for (const anchor of ANCHORS) {
      const { tokens, starts, borders } = stretch(anchor + text)
      const index = starts.findIndex((start, at) => start === 1 && borders[at] === 1)
      if (index > 0) return tokens.slice(index)
    }
    return stretch(text).tokens
  }

  /** Like `inner`, but also returns which characters each token shows. */
  innerAligned(text: string): Aligned {
    return this.#innerAligned(text)
  }

  #innerAligned(text: string, ready?: ReadonlyMap<string, Aligned>): Aligned {
    if (text !== '' && !this.#habits.prefixesSpace) return ready?.get(text) ?? this.#stretch(text)
    return align(text, this.inner(text, ready), this.piece, this.#habits)
  }

  #between(value: string, start: number, end: number, before: Control | 'start' | 'fixed', after: Control | null): Part[] {
    let text = value.slice(start, end)
    let at = start
    if (typeof before !== 'string' && before.stripsAfter) {
      const kept = text.replace(/^[ \t\n\v\f\r]+/, '')
      at += text.length - kept.length
      text = kept
    }
    if (after?.stripsBefore === true) text = text.slice(0, endWithoutSpaces(text))
    if (text === '') return []
    return [{ at, made: { text, inner: before === 'fixed' } }]
  }

  #stretch(text: string): Aligned {
    return this.#stretches.get(text, () => {
      const parts = atOnce(this.#cut(text)).map((part) => this.tokenizer.tokenize(part))
      return align(text, joined(parts), this.piece, this.#habits)
    })
  }

  /** Cuts a text from outside within each text of a `#harmony` token. So the tokenizer, which gets the parts, matches none. */
  *#cut(text: string): Steps<readonly string[]> {
    if (this.#harmony.size === 0) return [text]
    const parts: string[] = []
    let at = 0
    for (const { index } of text.matchAll(HARMONY)) {
      if (parts.length % STEP === STEP - 1) yield
      parts.push(text.slice(at, index + 1))
      at = index + 1
    }
    parts.push(text.slice(at))
    return parts
  }

  *#cutAll(texts: readonly string[]): Steps<(readonly string[])[]> {
    const cut: (readonly string[])[] = []
    for (const text of texts) {
      cut.push(yield* this.#cut(text))
      yield
    }
    return cut
  }

  #inLiteral(text: string): readonly Occurrence[] {
    return this.#literals.get(text, () => this.#occurrences(text, this.tokenizer.tokenize(text, { parseSpecial: true })))
  }

  #occurrences(text: string, tokens: Int32Array): readonly Occurrence[] {
    const found: Occurrence[] = []
    let at = 0
    for (const token of tokens) {
      if (!this.tokenizer.isControl(token) && !this.#harmony.has(token)) continue
      const control = this.#control(token)
      const place = control.text === '' ? -1 : text.indexOf(control.text, at)
      if (place === -1) continue
      found.push({ at: place, control })
      at = place + control.text.length
    }
    return found
  }

  /**
   * Returns the token's properties if the tokenizer matches it as a whole in plain text; null if not. The test: the token's text alone must
   * give exactly this token.
   */
  #matched(token: number): Control | null {
    let matched = this.#wholes.get(token)
    if (matched === undefined) {
      const made = this.tokenizer.tokenize(decoder.decode(this.piece(token)))
      const isWhole = made.length === 1 && made[0] === token
      this.#wholes.set(token, (matched = isWhole ? this.#control(token) : null))
    }
    return matched
  }

  #control(token: number): Control {
    let control = this.#controls.get(token)
    if (control === undefined) this.#controls.set(token, (control = this.#probe(token)))
    return control
  }

  /** Finds out by trial whether a control token swallows white space. The `Tokenizer` interface does not tell. */
  #probe(token: number): Control {
    const text = decoder.decode(this.piece(token))
    const special = (whole: string) => this.tokenizer.tokenize(whole, { parseSpecial: true })
    const same = (a: Int32Array, b: readonly number[]) => a.length === b.length && b.every((value, index) => a[index] === value)
    const stripsAfter =
      !same(special(`${text} \nx`), [token, ...this.tokenizer.tokenize(' \nx')]) &&
      same(special(`${text} \nx`), [token, ...this.tokenizer.tokenize('x')])
    const stripsBefore =
      !same(special(`x \n${text}`), [...this.tokenizer.tokenize('x \n'), token]) &&
      same(special(`x \n${text}`), [...this.tokenizer.tokenize('x'), token])
    return { token, text, stripsBefore, stripsAfter }
  }
}

/** Text that the template itself wrote. */
interface Literal {
  readonly at: number
  readonly text: string
}

/** Longer literals, in characters, are tokenized on another thread. */
const LONG_LITERAL = 4096

function* literalsIn({ pieces }: Tracked): Steps<Literal[]> {
  const literals: Literal[] = []
  let at = 0
  let literal = ''
  const flush = () => {
    if (literal !== '') literals.push({ at: at - literal.length, text: literal })
    literal = ''
  }
  for (const [index, { text, origin }] of pieces.entries()) {
    if (index % STEP === STEP - 1) yield
    if (origin === 'template') literal += text
    else flush()
    at += text.length
  }
  flush()
  return literals
}

/**
 * Returns the offset at which the white space at the end of a text begins. A regular expression would take quadratic time on long runs of
 * spaces.
 */
function endWithoutSpaces(text: string): number {
  let end = text.length
  while (end > 0 && ' \t\n\v\f\r'.includes(text[end - 1]!)) end--
  return end
}

/** Texts before which no tokenizer adds a space. Text tokenized behind one of them gets no added space either. */
const ANCHORS = ['\n', ')', 'x'] as const

function single(token: number, length: number): Aligned {
  return {
    tokens: Int32Array.of(token),
    starts: Int32Array.of(0),
    ends: Int32Array.of(length),
    borders: Uint8Array.of(1),
    length,
  }
}

// An LRU cache of results by text, bounded by the total length of the texts.

class Recent<T> {
  /** In order of use: a Map iterates in insertion order, so `find` inserts a result again. */
  readonly #entries = new Map<string, T>()
  #characters = 0

  constructor(private readonly limit: number) {}

  get(text: string, make: () => T): T {
    const kept = this.find(text)
    if (kept !== undefined) return kept
    const made = make()
    this.put(text, made)
    return made
  }

  /** Returns the cached result of a text, and marks it as used; undefined when there is none. */
  find(text: string): T | undefined {
    const kept = this.#entries.get(text)
    if (kept === undefined) return undefined
    this.#entries.delete(text)
    this.#entries.set(text, kept)
    return kept
  }

  put(text: string, made: T): void {
    if (this.#entries.has(text)) return
    this.#entries.set(text, made)
    this.#characters += text.length + 1
    for (const [oldest] of this.#entries) {
      if (this.#characters <= this.limit || oldest === text) break
      this.#entries.delete(oldest)
      this.#characters -= oldest.length + 1
    }
  }
}

export interface Tokenizer {
  readonly special: {
    readonly bos: number | null
    readonly eos: number | null
    readonly addBos: boolean
  }
  tokenize(text: string, options?: { readonly addSpecial?: boolean; readonly parseSpecial?: boolean }): Int32Array
  /** Tokenizes each text on another thread. Without this function, `tokenize` is called on the caller's thread. */
  tokenizeAll?(texts: readonly string[], options?: { readonly parseSpecial?: boolean }): Promise<readonly Int32Array[]>
  /** Returns the bytes of one token, as its text is written. With `special`, control tokens have theirs, too. */
  piece(token: number, special?: boolean): Uint8Array
  isControl(token: number): boolean
}
