/** Compaction in OpenAI's Responses API: compaction items, `context_management`, and `/v1/responses/compact`. */
import { randomUUID } from 'node:crypto'
import Type from 'typebox'
import type { ChatMessage } from '../../../chat/message.js'
import { isRecord } from '../../../core/json.js'
import type { Answer, Ask } from '../../ask.js'
import { FieldError, unsupported } from '../../problem.js'
import { type Compacted, summaryMessage } from '../../threads/compaction.js'
import { responseUsage } from './wire.js'

/** The field `context_management` of `/v1/responses`. */
export const ResponseManagement = Type.Optional(
  Type.Array(
    Type.Object({
      type: Type.String({ description: 'compaction' }),
      compact_threshold: Type.Optional(
        Type.Integer({
          minimum: 1,
          description: 'prompt tokens above which it compacts; default: three quarters of the context',
        }),
      ),
    }),
    { maxItems: 1 },
  ),
)

type Managed = Type.Static<typeof ResponseManagement>

/** Type of a last input item that asks for a compaction now. */
const TRIGGER = 'compaction_trigger'

/** Returns the compaction that a request asks for. @throws FieldError for an entry of `context_management` with an unknown type */
export function compactionIn(managed: Managed | undefined, isTriggered: boolean): Ask['compaction'] {
  const [entry] = managed ?? []
  if (entry !== undefined && entry.type !== 'compaction')
    throw unsupported('context_management[0].type', 'context_management[0].type must be "compaction"; nothing else is supported.')
  if (isTriggered) return { above: null, pauses: true, keepsUser: false }
  if (entry === undefined) return undefined
  const { compact_threshold: above } = entry
  return { pauses: false, keepsUser: false, ...(above === undefined ? {} : { above }) }
}

/** Returns the input without a last compaction trigger, and whether it had one. */
export function withoutTrigger(input: unknown): { readonly input: unknown; readonly isTriggered: boolean } {
  const last: unknown = Array.isArray(input) ? input.at(-1) : undefined
  const isTriggered = isRecord(last) && last['type'] === TRIGGER
  return { input: isTriggered ? (input as unknown[]).slice(0, -1) : input, isTriggered }
}

/**
 * What an item's `encrypted_content` contains. `stands`: how many messages the summary replaces. `all`: it replaces all items before it in
 * the input; false: those items were left out already.
 */
interface Held {
  readonly content: string
  readonly stands: number
  readonly all: boolean
}

const SEALED = 'kvfold1.'

/** Encodes a summary as `encrypted_content`. It is not encrypted: the conversation is the client's own. */
const sealed = (held: Held): string => SEALED + Buffer.from(JSON.stringify(held)).toString('base64url')

/** Returns the compaction item. Its `encrypted_content` is empty when the compaction failed. */
export const compactionItem = ({ content, stands }: Pick<Compacted, 'content' | 'stands'>, id: string, all: boolean): object => ({
  ...{ id, type: 'compaction' },
  encrypted_content: content === null ? '' : sealed({ content, stands, all }),
})

/**
 * Returns the summary message of a compaction item, and whether it replaces all messages before it. Null for a compaction that failed.
 * @throws FieldError for `encrypted_content` that kvfold did not write
 */
export function compactedIn(
  item: Readonly<Record<string, unknown>>,
  place: string,
): { readonly message: ChatMessage; readonly all: boolean } | null {
  const text = item['encrypted_content']
  if (text === '') return null
  const held = typeof text === 'string' && text.startsWith(SEALED) ? heldIn(text.slice(SEALED.length)) : null
  if (held !== null) return { message: summaryMessage(held.content, held.stands), all: held.all }
  throw new FieldError(
    `${place}.encrypted_content`,
    `${place}.encrypted_content was not written by kvfold, which cannot read it; send the messages themselves, or a summary as a message.`,
  )
}

function heldIn(text: string): Held | null {
  try {
    const held: unknown = JSON.parse(Buffer.from(text, 'base64url').toString())
    if (!isRecord(held)) return null
    const { content, stands, all } = held
    return typeof content === 'string' && Number.isSafeInteger(stands)
      ? { content, stands: stands as number, all: all === true }
      : null
  } catch {
    return null
  }
}

/** Returns the answer of `/v1/responses/compact`: the user's messages, and one item that replaces all others. */
export function compactedResponse(messages: readonly ChatMessage[], { compacted, model }: Answer): object {
  const id = randomUUID().replaceAll('-', '')
  const { promptTokens = 0, cachedTokens = 0, completionTokens = 0 } = compacted?.usage ?? {}
  const users = messages.filter(({ role, stands }) => role === 'user' && stands === undefined)
  return {
    id: `resp_${id}`,
    object: 'response.compaction',
    created_at: Math.floor(Date.now() / 1000),
    model,
    output: [
      ...users.map(({ content }, index) => ({
        ...{ id: `msg_${id}_${index}`, type: 'message', role: 'user', status: 'completed' },
        content: [{ type: 'input_text', text: content }],
      })),
      compactionItem(compacted ?? { content: null, stands: 0 }, `cmp_${id}`, false),
    ],
    usage: responseUsage({ promptTokens, cachedTokens, completionTokens, reasoningTokens: 0 }),
  }
}
