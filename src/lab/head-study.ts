/**
 * Scores every attention head by its weights on two kinds of prompts: a text that repeats itself, and a list whose values the answer
 * copies. Also measures how much worse a model predicts text when some of its heads are switched off.
 */
import { place, type MessageSpan } from '../runtime/attention/places.js'
import type { ChatMessage } from '../runtime/chat/message.js'
import { invariant, KvfoldError } from '../runtime/core/errors.js'
import { freshConversation } from '../runtime/core/ids.js'
import { mean } from '../runtime/core/mean.js'
import { Random } from '../runtime/core/random.js'
import { length, span, type Span } from '../runtime/core/span.js'
import type { AttentionPattern } from '../runtime/engine/attention.js'
import type { LlamaEngine } from '../runtime/engine/llama.js'
import type { AttentionHead } from '../runtime/native/types.js'
import { headName, type HeadScoreName, type HeadScores } from './attention/head-scores.js'
import { valuesSaid, watchedPairs } from './pi-attention.js'
import { piSample, type PiWords } from './pi-llm.js'
import { sentence } from './tasks/prose.js'

/** The prompts of a study of heads. The same options make the same prompts. */
export interface HeadPrompts {
  readonly prompts: number
  readonly seed: number
  readonly words: PiWords
  /** Number of keys in the list. Each key has one value. */
  readonly keys: number
}

export interface HeadStudyOptions extends HeadPrompts {
  /** The engine, loaded with `attention: true`. */
  readonly engine: LlamaEngine
  readonly signal?: AbortSignal
  readonly onProgress?: (done: number, total: number) => void
}

/**
 * Scores all heads of all layers that have a softmax.
 * @throws KvfoldError attention/unavailable, context/full, eval/bad-data for more keys than there are words, engine/cancelled
 */
export async function scoreHeads({ engine, signal, onProgress, ...asked }: HeadStudyOptions): Promise<readonly HeadScores[]> {
  const scores = new Map<string, Record<HeadScoreName, number[]> & AttentionHead>()
  const note = (pattern: AttentionPattern, name: HeadScoreName, of: (map: number) => number): void => {
    for (const [at, layer] of pattern.layers.entries())
      for (const [row, head] of pattern.heads.entries()) {
        const key = headName({ layer, head })
        if (!scores.has(key)) scores.set(key, { layer, head, sink: [], previous: [], induction: [], retrieval: [] })
        scores.get(key)![name].push(of(at * pattern.heads.length + row))
      }
  }
  for (let prompt = 0; prompt < asked.prompts; prompt++) {
    onProgress?.(prompt, asked.prompts)
    const repeat = repeated(engine, asked, prompt)
    const seen = await look(engine, repeat, signal)
    const { queries, rows, sink } = seen
    const wide = rows!.shape.at(-1)!
    const weight = (map: number, target: (query: number) => number) =>
      mean(Array.from(queries, (query, at) => rows!.data[(map * queries.length + at) * wide + target(query)]!))
    note(seen, 'sink', (map) => mean(sink.data.subarray(map * queries.length, (map + 1) * queries.length)))
    note(seen, 'previous', (map) => weight(map, (query) => query - 1))
    note(seen, 'induction', (map) => weight(map, (query) => query - repeat.period + 1))
    const list = copied(engine, asked, prompt)
    const looked = await look(engine, list, signal)
    const { places } = looked.top!
    note(looked, 'retrieval', (map) =>
      mean(
        Array.from(looked.queries, (query, at) => Number(places.data[map * looked.queries.length + at] === list.from.get(query))),
      ),
    )
  }
  onProgress?.(asked.prompts, asked.prompts)
  return [...scores.values()]
}

/** A prompt, and the spans of its query tokens. `want`: capture all weights of a query, or only the key token with the largest weight. */
interface Watched {
  readonly messages: readonly ChatMessage[]
  readonly looking: readonly Span[]
  readonly want: { readonly rows: true } | { readonly top: 1 }
}

async function look(engine: LlamaEngine, { messages, looking, want }: Watched, signal: AbortSignal | undefined) {
  const conversation = freshConversation()
  try {
    const { attention, finish } = await engine.respond({
      ...{ conversation, messages, maxTokens: 0, attention: { queries: { prompt: looking }, keys: [], ...want } },
      ...(signal === undefined ? {} : { signal }),
    }).reply
    if (finish === 'cancelled' || attention === undefined) throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    return attention
  } finally {
    engine.forget(conversation)
  }
}

/** Words in a text that occurs twice. They are few, because the full attention rows of its tokens are kept. */
const REPEATED = 24

/** Makes a prompt in which a text occurs twice. `period`: tokens between a token and its repetition. */
function repeated(
  engine: LlamaEngine,
  { words, keys, seed }: HeadPrompts,
  prompt: number,
): Watched & { readonly period: number } {
  const random = new Random(seed, prompt, 1)
  const names = random.shuffled(words.keys).slice(0, keys)
  const values = random.shuffled([...words.draw(random, names, Math.ceil(REPEATED / names.length)).values()].flat())
  const once = values.slice(0, REPEATED).join(' ')
  const content = `${once} ${once}`
  // At the start of a text, a word may be tokenized differently than behind a space, so the first word is left out.
  const from = once.indexOf(' ')
  const stretch = (start: number): MessageSpan => ({ message: 0, chars: span(start + from, start + once.length) })
  const messages: readonly ChatMessage[] = [{ role: 'user', content }]
  const { stretches, tokens } = place(engine.format, { messages }, [stretch(0), stretch(once.length + 1)])
  const [first, second] = stretches
  invariant(first !== undefined && first !== 'hidden' && second !== undefined && second !== 'hidden', 'The text is not shown.')
  const size = Math.min(length(first), length(second))
  const period = second.end - first.end
  const isRepeat = tokens
    .subarray(second.end - size, second.end)
    .every((token, at) => token === tokens[second.end - size - period + at])
  if (!isRepeat)
    throw new KvfoldError(
      'attention/unavailable',
      'This model has other tokens for a text that is said a second time, so its heads cannot be scored.',
    )
  // The last token is no query, because no token of the text follows it.
  return { messages, looking: [span(second.end - size, second.end - 1)], period, want: { rows: true } }
}

