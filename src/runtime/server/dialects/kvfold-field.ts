/** The `kvfold` field of all dialects: options in a request and facts in an answer for which the dialect itself has no field. */
import { definedFields, fieldOf, isRecord } from '../../core/json.js'
import Type from 'typebox'
import { type Answer, type Ask, type AskEvent, type CompletionAnswer, MOST_OF_SCHEMA } from '../ask.js'
import { memToolModes } from '../../agents/memtool-asides.js'
import { CONTRACT_CHOICES } from '../../core/contract.js'
import { unsupported } from '../problem.js'
import { acms, overflows } from '../threads/policies.js'

/** The field in a request. Unknown keys are refused, because a misspelt key would silently change the answer. */
export const KvfoldField = Type.Optional(
  Type.Object(
    {
      acm: Type.Optional(
        Type.Enum([...acms], {
          description:
            'who folds: no one, the model by six tools of its own, or the server by its policy; memtool: which of the tools are shown',
        }),
      ),
      memtool_mode: Type.Optional(
        Type.Enum([...memToolModes], {
          description: 'with acm memtool: who removes tools and who searches; default: the server’s',
        }),
      ),
      thread: Type.Optional(Type.String({ minLength: 1, maxLength: 200, description: 'the conversation to go on with' })),
      contract: Type.Optional(Type.Enum([...CONTRACT_CHOICES])),
      client_edits: Type.Optional(
        Type.Enum([...CONTRACT_CHOICES], {
          description:
            'what the cache keeps to where the messages differ from those of the last request; default: as the server was started',
        }),
      ),
      overflow: Type.Optional(Type.Enum([...overflows])),
      pin: Type.Optional(
        Type.Array(Type.String({ minLength: 1 }), {
          maxItems: 10_000,
          description: 'ids of tool calls whose results no policy folds: not auto-policy, not overflow, not context_management',
        }),
      ),
      expected_reuse: Type.Optional(
        Type.Integer({
          minimum: 0,
          description:
            'requests that will go on with this conversation: auto-policy folds what pays within them; 0: this is the last one, and its cells give way first',
        }),
      ),
      policy: Type.Optional(
        Type.Object(
          {
            threshold: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
            target: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
            older_than_turns: Type.Optional(Type.Integer({ minimum: 0 })),
            larger_than_tokens: Type.Optional(Type.Integer({ minimum: 0 })),
            clear_at_least: Type.Optional(Type.Integer({ minimum: 0 })),
          },
          { additionalProperties: false },
        ),
      ),
      costly: Type.Optional(
        Type.Boolean({
          description:
            "whether the model's folds and summaries may take at least as many tokens as their text; default: as the server was started",
        }),
      ),
      bare_calls: Type.Optional(
        Type.Boolean({
          description:
            'whether calls are read that the model writes in another form than its chat template has, such as JSON without tags; default: as the server was started',
        }),
      ),
      grammar: Type.Optional(
        Type.String({ minLength: 1, maxLength: MOST_OF_SCHEMA, description: 'GBNF that the answer must satisfy' }),
      ),
      ledger: Type.Optional(Type.Boolean({ description: 'whether the answer carries what every message cost' })),
      events: Type.Optional(Type.Boolean({ description: 'whether a stream carries queue, plan, progress and folds' })),
      ping: Type.Optional(
        Type.Number({ minimum: 0.1, maximum: 3600, description: 'seconds between comments in a stream that waits' }),
      ),
      priority: Type.Optional(Type.Integer({ minimum: -1000, maximum: 1000 })),
      timeout: Type.Optional(
        Type.Number({ exclusiveMinimum: 0, maximum: 86_400, description: 'seconds to the end of the answer' }),
      ),
    },
    { additionalProperties: false },
  ),
)

export type KvfoldRequest = Type.Static<typeof KvfoldField> | undefined

/** Returns the options of the `kvfold` field for an `Ask`. `grammar` is read elsewhere, with the answer formats. */
export function kvfoldOf(field: KvfoldRequest): Partial<Ask> {
  if (field === undefined) return {}
  const {
    acm,
    memtool_mode: memToolMode,
    thread,
    contract,
    client_edits: clientEdits,
    overflow,
    pin,
    expected_reuse: expectedReuse,
    policy,
    costly,
    bare_calls: bareCalls,
    priority,
    timeout,
  } = field
  return definedFields({
    acm,
    memToolMode,
    thread,
    contract,
    clientEdits,
    overflow,
    pinned: pin,
    expectedReuse,
    policy:
      policy === undefined
        ? undefined
        : definedFields({
            threshold: policy.threshold,
            target: policy.target,
            olderThanTurns: policy.older_than_turns,
            largerThanTokens: policy.larger_than_tokens,
            clearAtLeast: policy.clear_at_least,
          }),
    costlyFolds: costly === undefined ? undefined : costly ? ('allow' as const) : ('refuse' as const),
    bareCalls,
    priority,
    timeoutMs: timeout === undefined ? undefined : Math.ceil(timeout * 1000),
  })
}

/** Keys allowed in a bare completion; the other keys concern conversations. */
const WITHOUT_MESSAGES: readonly string[] = ['grammar', 'ledger', 'events', 'ping', 'priority', 'timeout']

