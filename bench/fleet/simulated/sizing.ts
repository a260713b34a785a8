/** Owns how many engines are enough: a search by doubling and halving that also ends where no number is. */

/** How many that are enough were found: what was tried last with them; `enough` false: not even the most there may be are. */
export type Found<T> = T & { readonly enough: boolean }

/**
 * The fewest that are enough, from a guess: half as many as long as they are enough, or twice as many until they are, then between. It is taken for
 * granted that more are never worse. @param most that are tried; where they are not enough, they are the answer
 */
export function fewest<T>(
  tried: (count: number) => T,
  isEnough: (result: T) => boolean,
  { guess, most }: { readonly guess: number; readonly most: number },
): Found<T> {
  let [count, few] = [Math.max(1, Math.min(most, guess)), 0]
  let enough: { readonly count: number; readonly result: T } | null = null
  for (;;) {
    const result = tried(count)
    if (isEnough(result)) enough = { count, result }
    else few = count
    if (enough === null) {
      if (count === most) return { ...result, enough: false }
      count = Math.min(most, 2 * count)
    } else if (enough.count - few <= 1) return { ...enough.result, enough: true }
    else count = few === 0 ? Math.floor(enough.count / 2) : Math.floor((few + enough.count) / 2)
  }
}
