/** Owns PI-LLM samples: a stream of updates in which only the last value of a key counts, and the question about it. */
import { invariant, KvfoldError } from '../core/errors.js'
import { Random } from '../core/random.js'
import type { PiWords } from './pi-words.js'

export interface PiUpdate {
  readonly key: string
  readonly value: string
}

export interface PiSample {
  /** Keys in the order in which they are named and asked for. */
  readonly keys: readonly string[]
  /** The stream. */
  readonly updates: readonly PiUpdate[]
  /** The user message. */
  readonly prompt: string
  /** The answer word for word, as the prompt asks for it. */
  readonly answer: string
}

export interface PiOptions {
  readonly words: PiWords
  /** Updates of every key, the first value included; at least 1. */
  readonly updates: number
  /** Default: all. */
  readonly keys?: number
  readonly seed: number
  /** Which sample of this seed, from 0; every number makes another one. Default 0. */
  readonly sample?: number
}

/** The sample of these options, always the same. @throws KvfoldError eval/bad-data when there are not words enough */
export function piSample({ words, updates, keys: count = words.keys.length, seed, sample = 0 }: PiOptions): PiSample {
  for (const [name, value] of Object.entries({ updates, keys: count }))
    if (!Number.isSafeInteger(value) || value < 1)
      throw new KvfoldError('eval/bad-data', `PI-LLM needs a whole number of ${name} from 1, not ${value}.`)
  if (count > words.keys.length)
    throw new KvfoldError('eval/bad-data', `PI-LLM was asked for ${count} keys, and there are ${words.keys.length}.`)
  if (count === 1 && updates > 1)
    throw new KvfoldError('eval/bad-data', 'PI-LLM needs two keys at least: neighbours in the stream never share one.')
  const random = new Random(seed, sample, updates, count)
  const keys = random.shuffled(words.keys).slice(0, count)
  const stream = interleaved(random, words.draw(random, keys, updates))
  return { keys, updates: stream, prompt: promptOf(keys, stream), answer: answerOf(keys, lastValues(stream)) }
}

/** What every key's value is when the stream is over. */
export function lastValues(updates: readonly PiUpdate[]): ReadonlyMap<string, string> {
  return new Map(updates.map(({ key, value }) => [key, value]))
}

/**
 * All updates in random order, no two neighbours of one key: every place draws a key in proportion to the updates it has
 * left, except that a key with more than half of all that is left must come now.
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

/** One of `queues`, each as likely as it is long. Precondition: one is not empty. */
function weighted<T extends { readonly left: readonly unknown[] }>(random: Random, queues: readonly T[]): T {
  let at = random.below(queues.reduce((sum, { left }) => sum + left.length, 0))
  for (const queue of queues) {
    if (at < queue.left.length) return queue
    at -= queue.left.length
  }
  throw new KvfoldError('internal/invariant', 'No update was left to draw.')
}

/** The built-in model knows these sentences: not to be changed without it. */
function promptOf(keys: readonly string[], updates: readonly PiUpdate[]): string {
  const names = keys.join(', ')
  const stream = updates.map(({ key, value }) => `${key}: ${value};`).join(' ')
  return (
    `Here is a stream of updates for ${keys.length} keys: ${names}. Every update gives one key a new value. ` +
    'When the stream is over you will be asked for the last value of every key.\n\n' +
    `The stream of updates starts here.\n${stream}\n\n` +
    `The stream of updates ends here. What is the current value of each of these keys: ${names}? ` +
    'Write one sentence for every key: The current value of <key> is <value>.'
  )
}

function answerOf(keys: readonly string[], last: ReadonlyMap<string, string>): string {
  return keys.map((key) => `The current value of ${key} is ${last.get(key) ?? ''}.`).join('\n')
}
