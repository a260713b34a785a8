/** Detects that a template shows earlier messages differently once messages are added. Each such change costs cached cells. */
import { writeJson } from '../core/written-json.js'
import type { ChatMessage, ToolDefinition } from './message.js'
import type { Aligned } from './tokens/aligned.js'
import type { Tracked } from './tracked.js'

/** Reports that the template shows an earlier message differently than in the last prompt. */
export interface TemplateRewrite {
  /** Index of the first message that changed. */
  readonly message: number
  readonly reason: string
}

/** A rendered prompt before edits, and what it was rendered from. */
export interface Trace {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  /** The template variables that the template reads, sorted by name. */
  readonly variables: readonly (readonly [string, unknown])[]
  readonly text: Tracked
  readonly base: Aligned
  /**
   * Offset in the text at which each message begins, then that of the generation prompt, then the end of the prompt. `tokenStarts`: the
   * same, as token indexes.
   */
  readonly textStarts: readonly number[]
  readonly tokenStarts: readonly number[]
  /** Indexes of the messages whose sampled tokens cannot be used, because the template shows something else. */
  readonly refused: readonly number[]
}

/**
 * Compares two successive prompts of a conversation. Returns null when earlier messages keep their tokens, or when the caller changed a
 * message. If the list of tools changed, the report says how many tokens follow the first change.
 */
export function findRewrite(before: Trace, after: Trace): TemplateRewrite | null {
  if (writeJson(before.tools) !== writeJson(after.tools)) return changedTools(before, after)
  for (let index = 0; index < before.messages.length; index++) {
    const [old, now] = [before.messages[index], after.messages[index]]
    if (old === undefined || now === undefined || !sameMessage(old, now)) return null
    if (!sameTokens(before, after, index)) return { message: index, reason: reasonFor(before, after, index) }
  }
  const answer = before.messages.length
  if (after.messages[answer]?.sampled === undefined || !after.refused.includes(answer)) return null
  return { message: answer, reason: refusal(after, answer) }
}

/**
 * Reports what a changed list of tools did to the tokens of the earlier prompt: the first message that changed, and how many tokens come
 * after. Returns null when no token changed.
 */
function changedTools(before: Trace, after: Trace): TemplateRewrite | null {
  const same = before.base.tokens.findIndex((token, at) => token !== after.base.tokens[at])
  if (same < 0) return null
  const behind = before.base.tokens.length - same
  const message = Math.max(
    0,
    before.tokenStarts.findLastIndex((start) => start <= same),
  )
  const names = ({ tools }: Trace) => tools.map(({ name }) => name)
  const [added, removed] = [without(names(after), names(before)), without(names(before), names(after))]
  const changes = [
    ...(added.length === 0 ? [] : [`${added.length} added: ${few(added)}`]),
    ...(removed.length === 0 ? [] : [`${removed.length} removed: ${few(removed)}`]),
  ]
  const what = changes.length === 0 ? 'the same names in another order or with other definitions' : changes.join('; ')
  return {
    message: Math.min(message, before.messages.length),
    reason: `the list of tools changed (${what}), and ${behind} tokens of the earlier prompt follow the first change`,
  }
}

function without(names: readonly string[], others: readonly string[]): string[] {
  const known = new Set(others)
  return names.filter((name) => !known.has(name))
}

/** Lists up to three names, then says how many more there are. */
const few = (names: readonly string[]): string =>
  names.length <= 3 ? names.join(', ') : `${names.slice(0, 3).join(', ')} and ${names.length - 3} more`

function sameMessage(a: ChatMessage, b: ChatMessage): boolean {
  if (a === b) return true
  const plain = ({ role, content, note, reasoning, toolCalls, toolCallId, name }: ChatMessage) =>
    writeJson([role, content, note, reasoning, toolCalls, toolCallId, name])
  return plain(a) === plain(b)
}

function sameTokens(before: Trace, after: Trace, index: number): boolean {
  const tokens = ({ base, tokenStarts }: Trace) => base.tokens.subarray(tokenStarts[index], tokenStarts[index + 1])
  const [old, now] = [tokens(before), tokens(after)]
  return old.length === now.length && old.every((token, at) => token === now[at])
}

const region = ({ text, textStarts }: Trace, index: number): Tracked =>
  text.slice(textStarts[index] ?? 0, textStarts[index + 1] ?? 0)

/** Counts the characters of a field that this text shows. `message`: only of this message; null: of all messages. */
function shown(text: Tracked, field: string, message: number | null): number {
  return text.pieces.reduce(
    (sum, { text: part, origin }) =>
      sum +
      (typeof origin !== 'string' && origin.field === field && (message === null || origin.message === message)
        ? part.length
        : 0),
    0,
  )
}

function reasonFor(before: Trace, after: Trace, index: number): string {
  if (writeJson(before.variables) !== writeJson(after.variables)) return changedVariables(before, after)
  const [old, now] = [region(before, index), region(after, index)]
  if (shown(now, 'tool', null) !== shown(old, 'tool', null))
    return 'the template moves the tool definitions as messages are added'
  if (shown(now, 'reasoning', index) < shown(old, 'reasoning', index))
    return 'the template drops the reasoning of earlier answers'
  if (shown(now, 'reasoning', index) > shown(old, 'reasoning', index))
    return 'the template shows the reasoning of an answer only once messages follow'
  if (shown(now, 'content', index) !== shown(old, 'content', index))
    return 'the template shows the content of earlier messages differently'
  if (shown(now, 'content', null) !== shown(old, 'content', null))
    return 'the template moves the content of another message as messages are added'
  if (shown(now, 'call', index) !== shown(old, 'call', index)) return 'the template writes earlier tool calls differently'
  if (now.value === old.value) return 'the tokens at the end of the message depend on the text after it'
  return 'the template wraps earlier messages differently'
}

function changedVariables(before: Trace, after: Trace): string {
  const written = ({ variables }: Trace) => variables.map((each) => writeJson(each))
  const changed = [...without(written(after), written(before)), ...without(written(before), written(after))]
  const names = [...new Set(changed.map((each) => (JSON.parse(each) as [string])[0]))]
  return `the template was given other variables (${few(names)})`
}

function refusal(after: Trace, index: number): string {
  const { reasoning } = after.messages[index] ?? {}
  if (reasoning !== undefined && reasoning !== '' && shown(region(after, index), 'reasoning', index) === 0)
    return 'the template drops the reasoning of the answer'
  return 'the template writes the answer differently than the model did'
}
