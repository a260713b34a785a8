/** Reads fields that several dialects share: nulls, content in parts, token ids, template variables. */
import Type from 'typebox'
import { isRecord, weightOf } from '../../core/json.js'
import { atOnce, inTurns, type Steps } from '../../core/turns.js'
import { writtenLike } from '../../core/written-json.js'
import type { Ask, CompletionAsk, TemplateField, UnsupportedParts } from '../ask.js'
import { isLong } from '../json-slices.js'
import { FieldError, unsupported } from '../problem.js'
import type { ChatMessage } from '../../chat/message.js'

/**
 * Returns a copy without null fields, because most clients send null for unset fields. Goes `depth` levels deep into lists and objects.
 * Leaves the top-level fields in `whole` unchanged, and every `schema`, because `const: null` has a meaning there.
 */
export const withoutNulls = (value: unknown, depth: number, whole: readonly string[] = []): unknown =>
  atOnce(nullsTaken(value, depth, whole))

/** Members of lists and objects copied between two yields to the event loop. */
const STEP = 8192

function* nullsTaken(value: unknown, depth: number, whole: readonly string[] = []): Steps<unknown> {
  if (typeof value !== 'object' || value === null || depth === 0) return value
  yield
  if (Array.isArray(value)) {
    const items: unknown[] = []
    for (const item of value) {
      if (items.length % STEP === STEP - 1) yield
      items.push(isFlat(item) ? item : yield* nullsTaken(item, depth - 1))
    }
    return writtenLike(items, value)
  }
  const made: [string, unknown][] = []
  for (const [key, inner] of Object.entries(value)) {
    if (made.length % STEP === STEP - 1) yield
    if (inner === null) continue
    const isWhole = isFlat(inner) || whole.includes(key) || key === 'schema'
    made.push([key, isWhole ? inner : yield* nullsTaken(inner, depth - 1)])
  }
  return writtenLike(Object.fromEntries(made), value)
}

const isFlat = (value: unknown): boolean => typeof value !== 'object' || value === null

/**
 * Returns a Fastify hook that removes nulls before the body's schema is checked (`withoutNulls`). Yields to the event loop for a long body.
 */
export const nullsDownTo =
  (depth: number, whole?: readonly string[]) =>
  (request: { body: unknown }, _reply: unknown, done: (error?: Error) => void): void => {
    if (!isLong(request.body)) {
      request.body = withoutNulls(request.body, depth, whole)
      done()
      return
    }
    inTurns(nullsTaken(request.body, depth, whole)).then((body) => {
      request.body = body
      done()
    }, done)
  }

/** Runs the steps that translate a body: without a yield, or for a long body with yields, so that other streams continue. */
export const translated = <T>(body: unknown, steps: Steps<T>): T | Promise<T> => (isLong(body) ? inTurns(steps) : atOnce(steps))

// Fields that describe a request and do not change the answer.

const untouched = (description: string) => Type.Optional(Type.Unknown({ description: `changes no answer: ${description}` }))

/** Descriptive fields of OpenAI's API, accepted without effect. */
export const NoteFields = {
  user: untouched('who asks; the key says it here'),
  safety_identifier: untouched('who asks'),
  metadata: untouched('notes of the client'),
  service_tier: untouched('there is one tier'),
  prompt_cache_key: untouched('every prompt’s beginning is looked for in the cache'),
  prompt_cache_retention: untouched('how long cells stay is up to the server'),
}

export const NoObfuscation = Type.Optional(Type.Boolean({ description: 'changes nothing: no stream has padding' }))

/** OpenAI's `stream_options`: whether a stream reports token counts. */
export const StreamOptions = Type.Optional(
  Type.Object({
    include_usage: Type.Optional(Type.Boolean()),
    continuous_usage_stats: Type.Optional(
      Type.Boolean({ description: 'as vLLM has it: with include_usage each chunk has the counts so far' }),
    ),
    include_obfuscation: NoObfuscation,
  }),
)

/** vLLM's `cache_salt`, which divides the cache of one API key. */
export const CacheSaltField = Type.Optional(
  Type.String({ description: 'as vLLM has it: only requests with the same salt share what is in the cache' }),
)

