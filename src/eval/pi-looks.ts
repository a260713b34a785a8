/** Owns looking at one PI-LLM prompt: complete, then folded by a program under each contract; and one value's whole rows. */
import { FROM_NAMES } from '../attention/figures/scatter.js'
import { watchedSets, compare, FROMS, type Comparison, type WatchedPair } from '../attention/pairs.js'
import { look, type AnswerChoice, type Look, type LookOptions } from '../attention/measurement.js'
import { stripOf } from '../attention/token-heat-map.js'
import type { PromptRecord, StripRecord } from '../attention/run-folder.js'
import type { ChatMessage } from '../chat/message.js'
import type { Contract } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import { KvfoldError } from '../core/errors.js'
import { freshConversation, type LlamaEngine } from '../engine/llama.js'
import type { BlendChoice } from '../kv/contract.js'
import { olderFolded, valuesSaid, watchedPairs } from './pi-attention.js'
import type { PiSample } from './pi-llm.js'

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

/** Tokens an answer may have; that to 46 keys takes a few hundred. */
export const LONGEST_ANSWER = 1024
/** Bytes that whole rows may take. */
const ROW_BYTES = 2 ** 26

/** Every pair of the prompt, complete and folded. @throws KvfoldError as look; engine/cancelled */
export async function lookAtPrompt(prompt: PiPrompt, options: PiLookOptions): Promise<PromptRecord> {
  const begun = performance.now()
  const pairs = watchedPairs(prompt.sample)
  const answer: AnswerChoice =
    options.mode === 'given' ? { kind: 'given', text: prompt.sample.answer } : { kind: 'generated', maxTokens: LONGEST_ANSWER }
  const { complete, folded } = await looks(prompt.sample, pairs, options, { answer, watched: watchedSets(pairs) })
  const comparisons: Comparison[] = folded.map(([contract, after]) => compare(pairs, contract, complete, after))
  return {
    part: 'prompt',
    n: prompt.n,
    seed: prompt.seed,
    shown: complete.prompt.tokens.length,
    comparisons,
    seconds: (performance.now() - begun) / 1000,
  }
}

/** Where the tokens of one value in the right answer look, token by token: in the complete prompt, and folded under the first contract. */
export async function lookAtValue(prompt: PiPrompt, key: string, options: PiLookOptions): Promise<StripRecord> {
  const { engine } = options
  const pair = watchedPairs(prompt.sample).find((one) => one.key === key)
  if (pair === undefined) throw new KvfoldError('eval/bad-data', `The prompt has no key ${key}.`)
  const answer = { kind: 'given', text: prompt.sample.answer } as const
  const layers = layersWithin(engine, engine.count(messagesOf(prompt.sample), []) + LONGEST_ANSWER, options.layers)
  const { complete, folded } = await looks(
    prompt.sample,
    [pair],
    { ...options, contracts: options.contracts.slice(0, 1) },
    { answer, watched: watchedSets([pair]), layers, rows: true },
  )
  const text = (token: number): string => engine.model.detokenize([token], true)
  const seen = [['complete', complete] as const, ...folded.map(([contract, after]) => [`folded, ${contract}`, after] as const)]
  return {
    part: 'strip',
    n: prompt.n,
    seed: prompt.seed,
    key,
    value: pair.value,
    layers: complete.pattern?.layers ?? [],
    sides: FROMS.flatMap((from) =>
      seen.map(([name, of]) => ({ name: `${name}, ${FROM_NAMES[from]}`, tokens: stripOf(of, key, from, text) })),
    ),
  }
}

const messagesOf = ({ prompt }: PiSample): ChatMessage[] => [{ role: 'user', content: prompt }]

async function looks(
  sample: PiSample,
  pairs: readonly WatchedPair[],
  { engine, contracts, blend, layers, heads, signal }: PiLookOptions,
  extra: Pick<LookOptions, 'answer' | 'watched' | 'rows' | 'layers'>,
): Promise<{ complete: Look; folded: [Contract, Look][] }> {
  const messages = messagesOf(sample)
  const base = {
    engine,
    messages,
    find: (text: string) => valuesSaid(pairs, text),
    ...(layers === undefined ? {} : { layers }),
    ...(heads === undefined ? {} : { heads }),
    ...extra,
    ...(signal === undefined ? {} : { signal }),
  }
  const once = async (options: LookOptions): Promise<Look> => {
    const seen = await look(options)
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    return seen
  }
  const used: ConversationId[] = []
  const conversation = (): ConversationId => used[used.push(freshConversation()) - 1]!
  try {
    const complete = await once({ ...base, conversation: conversation(), terms: { contract: 'exact' } })
    const edits = olderFolded(engine, messages)
    const folded: [Contract, Look][] = []
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
