/** The six context tools (Sculptor, appendix H): their definitions for the model, and the functions that carry out calls. */
import Type, { type Static, type TObject } from 'typebox'
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { checked, type Fault, strict } from '../core/schema.js'
import { length } from '../core/span.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Conversation } from './conversation.js'
import { type CostlyFolds, type Fragment, priceRemark } from './fragment.js'
import { quoted, refuse, type Refusal } from './refusal.js'
import { type Scope, scopeName, scopes } from './stretch.js'
import type { Hit } from './search.js'

// What a context tool is.

/** The outcome of a tool call. */
export interface ToolOutcome {
  /** The content of the tool message. Starts with `Error: ` when the call failed. */
  readonly text: string
  /**
   * Whether the call succeeded and its tool counts as modifying the context. The spec counts `fragment_context` as such a tool, although
   * it only makes ids.
   */
  readonly modifies: boolean
  readonly failed: boolean
  /** Ledger entries of steps that the call ran, for example to write a summary. */
  readonly ledger: readonly LedgerEntry[]
}

/**
 * The conversation that a tool works on: a `Conversation`, or a thread of the server. Search tools read `messages` only after their
 * search.
 */
export type ContextOperations = Pick<Conversation, 'messages'> & {
  /** Searches by meaning (`Conversation.nearest`). Default: only exact text is found. */
  readonly nearest?: Conversation['nearest']
  /** Counts a fragment's tokens (`Conversation.tokensOf`). Default: results give the fragments' characters instead. */
  readonly tokensOf?: Conversation['tokensOf']
} & {
  readonly [Name in 'fragment' | 'fold' | 'restore' | 'summarize' | 'search' | 'detail']: (
    ...given: Parameters<Conversation[Name]>
  ) => ReturnType<Conversation[Name]> | Promise<Awaited<ReturnType<Conversation[Name]>>>
}

export interface ContextTool {
  readonly definition: ToolDefinition
  /**
   * Returns the definition with its id argument limited to ids that are valid now; null when no call could succeed. The prompt always
   * shows `definition`, but calls are checked against the narrowed one. Default: calls are not limited.
   */
  readonly narrowed?: (conversation: Pick<Conversation, 'fragments' | 'omitted' | 'state'>) => ToolDefinition | null
  /** Whether a call ends the step, because later calls need the ids in its result. Default false. */
  readonly givesIds?: boolean
  /**
   * Checks the arguments and carries out the call. A mistake of the model gives a failed outcome and leaves the conversation unchanged.
   * @param costly whether a fold or summary that saves no tokens is refused; default: the conversation's `costlyFolds`
   * @throws KvfoldError what the engine throws while it writes a summary
   */
  run(
    conversation: ContextOperations,
    args: Readonly<Record<string, unknown>>,
    signal?: AbortSignal,
    costly?: CostlyFolds,
  ): Promise<ToolOutcome>
}

/** What a tool's function returns when its call succeeds. */
interface Success {
  readonly text: string
  readonly modifies: boolean
  readonly ledger?: readonly LedgerEntry[]
}

/** What `defineTool` needs to make a tool. The JSON schema for the model is made from `arguments`. */
interface Recipe<Arguments extends TObject> {
  readonly name: string
  readonly description: string
  readonly arguments: Arguments
  run(
    conversation: ContextOperations,
    args: Static<Arguments>,
    signal?: AbortSignal,
    costly?: CostlyFolds,
  ): Success | Refusal | Promise<Success | Refusal>
}

export function defineTool<Arguments extends TObject>(recipe: Recipe<Arguments>): ContextTool {
  return {
    definition: { name: recipe.name, description: recipe.description, parameters: parametersOf(recipe.arguments) },
    async run(conversation, args, signal, costly) {
      const given = checked(recipe.arguments, args)
      if (!given.ok) return failure(`${recipe.name}: ${faults(given.faults)}`)
      const result = await recipe.run(conversation, given.value, signal, costly)
      if ('text' in result) return { ledger: [], ...result, failed: false }
      return failure(result.message, result.ledger)
    },
  }
}

