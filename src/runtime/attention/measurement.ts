/**
 * Measures what one answer attends to: shows a prompt under edits with a given or generated answer, and captures the attention of the
 * answer's tokens.
 */
import type { ChatMessage, Edit, ToolDefinition } from '../chat/message.js'
import { align, type Aligned } from '../chat/tokens/aligned.js'
import type { ConversationId } from '../core/ids.js'
import { length, span, type Span } from '../core/span.js'
import type { AttentionPattern, KeySet } from '../engine/attention.js'
import type { EngineReply, EngineRequest } from '../engine/engine.js'
import type { LlamaEngine } from '../engine/llama.js'
import type { StepContract } from '../kv/plan/parts.js'
import { place, type PlacedSpans, type MessageSpan } from './places.js'
import { mean } from '../core/mean.js'

/** Text of the prompt whose attention weights are summed. */
export interface WatchedSet {
  readonly name: string
  readonly stretches: readonly MessageSpan[]
}

/**
 * `given`: this text is shown as the answer (teacher forcing). `generated`: the model answers greedily, with at most `maxTokens` tokens.
 */
export type AnswerChoice =
  { readonly kind: 'given'; readonly text: string } | { readonly kind: 'generated'; readonly maxTokens: number }

export interface MeasurementOptions {
  readonly engine: LlamaEngine
  readonly conversation: ConversationId
  /** The messages before the answer. */
  readonly messages: readonly ChatMessage[]
  readonly tools?: readonly ToolDefinition[]
  readonly edits?: readonly Edit[]
  readonly terms: Pick<StepContract, 'contract' | 'blend'>
  readonly answer: AnswerChoice
  /** Finds the values in an answer: for each value's name, the characters of the answer's text. */
  readonly find: (answer: string) => ReadonlyMap<string, Span>
  readonly watched: readonly WatchedSet[]
  readonly layers?: readonly number[]
  readonly heads?: readonly number[]
  /** Whether to also capture whole rows of attention (AttentionRequest). */
  readonly rows?: boolean
  readonly signal?: AbortSignal
}

/** Where a watched set is in the prompt. */
export interface SetPlaces {
  readonly tokens: readonly Span[]
  /** The number of tokens of the set. */
  readonly size: number
  /** How many of its spans the prompt does not show completely. */
  readonly hidden: number
}

export interface Measurement {
  /** Null when the answer contains none of the values: then there are no query tokens. */
  readonly pattern: AttentionPattern | null
  readonly sets: ReadonlyMap<string, SetPlaces>
  readonly said: ReadonlyMap<string, AnswerSpan>
  readonly answer: string
  /** All shown tokens. A given answer is included, a generated one is not. */
  readonly prompt: PlacedSpans
  /** Why the step fell back to another contract; null when it did not. */
  readonly fallback: string | null
}

/** Computes prompt and answer, and measures. @throws KvfoldError as LlamaEngine.respond */
export async function measureAttention(options: MeasurementOptions): Promise<Measurement> {
  return options.answer.kind === 'given' ? given(options, options.answer.text) : generated(options, options.answer.maxTokens)
}

async function given(options: MeasurementOptions, answer: string): Promise<Measurement> {
  const { engine, messages, watched, find } = options
  const found = [...find(answer)]
  const whole: readonly ChatMessage[] = [...messages, { role: 'assistant', content: answer }]
  const asked = found.map(([, chars]): MessageSpan => ({ message: messages.length, chars }))
  const prompt = placed(options, whole, [...watched.flatMap(({ stretches }) => stretches), ...asked])
  const answers = prompt.stretches.slice(prompt.stretches.length - asked.length)
  const said = new Map(
    found.flatMap(([name], index) => {
      const tokens = answers[index]
      return tokens === undefined || tokens === 'hidden' ? [] : [[name, saidAt(tokens)] as const]
    }),
  )
  const sets = setsOf(watched, prompt)
  const queries = merged([...said.values()].flatMap(({ value, reading }) => [reading, ...value]))
  if (queries.length === 0) return { pattern: null, sets, said, answer, prompt, fallback: null }
  const reply = await engine.respond({
    ...request(options, whole),
    maxTokens: 0,
    attention: { ...attention(options, sets, prompt), queries: { prompt: queries } },
  }).reply
  return { pattern: patternOf(reply), sets, said, answer, prompt, fallback: reply.ledger.fallback }
}

