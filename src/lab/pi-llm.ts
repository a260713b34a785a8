/** Makes and scores the samples of PI-LLM. A sample is a stream of updates to keys, and a question about the last value of each key. */
import Type from 'typebox'
import { invariant, KvfoldError } from '../runtime/core/errors.js'
import { Random } from '../runtime/core/random.js'
import { Text } from '../runtime/core/schema.js'
import { jsonIn } from './data/json-file.js'

export interface PiUpdate {
  readonly key: string
  readonly value: string
}

export interface PiSample {
  /** The keys that the question asks about, in the question's order. */
  readonly keys: readonly string[]
  /** The whole stream, including updates that the prompt does not show. */
  readonly updates: readonly PiUpdate[]
  /** The updates that the prompt shows: the last share `tail` of the stream. */
  readonly shown: readonly PiUpdate[]
  readonly prompt: string
  /** The right answer, exactly as the prompt asks for it. */
  readonly answer: string
}

/**
 * Where in the stream the asked keys have their updates.
 * `shuffled`: at random positions, so most last values are near the end.
 * `middle-last`, `start-last`: the question asks about a third of the keys. All their updates are in the middle, or in the first third, of
 * the stream. The remaining updates belong to keys that the question does not name. So the values to keep are not at the end.
 */
export const piOrders = ['shuffled', 'middle-last', 'start-last'] as const
export type PiOrder = (typeof piOrders)[number]

export interface PiOptions {
  readonly words: PiWords
  /** Updates per key, including the first value; at least 1. */
  readonly updates: number
  /** Number of keys in the stream. Default: all keys of `words`. */
  readonly keys?: number
  /** Where the asked keys have their updates. Default: shuffled. */
  readonly order?: PiOrder
  /** The share of the stream that the prompt shows, counted from the end: above 0, up to 1. Default 1. */
  readonly tail?: number
  readonly seed: number
  /** The index of the sample for this seed, from 0. Each index gives a different sample. Default 0. */
  readonly sample?: number
}

/**
 * Makes the sample. The same options always give the same sample.
 * @throws KvfoldError eval/bad-data when there are too few words, or for impossible options
 */
export function piSample(options: PiOptions): PiSample {
  const { words, updates, keys: count = words.keys.length, order = 'shuffled', tail = 1, seed, sample = 0 } = options
  refuse(words, updates, count, order, tail)
  const random = new Random(seed, sample, updates, count)
  const keys = random.shuffled(words.keys).slice(0, count)
  const asked = order === 'shuffled' ? keys : keys.slice(0, Math.ceil(count / 3))
  const stream = streamed(random, words.draw(random, keys, updates), asked, order)
  const shown = stream.slice(stream.length - Math.ceil(stream.length * tail))
  return {
    keys: asked,
    updates: stream,
    shown,
    prompt: piText(asked, shown).join('\n\n'),
    answer: piAnswer(asked, lastValues(stream)),
  }
}

/** The sentences before and after the stream. */
export const PI_STREAM_START = 'The stream of updates starts here.'
export const PI_STREAM_END = 'The stream of updates ends here.'

/**
 * Returns the three parts of the prompt: announcement, stream, question. The built-in model was trained on these sentences, so change them
 * only with new weights.
 */
export function piText(keys: readonly string[], shown: readonly PiUpdate[]): [framing: string, stream: string, question: string] {
  const names = keys.join(', ')
  const stream = shown.map(({ key, value }) => `${key}: ${value};`).join(' ')
  return [
    `Here is a stream of updates for ${keys.length} keys: ${names}. Every update gives one key a new value. ` +
      'When the stream is over you will be asked for the last value of every key.',
    `${PI_STREAM_START}\n${stream}`,
    `${PI_STREAM_END} What is the current value of each of these keys: ${names}? ` +
      'Write one sentence for every key: The current value of <key> is <value>.',
  ]
}

function refuse(words: PiWords, updates: number, count: number, order: PiOrder, tail: number): void {
  for (const [name, value] of Object.entries({ updates, keys: count }))
    if (!Number.isSafeInteger(value) || value < 1)
      throw new KvfoldError('eval/bad-data', `PI-LLM needs a whole number of ${name} from 1, not ${value}.`)
  if (count > words.keys.length)
    throw new KvfoldError('eval/bad-data', `PI-LLM needs ${count} keys, but the list of words has ${words.keys.length}.`)
  if (count === 1 && updates > 1)
    throw new KvfoldError('eval/bad-data', 'PI-LLM needs at least two keys, because neighbours in the stream never share one.')
  if (order !== 'shuffled' && count < 6)
    throw new KvfoldError(
      'eval/bad-data',
      `PI-LLM in the order ${order} needs at least six keys, two for each third of the stream.`,
    )
  if (!(tail > 0 && tail <= 1))
    throw new KvfoldError('eval/bad-data', `PI-LLM can show a share of the stream above 0 and up to 1, not ${tail}.`)
}

