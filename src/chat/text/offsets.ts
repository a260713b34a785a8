/** The map between the characters of one message's content and those of the rendered text; monotone, with gaps where a template drops or adds text. */
import type { Span } from '../../core/span.js'
import type { Tracked } from './tracked.js'

/** A stretch of content and where the text shows it. */
interface Stretch {
  readonly content: Span
  readonly text: Span
  /** Character for character; otherwise only the ends correspond. */
  readonly exact: boolean
}

export class OffsetMap {
  private constructor(
    readonly stretches: readonly [Stretch, ...Stretch[]],
    /** Characters of the original content. */
    readonly length: number,
  ) {}

  /** Where `text` shows the content of `message`; null when it shows none of it. A second showing is left out. */
  static of(text: Tracked, message: number, length: number): OffsetMap | null {
    const stretches: Stretch[] = []
    let at = 0
    for (const { text: shown, origin, from, to, exact } of text.pieces) {
      const end = at + shown.length
      const ours = typeof origin !== 'string' && origin.field === 'content' && origin.message === message
      if (ours && from >= (stretches.at(-1)?.content.end ?? 0))
        stretches.push({ content: { start: from, end: to }, text: { start: at, end }, exact })
      at = end
    }
    const [first, ...rest] = stretches
    return first === undefined ? null : new OffsetMap([first, ...rest], length)
  }

  /** From the first shown character to the last. */
  get text(): Span {
    return { start: this.stretches[0].text.start, end: (this.stretches.at(-1) ?? this.stretches[0]).text.end }
  }

  /** Characters of the text that show `[start, end)` of the content, all of a changed stretch where an end lies within it; `hidden` when none do. */
  toText({ start, end }: Span): Span | 'hidden' {
    const from = this.stretches.find((stretch) => stretch.content.end > start) ?? this.stretches.at(-1) ?? this.stretches[0]
    const to = this.stretches.findLast((stretch) => stretch.content.start < end) ?? this.stretches[0]
    const first = place(from, start, from.text.start)
    const last = place(to, end, to.text.end)
    return last < first || (last === first && end > start) ? 'hidden' : { start: first, end: last }
  }

  /** The place of the text where `[start, end)` of the content would be if it were not hidden. */
  placeOfHidden({ end }: Span): number {
    const before = this.stretches.findLast((stretch) => stretch.content.start < end)
    return before === undefined ? this.text.start : place(before, end, before.text.end)
  }

  /** The content offsets that stand at a place of the text: one, or several where content is hidden there; null inside changed or foreign text. */
  toContent(at: number): { readonly low: number; readonly high: number } | null {
    const before = this.stretches.findLast((stretch) => stretch.text.start < at)
    if (before !== undefined && at < before.text.end) {
      if (!before.exact) return null
      const offset = before.content.start + at - before.text.start
      return { low: offset, high: offset }
    }
    const after = this.stretches.find((stretch) => stretch.text.start >= at)
    const touches = before?.text.end === at || after?.text.start === at
    if (!touches) return null
    const low = before === undefined ? 0 : before.content.end
    const high = after === undefined ? this.length : after.content.start
    if (before !== undefined && before.text.end !== at) return { low: high, high }
    if (after !== undefined && after.text.start !== at) return { low, high: low }
    return { low, high }
  }
}

/** The text offset of a content offset next to or within a stretch; `inside` a changed one, where there is none. */
function place({ content, text, exact }: Stretch, offset: number, inside: number): number {
  if (offset <= content.start) return text.start
  if (offset >= content.end) return text.end
  return exact ? text.start + offset - content.start : inside
}