async function generated(options: MeasurementOptions, maxTokens: number): Promise<Measurement> {
  const { engine, messages, watched, find } = options
  const prompt = placed(
    options,
    messages,
    watched.flatMap(({ stretches }) => stretches),
  )
  const sets = setsOf(watched, prompt)
  const generation = engine.respond({
    ...request(options, messages),
    maxTokens,
    sampling: { temperature: 0 },
    attention: { ...attention(options, sets, prompt), queries: { generated: true } },
  })
  const tokens: number[] = []
  let text = ''
  for await (const event of generation)
    if (event.type === 'tokens') {
      tokens.push(...event.tokens)
      text += event.text
    }
  const reply = await generation.reply
  const { model } = engine
  const answer = new Generated(text, Int32Array.from(tokens), prompt.tokens.length, (token) => model.piece(token, true))
  const said = new Map(
    [...find(text)].flatMap(([name, chars]) => {
      const one = answer.said(chars)
      return one === null ? [] : [[name, one] as const]
    }),
  )
  return { pattern: patternOf(reply), sets, said, answer: text, prompt, fallback: reply.ledger.fallback }
}

function placed(
  { engine, tools = [], edits = [] }: MeasurementOptions,
  messages: readonly ChatMessage[],
  stretches: readonly MessageSpan[],
): PlacedSpans {
  return place(engine.format, { messages, tools, edits }, stretches)
}

const patternOf = ({ attention: pattern }: EngineReply): AttentionPattern | null => pattern ?? null

function request(
  { conversation, tools, edits, terms, signal }: MeasurementOptions,
  messages: readonly ChatMessage[],
): EngineRequest {
  return {
    conversation,
    messages,
    ...(tools === undefined ? {} : { tools }),
    ...(edits === undefined ? {} : { edits }),
    ...terms,
    ...(signal === undefined ? {} : { signal }),
  }
}

/**
 * Returns the request's layers, heads and key sets. The key sets: each watched set that is shown, each message as `message <index>`, and
 * all markers as `markers`.
 */
function attention({ layers, heads, rows }: MeasurementOptions, sets: ReadonlyMap<string, SetPlaces>, prompt: PlacedSpans) {
  const keys: KeySet[] = [...sets].flatMap(([name, { tokens, size }]) => (size === 0 ? [] : [{ name, tokens }]))
  for (const { index, span: tokens } of prompt.messages)
    if (length(tokens) > 0) keys.push({ name: messageSet(index), tokens: [tokens] })
  if (prompt.markers.length > 0) keys.push({ name: MARKERS, tokens: prompt.markers })
  return {
    keys,
    ...(layers === undefined ? {} : { layers }),
    ...(heads === undefined ? {} : { heads }),
    ...(rows === undefined ? {} : { rows }),
  }
}

/** The name of the key set of a whole message. The generation prompt counts as a message. */
export const messageSet = (index: number): string => `message ${index}`
/** The name of the key set of all markers and summaries together. */
export const MARKERS = 'markers'

function setsOf(watched: readonly WatchedSet[], { stretches }: PlacedSpans): ReadonlyMap<string, SetPlaces> {
  let at = 0
  return new Map(
    watched.map(({ name, stretches: asked }) => {
      const found = stretches.slice(at, (at += asked.length))
      const tokens = disjoint(found.filter((one) => one !== 'hidden'))
      const hidden = found.filter((one) => one === 'hidden').length
      return [name, { tokens, hidden, size: tokens.reduce((sum, one) => sum + length(one), 0) }]
    }),
  )
}

/** Joins spans that overlap or touch. Returns disjoint spans in order. */
function disjoint(spans: readonly Span[]): Span[] {
  const joined: Span[] = []
  for (const one of [...spans].sort((a, b) => a.start - b.start)) {
    const last = joined.at(-1)
    if (last !== undefined && one.start <= last.end) joined[joined.length - 1] = span(last.start, Math.max(last.end, one.end))
    else joined.push(one)
  }
  return joined
}