/** @throws FieldError for an empty salt, as in vLLM: the client probably lost its own */
export function cacheSaltOf({ cache_salt: salt }: { readonly cache_salt?: string }): string | undefined {
  if (salt === '') throw new FieldError('cache_salt', 'cache_salt must not be empty; send a long random text, or leave it out.')
  return salt
}

// Stop strings: one or a list.

export const StopField = Type.Optional(
  Type.Unsafe<string | string[]>({ type: ['string', 'array'], items: { type: 'string' }, maxItems: 16 }),
)

export const stopOf = (stop: Type.Static<typeof StopField> | undefined): readonly string[] | undefined =>
  typeof stop === 'string' ? [stop] : stop

// llama-server's `lora`: the adapters of a request.

/** The most adapters that a request may list. */
const MOST_ADAPTERS = 64

/** Adapter ids with their scales. */
export const AdapterScales = Type.Array(Type.Object({ id: Type.Integer({ minimum: 0 }), scale: Type.Number() }), {
  maxItems: MOST_ADAPTERS,
  description: 'adapters by the ids of /lora-adapters, and how strongly each applies; those that are not named do not apply',
})

export const LoraField = Type.Optional(AdapterScales)

/** llama-server's interval between comments in a stream. */
export const PingField = Type.Optional(
  Type.Integer({ minimum: -1, maximum: 3600, description: 'seconds between comments in a stream that waits; 0 or less: none' }),
)

/** Returns the seconds between comments in a stream; undefined: no comments. */
export const pingOf = ({ sse_ping_interval: ping = 0 }: { readonly sse_ping_interval?: number }): number | undefined =>
  ping > 0 ? ping : undefined

// Content is a text or a list of parts. Texts are joined; other parts are refused or become a placeholder.

/** What the model sees in place of a part that is not text. */
export const placeholderOf = (type: string): string => `[${type.slice(0, 40)} left out: this server takes text only]`

/**
 * Returns the text of a content field, with each part on its own line.
 * @param types types of parts with text, and for each the key of its text
 * @throws FieldError server/bad-request, server/unsupported
 */
export function textOf(
  content: unknown,
  param: string,
  types: Readonly<Record<string, string>>,
  unsupportedParts: UnsupportedParts = 'refuse',
): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) throw new FieldError(param, `${param} must be a string or a list of parts.`)
  return content
    .map((part: unknown, index) => {
      const place = `${param}[${index}]`
      if (!isRecord(part) || typeof part['type'] !== 'string')
        throw new FieldError(place, `${place} must be an object with a type.`)
      const key = Object.hasOwn(types, part['type']) ? types[part['type']] : undefined
      if (key === undefined && unsupportedParts === 'placeholder') return placeholderOf(part['type'])
      if (key === undefined)
        throw unsupported(
          `${place}.type`,
          `${place} is of type ${JSON.stringify(part['type'].slice(0, 40))}; this server takes text only. Leave it out, or start the server with --unsupported placeholder.`,
        )
      const text = part[key]
      if (typeof text !== 'string') throw new FieldError(`${place}.${key}`, `${place}.${key} must be a string.`)
      return text
    })
    .join('\n')
}

// Which numbers are valid token ids.

/** llama.cpp's token ids have 32 bits with a sign; a larger number would become another id. */
export const LARGEST_TOKEN = 0x7fffffff

const isToken = (value: unknown): value is number =>
  Number.isInteger(value) && Number(value) >= 0 && Number(value) <= LARGEST_TOKEN

export const isTokenList = (list: readonly unknown[]): list is readonly number[] => list.every(isToken)

// The prompt of a bare completion: a text, token ids, a mixture, or a list of these.

/** The most prompts of a request. */
const MOST_PROMPTS = 64

export const PromptField = Type.Unsafe<unknown>({
  type: ['string', 'array', 'object'],
  description: 'text, token ids, or a list of both mixed; a list of such prompts is answered one after the other',
})

type PromptInput = CompletionAsk['prompt']

/** Returns the request's prompts. @throws FieldError */
export function promptsOf(prompt: unknown): readonly PromptInput[] {
  const isSeveral = Array.isArray(prompt) && prompt.length > 0 && !prompt.some((part) => typeof part === 'number')
  const prompts = isSeveral ? (prompt as readonly unknown[]) : [prompt]
  if (prompts.length > MOST_PROMPTS)
    throw new FieldError('prompt', `prompt has ${prompts.length} prompts; send ${MOST_PROMPTS} at most.`)
  return prompts.map((one, at) => promptOf(one, isSeveral ? `prompt[${at}]` : 'prompt'))
}