/**
 * Makes a prompt with a list of keys and values, and an answer that copies every value. `from`: for each query token, the token in the list
 * that is copied.
 */
function copied(
  engine: LlamaEngine,
  asked: HeadPrompts,
  prompt: number,
): Watched & { readonly from: ReadonlyMap<number, number> } {
  const { messages, pairs, said } = listOf(asked, prompt)
  const { stretches, tokens } = place(engine.format, { messages }, [
    ...pairs.map(({ current }) => current),
    ...pairs.map(({ key }): MessageSpan => ({ message: 1, chars: said.get(key)! })),
  ])
  const from = new Map<number, number>()
  for (const at of pairs.keys()) {
    const [source, answer] = [stretches[at]!, stretches[pairs.length + at]!]
    if (source === 'hidden' || answer === 'hidden') continue
    for (let back = 1; back <= Math.min(length(source), length(answer)); back++)
      if (tokens[source.end - back] === tokens[answer.end - back]) from.set(answer.end - back - 1, source.end - back)
  }
  if (from.size === 0)
    throw new KvfoldError(
      'attention/unavailable',
      'This model has other tokens for a value in its answer, so its heads cannot be scored.',
    )
  const looking = [...from.keys()].sort((a, b) => a - b).map((at) => span(at, at + 1))
  return { messages, looking, from, want: { top: 1 } }
}

function listOf({ words, keys, seed }: HeadPrompts, prompt: number) {
  const sample = piSample({ words, keys, updates: 1, seed, sample: prompt })
  const pairs = watchedPairs(sample)
  const messages: readonly ChatMessage[] = [
    { role: 'user', content: sample.prompt },
    { role: 'assistant', content: sample.answer },
  ]
  return { messages, pairs, said: valuesSaid(pairs, sample.answer) }
}

// Below: how much worse a model predicts text when some of its heads are switched off.

/**
 * The kinds of losses. A loss is the mean negative log-probability of tokens of a prompt, in nats. `values`: of the tokens that the right
 * answer copies from the list. `repeat`: of a text when it occurs the second time. `prose`: of sentences that the text before does not
 * predict.
 */
export const LOSSES = ['values', 'repeat', 'prose'] as const
export type LossName = (typeof LOSSES)[number]
export type HeadLosses = Readonly<Record<LossName, readonly number[]>>

/** Sentences in a prompt for the loss `prose`. */
const SENTENCES = 12

/**
 * Measures the model's losses. `without`: the index of the adapter that switches heads off, applied with scale 1; null: no adapter.
 * @throws KvfoldError context/full, engine/cancelled
 */
export async function headLosses({ engine, signal, ...asked }: HeadStudyOptions, without: number | null): Promise<HeadLosses> {
  const losses: Record<LossName, number[]> = { values: [], repeat: [], prose: [] }
  const lora = without === null ? [] : [{ id: without, scale: 1 }]
  const lossOf = async (messages: readonly ChatMessage[], places: readonly number[]): Promise<number> => {
    const conversation = freshConversation()
    const { promptLogprobs, finish } = await engine.respond({
      ...{ conversation, messages, lora, maxTokens: 0, promptLogprobs: 0, last: true },
      ...(signal === undefined ? {} : { signal }),
    }).reply
    if (finish === 'cancelled' || promptLogprobs === undefined)
      throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    // `promptLogprobs` begins with the second token, because the first has no log-probability.
    return -mean(places.map((at) => promptLogprobs[at - 1]!.logprob))
  }
  for (let prompt = 0; prompt < asked.prompts; prompt++) {
    const list = copied(engine, asked, prompt)
    losses.values.push(
      await lossOf(
        list.messages,
        Array.from(list.from.keys(), (at) => at + 1),
      ),
    )
    const repeat = repeated(engine, asked, prompt)
    losses.repeat.push(
      await lossOf(
        repeat.messages,
        repeat.looking.flatMap((one) => placesOf(one, 1)),
      ),
    )
    const prose = proseOf(engine, asked.seed, prompt)
    losses.prose.push(await lossOf(prose.messages, placesOf(prose.text)))
  }
  return losses
}

/** Returns the indexes of a span's tokens, each plus `by`. */
const placesOf = ({ start, end }: Span, by = 0): readonly number[] =>
  Array.from({ length: end - start }, (_, at) => start + at + by)

function proseOf(engine: LlamaEngine, seed: number, prompt: number) {
  const random = new Random(seed, prompt, 2)
  const content = Array.from({ length: SENTENCES }, () => sentence(random)).join(' ')
  const messages: readonly ChatMessage[] = [{ role: 'user', content }]
  const [text] = place(engine.format, { messages }, [
    { message: 0, chars: span(content.indexOf('.') + 1, content.length) },
  ]).stretches
  invariant(text !== undefined && text !== 'hidden', 'The text is not shown.')
  return { messages, text }
}
