/** Owns what an attention study needs to know of PI-LLM: where values stand in a prompt and in an answer, and how a program folds the stream. */
import { FROM_NAMES } from './attention/pairs.js'
import {
  type AnswerChoice,
  measureAttention,
  type Measurement,
  type MeasurementOptions,
} from '../runtime/attention/measurement.js'
import { compare, type PairComparison, FROMS, type WatchedPair, watchedSets } from './attention/pairs.js'
import type { MessageSpan } from '../runtime/attention/places.js'
import type { PromptRecord, HeatMapRecord } from './attention/run-folder.js'
import { heatMapOf } from './attention/report.js'
import type { ChatMessage, Edit } from '../runtime/chat/message.js'
import { Conversation } from '../runtime/context/conversation.js'
import { portsOf } from '../runtime/context/ports.js'
import type { Contract } from '../runtime/core/contract.js'
import { invariant, KvfoldError } from '../runtime/core/errors.js'
import { type ConversationId, freshConversation } from '../runtime/core/ids.js'
import { Random } from '../runtime/core/random.js'
import { span, type Span } from '../runtime/core/span.js'
import type { LlamaEngine } from '../runtime/engine/llama.js'
import type { BlendChoice } from '../runtime/kv/plan/parts.js'
import { lastValues, type PiSample } from './pi-llm.js'

/** A program cuts the stream into so many pieces and leaves the last one open (as the bench of contracts does). */
const PIECES = 4
const STARTS = 'The stream of updates starts here.'
const ENDS = 'The stream of updates ends here.'

/** Where every key's values stand in the prompt, the first message. A value that occurs more than once is told apart by its place. */
export function watchedPairs({ keys, updates, prompt }: PiSample): WatchedPair[] {
  const last = lastValues(updates)
  const places = new Map<string, Span[]>(keys.map((key) => [key, []]))
  const lastAt = new Map(updates.map(({ key }, index) => [key, index]))
  let at = prompt.indexOf(`${STARTS}\n`) + STARTS.length + 1
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
 * Where an answer gives the right value of a key: in the sentence `The current value of <key> is <value>.` or a line `<key>: <value>`, the last
 * one if there are several. Keys whose value it does not give, or of which it last says something else, are missing.
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

/** Three quarters of the stream folded, the newest left open. @throws KvfoldError eval/bad-data for a stream too short to be cut */
export function olderFolded(engine: LlamaEngine, messages: readonly ChatMessage[]): readonly Edit[] {
  const id = freshConversation()
  const conversation = new Conversation(id, portsOf(engine, id, []))
  for (const message of messages) conversation.add(message)
  const cut = conversation.fragment({ startMarker: STARTS, endMarker: ENDS, numFragments: PIECES })
  if (!cut.ok) throw new KvfoldError('eval/bad-data', `The stream cannot be cut: ${cut.message}`)
  for (const fragment of cut.fragments.slice(0, -1)) conversation.fold(fragment.id)
  return conversation.edits()
}

// Looking at one PI-LLM prompt: complete, then folded by a program under each contract; and one value's whole rows.

// Placebos: the same folds of as many tokens, in the same place, of words that say nothing of any key, or of updates of keys that nobody asks for.

/** A prompt to look at: its message, what folds of it hide, and the values that it has. */
interface FoldedPrompt {
  readonly messages: readonly ChatMessage[]
  readonly edits: readonly Edit[]
  readonly pairs: readonly WatchedPair[]
  /** The stream behind what is folded. */
  readonly open: MessageSpan
}

/** A piece of placebo text. */
type PlaceboPiece = () => string

const SYLLABLES = ['ba', 'ce', 'di', 'fo', 'gu', 'la', 'me', 'ni', 'po', 'ru', 'sa', 'te', 'vi', 'wo', 'zu']

/** The folds with the hidden text replaced by about as many tokens of such pieces. Values that were hidden are in it no more. */
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

/** Pieces of so many tokens together; of fewer by the last characters, where a character has several. */
function textOf(tokens: number, size: (text: string) => number, piece: PlaceboPiece): string {
  let text = ''
  // A piece has a token at least: the text is measured only where it may be long enough.
  for (let least = tokens; least > 0; least = tokens - size(text))
    for (let count = Math.ceil(least / 16); count > 0; count--) text += piece()
  while (size(text) > tokens) text = text.slice(0, -1)
  return text
}

/** A made-up word that is no key. */
function madeUp(keys: ReadonlySet<string>, random: Random): string {
  const word = Array.from({ length: 2 + random.below(2) }, () => SYLLABLES[random.below(SYLLABLES.length)]!).join('')
  return keys.has(word) ? madeUp(keys, random) : word
}

/** Names that nobody asks for, in a placebo's updates: as many as a stream has keys. */
const UNASKED = 46

/** How prompts are looked at. */
export interface PiLookOptions {
  readonly engine: LlamaEngine
  readonly contracts: readonly Contract[]
  /** What `blend` computes again. */
  readonly blend?: BlendChoice
  /** `given`: the right answer stands as the model's; `generated`: it writes its own. */
  readonly mode: AnswerChoice['kind']
  readonly layers?: readonly number[]
  readonly heads?: readonly number[]
  readonly signal?: AbortSignal
}

/** A sample and what tells it from others. */
export interface PiPrompt {
  readonly n: number
  readonly seed: number
  readonly sample: PiSample
}

/** Name the placebos' words among a seed's draws. */
const [PLACEBO, UNASKED_KEYS] = [0x706c, 0x756b]
/** Tokens an answer may have; that to 46 keys takes a few hundred. */
export const LONGEST_ANSWER = 1024
/** Bytes that whole rows may take. */
const ROW_BYTES = 2 ** 26

/**
 * Every pair of the prompt, complete and folded; with `placebo` also with made-up words in the place of what is folded.
 * @throws KvfoldError as look; engine/cancelled
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
  const unasked = await instead(UNASKED_KEYS, (random) => {
    const names = Array.from({ length: UNASKED }, () => madeUp(keys, random))
    const values = prompt.sample.updates.map(({ value }) => value)
    return () => `${names[random.below(names.length)]!}: ${values[random.below(values.length)]!}; `
  })
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

/** Where the tokens of one value in the right answer look, token by token: in the complete prompt, and folded under the first contract. */
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
  const open = span(edits.at(-1)!.span.end, sample.prompt.lastIndexOf(ENDS))
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
      // A fold finds the stream in the cache, as it does in an agent's turn.
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

/** The layers, or as many of them, evenly spread, as whole rows of a value's tokens have room for. */
function layersWithin({ modelInfo }: LlamaEngine, shown: number, asked?: readonly number[]): readonly number[] {
  const all = asked ?? Array.from({ length: modelInfo.layers }, (_, layer) => layer)
  const queries = 8
  const most = Math.max(1, Math.floor(ROW_BYTES / (shown * queries * modelInfo.heads * Float32Array.BYTES_PER_ELEMENT)))
  if (all.length <= most) return all
  return Array.from({ length: most }, (_, index) => all[Math.floor((index * all.length) / most)]!)
}
