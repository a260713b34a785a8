/** Owns where PI-LLM's keys and values come from: the project's own words, or a file of the public data set. */
import { readFileSync } from 'node:fs'
import { z } from 'zod'
import { KvfoldError } from '../core/errors.js'
import type { Random } from '../core/random.js'

/** Keys, and for each as many values as asked for. */
export interface PiWords {
  readonly keys: readonly string[]
  /** `updates` values for every one of `keys`, no value twice. @throws KvfoldError eval/bad-data when there are too few */
  draw(random: Random, keys: readonly string[], updates: number): ReadonlyMap<string, readonly string[]>
}

const Own = z.object({
  keys: z.array(z.string().min(1)).min(1),
  first: z.array(z.string().min(1)).min(1),
  second: z.array(z.string().min(1)).min(1),
})
const Public = z.record(z.string(), z.array(z.string()))

/**
 * The project's own: a value is two of its words in one, and any value may go with any key. Sizes that need more of them than
 * there are take values of two words, too, in any order: enough for 400 updates of all keys.
 */
export function ownWords(): PiWords {
  // The same way from src/eval and from dist/eval: the file is shipped once.
  const { keys, first, second } = parse(new URL('../../src/eval/words.json', import.meta.url), Own)
  const compounds = paired(first, second, '')
  return {
    keys,
    draw(random, asked, updates) {
      const needed = asked.length * updates
      const values = needed <= compounds.length ? compounds : moreValues(compounds, first, second)
      refuseTooFew(needed, values.length, 'values')
      const drawn = random.shuffled(values)
      return new Map(asked.map((key, index) => [key, drawn.slice(index * updates, (index + 1) * updates)]))
    },
  }
}

const paired = (some: readonly string[], others: readonly string[], between: string): string[] =>
  some.flatMap((one) => others.filter((other) => other !== one).map((other) => `${one}${between}${other}`))

function moreValues(compounds: readonly string[], first: readonly string[], second: readonly string[]): string[] {
  const all = [...first, ...second]
  return [...new Set([...compounds, ...paired(second, first, ''), ...paired(all, all, ' ')])]
}

/** A JSON file `{category: [value, ...]}` as the data set's authors publish it; a value belongs to its category. */
export function wordsFrom(path: string): PiWords {
  const lists = new Map(Object.entries(parse(path, Public)))
  return {
    keys: [...lists.keys()],
    draw(random, asked, updates) {
      const taken = new Set<string>()
      return new Map(
        asked.map((key) => {
          const free = new Set((lists.get(key) ?? []).filter((value) => value.trim() !== '' && !taken.has(value.toLowerCase())))
          refuseTooFew(updates, free.size, `values of ${key}`)
          const drawn = random.shuffled([...free]).slice(0, updates)
          for (const value of drawn) taken.add(value.toLowerCase())
          return [key, drawn]
        }),
      )
    },
  }
}

function refuseTooFew(needed: number, there: number, what: string): void {
  if (needed > there)
    throw new KvfoldError(
      'eval/bad-data',
      `This size needs ${needed} different ${what}, and there are ${there}; ask for fewer updates or keys.`,
    )
}

function parse<T>(path: string | URL, schema: z.ZodType<T>): T {
  const name = path instanceof URL ? path.pathname : path
  try {
    return schema.parse(JSON.parse(readFileSync(path, 'utf8')))
  } catch (cause) {
    const reason =
      cause instanceof z.ZodError
        ? z.prettifyError(cause).replace(/\s+/gu, ' ')
        : cause instanceof Error
          ? cause.message
          : String(cause)
    throw new KvfoldError('eval/bad-data', `Cannot read words from ${name}: ${reason}`, { cause })
  }
}
