/** Probes a chat template: renders small conversations to learn how it takes system messages, tools, calls and results. */
import { KvfoldError } from '../core/errors.js'
import { type TemplateForm, nativeForm, templateMessages, toolsValue } from './conversation.js'
import type { Template } from './jinja/template.js'
import type { ChatMessage, ToolDefinition } from './message.js'
import type { Field, Tracked } from './tracked.js'

export interface Capabilities extends TemplateForm {
  /** Why the template cannot render a conversation with tools; null when it can. */
  readonly trouble: string | null
}

const probeTool: ToolDefinition = {
  name: 'probe_tool',
  description: 'Looks something up.',
  parameters: { type: 'object', properties: { place: { type: 'string', description: 'Where.' } }, required: ['place'] },
}
const system: ChatMessage = { role: 'system', content: 'Probe system.' }
const user: ChatMessage = { role: 'user', content: 'Probe question.' }
const answer: ChatMessage = { role: 'assistant', content: 'Probe answer.' }
const calling: ChatMessage = {
  role: 'assistant',
  content: '',
  toolCalls: ['Rome', 'Oslo'].map((place, at) => ({ id: `call_${at + 1}`, name: probeTool.name, arguments: { place } })),
}
const results: readonly ChatMessage[] = ['Sunny.', 'Rainy.'].map((content, at) => ({
  role: 'tool',
  content,
  name: probeTool.name,
  toolCallId: `call_${at + 1}`,
}))
const afterwards: ChatMessage = { role: 'user', content: 'Probe again.' }
const otherSystem: ChatMessage = { role: 'system', content: 'Probe rule.' }
const broken: ChatMessage = {
  ...calling,
  toolCalls: [{ id: 'call_1', name: probeTool.name, arguments: {}, malformed: 'Probe place' }],
}

/** Conversations in which user messages and answers do not alternate. Some templates fail on them or drop messages. */
const uneven: readonly (readonly ChatMessage[])[] = [
  [answer, user],
  [user, afterwards],
  [user, answer, { ...answer, content: 'Probe more.' }, afterwards],
  [user, calling, afterwards],
  [user, calling, ...results, afterwards],
  [user, answer, calling, ...results, { ...answer, content: 'Probe more.' }],
]

type Attempt = { readonly text: Tracked } | { readonly failure: string }
type Attempts = (messages: readonly ChatMessage[], tools: readonly ToolDefinition[], form: TemplateForm) => Attempt

/**
 * Finds the form in which a template takes messages. @throws KvfoldError chat/template-failed when the template cannot render a single user
 * message
 */
export function findCapabilities(template: Template): Capabilities {
  const attempt: Attempts = (messages, tools, form) => {
    try {
      const given = { messages: templateMessages(messages, tools, form), tools: toolsValue(tools, form), generationPrompt: true }
      return { text: template.render(given) }
    } catch (error) {
      if (error instanceof KvfoldError) return { failure: error.message }
      throw error
    }
  }
  const alone = attempt([user], [], nativeForm)
  const absent =
    'failure' in alone && 'text' in attempt([user], [], { ...nativeForm, absent: 'undefined' }) ? 'undefined' : 'none'
  if ('failure' in alone && absent === 'none')
    throw new KvfoldError('chat/template-failed', `${alone.failure} Its input was a single user message.`)

  const form: TemplateForm = { ...nativeForm, absent, system: systemIn({ ...nativeForm, absent }, attempt) }
  const knows = [[user], [system, user]].some((start) => shows(attempt(start, [probeTool], form), 'tool', 0))
  const turn = [user, calling, ...results, answer, afterwards]
  let trouble: string | null = null
  for (const tried of forms({ ...form, tools: knows ? 'native' : 'described' })) {
    const made = attempt(turn, [probeTool], tried)
    if (rendersCalls(made, tried)) {
      const whole = attempt([system, ...turn], [probeTool], tried)
      if ('text' in whole) return { ...refine(tried, attempt), trouble: null }
      trouble ??= whole.failure
    } else if ('failure' in made) trouble ??= made.failure
  }
  return {
    ...refine({ ...form, tools: knows ? 'native' : 'described' }, attempt),
    trouble: trouble ?? 'it shows neither tool calls nor their results',
  }
}

