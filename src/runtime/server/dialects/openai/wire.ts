/** Writes what OpenAI's routes have in common: errors, token counts, log-probabilities. */
import Type from 'typebox'
import type { NamedLogprob, PromptLogprob, TokenLogprob } from '../../../engine/engine.js'
import type { Usage } from '../../ask.js'
import { type Problem, unsupported } from '../../problem.js'

// Errors in the form of OpenAI's API.

export interface OpenAiError {
  readonly error: {
    readonly message: string
    readonly type: string
    readonly param: string | null
    readonly code: string
    /** The tokens of a prompt that is too long, and of the context, under llama-server's names. */
    readonly n_prompt_tokens?: number
    readonly n_ctx?: number
    /** The text so far of an answer that broke off. */
    readonly said?: string
  }
}

/** Codes for which OpenAI has its own names, which clients look for. */
const CODES: Readonly<Partial<Record<Problem['code'], string>>> = {
  'context/full': 'context_length_exceeded',
  'model/not-found': 'model_not_found',
  'server/unauthorized': 'invalid_api_key',
  'server/rate-limited': 'rate_limit_exceeded',
}

export function openAiError(problem: Problem): OpenAiError {
  const { status, code, param, said } = problem
  const message = code === 'context/full' ? tooLong(problem) : problem.message
  const size = code === 'context/full' ? problem.size : null
  return {
    error: {
      ...{ message, type: typeOf(status), param, code: CODES[code] ?? code },
      ...(size === null ? {} : { n_prompt_tokens: size.tokens, n_ctx: size.context }),
      ...(said === null ? {} : { said }),
    },
  }
}

/**
 * Returns the error text for a prompt that is too long. Clients compact their context when they read its words, which are OpenAI's and
 * vLLM's; when the size is unknown, llama-server's.
 */
function tooLong({ size, message }: Problem): string {
  if (size === null) return `The request exceeds the available context size. ${message}`
  const asked = `${size.atLeast ? 'at least ' : ''}${size.tokens}`
  return `This model's maximum context length is ${size.context} tokens. However, your request has ${asked} input tokens. ${message}`
}

function typeOf(status: number): string {
  if (status === 401) return 'authentication_error'
  if (status === 429) return 'rate_limit_error'
  if (status === 501) return 'not_implemented_error'
  if (status === 503) return 'service_unavailable_error'
  return status < 500 ? 'invalid_request_error' : 'server_error'
}

// Token counts of OpenAI's routes; all come from the ledger.

/** Sums several answers to one prompt: the prompt counts once, generated tokens count for every answer. */
export function summed(usages: readonly Usage[]): Usage {
  const [first] = usages
  const sum = (key: 'completionTokens' | 'reasoningTokens') => usages.reduce((total, usage) => total + usage[key], 0)
  const drafts = usages.flatMap((usage) => usage.drafts ?? [])
  const total = (key: 'drafted' | 'accepted') => drafts.reduce((all, each) => all + each[key], 0)
  return {
    promptTokens: first?.promptTokens ?? 0,
    cachedTokens: first?.cachedTokens ?? 0,
    completionTokens: sum('completionTokens'),
    reasoningTokens: sum('reasoningTokens'),
    ...(first?.saved === undefined ? {} : { saved: first.saved }),
    ...(drafts.length === 0 ? {} : { drafts: { drafted: total('drafted'), accepted: total('accepted') } }),
  }
}

/** Returns the tokens and seconds saved against a plain prefix cache, beside the dialect's own counts. */
const savedIn = ({ saved }: Pick<Usage, 'saved'>): { readonly kvfold?: object } =>
  saved === undefined ? {} : { kvfold: { saved_tokens: saved.tokens, saved_seconds: Math.round(saved.seconds * 1000) / 1000 } }

/** OpenAI's counts of predicted tokens: the drafted ones that the answer has, and the others. */
const predictionsIn = ({ drafts }: Pick<Usage, 'drafts'>): object =>
  drafts === undefined
    ? {}
    : { accepted_prediction_tokens: drafts.accepted, rejected_prediction_tokens: drafts.drafted - drafts.accepted }

/**
 * Writes token counts for chat completions. `cached_tokens`: prompt tokens that were not computed. @param details more counts of the prompt
 */
export function chatUsage(usage: Usage, details: object = {}): object {
  const { promptTokens, cachedTokens, completionTokens, reasoningTokens } = usage
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens, ...details },
    completion_tokens_details: { reasoning_tokens: reasoningTokens, ...predictionsIn(usage) },
    ...savedIn(usage),
  }
}

export function responseUsage(usage: Usage): object {
  const { promptTokens, cachedTokens, completionTokens, reasoningTokens } = usage
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: promptTokens + completionTokens,
    ...savedIn(usage),
  }
}

