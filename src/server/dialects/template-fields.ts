/** Owns the fields by which clients tell the chat template what to do, thinking first of all, what templates call that, and answers that have begun. */
import Type from 'typebox'
import type { ChatMessage } from '../../chat/message.js'
import { FieldError } from '../problem.js'
import type { Ask, TemplateField } from '../ask.js'

/** Whether the model thinks, as templates call it: Qwen, GLM and most others, DeepSeek, Kimi and Granite, MiniMax. */
const thinkingIs = (field: string, isOn: boolean): readonly TemplateField[] => [
  { field, names: ['enable_thinking', 'thinking'], value: isOn },
  { field, names: ['thinking_mode'], value: isOn ? 'enabled' : 'disabled' },
]

/** What is said of the prompt by other fields. */
const TAKEN = ['messages', 'tools', 'functions', 'add_generation_prompt', 'continue_final_message', 'bos_token', 'eos_token']

const Budget = Type.Optional(
  Type.Integer({ minimum: -1, maximum: 2 ** 31 - 1, description: 'tokens that the model may think for; -1: without end' }),
)

/** Fields of every dialect. */
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

/** What llama-server (the first three), vLLM, and Qwen's and SGLang's APIs call it. */
const BUDGETS = [
  'thinking_budget_tokens',
  'reasoning_budget',
  'reasoning_budget_tokens',
  'thinking_token_budget',
  'thinking_budget',
] as const

/** As OpenAI's API names efforts, and whatever else a template knows. */
export const Effort = Type.String({
  minLength: 1,
  maxLength: 40,
  description: 'none, minimal, low, medium, high, xhigh, as far as the model’s template knows them; none: it does not think',
})

/** Anthropic's `thinking`. */
export const Thinking = Type.Optional(
  Type.Object({
    type: Type.Enum(['enabled', 'disabled', 'adaptive'], { description: 'adaptive: as the model’s template has it' }),
    budget_tokens: Type.Optional(Type.Integer({ minimum: 1 })),
  }),
)

/** Whether a request says that the model is to think. */
interface Thinks {
  readonly enable_thinking?: boolean
  readonly thinking?: { readonly type: 'enabled' | 'disabled' | 'adaptive'; readonly budget_tokens?: number }
}

interface Told extends Thinks, Readonly<Partial<Record<(typeof BUDGETS)[number], number>>> {
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>>
  /** OpenRouter's. */
  readonly reasoning?: { readonly max_tokens?: number; readonly effort?: string }
}

/** How long the model may think; undefined: nobody says, or without end. @throws FieldError where two fields say different things */
function budgetOf(body: Told): Ask['reasoningBudget'] {
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
 * What the template is told, later ones where two say something of one variable, and how long the model may think. `effort`: the field that says how
 * much to think, by its name in this dialect. @throws FieldError
 */
export function templateFieldsOf(
  body: Told,
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
  const { field, value } = effort
  const template = [
    ...(thinking === undefined || thinking.type === 'adaptive' ? [] : thinkingIs('thinking', thinking.type === 'enabled')),
    // Seed's templates tell the model.
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

// What a last message of the assistant means: the template does not close it, and the answer goes on from there.

/** The messages before it, and its text; all of them where the last is another's or empty. @throws FieldError */
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
