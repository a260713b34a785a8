/** Owns the difference between a field that was not given and one that is null. */

type Given<T> = { [K in keyof T]?: Exclude<T[K], undefined> }

/** The fields that have a value. */
export function given<T extends object>(fields: T): Given<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Given<T>
}

/**
 * A copy without fields that are null: most clients send null for what they do not set. Goes `depth` levels into lists and objects, but not into
 * the fields `whole` of the first.
 */
export function withoutNulls(value: unknown, depth: number, whole: readonly string[] = []): unknown {
  if (typeof value !== 'object' || value === null || depth === 0) return value
  if (Array.isArray(value)) return value.map((item) => withoutNulls(item, depth - 1))
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, inner]) => inner !== null)
      .map(([key, inner]) => [key, whole.includes(key) ? inner : withoutNulls(inner, depth - 1)]),
  )
}

/** A hook that takes nulls out of a body before its schema sees it; see `withoutNulls`. */
export const nullsDownTo =
  (depth: number, whole?: readonly string[]) =>
  (request: { body: unknown }, _reply: unknown, done: () => void): void => {
    request.body = withoutNulls(request.body, depth, whole)
    done()
  }
