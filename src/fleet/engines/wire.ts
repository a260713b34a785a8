/** Writes a step as a request of OpenAI's chat API: shown messages, tools, sampling. */
import { createHash } from 'node:crypto'
import { anyObject } from '../../runtime/chat/grammar.js'
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { contains, span } from '../../runtime/core/span.js'
import { writeJson } from '../../runtime/core/written-json.js'
import type { ChatMessage, Edit, ToolCall, ToolDefinition } from '../../runtime/chat/message.js'
import type { EngineRequest, Sampling } from '../../runtime/engine/engine.js'
import type { Flavour } from './flavour.js'

/** The largest logit bias of OpenAI's API; -100 bans a token. An infinite bias becomes ±100, because JSON has no infinity. */
const BIAS = 100

/**
 * Returns a message's content with its edits applied. The edits must be in order and not overlap. @throws KvfoldError internal/invariant if
 * they do
 */
export function shownText(content: string, edits: readonly Edit[]): string {
  let text = ''
  let at = 0
  for (const { span: hidden, replacement } of edits) {
    invariant(hidden.start >= at && contains(span(0, content.length), hidden), 'Edits are out of order, or outside the content.')
    text += content.slice(at, hidden.start) + replacement
    at = hidden.end
  }
  return text + content.slice(at)
}

/** Groups the edits by message index. Each list is in order of position. */
export function editsByMessage(edits: readonly Edit[]): ReadonlyMap<number, readonly Edit[]> {
  const made = new Map<number, Edit[]>()
  for (const edit of edits) made.set(edit.message, [...(made.get(edit.message) ?? []), edit])
  for (const list of made.values()) list.sort((a, b) => a.span.start - b.span.start)
  return made
}

/** Returns a message's content with its edits applied, followed by its note. */
export const contentOf = ({ content, note = '' }: ChatMessage, edits: readonly Edit[]): string => shownText(content, edits) + note

/** Returns the text of a message that counts for tokens and for comparing two steps: the shown content, and the tool calls. */
export const bodyOf = (message: ChatMessage, shown: string): string =>
  message.toolCalls === undefined
    ? shown
    : shown + message.toolCalls.map((call) => `\n${call.name} ${argumentsOf(call)}`).join('')

/** Returns a prompt in the form that /v1/chat/completions and the engines' token counters take. */
export function promptOf(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  edits: readonly Edit[],
  { reasoning }: Flavour,
): { readonly messages: readonly unknown[]; readonly tools?: readonly unknown[] } {
  const changes = editsByMessage(edits)
  const wired = messages.map((message, index) => ({
    role: message.role,
    content: contentOf(message, changes.get(index) ?? []),
    ...(message.reasoning === undefined ? {} : Object.fromEntries(reasoning.map((field) => [field, message.reasoning]))),
    ...(message.toolCalls === undefined ? {} : { tool_calls: message.toolCalls.map(callOf) }),
    ...(message.toolCallId === undefined ? {} : { tool_call_id: message.toolCallId }),
    ...(message.name === undefined ? {} : { name: message.name }),
  }))
  if (tools.length === 0) return { messages: wired }
  return { messages: wired, tools: tools.map((tool) => ({ type: 'function', function: tool })) }
}

/**
 * Returns the body of a chat completion request. It asks for a stream where the engine can stream the answer. `tokens`: also ask for the
 * token ids of prompt and answer.
 * @throws KvfoldError remote/unsupported, engine/bad-request
 */