/** Refuses keys that concern conversations, for bare completions. @throws FieldError */
export function refuseForConversations(field: KvfoldRequest): void {
  const other = Object.keys(field ?? {}).find((name) => !WITHOUT_MESSAGES.includes(name))
  if (other !== undefined)
    throw unsupported(`kvfold.${other}`, `kvfold.${other} is for conversations; a bare completion has none.`)
}

/** The most ignored fields that an answer lists, and the most characters of each name. */
const MOST_IGNORED = 50
const LONGEST_NAME = 80

/**
 * Returns the request's fields that its route's schema does not have, nested ones in known objects included (`stream_options.x`). Fields in
 * the schema are carried out or refused.
 * @param also fields of the schema that have no effect in this request
 */
export function ignoredIn(
  body: object,
  schema: { readonly properties: object },
  also: readonly string[] = [],
): readonly string[] {
  const all = [...unknownIn(body, schema.properties, ''), ...also]
  const told = all.slice(0, MOST_IGNORED).map((name) => name.slice(0, LONGEST_NAME))
  return told.length === all.length ? told : [...told, `and ${all.length - told.length} more fields`]
}

/** Returns a `kvfold` field with only the ignored fields; empty when there are none. */
export const onlyIgnored = (ignored: readonly string[]): object => (ignored.length === 0 ? {} : { kvfold: { ignored } })

function unknownIn(body: object, properties: object, within: string): readonly string[] {
  return Object.entries(body).flatMap(([name, value]): readonly string[] => {
    if (value == null) return []
    const known: unknown = Object.hasOwn(properties, name) ? fieldOf(properties, name) : undefined
    if (known === undefined) return [`${within}${name}`]
    const inner = fieldOf(known, 'properties')
    return within === '' && isRecord(value) && isRecord(inner) ? unknownIn(value, inner, `${name}.`) : []
  })
}

/**
 * Returns the `kvfold` field of an answer. Without a `kvfold` field in the request, only for ignored fields, for fields that the template
 * does not read, and for approximate tokens. Undefined when there is nothing to report.
 */
export function kvfoldReply(field: KvfoldRequest, answer: Answer, ignored: readonly string[] = []): object | undefined {
  const { thread, lost, edits, timing, contextCalls, bareCalls, ledger, unread } = answer
  const left = {
    ...(ignored.length + unread.length === 0 ? {} : { ignored: [...ignored, ...unread] }),
    ...(edits === null || edits.approximate === 0 ? {} : { edits }),
  }
  if (field === undefined) return Object.keys(left).length === 0 ? undefined : left
  return {
    thread,
    lost,
    edits,
    context_calls: contextCalls,
    ...(bareCalls === undefined ? {} : { bare_calls: bareCalls }),
    ...timesOf(answer),
    prefill_tokens: timing.prefillTokens,
    generated_tokens: timing.generatedTokens,
    ...(field.ledger === true ? { ledger } : {}),
    ...left,
  }
}

/** The same as `kvfoldReply` for a bare completion, which has no thread and one step. */
export function completionReply(
  field: KvfoldRequest,
  answer: CompletionAnswer,
  ignored: readonly string[] = [],
): object | undefined {
  const left = ignored.length + answer.unread.length === 0 ? undefined : { ignored: [...ignored, ...answer.unread] }
  if (field === undefined) return left
  return { ...timesOf(answer), ...(field.ledger === true ? { ledger: [answer.ledger] } : {}), ...left }
}

/** Returns the `kvfold` field next to the choices: an object for one answer, a list for several. Empty when there is nothing to report. */
export function kvfoldBeside<A>(
  { kvfold, ignored }: { readonly kvfold: KvfoldRequest; readonly ignored: readonly string[] },
  answers: readonly A[],
  reply: (field: KvfoldRequest, answer: A, ignored: readonly string[]) => object | undefined,
): { readonly kvfold?: unknown } {
  const told = answers.map((answer) => reply(kvfold, answer, ignored)).filter((each) => each !== undefined)
  if (told.length === 0) return {}
  return { kvfold: told.length === 1 ? told[0] : told }
}

/**
 * Returns an event as a stream with `kvfold.events` sends it. Null for events that each dialect writes in its own format, and for events
 * not meant for clients.
 */
export function kvfoldEvent(field: KvfoldRequest, event: AskEvent): object | null {
  if (field?.events !== true) return null
  switch (event.type) {
    case 'aside':
    case 'text':
    case 'reasoning':
    case 'call':
    case 'arguments':
    case 'tokens':
      return null
    case 'acm':
    case 'bare-call':
    case 'plan':
    case 'compaction':
    case 'policy':
    case 'progress':
    case 'queued':
    case 'rewrite':
    case 'search':
    case 'started':
      return event
  }
}

const timesOf = ({ waited, timing }: Pick<Answer, 'waited' | 'timing'>): object => ({
  waited_ms: round(waited),
  first_token_ms: round(timing.firstToken),
  total_ms: round(timing.total),
})

const round = (milliseconds: number): number => Math.round(milliseconds * 100) / 100
