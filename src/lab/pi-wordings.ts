/** Wordings of PI-LLM: the same streams and questions in different sentences, separators and languages. A JSON file lists them. */
import Type, { type Static } from 'typebox'
import { KvfoldError } from '../runtime/core/errors.js'
import { strict, Text } from '../runtime/core/schema.js'
import { jsonIn, unreadable } from './data/json-file.js'
import type { PiScore, PiTruth, PiUpdate } from './pi-llm.js'

const Wording = strict({
  /** The name of the wording's cell in reports. */
  name: Text,
  /** The text before the stream. `{keys}` stands for the list of asked keys, `{count}` for their number. */
  before: Type.String(),
  /** The text of one update, with `{key}` and `{value}`. */
  update: Text,
  /** The text between two updates. It may be empty. */
  between: Type.String(),
  /** The text behind the stream, which asks for the last values. It may contain `{keys}` and `{count}`. */
  after: Text,
  /** The right answer's line about one key, with `{key}` and `{value}`. */
  answer: Text,
})
export type PiWording = Static<typeof Wording>

const Wordings = Type.Array(Wording, { minItems: 1 })

/** Reads a file of wordings. @throws KvfoldError eval/bad-data that says what is wrong */
export function wordingsIn(path: string): readonly PiWording[] {
  const wordings = jsonIn(path, Wordings, 'wordings')
  const wrong = (why: string) => unreadable('wordings', path, why)
  const names = wordings.map(({ name }) => name)
  const twice = names.find((name, at) => names.indexOf(name) !== at)
  if (twice !== undefined) throw wrong(`two wordings have the name ${twice}.`)
  for (const { name, update, answer, after } of wordings) {
    for (const [field, text] of Object.entries({ update, answer }))
      if (!text.includes('{key}') || !text.includes('{value}')) throw wrong(`${field} of ${name} must contain {key} and {value}.`)
    const gap = answer.indexOf('{value}') - answer.indexOf('{key}') - '{key}'.length
    if (gap < 0 || gap > NEAR / 2)
      throw wrong(`answer of ${name} must have {value} behind {key}, at most ${NEAR / 2} characters away.`)
    if (sentencesIn(after).length === 0) throw wrong(`after of ${name} must ask for the values in words.`)
  }
  return wordings
}

/** Replaces the placeholders of a wording's text, such as `{key}`. Unknown ones stay. */
export const filled = (text: string, parts: Readonly<Record<string, string>>): string =>
  text.replace(/\{(\w+)\}/gu, (all, name: string) => (Object.hasOwn(parts, name) ? parts[name]! : all))

/** Returns the three parts of the prompt in this wording. Joined without a separator, they are the user message. */
export function wordedParts(
  { before, update, between, after }: PiWording,
  keys: readonly string[],
  shown: readonly PiUpdate[],
): [before: string, stream: string, after: string] {
  const about = { keys: keys.join(', '), count: String(keys.length) }
  return [filled(before, about), shown.map((one) => filled(update, { ...one })).join(between), filled(after, about)]
}

/**
 * Returns the field `worded` of `PiTruth` for a prompt with these parts. `last`: the last value of each asked key.
 * @throws KvfoldError eval/bad-data if the words around the stream also occur inside it
 */
export function wordedTruth(
  { name, update, answer }: PiWording,
  parts: ReturnType<typeof wordedParts>,
  [first]: readonly PiUpdate[],
  last: Readonly<Record<string, string>>,
): NonNullable<PiTruth['worded']> {
  const [before, stream, after] = parts
  const announced = sentencesIn(before).at(-1)
  const start = announced === undefined ? FIRST_WORDS.exec(filled(update, { ...first }))![0] : LAST_WORDS.exec(announced)![0]
  const end = FIRST_WORDS.exec(sentencesIn(after)[0]!)![0]
  const prompt = parts.join('')
  const begins = prompt.indexOf(start)
  const ends = prompt.indexOf(end, begins + start.length)
  if (begins > before.length || ends < before.length + stream.length)
    throw new KvfoldError(
      'eval/bad-data',
      `The words ${JSON.stringify(ends < before.length + stream.length ? end : start)} of the wording ${name} do not mark the border of its stream; write other words there.`,
    )
  const right = Object.entries(last).map(([key, value]) => filled(answer, { key, value }))
  return { start, end, update, answer: right.join('\n') }
}

// A marker has at most six words.
const LAST_WORDS = /(?:\S+\s+){0,5}\S+$/u
const FIRST_WORDS = /\S+(?:\s+\S+){0,5}/u

/** Returns the sentences of a text that contain letters. */
const sentencesIn = (text: string): readonly string[] =>
  text
    .split('\n')
    .flatMap((line) => Array.from(SENTENCES.segment(line), ({ segment }) => segment.trim()))
    .filter((sentence) => /\p{L}/u.test(sentence))
const SENTENCES = new Intl.Segmenter('en', { granularity: 'sentence' })

/** The most characters between a key and its value. */
const NEAR = 60

/**
 * Scores an answer in any wording. A key's value is the first of the stream's values within `NEAR` characters behind the key's last
 * mention. Case does not matter.
 */
export function nearScore({ last, earlier }: PiTruth, answer: string): PiScore {
  const text = answer.toLowerCase()
  const values = new Set([...Object.values(last), ...Object.values(earlier).flat()].map((value) => value.toLowerCase()))
  const score = { correct: 0, missing: 0, older: 0, foreign: 0 }
  const keys = Object.keys(last)
  for (const key of keys) {
    const said = firstOf(values, behindLast(text, key.toLowerCase()))
    if (said === null) score.missing++
    else if (said === last[key]!.toLowerCase()) score.correct++
    else if (earlier[key]!.some((value) => value.toLowerCase() === said)) score.older++
    else score.foreign++
  }
  return { accuracy: score.correct / keys.length, ...score }
}

/** Returns the `NEAR` characters behind a word's last mention. */
function behindLast(text: string, word: string): string {
  for (let at = text.lastIndexOf(word); at >= 0; at = at === 0 ? -1 : text.lastIndexOf(word, at - 1))
    if (!/\p{L}$/u.test(text.slice(0, at)) && !/^\p{L}/u.test(text.slice(at + word.length)))
      return text.slice(at + word.length, at + word.length + NEAR)
  return ''
}

/** Returns the value that occurs first in the text; of two at the same index the longer one; null if none occurs. */
function firstOf(values: ReadonlySet<string>, text: string): string | null {
  let first: { readonly value: string; readonly at: number } | null = null
  for (const value of values) {
    const at = text.indexOf(value)
    if (at >= 0 && (first === null || at < first.at || (at === first.at && value.length > first.value.length)))
      first = { value, at }
  }
  return first?.value ?? null
}
