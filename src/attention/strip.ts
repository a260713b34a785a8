/** Owns one value's view of everything shown: the weight on every token, from whole rows. */
import type { Span } from '../core/span.js'
import type { Look } from './look.js'
import type { From } from './pairs.js'
import type { StripToken } from './records.js'

/**
 * Every shown token with its weight, averaged over the captured layers, heads and the looking tokens of what the answer says under `name`. Empty when
 * the look has no rows, or the answer does not say it. Weights of tokens after the looking ones are 0.
 */
export function stripOf(
  { pattern, prompt, said, sets }: Look,
  name: string,
  from: From,
  text: (token: number) => string,
): StripToken[] {
  const one = said.get(name)
  const places = one === undefined ? [] : from === 'value' ? one.value : [one.reading]
  const rows = pattern?.rows
  if (pattern === null || rows === null || rows === undefined || places.length === 0) return []
  const wide = rows.shape.at(-1)!
  const { layers, heads, queries } = pattern
  const weights = new Float64Array(wide)
  const looking = places.map((at) => queries.indexOf(at)).filter((row) => row >= 0)
  const maps = layers.length * heads.length
  for (let map = 0; map < maps; map++)
    for (const row of looking)
      for (let at = 0; at < wide; at++) weights[at]! += rows.data[(map * queries.length + row) * wide + at]!
  const end = Math.max(...places) + 1
  const answer = prompt.messages.findLast(({ content }) => content !== null)?.span.start ?? prompt.tokens.length
  const within = (spans: readonly Span[], at: number): boolean => spans.some((span) => span.start <= at && at < span.end)
  const current = sets.get(`current ${name}`)?.tokens ?? []
  const older = sets.get(`older ${name}`)?.tokens ?? []
  return Array.from(prompt.tokens.slice(0, end), (token, at): StripToken => ({
    text: text(token),
    weight: Number((weights[at]! / (maps * looking.length)).toPrecision(6)),
    kind: within(current, at)
      ? 'current'
      : within(older, at)
        ? 'older'
        : within(prompt.markers, at)
          ? 'marker'
          : at >= answer
            ? 'answer'
            : 'other',
  }))
}