/** Returns each key's last value in these updates. */
export function lastValues(updates: readonly PiUpdate[]): ReadonlyMap<string, string> {
  return new Map(updates.map(({ key, value }) => [key, value]))
}

/**
 * Makes the stream: all updates of all keys, in the given order. Except for `shuffled`, the updates of the `asked` keys form one block,
 * with the remaining updates around or behind it.
 */
function streamed(
  random: Random,
  values: ReadonlyMap<string, readonly string[]>,
  asked: readonly string[],
  order: PiOrder,
): PiUpdate[] {
  if (order === 'shuffled') return interleaved(random, values)
  const wanted = new Set(asked)
  const part = (of: boolean) => interleaved(random, new Map([...values].filter(([key]) => wanted.has(key) === of)))
  const counted = part(true)
  const rest = part(false)
  // The two lists have no key in common, so the updates where they meet have different keys too.
  const before = order === 'start-last' ? 0 : Math.floor(rest.length / 2)
  return [...rest.slice(0, before), ...counted, ...rest.slice(before)]
}

/**
 * Returns all updates in a random order in which two neighbours never have the same key. Draws a key for each position, with a probability
 * proportional to its remaining updates. A key with more than half of all remaining updates must come at once.
 */
function interleaved(random: Random, values: ReadonlyMap<string, readonly string[]>): PiUpdate[] {
  const queues = [...values].map(([key, list]) => ({ key, left: random.shuffled(list) }))
  const stream: PiUpdate[] = []
  let total = queues.reduce((sum, { left }) => sum + left.length, 0)
  while (total > 0) {
    const last = stream.at(-1)?.key
    const free = queues.filter(({ key, left }) => key !== last && left.length > 0)
    const urgent = free.find(({ left }) => left.length * 2 > total)
    const { key, left } = urgent ?? weighted(random, free)
    const value = left.pop()
    invariant(value !== undefined, 'A key without updates was drawn.')
    stream.push({ key, value })
    total--
  }
  return stream
}

/** Draws one of `queues`, with a probability proportional to its length. At least one queue must not be empty. */
function weighted<T extends { readonly left: readonly unknown[] }>(random: Random, queues: readonly T[]): T {
  let at = random.below(queues.reduce((sum, { left }) => sum + left.length, 0))
  for (const queue of queues) {
    if (at < queue.left.length) return queue
    at -= queue.left.length
  }
  throw new KvfoldError('internal/invariant', 'No update was left to draw.')
}

/** Returns the right answer, exactly as the prompt asks for it. */
export function piAnswer(keys: readonly string[], last: ReadonlyMap<string, string>): string {
  return keys.map((key) => `The current value of ${key} is ${last.get(key) ?? ''}.`).join('\n')
}

/** The words of PI-LLM streams: the keys, and a function that draws values for them. */
export interface PiWords {
  readonly keys: readonly string[]
  /**
   * Draws `updates` values for each of `keys`. No value occurs twice, even for different keys.
   * @throws KvfoldError eval/bad-data when there are too few values
   */
  draw(random: Random, keys: readonly string[], updates: number): ReadonlyMap<string, readonly string[]>
}

const Texts = Type.Array(Text, { minItems: 1 })
const Own = Type.Object({ keys: Texts, first: Texts, second: Texts })
const Public = Type.Record(Type.String(), Type.Array(Type.String()))

/**
 * Reads our own words from `words.json`. A value is made of two words joined without a space, and may belong to any key. Streams that need
 * more values also use the two words in reverse order, and with a space between them. That is enough for 400 updates per key.
 */
export function ownWords(): PiWords {
  // The path is valid from both src/lab and dist/lab, so the package contains the file once.
  const { keys, first, second } = jsonIn(new URL('../../src/lab/words.json', import.meta.url), Own, 'words')
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

/**
 * Reads words from a JSON file `{category: [value, ...]}`, the format that the data set's authors publish. The categories are the keys, and
 * a key's values come from its category. Without a path: our own words.
 * @throws KvfoldError eval/bad-data when the file cannot be read
 */
export function wordsFrom(path: string | undefined): PiWords {
  if (path === undefined) return ownWords()
  const lists = new Map(Object.entries(jsonIn(path, Public, 'words')))
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
      `This size needs ${needed} different ${what}, but the list has ${there}; ask for fewer updates or keys.`,
    )
}

