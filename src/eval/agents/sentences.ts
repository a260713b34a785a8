/** Owns where a long text may be cut: behind sentences, and behind what LongBench's splitter takes for their ends. */

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
