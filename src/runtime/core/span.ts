/** Half-open ranges `[start, end)` of characters, tokens or positions. The field or parameter that holds one says which. */

export interface Span {
  readonly start: number
  readonly end: number
}

export const span = (start: number, end: number): Span => ({ start, end })

export const length = (of: Span): number => of.end - of.start

/** Returns all indices in the span, in order: [2, 5) gives 2, 3, 4. */
export const placesOf = ({ start, end }: Span): number[] => Array.from({ length: end - start }, (_, offset) => start + offset)

/** Whether the two spans share at least one index. An empty span overlaps nothing. */
export const overlaps = (a: Span, b: Span): boolean => a.start < b.end && b.start < a.end && length(a) > 0 && length(b) > 0

/** Whether `inner` lies within `outer`. */
export const contains = (outer: Span, inner: Span): boolean => outer.start <= inner.start && inner.end <= outer.end

/**
 * Binary search: returns the first of the indices 0 to count - 1 for which `before` is false, or `count` if there is none. `before` must be
 * true for all indices below the result, and false from there on.
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
