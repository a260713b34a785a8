/** Reads the fields by which Anthropic's clients shorten their context: `context_management`, `compaction` and `cache_control`. */
import Type from 'typebox'
import { createHash } from 'node:crypto'
import type { ChatMessage } from '../../../chat/message.js'
import { isRecord } from '../../../core/json.js'
import { FieldError, unsupported } from '../../problem.js'
import type { Answer, Ask } from '../../ask.js'
import { type Compacted, summaryMessage } from '../../threads/compaction.js'

const CLEAR = 'clear_tool_uses_20250919'
const THINKING = 'clear_thinking_20251015'
const COMPACT = 'compact_20260112'
/** Defaults of the fields, as Anthropic documents them. */
const DEFAULTS = { trigger: 100_000, keep: 3, thinkingTurns: 1, compactAbove: 150_000 }

export const ContextManagement = Type.Optional(
  Type.Object({
    edits: Type.Optional(
      Type.Array(Type.Object({ type: Type.String() }), {
        maxItems: 16,
        description: `${CLEAR}, ${THINKING} and ${COMPACT}, carried out by folds`,
      }),
    ),
  }),
)

/** The field `compaction` (Anthropic's beta `compact-2026-09-04`), which asks for a summary. */
export const CompactionField = Type.Optional(
  Type.Object(
    { type: Type.Literal('summarize'), instructions: Type.Optional(Type.String()) },
    { description: 'answers with a summary of the messages and nothing else; send its block first in place of them' },
  ),
)

type Managed = Type.Static<typeof ContextManagement>
type EditFields = Readonly<Record<string, unknown>>
type Rules = NonNullable<Ask['clear']>

/** What a request wants cleared and compacted. */
type Wishes = Pick<Ask, 'clear' | 'compaction'>

interface ManagedRequest {
  readonly context_management?: Managed
  readonly compaction?: Type.Static<typeof CompactionField>
}

/** Reads `context_management` and `compaction`. @throws FieldError */
export function managementOf({ context_management: managed, compaction: summarize }: ManagedRequest): Wishes {
  const rules: { -readonly [K in keyof Rules]: Rules[K] } = {}
  let compaction: Ask['compaction']
  if (summarize !== undefined) {
    if (managed !== undefined)
      throw new FieldError(
        'compaction',
        'Give compaction or context_management, not both: a request that compacts does nothing else.',
      )
    return { compaction: { above: null, pauses: true, keepsUser: false, ...instructionsIn(summarize.instructions) } }
  }
  for (const [index, edit] of (managed?.edits ?? []).entries()) {
    const place = `context_management.edits[${index}]`
    const twice = () => new FieldError(`${place}.type`, `${place} is a second ${edit.type}; give one.`)
    if (edit.type === THINKING) {
      if (rules.thinking !== undefined) throw twice()
      rules.thinking = { keep: turnsOf(edit, place) }
    } else if (edit.type === CLEAR) {
      if (rules.toolUses !== undefined) throw twice()
      rules.toolUses = clearing(edit, place)
    } else if (edit.type === COMPACT) {
      if (compaction !== undefined) throw twice()
      compaction = compactionOf(edit, place)
    } else
      throw unsupported(
        `${place}.type`,
        `${place} is of type ${JSON.stringify(edit.type.slice(0, 40))}; ${CLEAR}, ${THINKING} and ${COMPACT} are supported.`,
      )
  }
  return {
    ...(rules.thinking === undefined && rules.toolUses === undefined ? {} : { clear: rules }),
    ...(compaction === undefined ? {} : { compaction }),
  }
}

function compactionOf(edit: EditFields, place: string): NonNullable<Ask['compaction']> {
  const { instructions, pause_after_compaction: pauses = false } = edit
  if (typeof pauses !== 'boolean')
    throw new FieldError(`${place}.pause_after_compaction`, `${place}.pause_after_compaction must be true or false.`)
  if (instructions != null && typeof instructions !== 'string')
    throw new FieldError(`${place}.instructions`, `${place}.instructions must be a text that says what to write.`)
  const above = sizeOf(edit, 'trigger', place, ['input_tokens'])?.value ?? DEFAULTS.compactAbove
  return { above, pauses, keepsUser: false, ...instructionsIn(instructions) }
}

/** Returns the client's instructions for the summary; none if they are blank. */
const instructionsIn = (text: string | null | undefined): { readonly instructions?: string } =>
  text == null || text.trim() === '' ? {} : { instructions: text }

// A compaction is a content block at the beginning of an answer. When a client sends it back, it replaces all messages before it.

const SIGNED = 'kvfold1.'

/** Returns a hash of the summary. It shows whether a client sends the summary back unchanged; it is no proof of who wrote it. */
const signatureOf = (content: string): string => SIGNED + createHash('sha256').update(content).digest('base64url')

/** Returns the content block of a compaction, which the client sends back unchanged. */
export const compactionBlock = ({ content }: Pick<Compacted, 'content'>): object => ({
  ...{ type: 'compaction', content, encrypted_content: null },
  ...(content === null ? {} : { signature: signatureOf(content) }),
})

