/** The differences between engines that speak OpenAI's API: their names, their further request fields, and how they count. */
import { KvfoldError } from '../../runtime/core/errors.js'
import type { GenerationOptions, Sampling } from '../../runtime/engine/engine.js'
import type { FlavourName } from '../../runtime/engine/elsewhere.js'
import type { Endpoint } from './endpoint.js'
import { countAt, fieldOf, listAt, textAt } from '../../runtime/core/json.js'

/** Sampling options that OpenAI's API does not have. An option with several parts is listed for an engine that takes all of them. */
type FurtherSampling = Exclude<
  keyof Sampling,
  'temperature' | 'topP' | 'frequencyPenalty' | 'presencePenalty' | 'seed' | 'logitBias'
>

export interface Flavour {
  readonly name: FlavourName
  /** Field names of sampling options that OpenAI's API does not have; options without a name here are refused. */
  readonly sampling: Readonly<Partial<Record<FurtherSampling, string>>>
  /** Field names of the options that limit an answer's words and its end. Limits without a name here are refused. */
  readonly limits: Readonly<Partial<Record<keyof NonNullable<GenerationOptions['limits']>, string>>>
  /** The `topK` that keeps all tokens. */
  readonly everyToken: 0 | -1
  /** The fields of a request with a GBNF grammar; null if the engine takes none. */
  readonly grammar: ((gbnf: string) => Readonly<Record<string, unknown>>) | null
  /**
   * The fields of a request whose last message is the beginning of an answer, to be continued. Null if the engine always begins a new
   * message.
   */
  readonly continues: Readonly<Record<string, unknown>> | null
  /** Fields of an assistant message that carry its reasoning; the engine drops other fields. */
  readonly reasoning: readonly string[]
  /** The variables of the chat template that a request may set: all (`chat_template_kwargs`), or only `reasoning_effort`. */
  readonly variables: 'any' | 'effort'
  /** The field that separates the caches of tenants; null if all tenants share one cache. */
  readonly salt: string | null
  /** Fields of every request that make the engine report more. */
  readonly extras: Readonly<Record<string, unknown>>
  /**
   * The inputs that the engine's /tokenize counts: texts only (`texts`), also prompts by its template (`template`), or whole messages
   * (`messages`). Null if the engine has no /tokenize.
   */
  readonly counts: 'texts' | 'template' | 'messages' | null
  /** How the engine reports the tokens of a prompt: by its template and /tokenize, or with its answer (`return_token_ids`). Null: never. */
  readonly promptTokens: 'template' | 'answer' | null
  /** The fewest alternative tokens that a request must ask for to get log-probabilities at all. */
  readonly fewestAlternatives: 0 | 1
  /** The fewest tokens that an answer may be limited to. With 0 the engine only computes the prompt. */
  readonly fewestTokens: 0 | 1
  /** Whether a stream can have log-probabilities of a call and of the end token; if not, such answers are requested whole. */
  readonly streamsLogprobs: boolean
  /** Whether the engine counts the token that ends an answer as generated. */
  readonly countsEnd: boolean
  /** Whether the engine takes AKV's `drop_message` and `reposition`, and so keeps the cells behind a dropped message. */
  readonly drops: boolean
  /** Advice for the user when the engine reports no cached tokens. */
  readonly cacheReport: string
}

const OPENAI: Flavour = {
  name: 'openai',
  sampling: {},
  limits: {},
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
  fewestTokens: 1,
  streamsLogprobs: true,
  countsEnd: true,
  drops: false,
  cacheReport: 'it may not cache, or may not report it',
}

/** Fields for an engine that is kvfold itself. They switch its context tools off, because this server already has them. */
const KVFOLD = { acm: 'off', events: true } as const

const CONTINUES = { continue_final_message: true, add_generation_prompt: false } as const

const LLAMA_SAMPLING = {
  ...{ topK: 'top_k', minP: 'min_p', typicalP: 'typical_p', topNSigma: 'top_n_sigma', minKeep: 'min_keep' },
  ...{ repeatPenalty: 'repeat_penalty', penaltyLastN: 'repeat_last_n', mirostat: 'mirostat', order: 'samplers' },
  ...{ dynatemp: 'dynatemp_range', xtc: 'xtc_probability', dry: 'dry_multiplier', adaptive: 'adaptive_target' },
} as const

const VLLM_LIMITS = {
  ...{ minTokens: 'min_tokens', ignoreEnd: 'ignore_eos', stopTokens: 'stop_token_ids' },
  ...{ allowedTokens: 'allowed_token_ids', badWords: 'bad_words' },
} as const