const merged = (places: readonly number[]): Span[] => disjoint(places.filter((at) => at >= 0).map((at) => span(at, at + 1)))

// The token positions of an answer, and of a value in it.

/** The tokens of one value in an answer. */
export interface AnswerSpan {
  /** Positions of the tokens that have at least one character of the value. */
  readonly value: readonly number[]
  /** Position of the token before the value. It predicts the value's first token, so the model looks the value up there. */
  readonly reading: number
}

/** A generated answer: its text and tokens. `first`: the number of prompt tokens, which is the position of the answer's first token. */
export class Generated {
  readonly #aligned: Aligned

  constructor(
    readonly text: string,
    tokens: Int32Array,
    private readonly first: number,
    piece: (token: number) => Uint8Array,
  ) {
    this.#aligned = align(text, tokens, piece)
  }

  /**
   * Returns the tokens of these characters; null when there are none. Only known token borders count, so there may be a few tokens too
   * many.
   */
  said({ start, end }: Span): AnswerSpan | null {
    const { tokens, starts } = this.#aligned
    const value: number[] = []
    for (let index = 0; index < tokens.length; index++) {
      const next = starts[index + 1] ?? this.text.length
      if (starts[index]! < end && next > start) value.push(this.first + index)
    }
    return value.length === 0 ? null : { value, reading: value[0]! - 1 }
  }
}

/** Returns the tokens of a value in a given answer, from their span. */
export const saidAt = ({ start, end }: Span): AnswerSpan => ({
  value: Array.from({ length: end - start }, (_, index) => start + index),
  reading: start - 1,
})

// Attention weights of one answer on one key set, from a captured pattern: averaged over queries, per layer and head and overall.

/** One number for each captured layer and head. */
export interface HeadMap {
  readonly layers: readonly number[]
  readonly heads: readonly number[]
  /** [layer, head]; the head varies fastest. */
  readonly values: Float64Array
}

/**
 * Returns the share of attention (mass) on a key set, averaged over the captured queries among these positions. The last token of an answer
 * is not captured, because the model never reads it. Returns null without a captured query or when there is no such set.
 */
export function massOn(pattern: AttentionPattern, places: readonly number[], key: string): HeadMap | null {
  return averaged(pattern, places, key, (mass) => mass(key))
}

/**
 * Returns the mass that a key set would have if a fold did nothing but take the folded text out of the softmax. For each layer, head and
 * query: mass(key) / (1 - mass(folded)), then the mean over queries. Returns null when `massOn` does. Without folded text it equals
 * `massOn`.
 */
export function renormalised(pattern: AttentionPattern, places: readonly number[], key: string, folded: string): HeadMap | null {
  return averaged(pattern, places, key, (mass) => mass(key) / (1 - Math.min(mass(folded), MOST_FOLDED)))
}

/** The largest mass on folded text to compute with. Above it, the rest is too small to be scaled. */
const MOST_FOLDED = 1 - 1e-6

/** Returns the mean over queries of `of`, applied to the masses of each query. The mass on a set that was not captured is 0. */
function averaged(
  { layers, heads, queries, keys, mass }: AttentionPattern,
  places: readonly number[],
  key: string,
  of: (mass: (set: string) => number) => number,
): HeadMap | null {
  const rows = places.map((at) => queries.indexOf(at)).filter((row) => row >= 0)
  if (!keys.includes(key) || rows.length === 0) return null
  const columns = new Map(keys.map((name, column) => [name, column]))
  const values = Float64Array.from({ length: layers.length * heads.length }, (_, map) =>
    mean(
      rows.map((row) =>
        of((set) => {
          const column = columns.get(set)
          return column === undefined ? 0 : mass.data[(map * queries.length + row) * keys.length + column]!
        }),
      ),
    ),
  )
  return { layers, heads, values }
}

/** Divides every number. Dividing by a set's number of tokens gives the mean weight on one token. */
export const dividedBy = (map: HeadMap, by: number): HeadMap => ({ ...map, values: map.values.map((value) => value / by) })

export const overall = ({ values }: HeadMap): number => mean(values)
