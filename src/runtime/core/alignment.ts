/** Finds the elements that two lists have in common, such as a list before and after an edit. */
import { lowerBound } from './span.js'

/** Element `a` of the first list equals element `b` of the second. */
export interface Match {
  readonly a: number
  readonly b: number
}

/**
 * The largest gap for which the longest common subsequence is computed, as the product of its two lengths. In larger gaps only the common
 * beginning and ending are matched.
 */
const MOST = 1 << 14

/**
 * Returns matches of equal keys, ascending in both lists (patience diff):
 *
 * 1. The common beginning and ending are matched. 2. Between them, keys that occur once in each list are matched, as many as have the same
 * order in both. 3. In the gaps between these matches, the longest common subsequence is matched.
 *
 * The time is n log n in the length between beginning and ending. Only in small gaps it grows with the square of their length.
 */
export function align<K>(a: readonly K[], b: readonly K[]): Match[] {
  const matches: Match[] = []
  const whole = { a: 0, aEnd: a.length, b: 0, bEnd: b.length }
  const inner = trimmed(a, b, whole)
  for (let at = 0; at < inner.a; at++) matches.push({ a: at, b: at })
  let from = inner
  for (const anchor of [...anchors(a, b, inner), { a: inner.aEnd, b: inner.bEnd }]) {
    const gap = { ...from, aEnd: anchor.a, bEnd: anchor.b }
    matches.push(...alignGap(a, b, gap))
    if (anchor.a < inner.aEnd) matches.push(anchor)
    from = { ...inner, a: anchor.a + 1, b: anchor.b + 1 }
  }
  for (let at = inner.aEnd; at < a.length; at++) matches.push({ a: at, b: at - inner.aEnd + inner.bEnd })
  return matches
}

/** The elements between two matches: [a, aEnd) of the first list, [b, bEnd) of the second. */
export interface Gap {
  readonly a: number
  readonly aEnd: number
  readonly b: number
  readonly bEnd: number
}

/** Returns the gaps between matches, in order, without those that are empty in both lists. */
export function gapsOf(matches: readonly Match[], aEnd: number, bEnd: number): Gap[] {
  const gaps: Gap[] = []
  let [a, b] = [0, 0]
  for (const match of [...matches, { a: aEnd, b: bEnd }]) {
    if (match.a > a || match.b > b) gaps.push({ a, aEnd: match.a, b, bEnd: match.b })
    a = match.a + 1
    b = match.b + 1
  }
  return gaps
}

/** Returns the first `count` matches and those directly behind them, up to the first that skips an element in either list. */
export function withWhatFollows(matches: readonly Match[], count: number): readonly Match[] {
  let end = count
  for (let last = matches[end - 1] ?? { a: -1, b: -1 }; end < matches.length; last = matches[end++]!) {
    const { a, b } = matches[end]!
    if (a !== last.a + 1 || b !== last.b + 1) break
  }
  return matches.slice(0, end)
}

/** Returns the gap without the common beginning and ending of its two sides. */
function trimmed<K>(a: readonly K[], b: readonly K[], gap: Gap): Gap {
  let { a: from, b: other, aEnd, bEnd } = gap
  while (from < aEnd && other < bEnd && a[from] === b[other]) {
    from++
    other++
  }
  while (from < aEnd && other < bEnd && a[aEnd - 1] === b[bEnd - 1]) {
    aEnd--
    bEnd--
  }
  return { a: from, aEnd, b: other, bEnd }
}

/** Matches keys that occur once on each side of the gap, as many as have the same order on both sides. */
function anchors<K>(a: readonly K[], b: readonly K[], { a: from, aEnd, b: other, bEnd }: Gap): Match[] {
  const once = new Map<K, { a: number; b: number }>()
  const TWICE = -1
  for (let at = from; at < aEnd; at++) once.set(a[at]!, { a: once.has(a[at]!) ? TWICE : at, b: bEnd })
  for (let at = other; at < bEnd; at++) {
    const known = once.get(b[at]!)
    if (known !== undefined) known.b = known.b === bEnd ? at : TWICE
  }
  const both = [...once.values()].filter((each) => each.a !== TWICE && each.b !== TWICE && each.b < bEnd)
  both.sort((x, y) => x.a - y.a)
  return longestAscending(both)
}

/** Returns the longest selection of the pairs in which `b` ascends. `a` must ascend already. */
function longestAscending(pairs: readonly Match[]): Match[] {
  /** At index n: of all pairs that can end a selection of n + 1 pairs, the index of the pair with the lowest `b`. */
  const ends: number[] = []
  const before = new Int32Array(pairs.length)
  pairs.forEach(({ b }, at) => {
    const place = lowerBound(ends.length, (end) => pairs[ends[end]!]!.b < b)
    before[at] = place === 0 ? -1 : ends[place - 1]!
    ends[place] = at
  })
  const chosen: Match[] = []
  for (let at = ends.at(-1) ?? -1; at >= 0; at = before[at]!) chosen.push(pairs[at]!)
  return chosen.reverse()
}

/** Matches the elements of a gap between two anchors. */
function alignGap<K>(a: readonly K[], b: readonly K[], gap: Gap): Match[] {
  const inner = trimmed(a, b, gap)
  const matches: Match[] = []
  for (let at = gap.a; at < inner.a; at++) matches.push({ a: at, b: at - gap.a + gap.b })
  matches.push(...longestCommon(a, b, inner))
  for (let at = inner.aEnd; at < gap.aEnd; at++) matches.push({ a: at, b: at - inner.aEnd + inner.bEnd })
  return matches
}

function longestCommon<K>(a: readonly K[], b: readonly K[], { a: from, aEnd, b: other, bEnd }: Gap): Match[] {
  const [rows, columns] = [aEnd - from, bEnd - other]
  if (rows === 0 || columns === 0 || rows * columns > MOST) return []
  const width = columns + 1
  /** At [i, j]: the most matches between the elements of `a` from i on and those of `b` from j on. */
  const counts = new Int32Array((rows + 1) * width)
  for (let i = rows - 1; i >= 0; i--)
    for (let j = columns - 1; j >= 0; j--)
      counts[i * width + j] =
        a[from + i] === b[other + j]
          ? counts[(i + 1) * width + j + 1]! + 1
          : Math.max(counts[(i + 1) * width + j]!, counts[i * width + j + 1]!)
  const matches: Match[] = []
  for (let i = 0, j = 0; i < rows && j < columns;) {
    if (a[from + i] === b[other + j]) matches.push({ a: from + i++, b: other + j++ })
    else if (counts[(i + 1) * width + j]! >= counts[i * width + j + 1]!) i++
    else j++
  }
  return matches
}