/** Finds out which system messages the template shows where they stand (`TemplateForm.system`). */
function systemIn(form: TemplateForm, attempt: Attempts): TemplateForm['system'] {
  const native = (...messages: ChatMessage[]) => showsInOrder(attempt(messages, [], form), messages)
  if (!shows(attempt([system, user], [], form), 'content', 0)) return 'merged'
  if (!native(system, otherSystem, user)) return 'first'
  return native(user, otherSystem, answer) && native(system, user, answer, otherSystem, afterwards) ? 'anywhere' : 'leading'
}

/** Finds the remaining fields of a template's form: reasoning, empty answers, alternation, opening, broken arguments. */
function refine(given: TemplateForm, attempt: Attempts): TemplateForm {
  const wordy: ChatMessage = { ...calling, content: 'Probe words.', reasoning: 'Probe thought.' }
  const crowded = 'failure' in attempt([user, wordy, ...results, afterwards], [probeTool], given)
  const blank = 'failure' in attempt([user, { ...answer, content: '' }, afterwards], [], given)
  const form: TemplateForm = { ...given, reasoning: crowded ? 'either' : 'both', empty: blank ? 'space' : 'kept' }
  const evens = (tried: TemplateForm) =>
    uneven.every((messages) => [[], [probeTool]].every((tools) => showsInOrder(attempt(messages, tools, tried), messages)))
  const alternating: TemplateForm = { ...form, alternates: true }
  const even = !form.alternates && !evens(form) && evens(alternating) ? alternating : form
  const opens = [[system], [answer]].every((messages) => showsInOrder(attempt(messages, [probeTool], even), messages))
  const breaks = !showsInOrder(attempt([user, broken, results[0]!, afterwards], [probeTool], even), [user, broken])
  return { ...even, opening: opens ? 'any' : 'user', broken: breaks ? 'parameter' : 'text' }
}

/**
 * Yields the forms to try, from the template's own way down to plain text. If the template ignores tool definitions, calls are written as
 * text too, in the syntax of our description.
 */
function* forms(base: TemplateForm): Generator<TemplateForm> {
  for (const alternates of [false, true])
    for (const results of ['native', 'user'] as const)
      if (base.tools === 'native')
        for (const ids of ['free', 'nine'] as const)
          for (const parallel of ['together', 'split'] as const)
            for (const calls of ['object', 'string'] as const) yield { ...base, calls, parallel, results, ids, alternates }
  for (const results of ['native', 'user'] as const)
    for (const alternates of [false, true]) yield { ...base, calls: 'text', results, alternates }
}

function shows(attempt: Attempt, field: Field, message: number): boolean {
  return (
    'text' in attempt &&
    attempt.text.pieces.some(({ origin }) => typeof origin !== 'string' && origin.field === field && origin.message === message)
  )
}

/** Whether the text shows all contents and all broken arguments, in the order of the messages. */
function showsInOrder(attempt: Attempt, messages: readonly ChatMessage[]): boolean {
  if (!('text' in attempt)) return false
  const { pieces } = attempt.text
  let at = 0
  return messages.every(({ content, toolCalls = [] }, index) => {
    const given = [content, ...toolCalls.flatMap(({ malformed }) => malformed ?? [])].filter((text) => text !== '')
    return given.every((text) => {
      const found = pieces.findIndex(
        (piece, place) =>
          place >= at && typeof piece.origin !== 'string' && piece.origin.message === index && piece.text.includes(text),
      )
      at = found
      return found !== -1
    })
  })
}

/**
 * Whether the text shows both calls, their arguments and both results. Arguments must be JSON or tags, not a Python dict or JSON in a
 * string.
 */
function rendersCalls(attempt: Attempt, { calls }: TemplateForm): boolean {
  if (!('text' in attempt)) return false
  const { pieces } = attempt.text
  const value = pieces.map(({ text, owner }) => (owner === 1 ? text : '')).join('')
  const copied = pieces.filter(({ origin }) => typeof origin !== 'string' && origin.message === 1).map(({ text }) => text)
  const both = ['Rome', 'Oslo'].every((place) => copied.some((text) => text.includes(place)))
  const mangled = value.includes("'place'") || value.includes('\\"place')
  const listed = calls === 'text' || copied.some((text) => text.includes(probeTool.name))
  return both && listed && !mangled && shows(attempt, 'content', 2) && shows(attempt, 'content', 3)
}
