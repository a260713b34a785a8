/**
 * Measures the attention of PI-LLM prompts for the attention study. Finds the values in prompt and answer, and folds the older fragments of
 * the stream itself, without a model's decision.
 */
import { FROM_NAMES } from './attention/pairs.js'
import {
  type AnswerChoice,
  measureAttention,
  type Measurement,
  type MeasurementOptions,
} from '../runtime/attention/measurement.js'
import { compare, type PairComparison, FROMS, type WatchedPair, watchedSets } from './attention/pairs.js'
import type { MessageSpan } from '../runtime/attention/places.js'
import type { PromptRecord, HeatMapRecord } from './attention/records.js'
import { heatMapOf } from './attention/heat-map.js'
import type { ChatMessage, Edit } from '../runtime/chat/message.js'
import { Conversation } from '../runtime/context/conversation.js'
import { portsOf } from '../runtime/context/ports.js'
import type { BlendChoice, Contract } from '../runtime/core/contract.js'
import { invariant, KvfoldError } from '../runtime/core/errors.js'
import { type ConversationId, freshConversation } from '../runtime/core/ids.js'
import { Random } from '../runtime/core/random.js'
import { span, type Span } from '../runtime/core/span.js'
import type { LlamaEngine } from '../runtime/engine/llama.js'
import { lastValues, PI_STREAM_END, PI_STREAM_START, type PiSample } from './pi-llm.js'

/** The number of fragments that the stream is cut into. All but the last are folded. */
const PIECES = 4

/**
 * Returns for each key the spans of its values in the prompt, which is message 0. If a key gets the same value twice, both spans are
 * listed.
 */
export function watchedPairs({ keys, updates, prompt }: PiSample): WatchedPair[] {
  const last = lastValues(updates)
  const places = new Map<string, Span[]>(keys.map((key) => [key, []]))
  const lastAt = new Map(updates.map(({ key }, index) => [key, index]))
  let at = prompt.indexOf(`${PI_STREAM_START}\n`) + PI_STREAM_START.length + 1
  for (const { key, value } of updates) {
    const start = at + key.length + 2
    invariant(
      prompt.slice(at, start + value.length) === `${key}: ${value}`,
      `The stream does not read ${key}: ${value} at ${at}.`,
    )
    places.get(key)?.push(span(start, start + value.length))
    at = start + value.length + 2
  }
  return keys.map((key): WatchedPair => {
    const stretches = (places.get(key) ?? []).map((chars) => ({ message: 0, chars }))
    const current = stretches.pop()
    invariant(current !== undefined, `The stream has no value for ${key}.`)
    return { key, value: last.get(key) ?? '', current, older: stretches, distance: updates.length - 1 - lastAt.get(key)! }
  })
}

/**
 * Returns, for each key, the span of its right value in the answer. The answer may say `The current value of <key> is <value>.` or `<key>:
 * <value>`. The key's last mention counts. A key has no entry if the answer does not mention it, or last mentions it with another value.
 */
export function valuesSaid(pairs: readonly Pick<WatchedPair, 'key' | 'value'>[], answer: string): ReadonlyMap<string, Span> {
  return new Map(
    pairs.flatMap(({ key, value }) => {
      const says = new RegExp(String.raw`(?<![\p{L}\p{N}])${literal(key)}[\s*"']*(?:\sis:?\s|:)[\s*"']*`, 'giu')
      const last = [...answer.matchAll(says)].at(-1)
      if (last === undefined) return []
      const start = last.index + last[0].length
      const end = start + value.length
      const whole = answer.slice(start, end).toLowerCase() === value.toLowerCase() && !/[\p{L}\p{N}]/u.test(answer.charAt(end))
      return whole ? [[key, span(start, end)] as const] : []
    }),
  )
}

const literal = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|/-]/gu, String.raw`\$&`)

/**
 * Returns the edits that fold three quarters of the stream, and leave the newest quarter open.
 * @throws KvfoldError eval/bad-data for a stream that is too short to be cut
 */
