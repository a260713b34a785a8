/** Runs one bare completion: the model continues text or tokens, without chat template, thread or tools. */
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

/** What a running request holds: a slot and a loaded model. */
export interface Slot {
  readonly model: ServedModel
  /** The model name in the answer: the adapter's name if the request named an adapter, else the model's own name. */
  readonly called: string
  /** The adapters to apply; undefined for a model without adapters. */
  readonly lora: readonly AdapterScale[] | undefined
  readonly engine: ServedEngine
  /** Aborted by the client, by the time limit, or when the server closes. */
  readonly signal: AbortSignal
  /** Milliseconds that the request waited for the slot and for the model to load. */
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
  // The engine plans a prompt again after it waited for cells. The second plan may reuse cells that the first one computed, or may have lost
  // cells that the first one reused. Usage takes the least.
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
        cachedTokens: Math.min(tokens.length, cached.length === 0 ? result.ledger.reused : Math.min(...cached)),
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
 * Tokenizes the texts among `parts` and joins all in order. If the first part is a text, the vocabulary's begin tokens (BOS) come first.
 * @throws KvfoldError context/full
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

/** Joins token ids and tokenized texts in the order of `parts`. @param texts the tokens of each text in `parts`, in order */
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
 * Returns a fill-in-the-middle prompt in llama-server's format: other files, the text before the gap, `begun`, the text after the gap, and
 * the token after which the model writes the answer.
 * @param begun the text at the start of the gap, which the answer continues
 * @throws KvfoldError model/unsupported where the vocabulary lacks the fill-in tokens; context/full
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

/** llama-server's default names of repository and file, and its separator between files for vocabularies without a file token. */
const REPOSITORY = 'myproject\n'
const OWN_NAME = 'filename\n'
const SNIPPET = '\n\n--- snippet ---\n\n'

/**
 * Returns the native model, whose vocabulary tokenizes text. @throws KvfoldError model/unsupported when the engine has none in this process
 */
export function vocabularyOf({ model, info }: ServedEngine) {
  if (model !== undefined) return model
  throw new KvfoldError('model/unsupported', `The engine of ${info.model} has no vocabulary of its own here.`)
}

/** Checks token ids against a vocabulary of `size` tokens. @throws KvfoldError engine/bad-request for an id outside of it */
export function refuseForeign(tokens: ArrayLike<number>, size: number): void {
  for (let at = 0; at < tokens.length; at++) {
    const token = tokens[at]!
    if (!Number.isSafeInteger(token) || token < 0 || token >= size)
      throw new KvfoldError('engine/bad-request', `Token ${token} at place ${at} is not in the vocabulary of ${size}.`)
  }
}

// Keeps the cells of ended completions, so that a tenant's next completion can reuse a common beginning.

/** The most ended completions whose cells are kept, per engine and tenant. */
const KEPT = 8

export class RecentCompletions {
  /** Ended completions, oldest first, by engine and tenant. */
  readonly #kept = new WeakMap<ServedEngine, Map<Tenant, ConversationId[]>>()

  /** Keeps the cells of an ended completion. Beyond `KEPT`, the engine forgets the tenant's oldest completion. */
  keep(engine: ServedEngine, tenant: Tenant, conversation: ConversationId): void {
    const ofEngine = this.#kept.get(engine) ?? new Map<Tenant, ConversationId[]>()
    const own = ofEngine.get(tenant) ?? []
    this.#kept.set(engine, ofEngine.set(tenant, own))
    own.push(conversation)
    for (const old of own.splice(0, own.length - KEPT)) engine.forget(old)
  }

  /** Forgets all completions of an engine before it is unloaded. Otherwise the disk tier would keep cells that no thread refers to. */
  drop(engine: ServedEngine): void {
    for (const conversation of [...(this.#kept.get(engine)?.values() ?? [])].flat()) engine.forget(conversation)
    this.#kept.delete(engine)
  }
}
