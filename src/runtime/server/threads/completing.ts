/** Runs one bare completion: the model continues text or tokens, without template, thread or tools. */
import { randomBytes } from 'node:crypto'
import { KvfoldError } from '../../core/errors.js'
import { definedFields } from '../../core/json.js'
import { conversationId, type ConversationId, type Tenant } from '../../core/ids.js'
import type { AdapterScale, Finish } from '../../engine/engine.js'
import { refuseHopeless, refuseTooMany } from '../../engine/model-facts.js'
import { draftsIn } from '../../kv/ledger.js'
import type { NativeModel } from '../../native/types.js'
import type { AskEvent, CompletionAnswer, CompletionAsk, FillIn } from '../ask.js'
import { engineTenant, saltDigest } from './cache-salt.js'
import { generationFor, leftOut } from './generation.js'
import type { ServedModel, ServedEngine } from './models.js'

/** The resources that an ask holds while it runs. */
export interface Slot {
  readonly model: ServedModel
  /** The name of the model in the answer: the adapter's if the ask named one, else the model's own. */
  readonly called: string
  /** The adapters to apply; undefined for a model without adapters. */
  readonly lora: readonly AdapterScale[] | undefined
  readonly engine: ServedEngine
  /** Aborted by the client, the time limit or the closing server. */
  readonly signal: AbortSignal
  /** Milliseconds until the slot and the loaded model were available. */
  readonly waited: number
}

/** Runs a bare completion. @throws KvfoldError model/unsupported, context/full, engine/*, native/* */
export async function complete(
  ask: CompletionAsk,
  slot: Slot,
  recent: RecentCompletions,
  emit: (event: AskEvent) => void,
): Promise<CompletionAnswer> {
  const { engine, model, called, signal, waited } = slot
  const { tenant, cacheSalt, lora, prompt, fill, logprobs, promptLogprobs } = ask
  const generation = generationFor(engine, ask)
  const { sampling } = generation
  if (engine.complete === undefined)
    throw new KvfoldError('model/unsupported', `The engine of ${model.name} does not complete bare text; use chat instead.`)
  const vocabulary = vocabularyOf(engine)
  const unread = await leftOut(ask.format, [])
  const parts = typeof prompt === 'string' ? [prompt] : prompt
  const tokens =
    fill === undefined
      ? await tokensOf(parts, vocabulary, engine.info.context)
      : await fillTokens(fill, prompt, vocabulary, model.name, engine.info.context)
  const conversation = conversationId(`completion_${randomBytes(16).toString('hex')}`)
  emit({ type: 'started', thread: conversation, model: called })
  // A prompt that waits for cells is planned again, and then finds cells of its own.
  const cached: number[] = []
  try {
    const result = await engine.complete({
      ...generation,
      ...{ conversation, tenant: engineTenant(tenant, saltDigest(tenant, cacheSalt)), tokens },
      ...definedFields({ lora, promptLogprobs }),
      signal,
      ahead: true,
      onPlan: ({ shown, reused, compute }) => {
        cached.push(reused)
        emit({ type: 'plan', step: 0, shown, reused, compute })
      },
      onPrefill: (done, total) => {
        emit({ type: 'progress', step: 0, done, total })
      },
      onText: (text, sampled, probabilities) => {
        emit({ type: 'tokens', tokens: sampled, ...(logprobs === undefined ? {} : { logprobs: probabilities }) })
        if (text !== '') emit({ type: 'text', text })
      },
    })
    const finish: Finish = result.finish === 'stop-string' ? 'stop' : result.finish
    return {
      model: called,
      text: result.text,
      promptTokens: tokens,
      tokens: [...result.tokens],
      finish,
      ...(result.stop === undefined ? {} : { stop: result.stop }),
      usage: {
        promptTokens: tokens.length,
        cachedTokens: Math.min(tokens.length, cached[0] ?? result.ledger.reused),
        completionTokens: result.tokens.length,
        reasoningTokens: 0,
        ...draftsIn([result.ledger]),
      },
      ledger: result.ledger,
      ...(sampling === undefined ? {} : { sampling }),
      timing: result.timing,
      unread,
      waited,
      ...(logprobs === undefined ? {} : { logprobs: result.logprobs }),
      ...(result.promptLogprobs === undefined
        ? {}
        : { prompted: { first: vocabulary.detokenize(tokens.subarray(0, 1), true), logprobs: result.promptLogprobs } }),
    }
  } finally {
    recent.keep(engine, tenant, conversation)
  }
}

/**
 * Joins texts and token ids to the tokens of a prompt. If the first part is a text, the tokens that the model's texts begin with come
 * first. @throws KvfoldError context/full
 */
