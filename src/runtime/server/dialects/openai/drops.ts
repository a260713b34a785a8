/** AKV's fields `drop_message`, `drop_rule` and `reposition` of `/v1/chat/completions`, and the counts that they add to the usage. */
import Type from 'typebox'
import type { ChatMessage } from '../../../chat/message.js'
import type { Answer, Ask } from '../../ask.js'
import { FieldError } from '../../problem.js'

/** How many of the newest tool results stay by default. */
const KEPT = 12

const Index = Type.Integer({ minimum: 0, maximum: 100_000 })

export const DropFields = {
  drop_message: Type.Optional(
    Type.Record(Type.String(), Type.Array(Index), {
      maxProperties: 10_000,
      description: 'after this message those are not shown any more, by indexes of `messages`: {"3": [1, 2]}',
    }),
  ),
  drop_rule: Type.Optional(
    Type.Object({
      type: Type.Enum(['message_drop', 'thinking_drop']),
      keep_tool_responses: Type.Optional(
        Type.Integer({ minimum: 0, description: `with message_drop: how many tool results stay; default: ${KEPT}` }),
      ),
    }),
  ),
  reposition: Type.Optional(
    Type.Array(Index, {
      maxItems: 10_000,
      description: 'after these messages what stays moves up to the positions of what was dropped',
    }),
  ),
}

interface DropRequest {
  readonly drop_message?: Readonly<Record<string, readonly number[]>>
  readonly drop_rule?: { readonly type: 'message_drop' | 'thinking_drop'; readonly keep_tool_responses?: number }
  readonly reposition?: readonly number[]
}

/** A message in the request. */
interface AskedMessage {
  readonly role: string
  readonly tool_call_id?: string | null | undefined
}

/**
 * Returns the drops that the fields ask for. The fields count the request's messages. The drops count the messages of the `Ask`, in which
 * tool results are in the order of their calls.
 * @param asked messages of the request
 * @param ordered messages of the `Ask`
 * @throws FieldError for an index without a message, or for one that cannot be dropped there
 */
export function dropsOf(
  { drop_message: drops, drop_rule: rule, reposition }: DropRequest,
  asked: readonly AskedMessage[],
  ordered: readonly ChatMessage[],
): Ask['drops'] {
  if (drops === undefined && rule === undefined && reposition === undefined) return undefined
  const count = ordered.length
  const places = placesOf(asked, ordered)
  const isThere = (message: number) => Number.isSafeInteger(message) && message >= 0 && message < count
  const messages = Object.entries(drops ?? {}).flatMap(([after, dropped]) => {
    const place = `drop_message[${JSON.stringify(after)}]`
    if (!/^\d{1,6}$/.test(after) || !isThere(Number(after)))
      throw new FieldError(place, `${place} names no message; the request has ${count}, from 0 on.`)
    const wrong = dropped.find((message) => message >= Number(after))
    if (wrong !== undefined)
      throw new FieldError(place, `${place} drops message ${wrong}, which is not before message ${after}; drop earlier ones.`)
    return dropped
  })
  const missing = reposition?.find((message) => !isThere(message))
  if (missing !== undefined)
    throw new FieldError('reposition', `reposition names message ${missing}, and the request has ${count}, from 0 on.`)
  return {
    messages: [...new Set(messages.map((message) => places[message]!))].sort((a, b) => a - b),
    repositions: (reposition?.length ?? 0) > 0,
    ...(rule === undefined ? {} : { rule: ruleOf(rule) }),
  }
}

/** Returns, for each message of the request, its index among the messages of the `Ask`. */
function placesOf(asked: readonly AskedMessage[], ordered: readonly ChatMessage[]): readonly number[] {
  // Sorting never swaps two results of one call, nor two messages that are no results.
  const places = new Map<string | null, number[]>()
  for (const [place, { role, toolCallId = '' }] of ordered.entries()) {
    const of = role === 'tool' ? toolCallId : null
    const known = places.get(of)
    if (known === undefined) places.set(of, [place])
    else known.push(place)
  }
  const seen = new Map<string | null, number>()
  return asked.map(({ role, tool_call_id: id }) => {
    const of = role === 'tool' ? (id ?? '') : null
    const before = seen.get(of) ?? 0
    seen.set(of, before + 1)
    return places.get(of)?.[before] ?? ordered.length
  })
}

const ruleOf = ({
  type,
  keep_tool_responses: keep = KEPT,
}: NonNullable<DropRequest['drop_rule']>): NonNullable<NonNullable<Ask['drops']>['rule']> =>
  type === 'thinking_drop' ? { kind: 'thinking' } : { kind: 'results', keep }

/** Returns the counts of drops for `usage.prompt_tokens_details`; empty without drops. */
export const dropUsage = ({ dropped }: Pick<Answer, 'dropped'>): object =>
  dropped === undefined ? {} : { drop_skipped_tokens: dropped.skippedTokens, repos_tokens: dropped.repositionedTokens }