// Log-probabilities of OpenAI's two completion routes.

interface NamedToken {
  /** The token id, as in llama-server; OpenAI's API has no field for it. */
  readonly id: number
  readonly token: string
  readonly logprob: number
  readonly bytes: readonly number[] | null
}

export interface ChatLogprobs {
  readonly content: readonly (NamedToken & { readonly top_logprobs: readonly NamedToken[] })[]
  readonly refusal: null
}

/**
 * Writes log-probabilities for chat completions.
 * @param asIds whether tokens are written as their ids (`token_id:5`), as vLLM's `return_tokens_as_token_ids` has it
 */
export function chatLogprobs(logprobs: readonly TokenLogprob[], asIds = false): ChatLogprobs {
  const numbered = (one: NamedLogprob) => ({ id: one.token, ...named(one), ...(asIds ? { token: idOf(one) } : {}) })
  return { content: logprobs.map((one) => ({ ...numbered(one), top_logprobs: one.top.map(numbered) })), refusal: null }
}

export interface TextLogprobs {
  readonly tokens: readonly string[]
  readonly token_logprobs: readonly number[]
  readonly top_logprobs: readonly Readonly<Record<string, number>>[]
  readonly text_offset: readonly number[]
}

const idOf = ({ token }: Pick<NamedLogprob, 'token'>): string => `token_id:${token}`

/**
 * Writes log-probabilities for text completions.
 * @param from how many characters of text precede the first of these tokens
 * @param asIds whether tokens are written as their ids (`token_id:5`)
 */
export function textLogprobs(logprobs: readonly TokenLogprob[], from = 0, asIds = false): TextLogprobs {
  let at = from
  const name = (one: NamedLogprob) => (asIds ? idOf(one) : one.text)
  return {
    tokens: logprobs.map(name),
    token_logprobs: logprobs.map(({ logprob }) => logprob),
    // The alternatives in `top` are best first. They are reversed, because of two with the same text the last one stays, which is then the
    // likelier.
    top_logprobs: logprobs.map(({ top }) => Object.fromEntries([...top].reverse().map((one) => [name(one), one.logprob]))),
    text_offset: logprobs.map(({ text }) => (at += text.length) - text.length),
  }
}

/**
 * Writes a token with its probability. A token that is part of a character has no text of its own. Its bytes are null when a remote engine
 * does not report them.
 */
function named({ text, bytes, logprob }: NamedLogprob): Omit<NamedToken, 'id'> {
  return { token: text, logprob, bytes: bytes ?? (text.includes('\ufffd') ? null : [...Buffer.from(text)]) }
}

// Tokens and log-probabilities of prompts, as vLLM has them.

export const TokenFields = {
  return_token_ids: Type.Optional(
    Type.Boolean({ description: 'as vLLM has it: whether the answer has the ids of its tokens, and of those of the prompt' }),
  ),
  return_tokens_as_token_ids: Type.Optional(
    Type.Boolean({ description: 'as vLLM has it: whether logprobs name a token by its id, as token_id:5' }),
  ),
}

export const PromptLogprobsField = Type.Optional(
  Type.Integer({
    minimum: -1,
    maximum: 20,
    description: 'as vLLM has it: alternatives to report for each token of the prompt, which is computed whole for it',
  }),
)

/** Refuses `prompt_logprobs` in a stream, and for the whole vocabulary. @throws FieldError */
export function checkPromptLogprobs({
  prompt_logprobs: asked,
  stream,
}: {
  readonly prompt_logprobs?: number
  readonly stream?: boolean
}): void {
  if (asked !== undefined && stream === true)
    throw unsupported('prompt_logprobs', 'prompt_logprobs is not supported in a stream; ask for the whole answer.')
  if (asked === -1)
    throw unsupported('prompt_logprobs', 'prompt_logprobs may be 0 to 20; -1, the whole vocabulary, is not supported.')
}

/**
 * Writes the logprobs of a prompt: null for the first token, which has none; then an object for each token, with its alternatives, by ids.
 */
export const promptLogprobs = (logprobs: readonly PromptLogprob[]): readonly (object | null)[] => [null, ...logprobs.map(byToken)]

function byToken({ top, rank, ...own }: PromptLogprob): object {
  const ranked = top.map((one, index) => ({ ...one, rank: index + 1 }))
  const all = ranked.some(({ token }) => token === own.token) ? ranked : [...ranked, { ...own, rank }]
  return Object.fromEntries(
    all.map(({ token, text, logprob, rank: place }) => [token, { logprob, rank: place, decoded_token: text }]),
  )
}