/** Returns the summary message for a compaction block; null for a compaction that failed. @throws FieldError */
export function compactedIn(block: EditFields, place: string): ChatMessage | null {
  const { content = null, signature = null } = block
  if (content === null) return null
  if (typeof content !== 'string' || content === '')
    throw new FieldError(`${place}.content`, `${place}.content must be the text of the summary, or null.`)
  if (typeof signature === 'string' && signature.startsWith(SIGNED) && signature !== signatureOf(content))
    throw new FieldError(
      `${place}.signature`,
      `${place}.signature is of another text than ${place}.content; send the block back as it came, or leave the signature out.`,
    )
  return summaryMessage(content)
}

/** Returns how many of the newest turns keep their reasoning. */
function turnsOf(edit: EditFields, place: string): number {
  const keep = edit['keep'] ?? null
  if (keep === 'all' || (isRecord(keep) && keep['type'] === 'all')) return Infinity
  const turns = sizeOf(edit, 'keep', place, ['thinking_turns'])?.value ?? DEFAULTS.thinkingTurns
  if (turns > 0) return turns
  throw new FieldError(`${place}.keep`, `${place}.keep.value must be at least 1; the newest turn keeps its reasoning.`)
}

function clearing(edit: EditFields, place: string): NonNullable<Rules['toolUses']> {
  const trigger = sizeOf(edit, 'trigger', place, ['input_tokens', 'tool_uses'])
  const inputs = edit['clear_tool_inputs'] ?? false
  if (typeof inputs !== 'boolean' && !isNames(inputs))
    throw new FieldError(
      `${place}.clear_tool_inputs`,
      `${place}.clear_tool_inputs must be true, false, or a list of the names of tools.`,
    )
  const excluded = edit['exclude_tools'] ?? []
  if (!isNames(excluded)) throw new FieldError(`${place}.exclude_tools`, `${place}.exclude_tools must be a list of names.`)
  return {
    trigger: {
      kind: trigger?.type === 'tool_uses' ? 'tool-uses' : 'input-tokens',
      value: trigger?.value ?? DEFAULTS.trigger,
    },
    keep: sizeOf(edit, 'keep', place, ['tool_uses'])?.value ?? DEFAULTS.keep,
    clearAtLeast: sizeOf(edit, 'clear_at_least', place, ['input_tokens'])?.value ?? 0,
    excludeTools: excluded,
    inputs,
  }
}

const isNames = (value: unknown): value is readonly string[] =>
  Array.isArray(value) && value.every((name) => typeof name === 'string')

function sizeOf(
  edit: EditFields,
  name: string,
  place: string,
  types: readonly string[],
): { readonly type: string; readonly value: number } | null {
  const size = edit[name] ?? null
  if (size === null) return null
  const [type, value] = isRecord(size) ? [size['type'], size['value']] : []
  if (typeof type !== 'string' || !types.includes(type) || !Number.isSafeInteger(value) || (value as number) < 0)
    throw new FieldError(
      `${place}.${name}`,
      `${place}.${name} must be {"type": "${types.join('" or "')}", "value": <a whole number>}.`,
    )
  return { type, value: value as number }
}

/** Returns the answer's field `context_management`, if the request has that field. */
export function managed(
  { context_management: asked }: { readonly context_management?: Managed | undefined },
  { cleared }: Answer,
): object {
  if (asked === undefined) return {}
  const { toolUses = 0, inputTokens = 0, thinkingTurns = 0, thinkingTokens = 0 } = cleared ?? {}
  const applied = [
    ...(thinkingTurns === 0
      ? []
      : [{ type: THINKING, cleared_thinking_turns: thinkingTurns, cleared_input_tokens: thinkingTokens }]),
    ...(toolUses === 0 ? [] : [{ type: CLEAR, cleared_tool_uses: toolUses, cleared_input_tokens: inputTokens }]),
  ]
  return { context_management: { applied_edits: applied } }
}

interface Marked {
  readonly cache_control?: unknown
  readonly system?: unknown
  readonly tools?: unknown
  readonly messages: readonly { readonly role: string; readonly content: unknown }[]
}

/** Returns how many messages of the prompt come after the last `cache_control`. Null when the request has no `cache_control`. */
export function afterBreakpoint({ cache_control: automatic, system, tools, messages }: Marked): number | null {
  if (isRecord(automatic)) return 0
  const last = messages.findLastIndex(({ content }) => isMarked(content))
  // Several tool results in one message of Anthropic's API are several messages here.
  const after = messages.slice(last + 1).reduce((sum, { content }) => sum + partsOf(content), 0)
  return last >= 0 || isMarked(system) || isMarked(tools) ? after : null
}

const isMarked = (parts: unknown): boolean =>
  Array.isArray(parts) && parts.some((part) => isRecord(part) && isRecord(part['cache_control']))

/** Returns how many messages of a thread one message of Anthropic's API becomes. */
function partsOf(content: unknown): number {
  if (!Array.isArray(content)) return 1
  const kinds = content.map((block) => isRecord(block) && (block['type'] === 'tool_result' || block['type'] === 'compaction'))
  const texts = kinds.filter((isResult, at) => !isResult && (at === 0 || kinds[at - 1] === true)).length
  return Math.max(1, kinds.filter(Boolean).length + texts)
}