/**
 * Makes the JSON schema of a tool's arguments. Arguments with a default are optional. The built-in model was trained on this order of
 * keys.
 */
function parametersOf({ properties }: TObject): ToolDefinition['parameters'] {
  const entries = Object.entries(
    properties as Readonly<Record<string, { readonly default?: unknown; readonly description?: string }>>,
  )
  const ordered = entries.map(([name, { default: usual, description, ...rest }]) => [
    name,
    usual === undefined ? { type: 'string', description, ...rest } : { default: usual, description, type: 'string', ...rest },
  ])
  const required = entries.flatMap(([name, { default: usual }]) => (usual === undefined ? [name] : []))
  return { type: 'object', properties: Object.fromEntries(ordered) as object, required, additionalProperties: false }
}

/** Makes the outcome of a failed call. */
export function failure(message: string, ledger: readonly LedgerEntry[] = []): ToolOutcome {
  return { text: `Error: ${message}`, modifies: false, failed: true, ledger }
}

// How a search hit looks in a tool result.

/** One hit of a list: its number, then id, position and surrounding text. */
export const match = (messages: readonly ChatMessage[], hit: Hit, index: number): string =>
  `Match ${index + 1} (${hit.id}): ${placed(messages, hit)}`

/** One line with the hit's id and position, then the text around it. */
export const excerpt = (messages: readonly ChatMessage[], hit: Hit): string => `${hit.id}: ${placed(messages, hit)}`

function placed(messages: readonly ChatMessage[], { message, role, span, standing, excerpt: around }: Hit): string {
  const content = messages[message]?.content ?? ''
  const before = around.start > 0 ? '...' : ''
  const after = around.end < content.length ? '...' : ''
  return `message ${message + 1} (${role}), character ${span.start + 1}, ${where(standing)}\n${before}${content.slice(around.start, around.end)}${after}`
}

function where(standing: Hit['standing']): string {
  switch (standing.kind) {
    case 'shown':
      return 'shown'
    case 'folded':
      return `in folded fragment ${standing.fragment}`
    case 'summarised':
      return `in summarized fragment ${standing.fragment}`
    case 'omitted':
      return 'hidden with the whole message'
  }
}

// Messages about wrong arguments, in words that a model can act on.

/** One sentence for each fault, in the order of the schema. */
const faults = (found: readonly Fault[]): string => found.map((fault) => `${sentence(fault)}.`).join(' ')

function sentence({ path, message, given, unknown }: Fault): string {
  if (unknown !== undefined) {
    const { names, known } = unknown
    return `${names.join(' and ')} ${names.length === 1 ? 'is' : 'are'} not known here; the arguments are ${known.join(', ')}`
  }
  return `${path.join('.')} ${message}${given === undefined ? '' : `, not ${given}`}`
}

// `fragment_context`: gives ids to parts of the text, so that the other tools can name them.

/** The arguments of `fragment_context`. */
export const cutArguments = strict({
  start_marker: Type.String({
    description:
      'A few words copied exactly from the text, where the first fragment starts. Their first occurrence counts; they are included.',
  }),
  end_marker: Type.String({
    description:
      'A few words copied exactly from the text, where the last fragment ends. Their first occurrence after start_marker counts; they are included.',
  }),
  num_fragments: Type.Integer({
    minimum: 1,
    maximum: 20,
    default: 5,
    description: 'How many fragments of about equal length to make.',
  }),
  role: Type.Enum([...scopes], {
    default: 'user',
    description: 'Whose messages the markers stand in. "all" also takes in tool results.',
  }),
})

/** Carries out a `fragment_context` call, arguments already checked. */
export const cut = (conversation: ContextOperations, args: Static<typeof cutArguments>) =>
  conversation.fragment({
    startMarker: args.start_marker,
    endMarker: args.end_marker,
    numFragments: args.num_fragments,
    role: args.role,
  })

