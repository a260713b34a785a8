/**
 * Draws a context as a bar: its tokens in order, as one line of character cells. Follows an agent's turn while it runs.
 * The caller gives the colours and glyphs.
 */
import type { AgentEvent } from '../../../runtime/agents/tool-loop.js'
import type { Session } from '../../../runtime/agents/session.js'
import { noted } from '../../../runtime/context/size-note.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'

/**
 * What happened to a token. `reused`: it was in the cache. `recomputed`: it was shown before and is computed again. `new`: it is shown for
 * the first time. `folded`: it is hidden; the bar draws it at its marker. `waiting`: it is shown, and this step has yet to compute it.
 */
export type TokenShare = 'reused' | 'recomputed' | 'new' | 'folded' | 'waiting'

/** Adjacent tokens with the same share. */
export interface TokenRun {
  readonly share: TokenShare
  readonly tokens: number
}

/** The glyph of a cell of each share. Readers can distinguish the glyphs without colour. */
export const glyphs = {
  unicode: { reused: '█', recomputed: '▚', new: '+', folded: '░', waiting: '·' },
  ascii: { reused: '#', recomputed: '%', new: '+', folded: ':', waiting: '.' },
} as const satisfies Record<string, Record<TokenShare, string>>

/** The legend's entries in order, with their words. */
export const shares = [
  ['reused', 'reused from the cache'],
  ['recomputed', 'recomputed after an edit'],
  ['new', 'new'],
  ['folded', 'folded away'],
  ['waiting', 'not computed yet'],
] as const satisfies readonly (readonly [TokenShare, string])[]

/** Joins adjacent stretches of the same share and leaves out empty ones. */
export function joined(stretches: readonly TokenRun[]): TokenRun[] {
  const result: TokenRun[] = []
  for (const { share, tokens } of stretches) {
    const last = result.at(-1)
    if (tokens <= 0) continue
    if (last?.share === share) result[result.length - 1] = { share, tokens: last.tokens + tokens }
    else result.push({ share, tokens })
  }
  return result
}

/**
 * Returns the share of each cell of the bar, in order. `capacity` tokens fill the width, or all tokens when there are more. A shorter
 * context leaves the rest of the line empty, so that bars with one capacity compare by length. Stretches get cells in proportion to their
 * tokens. Where the width allows, every stretch gets at least one cell, so that a marker of ten tokens is visible among thousands.
 * Otherwise each cell shows the share of most of its tokens.
 */
export function cells(stretches: readonly TokenRun[], width: number, capacity = 0): TokenShare[] {
  const parts = joined(stretches)
  const total = parts.reduce((sum, { tokens }) => sum + tokens, 0)
  if (total === 0 || width <= 0) return []
  const filled = Math.max(1, Math.round((width * total) / Math.max(total, capacity)))
  return parts.length <= filled ? dealt(parts, total, filled) : sampled(parts, total, filled)
}

/** Gives each stretch one cell, and the remaining cells in proportion to tokens by the largest remainder. */
function dealt(parts: readonly TokenRun[], total: number, filled: number): TokenShare[] {
  const owed = parts.map(({ tokens }) => Math.max(0, (tokens * filled) / total - 1))
  const owedInAll = owed.reduce((sum, value) => sum + value, 0)
  const spare = filled - parts.length
  const exact = owed.map((value) => (owedInAll === 0 ? spare / parts.length : (value * spare) / owedInAll))
  const sizes = exact.map((value) => 1 + Math.floor(value))
  const rest = filled - sizes.reduce((sum, value) => sum + value, 0)
  const byRemainder = exact
    .map((value, index) => ({ index, remainder: value - Math.floor(value) }))
    .sort((a, b) => b.remainder - a.remainder)
  for (const { index } of byRemainder.slice(0, rest)) sizes[index]!++
  return parts.flatMap(({ share }, index) => Array.from({ length: sizes[index]! }, () => share))
}

/** Returns for each cell the share of most tokens in its part of the context. */
function sampled(parts: readonly TokenRun[], total: number, filled: number): TokenShare[] {
  const result: TokenShare[] = []
  let part = 0
  let partStart = 0
  for (let cell = 0; cell < filled; cell++) {
    const end = ((cell + 1) * total) / filled
    let at = (cell * total) / filled
    const held = new Map<TokenShare, number>()
    while (at < end && part < parts.length) {
      const { share, tokens } = parts[part]!
      const until = Math.min(end, partStart + tokens)
      held.set(share, (held.get(share) ?? 0) + until - at)
      at = until
      if (partStart + tokens > end) break
      partStart += tokens
      part++
    }
    const [most] = [...held].sort((a, b) => b[1] - a[1])
    result.push(most?.[0] ?? parts.at(-1)!.share)
  }
  return result
}

