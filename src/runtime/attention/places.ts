/** Finds spans of messages among the shown tokens, also when edits hide some of their characters. */
import type { ChatFormat, RenderedMessage, RenderRequest } from '../chat/format.js'
import type { Edit } from '../chat/message.js'
import { overlaps, span, type Span } from '../core/span.js'

/** A character span of one message's original content. */
export interface MessageSpan {
  readonly message: number
  readonly chars: Span
}

/** A rendered prompt, and where the requested spans are in it. */
export interface PlacedSpans {
  readonly tokens: Int32Array
  readonly messages: readonly RenderedMessage[]
  /**
   * For each requested span, in order: the shown tokens that have at least one of its characters. `hidden`: an edit hides one of its
   * characters, or the template shows none.
   */
  readonly stretches: readonly (Span | 'hidden')[]
  /** The spans of the markers, in order. */
  readonly markers: readonly Span[]
}

type WatchedPrompt = Pick<RenderRequest, 'messages' | 'tools' | 'edits' | 'generationPrompt'>

/** Finds spans of messages in the prompt. None may be in a message with `sampled` tokens. @throws KvfoldError as ChatFormat.render */
export function place(format: ChatFormat, prompt: WatchedPrompt, stretches: readonly MessageSpan[]): PlacedSpans {
  const { tokens, messages, origin } = format.render(prompt)
  const base = basePlaces(format, prompt, stretches)
  return {
    tokens,
    messages,
    stretches: base.map((found) => (found === null ? 'hidden' : shifted(found, origin.holes))),
    markers: origin.holes.map((hole) => {
      const start = hole.span.start + shiftAt(hole.span.start, origin.holes)
      return span(start, start + hole.marker)
    }),
  }
}

/** Returns where the spans are in the unedited prompt; null for a span that it does not show. */
function basePlaces(
  format: ChatFormat,
  { messages, tools = [], generationPrompt = true }: WatchedPrompt,
  stretches: readonly MessageSpan[],
): (Span | null)[] {
  const prompt: WatchedPrompt = { messages, tools, generationPrompt }
  const snapped = stretches.map(({ message, chars }): MessageSpan => ({
    message,
    chars: format.snap({ messages, tools, message, chars }),
  }))
  const pieces = piecesBetween(snapped)
  const places = probe(format, prompt, pieces)
  return snapped.map(({ message, chars }) => {
    const inside = pieces.flatMap((piece, index) =>
      piece.message === message && chars.start <= piece.chars.start && piece.chars.end <= chars.end && places[index] != null
        ? [places[index]]
        : [],
    )
    const [first] = inside
    return first === undefined ? null : span(first.start, inside.at(-1)!.end)
  })
}

/** Cuts the spans at each other's ends, so that no two pieces overlap. Returns the pieces in order. */
function piecesBetween(stretches: readonly MessageSpan[]): MessageSpan[] {
  const borders = new Map<number, Set<number>>()
  for (const { message, chars } of stretches) {
    const of = borders.get(message) ?? new Set()
    borders.set(message, of.add(chars.start).add(chars.end))
  }
  return [...borders]
    .sort(([a], [b]) => a - b)
    .flatMap(([message, of]) => {
      const sorted = [...of].sort((a, b) => a - b)
      return sorted.slice(1).map((end, index) => ({ message, chars: span(sorted[index]!, end) }))
    })
}

/** Returns the tokens of each piece, found by rendering edits that hide the pieces. */
function probe(format: ChatFormat, prompt: WatchedPrompt, pieces: readonly MessageSpan[]): (Span | null)[] {
  const holes = (of: readonly MessageSpan[]): readonly { readonly span: Span }[] => {
    const edits = of.map(({ message, chars }): Edit => ({ message, span: chars, replacement: '' }))
    return format.render({ ...prompt, edits }).origin.holes
  }
  const all = holes(pieces)
  if (all.length === pieces.length) return all.map((hole) => hole.span)
  // An edit of a piece that the template does not show leaves no hole. To know which piece has none, render one edit at a time.
  return pieces.map((piece) => holes([piece])[0]?.span ?? null)
}

interface Hole {
  readonly span: Span
  readonly marker: number
}

function shifted(base: Span, holes: readonly Hole[]): Span | 'hidden' {
  if (holes.some((hole) => overlaps(hole.span, base))) return 'hidden'
  const shift = shiftAt(base.start, holes)
  return span(base.start + shift, base.end + shift)
}

/** Returns by how many tokens the holes before `at` shift it. `at`: a token index in the unedited prompt. */
const shiftAt = (at: number, holes: readonly Hole[]): number =>
  holes.reduce((sum, { span: { start, end }, marker }) => (end <= at ? sum + marker - (end - start) : sum), 0)
