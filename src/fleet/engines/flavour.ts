/** The differences between engines that speak OpenAI's API: extra request fields, token counts, and limits. */
import { KvfoldError } from '../../runtime/core/errors.js'
import type { GenerationOptions, Sampling } from '../../runtime/engine/engine.js'
import type { FlavourName } from '../../runtime/engine/elsewhere.js'
import type { Endpoint } from './endpoint.js'
import { countAt, fieldOf, listAt, textAt } from '../../runtime/core/json.js'

/** Sampling options that OpenAI's API lacks. A flavour lists an option that has several parameters only if the engine takes all of them. */
type FurtherSampling = Exclude<
  keyof Sampling,
  'temperature' | 'topP' | 'frequencyPenalty' | 'presencePenalty' | 'seed' | 'logitBias'
>

export interface Flavour {
  readonly name: FlavourName
  /** For each sampling option that OpenAI's API lacks: the name of the engine's field. An option without a name is refused. */
  readonly sampling: Readonly<Partial<Record<FurtherSampling, string>>>
  /** For each limit on an answer's tokens or its end: the name of the engine's field. A limit without a name is refused. */
  readonly limits: Readonly<Partial<Record<keyof NonNullable<GenerationOptions['limits']>, string>>>
  /** The value of `topK` that means no limit. */
  readonly everyToken: 0 | -1
  /** Returns the request fields for a GBNF grammar; null if the engine takes no grammar. */
  readonly grammar: ((gbnf: string) => Readonly<Record<string, unknown>>) | null
  /**
   * The request fields that make the engine continue the last message, an assistant message, and not begin a new one. Null if the engine
   * cannot do that.
   */
  readonly continues: Readonly<Record<string, unknown>> | null
  /** The fields of an assistant message in which the engine accepts its reasoning. */
  readonly reasoning: readonly string[]
  /** Which chat template variables a request may set: any (`chat_template_kwargs`), or only `reasoning_effort`. */
  readonly variables: 'any' | 'effort'
  /** The request field for a cache salt, which separates the prefix caches of tenants; null if all tenants share one cache. */
  readonly salt: string | null
  /** Fields of every request, for example to make the engine report cached tokens. */
  readonly extras: Readonly<Record<string, unknown>>
  /**
   * What the engine's /tokenize can count: plain texts only (`texts`), also prompts that /apply-template rendered (`template`), or whole
   * messages (`messages`). Null if the engine has no /tokenize.
   */
  readonly counts: 'texts' | 'template' | 'messages' | null
  /**
   * How the engine reports the token ids of a prompt: by /apply-template and /tokenize, or with its answer (`return_token_ids`). Null: not
   * at all.
   */
  readonly promptTokens: 'template' | 'answer' | null
  /** The fewest alternative tokens that a request must ask for to get log-probabilities. */
  readonly fewestAlternatives: 0 | 1
  /** The smallest `max_tokens` that the engine accepts. With 0 it only prefills the prompt. */
  readonly fewestTokens: 0 | 1
  /**
   * Whether a streamed answer carries log-probabilities for tool calls and for the end token. If not, such answers are requested without
   * streaming.
   */
  readonly streamsLogprobs: boolean
  /** Whether the engine's count of generated tokens includes the end token. */
  readonly countsEnd: boolean
  /** Whether the engine takes AKV's `drop_message` and `reposition`, and keeps the cells behind a dropped message. */
  readonly drops: boolean
  /** What the user can do if the engine reports no cached tokens. */
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

/** Request fields for an engine that is itself kvfold. They switch off its context tools, because this server has them already. */
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
    // llama-server continues a final assistant message without any field.
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
    // vLLM renamed the field in 2025. Each version ignores the name that it does not know.
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

/** What the endpoint tells about itself before the first step. */
export interface Probed {
  readonly flavour: Flavour
  /** The model's name to use in requests. */
  readonly model: string
  /** Tokens that a conversation may have; null if the endpoint does not say. */
  readonly context: number | null
  /** The flavour's name and, if the engine reports one, its release. */
  readonly release: string
}

/**
 * Asks an endpoint for its facts. `model`: the model that it must have; default: the first in its list.
 * @throws KvfoldError model/not-found, remote/*
 */
export async function probe(endpoint: Endpoint, model?: string, signal?: AbortSignal): Promise<Probed> {
  const listing = await endpoint.get('/v1/models', signal).catch((error: unknown) => {
    // Some endpoints run but cannot list their models (transformers' server without a folder of downloads). With a given model name we need
    // no list.
    if (model === undefined || !(error instanceof KvfoldError) || error.code !== 'remote/failed') throw error
    return null
  })
  // SGLang's gateway lists the id `unknown` for engines that are not SGLang; skip it.
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

/** Asks for the facts that OpenAI's API does not have, by the engine's own endpoints. */
async function details(
  endpoint: Endpoint,
  { name }: Flavour,
  entry: unknown,
  signal?: AbortSignal,
): Promise<{ readonly context: number | null; readonly release: string | null }> {
  if (name === 'llama-server') {
    const props = await endpoint.get('/props', signal)
    // `n_ctx` here is the context of one slot, and a conversation runs in one slot.
    return { context: countAt(fieldOf(props, 'default_generation_settings'), 'n_ctx'), release: textAt(props, 'build_info') }
  }
  if (name === 'vllm') return { context: null, release: textAt(await endpoint.get('/version', signal), 'version') }
  if (name === 'sglang') return { context: null, release: textAt(await endpoint.get('/get_server_info', signal), 'version') }
  if (name === 'kvfold') return { context: null, release: textAt(fieldOf(entry, 'kvfold'), 'release') }
  return { context: null, release: null }
}