export function olderFolded(engine: LlamaEngine, messages: readonly ChatMessage[]): readonly Edit[] {
  const id = freshConversation()
  const conversation = new Conversation(id, portsOf(engine, id, []))
  for (const message of messages) conversation.add(message)
  const cut = conversation.fragment({ startMarker: PI_STREAM_START, endMarker: PI_STREAM_END, numFragments: PIECES })
  if (!cut.ok) throw new KvfoldError('eval/bad-data', `The stream cannot be cut: ${cut.message}`)
  for (const fragment of cut.fragments.slice(0, -1)) conversation.fold(fragment.id)
  return conversation.edits()
}

// Below: the attention of one PI-LLM prompt, complete and folded under each contract. For a single value, also its attention to each token
// of the prompt.

// Placebos: prompts whose folds hide as many tokens of another text at the same position. The text is made-up words, or updates of keys
// that the question does not ask for. They show how much of a change comes from folding any text.

/** A prompt whose attention is measured: its messages, the edits that fold it, and its pairs of key and value. */
interface FoldedPrompt {
  readonly messages: readonly ChatMessage[]
  readonly edits: readonly Edit[]
  readonly pairs: readonly WatchedPair[]
  /** The span of the stream behind the last fold. */
  readonly open: MessageSpan
}

/** Makes one piece of placebo text. */
type PlaceboPiece = () => string

const SYLLABLES = ['ba', 'ce', 'di', 'fo', 'gu', 'la', 'me', 'ni', 'po', 'ru', 'sa', 'te', 'vi', 'wo', 'zu']

/**
 * Returns the prompt with placebo text in place of each text that the folds hide, with about as many tokens. The folds stay. The pairs lose
 * the values that were in the hidden text.
 */
function placeboOf(engine: LlamaEngine, { messages, edits, pairs, open }: FoldedPrompt, piece: PlaceboPiece): FoldedPrompt {
  const { content } = messages[0]!
  const size = (text: string): number => engine.model.tokenize(text).length
  const first = edits[0]!.span.start
  const end = edits.at(-1)!.span.end
  let text = content.slice(0, first)
  const spans = edits.map(({ span: hidden }) => {
    const start = text.length
    text += textOf(size(content.slice(hidden.start, hidden.end)), size, piece)
    return span(start, text.length)
  })
  const shift = text.length - end
  const placed: readonly ChatMessage[] = [{ ...messages[0]!, content: text + content.slice(end) }]
  const snapped: Span[] = []
  for (const { start, end: until } of spans)
    snapped.push(engine.snap(placed, [], 0, span(Math.max(start, snapped.at(-1)?.end ?? 0), until)))
  const moved = ({ message, chars }: MessageSpan): MessageSpan[] =>
    chars.start >= end ? [{ message, chars: span(chars.start + shift, chars.end + shift) }] : []
  const [left = open] = moved(open)
  return {
    messages: placed,
    edits: edits.map((edit, at) => ({ ...edit, span: snapped[at]! })),
    pairs: pairs.flatMap((pair) =>
      moved(pair.current).map((current): WatchedPair => ({ ...pair, current, older: pair.older.flatMap(moved) })),
    ),
    open: left,
  }
}

/**
 * Joins pieces to a text of at most `tokens` tokens. It may be a few tokens shorter, because it is cut by characters, and one character may
 * have several tokens.
 */
function textOf(tokens: number, size: (text: string) => number, piece: PlaceboPiece): string {
  let text = ''
  // A piece has at least one token. Each round adds one piece per 16 missing tokens, then counts the tokens again.
  for (let least = tokens; least > 0; least = tokens - size(text))
    for (let count = Math.ceil(least / 16); count > 0; count--) text += piece()
  while (size(text) > tokens) text = text.slice(0, -1)
  return text
}

/** Returns a random made-up word that is not a key. */
function madeUp(keys: ReadonlySet<string>, random: Random): string {
  const word = Array.from({ length: 2 + random.below(2) }, () => SYLLABLES[random.below(SYLLABLES.length)]!).join('')
  return keys.has(word) ? madeUp(keys, random) : word
}

/**
 * Returns pieces that repeat the hidden updates in order, with a made-up name for each key. Updates are left out whose value also occurs in
 * the open text, because the model would attend to that copy too.
 */
