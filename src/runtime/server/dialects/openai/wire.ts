/** What OpenAI's routes write alike: errors, token counts, logprobs. */
import Type from 'typebox'
import type { NamedLogprob, PromptLogprob, TokenLogprob } from '../../../engine/engine.js'
import type { Usage } from '../../ask.js'
import { type Problem, unsupported } from '../../problem.js'

// Errors in the format of OpenAI's API.

export interface OpenAiError {
  readonly error: {
    readonly message: string
    readonly type: string
    readonly param: string | null
    readonly code: string
    /** For a prompt that is too long: its tokens and the context's, under llama-server's names. */
    readonly n_prompt_tokens?: number
    readonly n_ctx?: number
    /** The text so far of an answer that failed midway. */
    readonly said?: string
  }
}

/** Error codes with an OpenAI name, for which clients look. */
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
 * Returns the message for a prompt that is too long. Clients look for these words of OpenAI and vLLM, and then shorten their context. If
 * the size is unknown, the words are llama-server's.
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

// Token counts, all from the ledger.

/** Sums the usage of several answers to one prompt. The prompt counts once, generated tokens for every answer. */
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

/** Returns the tokens and seconds saved against a plain prefix cache, as a field beside OpenAI's counts. */
const savedIn = ({ saved }: Pick<Usage, 'saved'>): { readonly kvfold?: object } =>
  saved === undefined ? {} : { kvfold: { saved_tokens: saved.tokens, saved_seconds: Math.round(saved.seconds * 1000) / 1000 } }

/** OpenAI's counts of predicted tokens: drafted tokens that the answer kept, and the others. */
const predictionsIn = ({ drafts }: Pick<Usage, 'drafts'>): object =>
  drafts === undefined
    ? {}
    : { accepted_prediction_tokens: drafts.accepted, rejected_prediction_tokens: drafts.drafted - drafts.accepted }

/**
 * Writes the usage of a chat completion. `cached_tokens`: prompt tokens that were not computed.
 * @param details more fields for `prompt_tokens_details`
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

// Logprobs of both completion routes.

interface NamedToken {
  /** Token id, as llama-server adds it. */
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
 * Writes logprobs for chat completions.
 * @param asIds writes tokens as `token_id:5`, for vLLM's `return_tokens_as_token_ids`
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

/** Counts where each token of a text begins, for `text_offset`. Tokens that are parts of one character are decoded together. */
export class TextOffsets {
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })

  /** @param at where the first token begins */
  constructor(private at = 0) {}

  /** Returns where this token begins. Call it once for each token, in order. */
  next({ text, bytes }: Pick<NamedLogprob, 'text' | 'bytes'>): number {
    const begin = this.at
    this.at += this.#decoder.decode(bytes === undefined ? Buffer.from(text) : Uint8Array.from(bytes), { stream: true }).length
    // Some vocabularies put a space before a text that has none.
    return Math.max(0, begin)
  }

  /** Returns where the text ends after the last token. */
  end(): number {
    return this.at + this.#decoder.decode().length
  }
}

/**
 * Writes logprobs for text completions.
 * @param offsets counts on from the tokens before these
 * @param asIds writes tokens as `token_id:5`
 */
export function textLogprobs(
  logprobs: readonly TokenLogprob[],
  offsets: TextOffsets = new TextOffsets(),
  asIds = false,
): TextLogprobs {
  const name = (one: NamedLogprob) => (asIds ? idOf(one) : one.text)
  return {
    tokens: logprobs.map(name),
    token_logprobs: logprobs.map(({ logprob }) => logprob),
    // Alternatives are sorted best first. Reversing them keeps the likelier of two with the same text, because the later entry wins.
    top_logprobs: logprobs.map(({ top }) => Object.fromEntries([...top].reverse().map((one) => [name(one), one.logprob]))),
    text_offset: logprobs.map((one) => offsets.next(one)),
  }
}

/**
 * Writes a token with its logprob. A token that is part of a character has no text. Bytes are null when a remote engine does not report
 * them.
 */
function named({ text, bytes, logprob }: NamedLogprob): Omit<NamedToken, 'id'> {
  return { token: text, logprob, bytes: bytes ?? (text.includes('\ufffd') ? null : [...Buffer.from(text)]) }
}

// Tokens and logprobs of prompts, in vLLM's format.

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

/** Refuses `prompt_logprobs` in streams, and for the whole vocabulary. @throws FieldError */
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

/** Writes a prompt's logprobs: null for the first token, then for each token an object of its alternatives, by token id. */
export const promptLogprobs = (logprobs: readonly PromptLogprob[]): readonly (object | null)[] => [null, ...logprobs.map(byToken)]

function byToken({ top, rank, ...own }: PromptLogprob): object {
  const ranked = top.map((one, index) => ({ ...one, rank: index + 1 }))
  const all = ranked.some(({ token }) => token === own.token) ? ranked : [...ranked, { ...own, rank }]
  return Object.fromEntries(
    all.map(({ token, text, logprob, rank: place }) => [token, { logprob, rank: place, decoded_token: text }]),
  )
}
