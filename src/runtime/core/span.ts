/** Half-open ranges `[start, end)` over characters, tokens or positions. Each holder's documentation says which. */

export interface Span {
  readonly start: number
  readonly end: number
}

export const span = (start: number, end: number): Span => ({ start, end })

export const length = (of: Span): number => of.end - of.start

/** Returns all places (characters, tokens or positions) of the span, in order. */
export const placesOf = ({ start, end }: Span): number[] => Array.from({ length: end - start }, (_, offset) => start + offset)

/** True when the two spans share at least one element; an empty span overlaps nothing. */
export const overlaps = (a: Span, b: Span): boolean => a.start < b.end && b.start < a.end && length(a) > 0 && length(b) > 0

/** True when `inner` lies within `outer`. */
export const contains = (outer: Span, inner: Span): boolean => outer.start <= inner.start && inner.end <= outer.end

/**
 * Returns the first entry of `count` entries for which `before` is false; `count` when there is none. `before` must be true for all entries
 * in front of it, and false for all others.
 */
export function lowerBound(count: number, before: (entry: number) => boolean): number {
  let low = 0
  let high = count
  while (low < high) {
    const middle = (low + high) >> 1
    if (before(middle)) low = middle + 1
    else high = middle
  }
  return low
}
