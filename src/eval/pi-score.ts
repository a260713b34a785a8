/** Owns PI-LLM's scoring: which keys an answer gives the last value of, and where the others went wrong. */
import { lastValues, type PiSample } from './pi-llm.js'
import { readPiAnswer } from './pi-answer.js'

export interface PiScore {
  /** correct / keys, 0..1. */
  readonly accuracy: number
  readonly correct: number
  /** Keys with no value. */
  readonly missing: number
  /** Wrong values that the same key had earlier: proactive interference. */
  readonly older: number
  /** Other wrong values. */
  readonly foreign: number
}

/** What answers are compared with, as plain JSON. */
export interface PiTruth {
  /** Of every key that is asked for. */
  readonly last: Readonly<Record<string, string>>
  /** Values that the prompt shows for the key and that are not its last. */
  readonly earlier: Readonly<Record<string, readonly string[]>>
}

/**
 * Scores an answer by the authors' rule: values are read as `readPiAnswer` says, keys must be written as they were given, and
 * values are the same when they are in lower case. No value is wrong.
 */
export function piScore(sample: Pick<PiSample, 'keys' | 'updates'> | PiTruth, answer: string): PiScore {
  const { last, earlier } = 'last' in sample ? sample : truthOf(sample)
  const said = readPiAnswer(answer)
  const score = { correct: 0, missing: 0, older: 0, foreign: 0 }
  const keys = Object.keys(last)
  for (const key of keys) {
    const value = said.get(key)?.trim().toLowerCase()
    const same = (other: string) => other.trim().toLowerCase() === value
    if (value === undefined) score.missing++
    else if (same(last[key] ?? '')) score.correct++
    else if (earlier[key]?.some(same) === true) score.older++
    else score.foreign++
  }
  return { accuracy: keys.length === 0 ? 0 : score.correct / keys.length, ...score }
}

function truthOf({ keys, updates }: Pick<PiSample, 'keys' | 'updates'>): PiTruth {
  const last = lastValues(updates)
  return {
    last: Object.fromEntries(keys.map((key) => [key, last.get(key) ?? ''])),
    earlier: Object.fromEntries(
      keys.map((key) => [key, updates.filter((update) => update.key === key).map(({ value }) => value)]),
    ),
  }
}
