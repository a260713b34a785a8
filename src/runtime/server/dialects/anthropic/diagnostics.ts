/** Anthropic's cache diagnostics: compares a request with an earlier one, and names the first thing that changed. */
import { createHash } from 'node:crypto'
import Type from 'typebox'
import { writeJson } from '../../../core/written-json.js'
import type { Answer, Ask, Tenant } from '../../ask.js'
import { messageKey } from '../../threads/message-match.js'

export const DiagnosticsField = Type.Optional(
  Type.Object(
    { previous_message_id: Type.Optional(Type.String({ maxLength: 300 })) },
    { description: 'why the cache was lost since the answer with this id, whose request must have had the field, too' },
  ),
)

type Wish = Type.Static<typeof DiagnosticsField> | undefined

/** What of a request is compared with an earlier one. */
interface RequestParts {
  readonly model: string
  readonly system: string
  readonly tools: string
  /** Hash of all other fields that change the prompt: template variables, tool choice, format. */
  readonly rest: string
  /** Keys of the messages after the leading system messages. */
  readonly keys: readonly string[]
}

/** What is remembered of a request: hashes instead of texts, so its size is fixed. */
interface RequestPrint extends Omit<RequestParts, 'keys'> {
  /** How many messages the request had, and a hash of their keys. */
  readonly count: number
  readonly messages: string
  /** Tokens of prompt and answer, which the next request could have read from the cache. */
  readonly tokens: number
}

/** The most remembered requests per tenant; the oldest are forgotten first. */
const MOST = 4096

/** The prompt's tokens, and how many of them came from the cache. */
export type PromptRead = Pick<Answer['usage'], 'promptTokens' | 'cachedTokens'>

export class Diagnostics {
  readonly #prints = new Map<Tenant, Map<string, RequestPrint>>()

  /** Remembers an answered request whose client wants diagnostics. */
  note(wish: Wish, id: string, ask: Ask, { model, usage }: Answer): void {
    if (wish === undefined) return
    const tokens = usage.promptTokens + usage.completionTokens
    const { keys, ...parts } = partsOf(ask, model)
    const prints = this.#prints.get(ask.tenant) ?? new Map<string, RequestPrint>()
    this.#prints.set(ask.tenant, prints)
    prints.set(id, { ...parts, count: keys.length, messages: digest(keys), tokens })
    for (const oldest of prints.keys()) {
      if (prints.size <= MOST) return
      prints.delete(oldest)
    }
  }

  /**
   * Returns the answer's field `diagnostics`; null when nothing changed, or when the client names no earlier message.
   * @param read null while the cached tokens are unknown
   */
  told(wish: Wish, ask: Ask, model: string, read: PromptRead | null): object | null {
    const id = wish?.previous_message_id
    if (id === undefined) return null
    const before = this.#prints.get(ask.tenant)?.get(id)
    if (before === undefined) return { cache_miss_reason: { type: 'previous_message_not_found' } }
    const type = changeBetween(before, partsOf(ask, model))
    if (type === null) return null
    if (type === 'unavailable' || read === null) return { cache_miss_reason: { type } }
    return { cache_miss_reason: { type, cache_missed_input_tokens: Math.max(0, before.tokens - read.cachedTokens) } }
  }
}

const digest = (value: unknown): string => createHash('sha256').update(writeJson(value)).digest('base64')

function partsOf({ messages, tools, toolChoice, template = [], format, deferred }: Ask, model: string): RequestParts {
  const end = messages.findIndex(({ role }) => role !== 'system')
  const [system, rest] = end === -1 ? [messages, []] : [messages.slice(0, end), messages.slice(end)]
  return {
    model,
    system: digest(system.map(messageKey)),
    // The order of tools is ignored, because a thread keeps the order in which it first saw them.
    tools: digest([...tools].sort((a, b) => (a.name < b.name ? -1 : 1))),
    rest: digest([toolChoice, template.map(({ names, value }) => [names, value]), format ?? null, deferred?.tools.length ?? 0]),
    keys: rest.map(messageKey),
  }
}

/** Returns the first difference between two requests, checked in the order of Anthropic's API; null when there is none. */
function changeBetween(before: RequestPrint, now: RequestParts): string | null {
  if (before.model !== now.model) return 'model_changed'
  if (before.system !== now.system) return 'system_changed'
  if (before.tools !== now.tools) return 'tools_changed'
  if (before.messages !== digest(now.keys.slice(0, before.count))) return 'messages_changed'
  return before.rest === now.rest ? null : 'unavailable'
}
