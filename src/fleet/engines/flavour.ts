/** Owns what is particular to each engine that speaks OpenAI's API: what it is called, what it can be asked beyond it, how it counts. */
import { KvfoldError } from '../../runtime/core/errors.js'
import type { FlavourName } from '../../runtime/engine/elsewhere.js'
import type { Endpoint } from './endpoint.js'
import { countAt, fieldOf, listAt, textAt } from '../../runtime/core/json.js'

export interface Flavour {
  readonly name: FlavourName
  /** Names of sampling fields that OpenAI's API does not have; what is missing here is refused. */
  readonly sampling: Readonly<
    Partial<Record<'topK' | 'minP' | 'typicalP' | 'repeatPenalty' | 'penaltyLastN' | 'mirostat', string>>
  >
  /** The `topK` that keeps all tokens. */
  readonly everyToken: 0 | -1
  /** The fields that a request with a GBNF grammar has; null: it takes none. */
  readonly grammar: ((gbnf: string) => Readonly<Record<string, unknown>>) | null
  /** Fields of a request that goes on with its last message, which is an answer's beginning; null: it always begins another. */
  readonly continues: Readonly<Record<string, unknown>> | null
  /** Fields of an assistant message that bring its reasoning back; others drop it. */
  readonly reasoning: readonly string[]
  /** Whether a request may say any variable of the chat template (`chat_template_kwargs`), or `reasoning_effort` alone. */
  readonly variables: 'any' | 'effort'
  /** Field that keeps one tenant's cache from another's; null: everybody shares one. */
  readonly salt: string | null
  /** Fields that every request carries, so that it reports more. */
  readonly extras: Readonly<Record<string, unknown>>
  /** What its /tokenize counts: texts, and prompts by its template, or messages as they are; null: it has none. */
  readonly counts: 'texts' | 'template' | 'messages' | null
  /** How it says which tokens a prompt was: by its template and /tokenize, or with its answer (`return_token_ids`); null: it does not. */
  readonly promptTokens: 'template' | 'answer' | null
  /** Alternatives that log-probabilities must be asked with to be there at all. */
  readonly fewestAlternatives: 0 | 1
  /** Whether a stream can have log-probabilities of a call and of the end; else such answers come whole. */
  readonly streamsLogprobs: boolean
  /** Whether the token that ends an answer is among those it counts as generated. */
  readonly countsEnd: boolean
  /** What to do when it reports no cached tokens. */
  readonly cacheReport: string
}

const OPENAI: Flavour = {
  name: 'openai',
  sampling: {},
  everyToken: 0,
  grammar: null,
  variables: 'effort',
  continues: null,
  reasoning: [],
  salt: null,
  extras: {},
  counts: null,
  promptTokens: null,
  fewestAlternatives: 0,
  streamsLogprobs: true,
  countsEnd: true,
  cacheReport: 'it may not cache, or not say so',
}

/** The context tools are ours here; there they would be a second set of the same. */
const KVFOLD = { acm: 'off', events: true } as const

const CONTINUES = { continue_final_message: true, add_generation_prompt: false } as const

const LLAMA_SAMPLING = {
  ...{ topK: 'top_k', minP: 'min_p', typicalP: 'typical_p' },
  ...{ repeatPenalty: 'repeat_penalty', penaltyLastN: 'repeat_last_n' },
} as const

const FLAVOURS: Readonly<Record<FlavourName, Flavour>> = {
  openai: OPENAI,
  kvfold: {
    ...OPENAI,
    name: 'kvfold',
    variables: 'any',
    continues: CONTINUES,
    sampling: LLAMA_SAMPLING,
    reasoning: ['reasoning_content'],
    counts: 'texts',
    promptTokens: 'template',
    countsEnd: false,
    extras: { kvfold: KVFOLD },
    grammar: (grammar) => ({ kvfold: { ...KVFOLD, grammar } }),
  },
  'llama-server': {
    ...OPENAI,
    name: 'llama-server',
    variables: 'any',
    // By itself.
    continues: {},
    sampling: { ...LLAMA_SAMPLING, mirostat: 'mirostat' },
    grammar: (grammar) => ({ grammar }),
    reasoning: ['reasoning_content'],
    extras: { return_progress: true, cache_prompt: true },
    counts: 'template',
    promptTokens: 'template',
    fewestAlternatives: 1,
    streamsLogprobs: false,
  },
  vllm: {
    ...OPENAI,
    name: 'vllm',
    variables: 'any',
    continues: CONTINUES,
    sampling: { topK: 'top_k', minP: 'min_p', repeatPenalty: 'repetition_penalty' },
    everyToken: -1,
    // Renamed in 2025; either version skips the other's.
    reasoning: ['reasoning', 'reasoning_content'],
    salt: 'cache_salt',
    counts: 'messages',
    promptTokens: 'answer',
    cacheReport: 'start it with --enable-prompt-tokens-details',
  },
  sglang: {
    ...OPENAI,
    name: 'sglang',
    variables: 'any',
    continues: { continue_final_message: true },
    sampling: { topK: 'top_k', minP: 'min_p', repeatPenalty: 'repetition_penalty' },
    everyToken: -1,
    reasoning: ['reasoning_content'],
    salt: 'cache_salt',
    cacheReport: 'start it with --enable-cache-report',
  },
}