export function bodyFor(
  request: EngineRequest,
  edits: readonly Edit[],
  model: string,
  flavour: Flavour,
  tokens = false,
): Record<string, unknown> {
  const { messages, maxTokens, stop = [], tenant, grammar, schema, attention } = request
  const logprobs = request.logprobs ?? (tokens ? 0 : undefined)
  const { tools, choice } = toolsOf(request)
  const json = grammar === anyObject
  if (attention !== undefined)
    throw new KvfoldError(
      'attention/unavailable',
      'A remote engine does not report attention; serve the model here with --model.',
    )
  if (grammar !== undefined && schema !== undefined)
    throw new KvfoldError('engine/bad-request', 'Give a grammar or a schema, not both.')
  if (request.lora?.some(({ scale }) => scale !== 0) === true) throw unsupported('adapters by number', flavour)
  if (request.continues === true && flavour.continues === null) throw unsupported('an answer that has begun', flavour)
  if (grammar !== undefined && !json && flavour.grammar === null) throw unsupported('a grammar', flavour)
  if (grammar !== undefined && !json && tools.length > 0) throw unsupported('a grammar beside tools', flavour)
  return {
    model,
    ...promptOf(messages, tools, edits, flavour),
    ...(tools.length === 0 ? {} : { tool_choice: choice }),
    ...(logprobs !== undefined && (tokens || tools.length > 0) && !flavour.streamsLogprobs
      ? { stream: false }
      : { stream: true, stream_options: { include_usage: true } }),
    ...samplingOf(request.sampling ?? {}, flavour),
    ...limitsOf(request, flavour),
    ...(maxTokens === undefined ? {} : { max_tokens: Math.max(maxTokens, flavour.fewestTokens) }),
    ...(stop.length === 0 ? {} : { stop }),
    ...(logprobs === undefined ? {} : { logprobs: true, top_logprobs: Math.max(logprobs, flavour.fewestAlternatives) }),
    ...(tokens && flavour.promptTokens === 'answer' ? { return_token_ids: true } : {}),
    ...(schema === undefined
      ? {}
      : { response_format: { type: 'json_schema', json_schema: { name: 'answer', schema, strict: request.loose !== true } } }),
    ...(tenant === undefined || flavour.salt === null ? {} : { [flavour.salt]: saltOf(tenant) }),
    ...variablesOf(request, flavour),
    ...(request.continues === true ? flavour.continues : {}),
    ...flavour.extras,
    ...(json ? { response_format: { type: 'json_object' } } : grammar === undefined ? {} : flavour.grammar?.(grammar)),
  }
}

/**
 * Returns the request fields for the chat template's variables. Variables without a field are left out (`RemoteEngine.reads` tells which).
 */
function variablesOf({ variables = {} }: EngineRequest, flavour: Flavour): Record<string, unknown> {
  if (flavour.variables === 'any') return Object.keys(variables).length === 0 ? {} : { chat_template_kwargs: variables }
  const { [EFFORT]: effort } = variables
  return effort === undefined ? {} : { [EFFORT]: effort }
}

/** The only chat template variable that OpenAI's API has a field for. */
export const EFFORT = 'reasoning_effort'

/**
 * Returns a request's tools and its `tool_choice`. With `none` the tools stay, so that the prompt keeps its cached beginning. The API
 * cannot require a call to one tool of a subset. Such a request lists only the callable tools and loses its cached beginning.
 */
export function toolsOf({
  tools = [],
  toolChoice = 'auto',
  callable,
}: Pick<EngineRequest, 'tools' | 'toolChoice' | 'callable'>): {
  readonly tools: readonly ToolDefinition[]
  readonly choice: unknown
} {
  if (toolChoice !== 'required' || callable === undefined) return { tools, choice: toolChoice }
  const [only, ...more] = callable
  if (only !== undefined && more.length === 0) return { tools, choice: { type: 'function', function: { name: only } } }
  return { tools: tools.filter(({ name }) => callable.includes(name)), choice: 'required' }
}

/** Switches off filters that the request does not set, if tokens are sampled. A server would otherwise apply its own defaults. */
const withoutFilters = ({ temperature = 0 }: Sampling, { sampling: takes }: Flavour): Sampling =>
  temperature === 0 ? {} : { topP: 1, ...('topK' in takes ? { topK: 0 } : {}), ...('minP' in takes ? { minP: 0 } : {}) }

