/** Owns PI-LLM's scoring: which keys an answer gives the last value of, and where the others went wrong. */
import { lastValues, type PiSample } from './pi-llm.js'

export interface PiScore {
  /** correct / keys, 0..1. */
  readonly accuracy: number
  readonly correct: number
  /** Keys with no value, or an empty one. */
  readonly missing: number
  /** Wrong values that the same key had earlier: proactive interference. */
  readonly older: number
  /** Other wrong values. */
  readonly foreign: number
}

/** What a sentence of the asked-for pattern begins with. */
const OPENING = /the current value of\s/iu

/**
 * Scores an answer: `*` and backslashes stripped, sentences `The current value of <key> is <value>.` and lines `<key>: <value>`
 * read, the last one for a key wins, upper and lower case the same, no value is wrong (evaluation.md, PI-LLM).
 */
export function piScore({ keys, updates }: Pick<PiSample, 'keys' | 'updates'>, answer: string): PiScore {
  const said = readValues(answer, new Set(keys.map(normal)))
  const last = lastValues(updates)
  const score = { correct: 0, missing: 0, older: 0, foreign: 0 }
  for (const key of keys) {
    const value = said.get(normal(key)) ?? ''
    if (value === '') score.missing++
    else if (value === normal(last.get(key) ?? '')) score.correct++
    else if (updates.some((update) => update.key === key && normal(update.value) === value)) score.older++
    else score.foreign++
  }
  return { accuracy: keys.length === 0 ? 0 : score.correct / keys.length, ...score }
}

/** Normalised key -> normalised value, the last one said. */
function readValues(answer: string, keys: ReadonlySet<string>): ReadonlyMap<string, string> {
  const values = new Map<string, string>()
  const take = (key: string, value: string) => {
    if (keys.has(normal(key))) values.set(normal(key), normal(value))
  }
  for (const line of answer.replace(/[*\\]/gu, '').split('\n')) {
    const [before = '', ...sentences] = line.split(OPENING)
    const colon = before.indexOf(':')
    if (colon >= 0)
      take(
        before.slice(0, colon).replace(/^[\s\-+\d.)]+/u, ''),
        before
          .slice(colon + 1)
          .trimEnd()
          .replace(/[.;,]$/u, ''),
      )
    for (const sentence of sentences) {
      const is = /\sis:?\s/iu.exec(`${sentence} `)
      if (is !== null) take(sentence.slice(0, is.index), valueOf(sentence.slice(is.index + is[0].length)))
    }
  }
  return values
}

/** The value ends with its sentence or clause; the word that leads over to the next sentence is no part of it. */
function valueOf(rest: string): string {
  const end = /[.;](?:\s|$)/u.exec(rest)?.index ?? rest.length
  return rest
    .slice(0, end)
    .trimEnd()
    .replace(/,?(?:\sand)?$/u, '')
}

const normal = (text: string): string => text.trim().replace(/\s+/gu, ' ').toLowerCase()