export const flavourNamed = (name: FlavourName): Flavour => FLAVOURS[name]

/** What is known of an endpoint before the first step. */
export interface Probed {
  readonly flavour: Flavour
  /** The name to ask for. */
  readonly model: string
  /** Tokens a conversation may have; null: the endpoint does not say. */
  readonly context: number | null
  /** Of the engine, as far as it says. */
  readonly release: string
}

/**
 * Asks an endpoint what it is. `model`: a name it must have; default: the first it lists.
 * @throws KvfoldError model/not-found, remote/*
 */
export async function probe(endpoint: Endpoint, model?: string, signal?: AbortSignal): Promise<Probed> {
  const listing = await endpoint.get('/v1/models', signal).catch((error: unknown) => {
    // It is there and cannot list (transformers serve without a folder of downloads): who names the model needs no list.
    if (model === undefined || !(error instanceof KvfoldError) || error.code !== 'remote/failed') throw error
    return null
  })
  // SGLang's gateway lists this in the place of what engines that are not SGLang call theirs.
  const models = listAt(listing, 'data').filter((one) => textAt(one, 'id') !== 'unknown')
  const entry =
    model === undefined ? models[0] : models.find((one) => textAt(one, 'id') === model || aliases(one).includes(model))
  if (entry === undefined && models.length > 0) {
    const ids = models.map((one) => textAt(one, 'id') ?? '?')
    throw new KvfoldError(
      'model/not-found',
      `${endpoint.name} has no model ${model ?? ''}; it has ${ids.slice(0, 20).join(', ')}.`,
    )
  }
  const name = model ?? textAt(entry, 'id')
  if (name === null)
    throw new KvfoldError('remote/bad-endpoint', `${endpoint.name} lists no models at /v1/models; name one with --engine-model.`)
  const flavour = FLAVOURS[flavourOf(textAt(entry, 'owned_by'))]
  const listed =
    countAt(entry, 'max_model_len') ??
    countAt(fieldOf(entry, 'meta'), 'n_ctx') ??
    countAt(fieldOf(entry, 'kvfold'), 'context') ??
    countAt(entry, 'context_length')
  const { context, release } = await details(endpoint, flavour, entry, signal)
  return {
    flavour,
    model: name,
    context: context ?? listed,
    release: [flavour.name, release].filter((part) => part !== null).join(' '),
  }
}

const aliases = (entry: unknown): readonly unknown[] => listAt(entry, 'aliases')

function flavourOf(owner: string | null): FlavourName {
  if (owner === 'llamacpp') return 'llama-server'
  return owner === 'kvfold' || owner === 'vllm' || owner === 'sglang' ? owner : 'openai'
}

/** What an engine says of itself where OpenAI's API has no place for it. */
async function details(
  endpoint: Endpoint,
  { name }: Flavour,
  entry: unknown,
  signal?: AbortSignal,
): Promise<{ readonly context: number | null; readonly release: string | null }> {
  if (name === 'llama-server') {
    const props = await endpoint.get('/props', signal)
    // Of one slot: what a conversation has.
    return { context: countAt(fieldOf(props, 'default_generation_settings'), 'n_ctx'), release: textAt(props, 'build_info') }
  }
  if (name === 'vllm') return { context: null, release: textAt(await endpoint.get('/version', signal), 'version') }
  if (name === 'sglang') return { context: null, release: textAt(await endpoint.get('/get_server_info', signal), 'version') }
  if (name === 'kvfold') return { context: null, release: textAt(fieldOf(entry, 'kvfold'), 'release') }
  return { context: null, release: null }
}
