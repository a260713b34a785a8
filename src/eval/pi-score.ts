/** Owns PI-LLM's scoring: which keys an answer gives the last value of, and where the others went wrong. */
import { lastValues, type PiSample } from './pi-llm.js'

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

// Reading an answer to PI-LLM by the rule of the task's authors, its quirks included: which value it gives which key.

// What the authors' language takes for a character of a word, and for white space.
const W = String.raw`[\p{L}\p{N}_]`
const S = String.raw`[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`

/** One or two words, perhaps in quotes or brackets. */
const NAME = `(["'\\[<]?${W}+(?:${S}+${W}+)?["'\\]>]?)`
const LATEST = 'most recent|final|last|latest|current|up-to-date|asked|queried'
const NOUN = 'value|word|term'
/** How a sentence goes on to the value, which must end where a line or a clause does. */
const IS_VALUE = `${S}+(?:is|was)(?:${S}*:${S}*)?${S}+${NAME}(?=\\n|[,.;:]|$)`
/** What stands between the noun and the verb: ` of the key bird`. */
const OF_KEY = `s?(?:${S}+${W}+)?${S}+(?:with|for|of|to)?${S}+(?:the )?(?:category|key)?${S}*${NAME}`

/** In the order in which they are read: what a later form says of a key replaces what an earlier one says. */
const sentences = [
  // bird: the last seen value is wren
  `(?<!${W})${NAME}${S}*[:-]${S}*(?:the)?${S}*(?:${LATEST}|last seen|specified)${S}+(?:${NOUN})s?${IS_VALUE}`,
  // the value of bird is wren
  `the${S}*(?:${NOUN})?${OF_KEY}${IS_VALUE}`,
  // the current value of bird is wren
  `(?:${LATEST}|specified)${S}+(?:${NOUN})?${OF_KEY}${IS_VALUE}`,
].map((form) => new RegExp(form, 'giu'))

const QUOTES = `['"\\[\\]<>]*`
const WORDS = `(${W}+(?:[ \\t]+${W}+)?)`
/** A pair at the beginning or after a mark; read only in answers that speak of a latest value. */
const PAIR = new RegExp(
  `(?:[-,.;:\\n]|^)${S}*${QUOTES}${WORDS}${QUOTES}${S}*:${S}*${QUOTES}${WORDS}(?=${QUOTES}${S}*(?:\\n|[,.;:]|$))`,
  'gu',
)
const SPEAKS_OF_VALUES = new RegExp(`(?:${LATEST})${S}+(?:${NOUN})`, 'iu')

/** Answers shorter than this that say `error` are taken for messages of a program. */
const LONGEST_ERROR = 680

/**
 * Key -> value as the answer writes them, with the last match of a form for a key, and sentences before pairs. Emphasis and
 * escapes are left out first. Nothing for an answer that is empty or looks like a program's error.
 * Source: extract_pieces_response_to_dict in the authors' repository (zhuangziGiantfish/Unable-to-Forget).
 */
export function readPiAnswer(answer: string): ReadonlyMap<string, string> {
  if (looksLikeError(answer)) return new Map()
  const text = withShortGaps(answer.replace(/\\(?!n)/gu, '').replaceAll('*', ''))
  const values = new Map<string, string>()
  if (SPEAKS_OF_VALUES.test(text))
    for (const [, key = '', value = ''] of text.matchAll(PAIR)) if (key !== '' && value !== '') values.set(key, value)
  for (const form of sentences)
    for (const [, key = '', value = ''] of text.matchAll(form)) {
      const [name, said] = [bare(key), bare(value)]
      if (name !== '' && said !== '') values.set(name, said)
    }
  values.delete('key')
  return values
}

const looksLikeError = (answer: string): boolean =>
  /error code/iu.test(answer) ||
  /^[eE]rror/u.test(answer) ||
  (answer.length < LONGEST_ERROR && new RegExp(`(?<!${W})error(?!${W})`, 'iu').test(answer))

/** Without quotes and brackets, up to the first mark or line end. */
const bare = (text: string): string => /^[^,.;:\n]*/u.exec(text.replace(/['"[\](){}<>]/gu, '').trim())?.[0] ?? ''

/** Runs of white space are shortened, which changes no reading and keeps it from taking long: their kind and their first character stay. */
function withShortGaps(text: string): string {
  return text.replace(new RegExp(`${S}{9,}`, 'gu'), (gap) => {
    const other = gap.includes('\n') ? '\n' : (/[^ \t]/u.exec(gap)?.[0] ?? '')
    return (gap[0] ?? '') + other + gap.slice(-6)
  })
}