const SGLANG: Flavour = {
  ...OPENAI,
  name: 'sglang',
  variables: 'any',
  continues: { continue_final_message: true },
  sampling: { topK: 'top_k', minP: 'min_p', repeatPenalty: 'repetition_penalty' },
  everyToken: -1,
  reasoning: ['reasoning_content'],
  salt: 'cache_salt',
  cacheReport: 'start it with --enable-cache-report',
}

const FLAVOURS: Readonly<Record<FlavourName, Flavour>> = {
  openai: OPENAI,
  kvfold: {
    ...OPENAI,
    name: 'kvfold',
    variables: 'any',
    continues: CONTINUES,
    sampling: LLAMA_SAMPLING,
    limits: VLLM_LIMITS,
    reasoning: ['reasoning_content'],
    salt: 'cache_salt',
    counts: 'texts',
    promptTokens: 'template',
    fewestTokens: 0,
    countsEnd: false,
    extras: { kvfold: KVFOLD },
    grammar: (grammar) => ({ kvfold: { ...KVFOLD, grammar } }),
  },
  'llama-server': {
    ...OPENAI,
    name: 'llama-server',
    variables: 'any',
    // llama-server continues without any field.
    continues: {},
    sampling: LLAMA_SAMPLING,
    limits: { ignoreEnd: 'ignore_eos' },
    grammar: (grammar) => ({ grammar }),
    reasoning: ['reasoning_content'],
    extras: { return_progress: true, cache_prompt: true },
    counts: 'template',
    promptTokens: 'template',
    fewestAlternatives: 1,
    fewestTokens: 0,
    streamsLogprobs: false,
  },
  vllm: {
    ...OPENAI,
    name: 'vllm',
    variables: 'any',
    continues: CONTINUES,
    sampling: { topK: 'top_k', minP: 'min_p', repeatPenalty: 'repetition_penalty' },
    limits: VLLM_LIMITS,
    everyToken: -1,
    // vLLM renamed the field in 2025; every version ignores the other name.
    reasoning: ['reasoning', 'reasoning_content'],
    salt: 'cache_salt',
    counts: 'messages',
    promptTokens: 'answer',
    cacheReport: 'start it with --enable-prompt-tokens-details',
  },
  sglang: SGLANG,
  akv: { ...SGLANG, name: 'akv', drops: true },
}

export const flavourNamed = (name: FlavourName): Flavour => FLAVOURS[name]

/** The facts of an endpoint before the first step. */
export interface Probed {
  readonly flavour: Flavour
  /** The model's name, as requests must give it. */
  readonly model: string
  /** Tokens that a conversation may have; null if the endpoint does not say. */
  readonly context: number | null
  /** The engine's release, as far as it reports one. */
  readonly release: string
}

/**
 * Asks an endpoint for its facts. `model`: a name that it must have; default: the first it lists.
 * @throws KvfoldError model/not-found, remote/*
 */
export async function probe(endpoint: Endpoint, model?: string, signal?: AbortSignal): Promise<Probed> {
  const listing = await endpoint.get('/v1/models', signal).catch((error: unknown) => {
    // The endpoint is there but cannot list models (transformers, when it serves without a folder of downloads). If the model is named, no
    // list is needed.
    if (model === undefined || !(error instanceof KvfoldError) || error.code !== 'remote/failed') throw error
    return null
  })
  // SGLang's gateway lists this name for engines that are not SGLang.
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

/** Asks an engine for the facts that are not in OpenAI's API. */
async function details(
  endpoint: Endpoint,
  { name }: Flavour,
  entry: unknown,
  signal?: AbortSignal,
): Promise<{ readonly context: number | null; readonly release: string | null }> {
  if (name === 'llama-server') {
    const props = await endpoint.get('/props', signal)
    // n_ctx of one slot. A conversation has one slot.
    return { context: countAt(fieldOf(props, 'default_generation_settings'), 'n_ctx'), release: textAt(props, 'build_info') }
  }
  if (name === 'vllm') return { context: null, release: textAt(await endpoint.get('/version', signal), 'version') }
  if (name === 'sglang') return { context: null, release: textAt(await endpoint.get('/get_server_info', signal), 'version') }
  if (name === 'kvfold') return { context: null, release: textAt(fieldOf(entry, 'kvfold'), 'release') }
  return { context: null, release: null }
}