/** Returns the text of a prompt object as llama-server has it. @throws FieldError server/unsupported for images and sound beside it */
export function promptStringOf(
  text: string,
  { multimodal_data: data }: Readonly<Record<string, unknown>>,
  place: string,
): string {
  if (data === undefined) return text
  throw unsupported(`${place}.multimodal_data`, `${place}.multimodal_data is not supported; this server takes text only.`)
}

function promptOf(prompt: unknown, place: string): PromptInput {
  if (typeof prompt === 'string') return prompt
  if (isRecord(prompt) && typeof prompt['prompt_string'] === 'string')
    return promptStringOf(prompt['prompt_string'], prompt, place)
  if (!Array.isArray(prompt) || prompt.length === 0)
    throw new FieldError(place, `${place} must be a text, or a list of token ids and texts.`)
  const parts = prompt as readonly unknown[]
  const bad = parts.findIndex((part) => typeof part !== 'string' && !isToken(part))
  if (bad >= 0) throw new FieldError(`${place}[${bad}]`, `${place}[${bad}] must be a token id or a text.`)
  return parts as readonly (string | number)[]
}

// Fields that set template variables, above all for thinking, and the beginning of an answer.

/**
 * Returns the template variables that turn thinking on or off. Their names: Qwen, GLM and most templates; DeepSeek, Kimi and Granite;
 * MiniMax.
 */
const thinkingIs = (field: string, isOn: boolean): readonly TemplateField[] => [
  { field, names: ['enable_thinking', 'thinking'], value: isOn },
  { field, names: ['thinking_mode'], value: isOn ? 'enabled' : 'disabled' },
]

/** The most characters and values of `chat_template_kwargs`. */
const MOST_OF_KWARGS = 2 ** 16

/** Template variables that `chat_template_kwargs` must not set, because other fields of the request or the server set them. */
const TAKEN = ['messages', 'tools', 'functions', 'add_generation_prompt', 'continue_final_message', 'bos_token', 'eos_token']

const Budget = Type.Optional(
  Type.Integer({ minimum: -1, maximum: 2 ** 31 - 1, description: 'tokens that the model may think for; -1: without end' }),
)

/** Template fields of all dialects. */
export const TemplateFields = {
  chat_template_kwargs: Type.Optional(
    Type.Record(Type.String(), Type.Unknown(), {
      maxProperties: 64,
      description: 'variables of the chat template, by its own names, such as {"enable_thinking": false}',
    }),
  ),
  enable_thinking: Type.Optional(
    Type.Boolean({ description: 'whether the model thinks before it answers; default: the template’s' }),
  ),
  thinking_budget_tokens: Budget,
  reasoning_budget: Budget,
  reasoning_budget_tokens: Budget,
  thinking_token_budget: Budget,
  thinking_budget: Budget,
}

/** Names of the thinking budget: llama-server's (first three), vLLM's, and those of Qwen's and SGLang's APIs. */
const BUDGETS = [
  'thinking_budget_tokens',
  'reasoning_budget',
  'reasoning_budget_tokens',
  'thinking_token_budget',
  'thinking_budget',
] as const

/** The thinking effort: OpenAI's values, or any value that the template knows. */
export const Effort = Type.String({
  minLength: 1,
  maxLength: 40,
  description: 'none, minimal, low, medium, high, xhigh, as far as the model’s template knows them; none: it does not think',
})

/** Anthropic's `thinking`: whether the model thinks, and for how many tokens. */
export const Thinking = Type.Optional(
  Type.Object({
    type: Type.Enum(['enabled', 'disabled', 'adaptive'], { description: 'adaptive: as the model’s template has it' }),
    budget_tokens: Type.Optional(Type.Integer({ minimum: 1 })),
  }),
)

/** Fields that turn thinking on or off. */
interface Thinks {
  readonly enable_thinking?: boolean
  readonly thinking?: { readonly type: 'enabled' | 'disabled' | 'adaptive'; readonly budget_tokens?: number }
}