function renamedUpdates({ updates, prompt }: PiSample, { chars: { start, end } }: MessageSpan, random: Random): PlaceboPiece {
  const open = prompt.slice(start, end)
  const taken = new Set(updates.map(({ key }) => key))
  const names = new Map<string, string>()
  for (const key of new Set(taken)) {
    const name = madeUp(taken, random)
    taken.add(name)
    names.set(key, name)
  }
  const hidden = updates.filter(({ value }) => !open.includes(value))
  invariant(hidden.length > 0, 'A fold of the stream hides no value.')
  let next = 0
  return () => {
    const { key, value } = hidden[next++ % hidden.length]!
    return `${names.get(key)!}: ${value}; `
  }
}

/** How to measure a prompt's attention: engine, contracts, answer, layers and heads. */
export interface PiLookOptions {
  readonly engine: LlamaEngine
  readonly contracts: readonly Contract[]
  /** Which tokens the contract `blend` computes again. */
  readonly blend?: BlendChoice
  /** `given`: the right answer is in the prompt as an assistant message. `generated`: the model writes its answer. */
  readonly mode: AnswerChoice['kind']
  readonly layers?: readonly number[]
  readonly heads?: readonly number[]
  readonly signal?: AbortSignal
}

/** A sample, and what identifies it: its number of updates per key, and its seed. */
export interface PiPrompt {
  readonly n: number
  readonly seed: number
  readonly sample: PiSample
}

/** Salts, so that each placebo has its own random draws for the same seed. */
const [PLACEBO, UNASKED_KEYS] = [0x706c, 0x756b]
/** The most tokens of an answer. An answer that gives the values of PI-LLM's 46 keys takes a few hundred. */
export const LONGEST_ANSWER = 1024
/** The most bytes for complete attention rows: the weights from one query token to all tokens of the prompt. */
const ROW_BYTES = 2 ** 26

/**
 * Measures every pair of the prompt, complete and folded. With `placebo`, measures again with placebo text in place of the folded text.
 * @throws KvfoldError engine/cancelled, and the errors of `measureAttention`
 */
export async function lookAtPrompt(prompt: PiPrompt, placebo: boolean, options: PiLookOptions): Promise<PromptRecord> {
  const begun = performance.now()
  const pairs = watchedPairs(prompt.sample)
  const answer: AnswerChoice =
    options.mode === 'given' ? { kind: 'given', text: prompt.sample.answer } : { kind: 'generated', maxTokens: LONGEST_ANSWER }
  const compared = async (folds: FoldedPrompt) => {
    const { complete, folded } = await looks(folds, options, { answer })
    return {
      complete,
      comparisons: folded.map(([contract, after]): PairComparison => compare(folds.pairs, contract, complete, after)),
    }
  }
  const own = foldsOf(options.engine, prompt.sample, pairs)
  const { complete, comparisons } = await compared(own)
  const keys = new Set(prompt.sample.keys)
  const instead = async (salt: number, pieces: (random: Random) => PlaceboPiece): Promise<PairComparison[] | null> =>
    placebo ? (await compared(placeboOf(options.engine, own, pieces(new Random(prompt.seed, prompt.n, salt))))).comparisons : null
  const words = await instead(PLACEBO, (random) => () => `${madeUp(keys, random)} `)
  const unasked = await instead(UNASKED_KEYS, (random) => renamedUpdates(prompt.sample, own.open, random))
  return {
    part: 'prompt',
    n: prompt.n,
    seed: prompt.seed,
    shown: complete.prompt.tokens.length,
    comparisons,
    placebo: words,
    unasked,
    seconds: (performance.now() - begun) / 1000,
  }
}

/**
 * Measures one value in the right answer: how much attention its tokens give to each token of the prompt. Does so in the complete prompt,
 * and in the prompt folded under the first contract.
 * @throws KvfoldError eval/bad-data for an unknown key; the errors of `lookAtPrompt`
 */