export async function tokensOf(parts: readonly (string | number)[], vocabulary: NativeModel, cells: number): Promise<Int32Array> {
  const texts = parts.filter((part) => typeof part === 'string')
  refuseTooMany(parts.length, cells, 'token ids and texts')
  await refuseHopeless(vocabulary, cells, texts)
  const begins = typeof parts[0] === 'string' ? 1 : 0
  const [first, rest] = [texts.slice(0, begins), texts.slice(begins)]
  const made = [
    ...(await vocabulary.tokenizeAll(first, { addSpecial: true, parseSpecial: true })),
    ...(await vocabulary.tokenizeAll(rest, { parseSpecial: true })),
  ]
  return joined(parts, made)
}

/** Joins token ids with the tokens of texts, in the order of `parts`. @param texts the tokens of each text in `parts` */
function joined(parts: readonly (string | number)[], texts: readonly Int32Array[]): Int32Array {
  const numbers = parts.filter((part) => typeof part === 'number').length
  const tokens = new Int32Array(texts.reduce((sum, each) => sum + each.length, numbers))
  let [at, text] = [0, 0]
  for (const part of parts)
    if (typeof part === 'number') tokens[at++] = part
    else {
      const own = texts[text++]!
      tokens.set(own, at)
      at += own.length
    }
  return tokens
}

/**
 * Returns the prompt of an answer that fills a gap, in the form that llama-server gives it. Other files come first, then the text before
 * the gap, `begun`, the text after the gap, and the token after which the answer begins.
 * @param begun a text at the start of the gap, which the answer continues
 * @throws KvfoldError model/unsupported where the vocabulary lacks the tokens; context/full
 */
async function fillTokens(
  { prefix, suffix, files }: FillIn,
  begun: CompletionAsk['prompt'],
  vocabulary: NativeModel,
  name: string,
  cells: number,
): Promise<Int32Array> {
  const { fill, addBos, bos } = vocabulary.special
  if (fill === null)
    throw new KvfoldError(
      'model/unsupported',
      `${name} cannot fill a gap: its vocabulary has no tokens for the text before and after one. Leave out the suffix, or use a model such as Qwen2.5-Coder.`,
    )
  const { repository, file } = fill
  const others = files.flatMap(({ name: path, text }) => (file === null ? [SNIPPET, text] : [file, `${path}\n`, text]))
  const parts: readonly (string | number)[] = [
    ...(repository === null ? [] : [repository, REPOSITORY]),
    ...others,
    ...(file === null ? [] : [file, OWN_NAME]),
    ...(addBos && bos !== null ? [bos] : []),
    ...[fill.prefix, prefix],
    ...(typeof begun === 'string' ? [begun] : begun),
    ...[fill.suffix, suffix, fill.middle],
  ]
  const texts = parts.filter((part) => typeof part === 'string')
  await refuseHopeless(vocabulary, cells, texts)
  return joined(parts, await vocabulary.tokenizeAll(texts))
}

/** llama-server's names for a repository and a file that have none, and its line between files where the vocabulary has no token for it. */
const REPOSITORY = 'myproject\n'
const OWN_NAME = 'filename\n'
const SNIPPET = '\n\n--- snippet ---\n\n'

/** Returns the engine's vocabulary. @throws KvfoldError model/unsupported when it has none here */
export function vocabularyOf({ model, info }: ServedEngine) {
  if (model !== undefined) return model
  throw new KvfoldError('model/unsupported', `The engine of ${info.model} has no vocabulary of its own here.`)
}

/** Refuses tokens that a vocabulary of this size does not have. @throws KvfoldError engine/bad-request */
export function refuseForeign(tokens: ArrayLike<number>, size: number): void {
  for (let at = 0; at < tokens.length; at++) {
    const token = tokens[at]!
    if (!Number.isSafeInteger(token) || token < 0 || token >= size)
      throw new KvfoldError('engine/bad-request', `Token ${token} at place ${at} is not in the vocabulary of ${size}.`)
  }
}

// Keeps the cells of ended completions, so that the tenant's next one can reuse a shared beginning.

/** The most ended completions kept per engine and tenant. */
const KEPT = 8

export class RecentCompletions {
  /** The conversations of ended completions, oldest first, for each engine and tenant. Unloading an engine drops their cells. */
  readonly #kept = new WeakMap<ServedEngine, Map<Tenant, ConversationId[]>>()

  /** Keeps the cells of an ended completion. Beyond the limit, the cells of the tenant's oldest completion are dropped. */
  keep(engine: ServedEngine, tenant: Tenant, conversation: ConversationId): void {
    const ofEngine = this.#kept.get(engine) ?? new Map<Tenant, ConversationId[]>()
    const own = ofEngine.get(tenant) ?? []
    this.#kept.set(engine, ofEngine.set(tenant, own))
    own.push(conversation)
    for (const old of own.splice(0, own.length - KEPT)) engine.forget(old)
  }

  /** Forgets all completions of an engine before it is unloaded. Cells without a thread must not stay in the disk tier. */
  drop(engine: ServedEngine): void {
    for (const conversation of [...(this.#kept.get(engine)?.values() ?? [])].flat()) engine.forget(conversation)
    this.#kept.delete(engine)
  }
}