export const fragmentContext = defineTool({
  name: 'fragment_context',
  description:
    'Cuts a part of the conversation into fragments and gives each an id, first to last. Nothing changes in what you see; ' +
    'the ids are what fold_fragment, summarize_fragment and restore_fragment take. Call this before any of them.',
  arguments: cutArguments,
  async run(conversation, args) {
    const result = await cut(conversation, args)
    if (!result.ok) return result
    const messages = [...new Set(result.fragments.map(({ message }) => message))]
    const lines = messages.map((message) =>
      cutLine(
        message,
        result.fragments.filter((fragment) => fragment.message === message),
      ),
    )
    const made = result.fragments.length
    if (made > args.num_fragments)
      lines.push(
        `That is more than the ${args.num_fragments} asked for: the markers are in different messages, and each gets one at least.`,
      )
    if (made < args.num_fragments) lines.push(`That is fewer than the ${args.num_fragments} asked for: the text is too short.`)
    return { text: lines.join('\n'), modifies: true }
  },
})

/** Marks the last id with `and last`, so that a small model sees where the list ends. The built-in model was trained on this wording. */
const inOrder = (ids: readonly string[]): string =>
  [ids.slice(0, -1).join(', then '), ...ids.slice(-1)].filter(Boolean).join(' and last ')

function cutLine(message: number, fragments: readonly Fragment[]): string {
  const ids = inOrder(fragments.map(({ id }) => id))
  const mean = Math.round(fragments.reduce((sum, { span }) => sum + length(span), 0) / fragments.length)
  return fragments.length === 1
    ? `Cut message ${message + 1} into 1 fragment of about ${mean} characters: ${ids}.`
    : `Cut message ${message + 1} into ${fragments.length} fragments of about ${mean} characters, first to last: ${ids}.`
}

// `fold_fragment`: hides a fragment behind a short marker.

export const foldFragment = defineTool({
  name: 'fold_fragment',
  description:
    'Hides a fragment: from your next step on you see a short marker with its id instead of its text. Use it on what is ' +
    'out of date or beside the point. Nothing is lost: restore_fragment brings the text back, search_context still finds it.',
  arguments: strict({
    fragment_id: Type.String({ description: 'The id of the fragment, as fragment_context gave it (f and 5 characters).' }),
  }),
  async run(conversation, { fragment_id: id }, _signal, costly) {
    const result = await conversation.fold(id, undefined, costly)
    if (!result.ok) return result
    const { fragment } = result
    return { text: [`Folded ${fragment.id}.`, priceRemark(fragment) ?? []].flat().join(' '), modifies: true }
  },
})

// `summarize_fragment`: puts a summary in place of a fragment. The model writes it.

export const summarizeFragment = defineTool({
  name: 'summarize_fragment',
  description:
    'Puts a short summary in the place of a fragment, from your next step on. Use it on text whose gist you need but not its ' +
    'words. Nothing is lost: restore_fragment brings the text back.',
  arguments: strict({
    fragment_id: Type.String({ description: 'The id of the fragment, as fragment_context gave it (f and 5 characters).' }),
    focus: Type.String({
      description: 'What the summary must keep, for example: decisions, open questions, figures, who is related to whom.',
    }),
  }),
  async run(conversation, { fragment_id: id, focus }, signal, costly) {
    const result = await conversation.summarize(id, focus, signal, costly)
    if (!result.ok) return result
    const { fragment, ledger } = result
    return { text: [`Summarized ${fragment.id}.`, priceRemark(fragment) ?? []].flat().join(' '), modifies: true, ledger }
  },
})

// `restore_fragment`: shows the original text of a hidden fragment again.

export const restoreFragment = defineTool({
  name: 'restore_fragment',
  description: 'Shows the original text of a folded or summarized fragment again, from your next step on.',
  arguments: strict({
    fragment_id: Type.String({ description: 'The id of a folded or summarized fragment (f and 5 characters).' }),
  }),
  async run(conversation, { fragment_id: id }) {
    const result = await conversation.restore(id)
    return result.ok ? { text: `Restored ${result.fragment.id}.`, modifies: true } : result
  },
})