interface TemplateRequest extends Thinks, Readonly<Partial<Record<(typeof BUDGETS)[number], number>>> {
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>>
  /** OpenRouter's field: thinking effort and the most thinking tokens. */
  readonly reasoning?: { readonly max_tokens?: number; readonly effort?: string }
}

/** Returns the thinking budget; undefined when no field sets one, or when it is unlimited. @throws FieldError when two fields differ */
function budgetOf(body: TemplateRequest): Ask['reasoningBudget'] {
  const said = [
    ...BUDGETS.map((field) => ({ field, tokens: body[field] })),
    { field: 'reasoning.max_tokens', tokens: body.reasoning?.max_tokens },
    { field: 'thinking.budget_tokens', tokens: body.thinking?.budget_tokens },
  ].flatMap(({ field, tokens }) => (tokens === undefined ? [] : [{ field, tokens }]))
  const [first] = said
  const other = said.find(({ tokens }) => tokens !== first?.tokens)
  if (first !== undefined && other !== undefined)
    throw new FieldError(
      other.field,
      `${other.field} is ${other.tokens} and ${first.field} ${first.tokens}; say once how long the model may think.`,
    )
  return first === undefined || first.tokens < 0 ? undefined : first
}

/**
 * Returns the template variables and the thinking budget. If two fields set one variable, the later field wins.
 * @param effort the field for the thinking effort, under its name in this dialect
 * @throws FieldError
 */
export function templateFieldsOf(
  body: TemplateRequest,
  effort: { readonly field: string; readonly value: string | undefined },
): { readonly template: readonly TemplateField[]; readonly reasoningBudget: Ask['reasoningBudget'] } {
  const { chat_template_kwargs: kwargs = {}, enable_thinking: isThinking, thinking } = body
  const reasoningBudget = budgetOf(body)
  const taken = TAKEN.find((name) => Object.hasOwn(kwargs, name))
  if (taken !== undefined)
    throw new FieldError(
      `chat_template_kwargs.${taken}`,
      `chat_template_kwargs.${taken} is what other fields of the request say; leave it out.`,
    )
  if (weightOf(kwargs, MOST_OF_KWARGS + 1) > MOST_OF_KWARGS)
    throw new FieldError(
      'chat_template_kwargs',
      `chat_template_kwargs has more than ${MOST_OF_KWARGS} characters and values; shorten it.`,
    )
  const { field, value } = effort
  const template = [
    ...(thinking === undefined || thinking.type === 'adaptive' ? [] : thinkingIs('thinking', thinking.type === 'enabled')),
    // Templates of ByteDance's Seed models tell the model its thinking budget.
    ...(reasoningBudget === undefined
      ? []
      : [{ field: reasoningBudget.field, names: ['thinking_budget'], value: reasoningBudget.tokens }]),
    ...(value === undefined ? [] : [{ field, names: ['reasoning_effort'], value }]),
    ...(value === 'none' ? thinkingIs(field, false) : []),
    ...(isThinking === undefined ? [] : thinkingIs('enable_thinking', isThinking)),
    ...Object.entries(kwargs).map(([name, given]) => ({ field: `chat_template_kwargs.${name}`, names: [name], value: given })),
  ]
  return { template, reasoningBudget }
}

// If the last message is the assistant's, the model continues it: the template leaves it open.

/**
 * Splits off a last assistant message. Returns the messages before it and its text as `beginning`, undefined if empty. Without such a
 * message returns all messages.
 * @throws FieldError
 */
export function begun(
  messages: readonly ChatMessage[],
  place: string,
  { enable_thinking: isThinking, thinking }: Thinks,
): { readonly messages: readonly ChatMessage[]; readonly beginning: string | undefined } {
  const last = messages.at(-1)
  if (last?.role !== 'assistant') return { messages, beginning: undefined }
  const bad = (why: string) => new FieldError(place, `${place} is the beginning of the answer: ${why}`)
  if (last.toolCalls !== undefined) throw bad('it has calls, whose results are missing.')
  if (last.reasoning !== undefined) throw bad('a thought cannot be gone on with; leave it out.')
  if (isThinking === true || thinking?.type === 'enabled')
    throw bad('an answer that has begun is not thought about any more; leave it out, or ask without thinking.')
  return { messages: messages.slice(0, -1), beginning: last.content === '' ? undefined : last.content }
}
