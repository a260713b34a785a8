/** Finds the places that characters of messages have among the shown tokens, also where edits hide some of the characters. */
import type { ChatFormat, RenderedMessage, RenderRequest } from '../chat/format.js'
import type { Edit } from '../chat/message.js'
import { overlaps, span, type Span } from '../core/span.js'

/** Characters of one message's original content. */
export interface MessageSpan {
  readonly message: number
  readonly chars: Span
}

/** A rendered prompt, and the places of the requested stretches in it. */
export interface PlacedSpans {
  readonly tokens: Int32Array
  readonly messages: readonly RenderedMessage[]
  /**
   * For each stretch, in order: the shown tokens that have at least one of its characters. `hidden`: an edit hides one of the characters,
   * or the template shows none.
   */
  readonly stretches: readonly (Span | 'hidden')[]
  /** Places of the markers, which the prompt shows instead of hidden text; in order. */
  readonly markers: readonly Span[]
}

type WatchedPrompt = Pick<RenderRequest, 'messages' | 'tools' | 'edits' | 'generationPrompt'>

/** Finds the stretches in the prompt. No stretch may be of a message with `sampled` text. @throws KvfoldError as ChatFormat.render */
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

/** Returns the stretches' places in the prompt without its edits; null if that prompt shows nothing of a stretch. */
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

/** Cuts the stretches at each other's ends, so that no two pieces overlap. Returns the pieces in order. */
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

/** Returns the tokens that an edit of each piece would hide. It learns them by rendering such edits. */
function probe(format: ChatFormat, prompt: WatchedPrompt, pieces: readonly MessageSpan[]): (Span | null)[] {
  const holes = (of: readonly MessageSpan[]): readonly { readonly span: Span }[] => {
    const edits = of.map(({ message, chars }): Edit => ({ message, span: chars, replacement: '' }))
    return format.render({ ...prompt, edits }).origin.holes
  }
  const all = holes(pieces)
  if (all.length === pieces.length) return all.map((hole) => hole.span)
  // The template does not show some pieces. Their edits leave no hole, so we render one edit at a time.
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

/** Returns by how many tokens the holes before a place of the unedited prompt move that place. */
const shiftAt = (at: number, holes: readonly Hole[]): number =>
  holes.reduce((sum, { span: { start, end }, marker }) => (end <= at ? sum + marker - (end - start) : sum), 0)