function samplingOf(wanted: Sampling, flavour: Flavour): Record<string, unknown> {
  const sampling = { ...withoutFilters(wanted, flavour), ...wanted }
  const { temperature = 0, topP, frequencyPenalty, presencePenalty, seed, logitBias, ...rest } = sampling
  return {
    temperature,
    ...(topP === undefined ? {} : { top_p: topP }),
    ...(frequencyPenalty === undefined ? {} : { frequency_penalty: frequencyPenalty }),
    ...(presencePenalty === undefined ? {} : { presence_penalty: presencePenalty }),
    ...(seed === undefined ? {} : { seed }),
    ...(logitBias === undefined ? {} : { logit_bias: biasOf(logitBias, flavour) }),
    ...Object.fromEntries(
      Object.entries(rest).flatMap(([name, value]) => Object.entries(furtherOf(name as keyof typeof rest, value, flavour))),
    ),
  }
}

/** Returns the field of a sampling option that OpenAI's API lacks. @throws KvfoldError remote/unsupported */
function furtherOf(name: keyof Flavour['sampling'], value: unknown, flavour: Flavour): Record<string, unknown> {
  const field = flavour.sampling[name]
  if (field === undefined) throw unsupported(`the sampling option ${name}`, flavour)
  if (name === 'topK' && value === 0) return { [field]: flavour.everyToken }
  const parts = PARTS[name]
  if (parts === undefined) return { [field]: value }
  const entries = Object.entries(value as object).flatMap(([part, of]) =>
    of === undefined ? [] : [[parts[part] ?? part, of] as const],
  )
  return Object.fromEntries(entries)
}

/** For options that have several parameters: llama-server's field for each parameter. */
const PARTS: Readonly<Partial<Record<keyof Flavour['sampling'], Readonly<Record<string, string>>>>> = {
  mirostat: { version: 'mirostat', tau: 'mirostat_tau', eta: 'mirostat_eta' },
  dynatemp: { range: 'dynatemp_range', exponent: 'dynatemp_exponent' },
  xtc: { probability: 'xtc_probability', threshold: 'xtc_threshold' },
  adaptive: { target: 'adaptive_target', decay: 'adaptive_decay' },
  dry: {
    ...{ multiplier: 'dry_multiplier', base: 'dry_base', allowedLength: 'dry_allowed_length' },
    ...{ lastN: 'dry_penalty_last_n', breakers: 'dry_sequence_breakers' },
  },
}

/**
 * Returns the value of `logit_bias`. @throws KvfoldError remote/unsupported for a bias on a text, because only the engine can tokenize it
 */
function biasOf(biases: NonNullable<Sampling['logitBias']>, flavour: Flavour): object {
  if (biases.some(({ token }) => typeof token === 'string')) throw unsupported('logit_bias of texts', flavour)
  return Object.fromEntries(biases.map(({ token, bias }) => [token, Math.max(-BIAS, Math.min(BIAS, bias))]))
}

/** Returns the fields for a request's limits. @throws KvfoldError remote/unsupported */
function limitsOf({ limits = {} }: EngineRequest, flavour: Flavour): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(limits).map(([name, value]) => {
      const field = flavour.limits[name as keyof typeof limits]
      if (field === undefined) throw unsupported(`the limit ${name}`, flavour)
      return [field, value as unknown]
    }),
  )
}

const unsupported = (what: string, { name }: Flavour) =>
  new KvfoldError('remote/unsupported', `The engine behind this server (${name}) does not support ${what}; leave it out.`)

const callOf = (call: ToolCall) => ({
  id: call.id,
  type: 'function',
  function: { name: call.name, arguments: argumentsOf(call) },
})

/** Engines refuse a history in which a call's arguments are not JSON. So malformed arguments are sent as a JSON string. */
const argumentsOf = ({ arguments: given, malformed }: ToolCall): string =>
  writeJson(malformed === undefined ? given : { malformed })

/** Returns a tenant's cache salt: a hash, so that the endpoint does not learn the tenant's name. */
const saltOf = (tenant: string): string => createHash('sha256').update(`kvfold tenant ${tenant}`).digest('base64url')