// `search_context`: finds exact text in the original conversation, hidden text included.

const matches = (count: number): string => (count === 1 ? '1 match' : `${count} matches`)

export const searchContext = defineTool({
  name: 'search_context',
  description:
    'Finds every place where exact text stands in the conversation, folded and summarized parts included, and shows it with the ' +
    'text around it. Upper and lower case count. Each match has an id for get_search_detail.',
  arguments: strict({
    query: Type.String({ description: 'The exact text to look for: a name or a few words.' }),
    role: Type.Enum([...scopes], { default: 'user', description: 'Whose messages to search. "all" also takes in tool results.' }),
    max_results: Type.Integer({ minimum: 1, maximum: 50, default: 10, description: 'How many matches to show, first to last.' }),
    context_size: Type.Integer({
      minimum: 50,
      maximum: 1000,
      default: 200,
      description: 'How many characters to show before and after each match.',
    }),
  }),
  async run(conversation, args, signal) {
    const { query, role } = args
    const result = await conversation.search({ query, role, maxResults: args.max_results, contextSize: args.context_size })
    if (!result.ok) return result
    const { hits, total, ignoringCase, elsewhere } = result
    if (total === 0) {
      const none = `No match for ${quoted(query)} in ${scopeName(role)}.`
      const ignoring =
        ignoringCase > 0 ? ` Upper and lower case aside there would be ${matches(ignoringCase)}: use the exact spelling.` : ''
      const other = elsewhere > 0 ? ` Other messages have ${matches(elsewhere)}: search with role "all".` : ''
      const near = ignoringCase + elsewhere > 0 ? [] : await nearestTo(conversation, args, signal)
      if (signal?.aborted === true) return refuse('engine/cancelled', 'The search was cancelled.')
      return { text: [none + ignoring + other, ...near].join('\n\n'), modifies: false }
    }
    const shown = hits.length < total ? `, the first ${hits.length} of them here` : ''
    const head = `${matches(total)} for ${quoted(query)} in ${scopeName(role)}${shown}.`
    return { text: [head, ...hits.map((hit, index) => match(conversation.messages, hit, index))].join('\n\n'), modifies: false }
  },
})

/** The most passages that a search by meaning adds to a result. */
const NEAREST = 3

/**
 * Searches hidden text by meaning, for when exact search finds nothing. Returns none without an embedding model, or when it is busy or
 * fails.
 */
async function nearestTo(
  conversation: ContextOperations,
  { query, role, max_results: most }: { readonly query: string; readonly role: Scope; readonly max_results: number },
  signal?: AbortSignal,
): Promise<readonly string[]> {
  try {
    const hits = (await conversation.nearest?.({ query, role, maxResults: Math.min(most, NEAREST) }, signal)) ?? []
    if (hits.length === 0) return []
    return ['Nearest in meaning, of what is folded:', ...hits.map((hit, index) => match(conversation.messages, hit, index))]
  } catch {
    return []
  }
}

// `get_search_detail`: shows more text around an earlier search hit.

export const getSearchDetail = defineTool({
  name: 'get_search_detail',
  description: 'Shows more of the text around a match that search_context found, from the original text, folded or not.',
  arguments: strict({
    search_id: Type.String({ description: 'The id of the match, as search_context gave it (s and 5 characters).' }),
    extended_context: Type.Integer({
      minimum: 100,
      maximum: 2000,
      default: 500,
      description: 'How many characters to show before and after the match.',
    }),
  }),
  async run(conversation, { search_id: id, extended_context: reach }) {
    const result = await conversation.detail(id, reach)
    return result.ok ? { text: excerpt(conversation.messages, result.hit), modifies: false } : result
  },
})

// The six context tools (Sculptor, appendix H), in the order in which a model sees them.

export const contextTools: readonly ContextTool[] = [
  fragmentContext,
  foldFragment,
  restoreFragment,
  summarizeFragment,
  searchContext,
  getSearchDetail,
]