export async function lookAtValue(prompt: PiPrompt, key: string, options: PiLookOptions): Promise<HeatMapRecord> {
  const { engine } = options
  const pair = watchedPairs(prompt.sample).find((one) => one.key === key)
  if (pair === undefined) throw new KvfoldError('eval/bad-data', `The prompt has no key ${key}.`)
  const answer = { kind: 'given', text: prompt.sample.answer } as const
  const layers = layersWithin(engine, engine.count(messagesOf(prompt.sample), []) + LONGEST_ANSWER, options.layers)
  const { complete, folded } = await looks(
    foldsOf(engine, prompt.sample, [pair]),
    { ...options, contracts: options.contracts.slice(0, 1) },
    { answer, layers, rows: true },
  )
  const text = (token: number): string => engine.model.detokenize([token], true)
  const seen = [['complete', complete] as const, ...folded.map(([contract, after]) => [`folded, ${contract}`, after] as const)]
  return {
    part: 'heat-map',
    n: prompt.n,
    seed: prompt.seed,
    key,
    value: pair.value,
    layers: complete.pattern?.layers ?? [],
    sides: FROMS.flatMap((from) =>
      seen.map(([name, of]) => ({ name: `${name}, ${FROM_NAMES[from]}`, tokens: heatMapOf(of, key, from, text) })),
    ),
  }
}

const messagesOf = ({ prompt }: PiSample): ChatMessage[] => [{ role: 'user', content: prompt }]

function foldsOf(engine: LlamaEngine, sample: PiSample, pairs: readonly WatchedPair[]): FoldedPrompt {
  const messages = messagesOf(sample)
  const edits = olderFolded(engine, messages)
  const open = span(edits.at(-1)!.span.end, sample.prompt.lastIndexOf(PI_STREAM_END))
  return { messages, edits, pairs, open: { message: 0, chars: open } }
}

async function looks(
  { messages, edits, pairs, open }: FoldedPrompt,
  { engine, contracts, blend, layers, heads, signal }: PiLookOptions,
  extra: Pick<MeasurementOptions, 'answer' | 'rows' | 'layers'>,
): Promise<{ complete: Measurement; folded: [Contract, Measurement][] }> {
  const hidden = edits.map(({ message, span: chars }): MessageSpan => ({ message, chars }))
  const base = {
    engine,
    messages,
    watched: watchedSets(pairs, hidden, [open]),
    find: (text: string) => valuesSaid(pairs, text),
    ...(layers === undefined ? {} : { layers }),
    ...(heads === undefined ? {} : { heads }),
    ...extra,
    ...(signal === undefined ? {} : { signal }),
  }
  const once = async (options: MeasurementOptions): Promise<Measurement> => {
    const seen = await measureAttention(options)
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    return seen
  }
  const used: ConversationId[] = []
  const conversation = (): ConversationId => used[used.push(freshConversation()) - 1]!
  try {
    const complete = await once({ ...base, conversation: conversation(), terms: { contract: 'exact' } })
    const folded: [Contract, Measurement][] = []
    for (const contract of contracts) {
      const id = conversation()
      // Compute the prompt first, so that the fold finds the stream in the cache, as in an agent's turn.
      await engine.respond({ conversation: id, messages, maxTokens: 0, contract: 'exact' }).reply
      const terms = contract === 'blend' && blend !== undefined ? { contract, blend } : { contract }
      folded.push([contract, await once({ ...base, conversation: id, edits, terms })])
      engine.forget(id)
    }
    return { complete, folded }
  } finally {
    for (const id of used) engine.forget(id)
  }
}

/**
 * Returns the layers to measure: `asked`, or all. If the attention rows of a value's tokens would take more than ROW_BYTES, returns an
 * evenly spread selection of these layers.
 */
function layersWithin({ modelInfo }: LlamaEngine, shown: number, asked?: readonly number[]): readonly number[] {
  const all = asked ?? Array.from({ length: modelInfo.layers }, (_, layer) => layer)
  const queries = 8
  const most = Math.max(1, Math.floor(ROW_BYTES / (shown * queries * modelInfo.heads * Float32Array.BYTES_PER_ELEMENT)))
  if (all.length <= most) return all
  return Array.from({ length: most }, (_, index) => all[Math.floor((index * all.length) / most)]!)
}