/** Returns the bar as text, padded with blanks to `width`. Paints each run of one share in one call. */
export function contextBar(
  stretches: readonly TokenRun[],
  options: {
    readonly width: number
    readonly capacity?: number
    readonly glyphs: Readonly<Record<TokenShare, string>>
    readonly paint?: (share: TokenShare, text: string) => string
  },
): string {
  const { width, capacity, glyphs: glyph, paint = (_share: TokenShare, text: string) => text } = options
  const drawn = cells(stretches, width, capacity)
  let text = ''
  for (let start = 0; start < drawn.length;) {
    const share = drawn[start]!
    let end = start
    while (drawn[end] === share) end++
    text += paint(share, glyph[share].repeat(end - start))
    start = end
  }
  return text + ' '.repeat(Math.max(0, width - drawn.length))
}

// The context of a running turn: the tracker follows the agent's events and has the stretches to draw at any moment.

/** The progress of the step. `reading`: it computes its prompt; `share` 0..1 is done. `writing`: it has generated `tokens` so far. */
export type StepProgress =
  | { readonly kind: 'idle' }
  | { readonly kind: 'reading'; readonly share: number }
  | { readonly kind: 'writing'; readonly tokens: number }

export class Tracker {
  /** The number of the step, from 1; 0 before the first step. */
  step = 0
  progress: StepProgress = { kind: 'idle' }
  #messages: readonly MessageShares[] = []
  #folded: readonly FoldedPlace[] = []
  #sizes: readonly { readonly index: number; readonly tokens: number }[] = []
  /** Number of messages that the last step showed, its answer included. */
  #known = 0
  #reused = 0
  #done = 0
  #written = 0
  #capacity = 0
  readonly #lengths = new Map<string, number>()

  constructor(
    private readonly engine: LlamaEngine,
    private readonly session: Session,
  ) {}

  /** The context as stretches: from the ledger once the step is finished, before that from its plan and progress. */
  get stretches(): TokenRun[] {
    return picture(this.#messages, this.#folded)
  }

  /** Tokens of the turn's longest context so far, folded text included. Bars drawn with this capacity compare by length. */
  get capacity(): number {
    return this.#capacity
  }

  onEvent(event: AgentEvent): void {
    if (event.type === 'step') this.#begin(event.step)
    else if (event.type === 'ledger' && event.entry.kind !== 'summary') {
      this.progress = { kind: 'idle' }
      this.#known = event.entry.messages.length
      this.#messages = event.entry.messages
      this.#measure()
    } else if (event.type === 'engine') {
      const { event: inner } = event
      if (inner.type === 'plan') this.#reused = inner.reused
      else if (inner.type === 'prefill') {
        this.#done = inner.done
        this.progress = { kind: 'reading', share: inner.total === 0 ? 1 : inner.done / inner.total }
      } else if (inner.type === 'tokens') {
        this.#written += inner.tokens.length
        this.progress = { kind: 'writing', tokens: this.#written }
      } else return
      this.#draw()
    }
  }

  #begin(step: number): void {
    this.step = step + 1
    this.progress = { kind: 'reading', share: 0 }
    this.#reused = 0
    this.#done = 0
    this.#written = 0
    const { conversation, toolbox } = this.session
    const rendered = this.engine.format.render({
      messages: noted(conversation.messages, toolbox.definitions),
      tools: toolbox.definitions,
      edits: conversation.edits(),
    })
    this.#sizes = rendered.messages.map(({ index, span }) => ({ index, tokens: span.end - span.start }))
    this.#folded = rendered.messages.flatMap(({ index, span, content }) =>
      this.#places(index, content === null ? 0 : content.tokens.start - span.start),
    )
    this.#draw()
  }

  /** Returns the places of a message's folded text, in tokens. `header`: the tokens before the message's content. */
  #places(message: number, header: number): FoldedPlace[] {
    const { conversation } = this.session
    const content = conversation.messages[message]?.content ?? ''
    let offset = header
    let at = 0
    return conversation
      .edits()
      .filter((edit) => edit.message === message)
      .map(({ span: { start, end }, replacement }) => {
        offset += this.#length(content.slice(at, start))
        const place = { message, offset, marker: this.#length(replacement), hidden: this.#length(content.slice(start, end)) }
        offset += place.marker
        at = end
        return place
      })
  }

