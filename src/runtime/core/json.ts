/** Reads fields of JSON from outside, which may be missing, null or of another type. Also filters fields and measures JSON data. */

export const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Returns the field with this name; undefined if there is none. */
export const fieldOf = (value: unknown, name: string): unknown =>
  typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>)[name] : undefined

export const listAt = (value: unknown, name: string): readonly unknown[] => {
  const found = fieldOf(value, name)
  return Array.isArray(found) ? found : []
}

/** Returns the string in a field; null unless the field is a string. */
export const textAt = (value: unknown, name: string): string | null => {
  const found = fieldOf(value, name)
  return typeof found === 'string' ? found : null
}

/** Returns the number in a field; null unless the field is a finite number. */
export const numberAt = (value: unknown, name: string): number | null => {
  const found = fieldOf(value, name)
  return typeof found === 'number' && Number.isFinite(found) ? found : null
}

/** Returns the count in a field; null unless the field is a whole number of at least 0. */
export const countAt = (value: unknown, name: string): number | null => {
  const found = numberAt(value, name)
  return found !== null && Number.isSafeInteger(found) && found >= 0 ? found : null
}

/** Returns the list if it is not empty and has only whole numbers; otherwise null. */
export function integersIn(list: readonly unknown[]): readonly number[] | null {
  const numbers = list.filter((each): each is number => Number.isInteger(each))
  return numbers.length === list.length && numbers.length > 0 ? numbers : null
}

type Given<T> = { [K in keyof T]?: Exclude<T[K], undefined> }

/** Returns the object without the fields that are undefined. */
export function definedFields<T extends object>(fields: T): Given<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Given<T>
}

/** Returns the size of JSON data: the number of characters in its strings plus the number of values. Stops counting at `most`. */
export function weightOf(value: unknown, most: number): number {
  if (typeof value === 'string') return Math.min(most, value.length + 1)
  if (typeof value !== 'object' || value === null) return 1
  let weight = 1
  for (const each of Array.isArray(value) ? (value as unknown[]) : Object.values(value)) {
    weight += weightOf(each, most - weight)
    if (weight >= most) return most
  }
  return weight
}