// Below: PI-LLM's scoring. It counts the keys whose last value the answer gives, and sorts the errors by kind.

export interface PiScore {
  /** `correct` divided by the number of asked keys, 0 to 1. */
  readonly accuracy: number
  readonly correct: number
  /** Number of keys for which the answer gives no value. */
  readonly missing: number
  /** Number of keys for which the answer gives an earlier value of the key. Psychology calls this proactive interference. */
  readonly older: number
  /** Number of keys for which the answer gives a value that the key never had. */
  readonly foreign: number
}

/** What `piScore` compares an answer with, as plain JSON. */
export interface PiTruth {
  /** The last value of each asked key. */
  readonly last: Readonly<Record<string, string>>
  /**
   * The earlier values of each key that the prompt shows. They may include the last value, because the scorer compares with `last` first.
   */
  readonly earlier: Readonly<Record<string, readonly string[]>>
  /** Only for prompts in another wording: the words before and behind the stream, the form of an update, and the right answer. */
  readonly worded?: { readonly start: string; readonly end: string; readonly update: string; readonly answer: string }
}

/**
 * Scores an answer as the authors of PI-LLM do. `readPiAnswer` finds the values in the answer. Keys must match exactly; the case of values
 * does not matter. A missing value is wrong.
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

/** Returns what an answer is compared with. `shown`: the updates that the prompt shows; default: all. */
export function truthOf({ keys, updates, shown = updates }: Pick<PiSample, 'keys' | 'updates'> & Partial<PiSample>): PiTruth {
  const last = lastValues(updates)
  const earlierOf = (key: string) => shown.filter((update) => update.key === key && update.value !== last.get(key))
  return {
    last: Object.fromEntries(keys.map((key) => [key, last.get(key) ?? ''])),
    earlier: Object.fromEntries(keys.map((key) => [key, earlierOf(key).map(({ value }) => value)])),
  }
}

// Below: finds the value that an answer gives each key. The regular expressions match the same as the authors' program, quirks included.

// Python's `\w` and `\s`: what the authors' program takes for word characters and for white space.
const W = String.raw`[\p{L}\p{N}_]`
const S = String.raw`[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]`

/** Matches a key or a value: one or two words, with optional quotes or brackets. */
const NAME = `(["'\\[<]?${W}+(?:${S}+${W}+)?["'\\]>]?)`
const LATEST = 'most recent|final|last|latest|current|up-to-date|asked|queried'
const NOUN = 'value|word|term'
/** Matches a verb and a value, such as ` is wren`. A line end or a punctuation mark must follow. */
const IS_VALUE = `${S}+(?:is|was)(?:${S}*:${S}*)?${S}+${NAME}(?=\\n|[,.;:]|$)`
/** Matches the text between noun and verb, such as ` of the key bird`. */
const OF_KEY = `s?(?:${S}+${W}+)?${S}+(?:with|for|of|to)?${S}+(?:the )?(?:category|key)?${S}*${NAME}`

/** The forms of sentences that give a key its value, with an example above each. If several match, the later form decides. */
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
/** Matches a pair such as `bird: wren`. Pairs count only if the answer speaks of latest values (`SPEAKS_OF_VALUES`). */
const PAIR = new RegExp(
  `(?:[-,.;:\\n]|^)${S}*${QUOTES}${WORDS}${QUOTES}${S}*:${S}*${QUOTES}${WORDS}(?=${QUOTES}${S}*(?:\\n|[,.;:]|$))`,
  'gu',
)
const SPEAKS_OF_VALUES = new RegExp(`(?:${LATEST})${S}+(?:${NOUN})`, 'iu')

/** An answer with fewer characters than this that contains the word `error` counts as a program's error message. */
const LONGEST_ERROR = 680

/**
 * Returns the value that the answer gives each key. Asterisks and backslashes are removed first. If a form matches a key several times, the
 * last match counts. A sentence overrides a pair.
 * Returns an empty map for an answer that is empty or looks like a program's error message.
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

/** Returns the text without quotes and brackets, up to the first punctuation mark or line end. */
const bare = (text: string): string => /^[^,.;:\n]*/u.exec(text.replace(/['"[\](){}<>]/gu, '').trim())?.[0] ?? ''

/**
 * Shortens long runs of white space, on which the expressions above are slow. A shortened run keeps its first character and, if it has one,
 * a line break, so the expressions match as before.
 */
function withShortGaps(text: string): string {
  return text.replace(new RegExp(`${S}{9,}`, 'gu'), (gap) => {
    const other = gap.includes('\n') ? '\n' : (/[^ \t]/u.exec(gap)?.[0] ?? '')
    return (gap[0] ?? '') + other + gap.slice(-6)
  })
}