  #draw(): void {
    const sizes = this.#sizes.map((size, at) =>
      at === this.#sizes.length - 1 ? { ...size, tokens: size.tokens + this.#written } : size,
    )
    this.#messages = underWay(sizes, this.#reused, this.#done + this.#written, this.#known)
    this.#measure()
  }

  #measure(): void {
    const total = this.stretches.reduce((sum, { tokens }) => sum + tokens, 0)
    this.#capacity = Math.max(this.#capacity, total)
  }

  /** Returns the number of tokens of a text; remembers it, because fragments do not change. */
  #length(text: string): number {
    let length = this.#lengths.get(text)
    if (length === undefined) this.#lengths.set(text, (length = this.engine.model.tokenize(text).length))
    return length
  }
}

/** Returns the number of shown tokens in all and by share, and of folded ones. `new` leaves out the waiting tokens; `shown` has them. */
export function figuresOf(stretches: readonly TokenRun[]): Record<'shown' | 'reused' | 'recomputed' | 'new' | 'folded', number> {
  const [reused, recomputed, fresh, waiting, folded] = (['reused', 'recomputed', 'new', 'waiting', 'folded'] as const).map(
    (share) => tokensOf(stretches, share),
  ) as [number, number, number, number, number]
  return { shown: reused + recomputed + fresh + waiting, reused, recomputed, new: fresh, folded }
}

// Turns a step's counts into the stretches of a bar: in the order of the sequence, with folded text at its place.

/** A message's tokens by share. `fresh` tokens are shown for the first time; `waiting` tokens have yet to be computed. */
export interface MessageShares {
  /** Index of the message in the conversation. */
  readonly index: number
  readonly reused: number
  readonly recomputed: number
  readonly fresh: number
  readonly waiting?: number
}

/** Hidden text: `offset` tokens of its message are shown before its marker; the `marker` tokens stand for the `hidden` ones. */
export interface FoldedPlace {
  readonly message: number
  readonly offset: number
  readonly marker: number
  readonly hidden: number
}

/**
 * Returns the context as stretches. Under contract `exact` the reused tokens come first in every message, and the computed ones follow.
 * In an edited message the new tokens are at its first marker, and the recomputed tokens are before and after them. (The ledger counts all
 * tokens between the first and the last change as new.) Without markers the new tokens come last, because messages grow at their end.
 */
export function picture(messages: readonly MessageShares[], folded: readonly FoldedPlace[]): TokenRun[] {
  return joined(
    messages.flatMap((message) => {
      const places = folded.filter((place) => place.message === message.index).sort((a, b) => a.offset - b.offset)
      return withHidden(shown(message, places[0]), places)
    }),
  )
}

function shown({ reused, recomputed, fresh, waiting = 0 }: MessageShares, first: FoldedPlace | undefined): TokenRun[] {
  const ahead = first === undefined ? recomputed : Math.min(recomputed, Math.max(0, first.offset - reused))
  return [
    { share: 'reused', tokens: reused },
    { share: 'recomputed', tokens: ahead },
    { share: 'new', tokens: fresh },
    { share: 'recomputed', tokens: recomputed - ahead },
    { share: 'waiting', tokens: waiting },
  ]
}

/** Inserts a folded stretch after each marker of a message. */
function withHidden(stretches: readonly TokenRun[], places: readonly FoldedPlace[]): TokenRun[] {
  const result: TokenRun[] = []
  const queue = places.map(({ offset, marker, hidden }) => ({ at: offset + marker, hidden }))
  let at = 0
  for (const { share, tokens } of stretches) {
    let left = tokens
    while (queue[0] !== undefined && queue[0].at <= at + left) {
      const { at: place, hidden } = queue.shift()!
      const before = Math.max(0, place - at)
      result.push({ share, tokens: before }, { share: 'folded', tokens: hidden })
      at += before
      left -= before
    }
    result.push({ share, tokens: left })
    at += left
  }
  for (const { hidden } of queue) result.push({ share: 'folded', tokens: hidden })
  return result
}

/**
 * Returns the shares of a step that still runs. Of messages with these sizes, the first `reused` tokens are in the cache, `done` more are
 * computed, and the rest waits. The last step showed the messages before index `known`, so their computed tokens count as recomputed.
 * The ledger has the exact counts later.
 */
export function underWay(
  sizes: readonly { readonly index: number; readonly tokens: number }[],
  reused: number,
  done: number,
  known: number,
): MessageShares[] {
  let there = reused
  let computed = done
  return sizes.map(({ index, tokens }) => {
    const kept = Math.min(there, tokens)
    const made = Math.min(computed, tokens - kept)
    there -= kept
    computed -= made
    const again = index < known
    return { index, reused: kept, recomputed: again ? made : 0, fresh: again ? 0 : made, waiting: tokens - kept - made }
  })
}

/** Returns the number of tokens of one share. */
export const tokensOf = (stretches: readonly TokenRun[], share: TokenShare): number =>
  stretches.reduce((sum, stretch) => sum + (stretch.share === share ? stretch.tokens : 0), 0)
