/**
 * The six context tools for models that were not trained on them. Descriptions are short, or the user's own. Results show how each
 * fragment begins, and calls can only name ids that exist.
 */
import Type, { type Static } from 'typebox'
import type { ToolDefinition } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import { checked, strict } from '../core/schema.js'
import type { Conversation } from './conversation.js'
import type { Fragment } from './fragment.js'
import { listed } from './refusal.js'
import {
  type ContextTool,
  contextTools,
  cut,
  cutArguments,
  defineTool,
  foldFragment,
  getSearchDetail,
  restoreFragment,
  searchContext,
  summarizeFragment,
} from './tools.js'

/** The model trained on the texts of `contextTools`: its name in the GGUF file, and its name on a server. */
const TRAINED: readonly string[] = ['kvfold-tiny', 'builtin']

/**
 * Returns the context tools with the descriptions that suit a model.
 * @param model the model's name without adapters (`EngineInfo.base`). An adapter of the trained model counts as trained, too
 * @param texts the user's own descriptions; default: those of this project
 */
export function contextToolsFor(model: string, texts?: ToolTexts): readonly ContextTool[] {
  if (texts !== undefined) return shaped(texts)
  return TRAINED.includes(model) ? contextTools : shortContextTools
}

const ToolText = strict({
  description: Type.String(),
  /** Descriptions of the arguments, by name. An optional argument without one is hidden from the model. */
  arguments: Type.Record(Type.String(), Type.String()),
})

/** Descriptions of tools, by tool name. A tool that has no entry is hidden from the model. */
export type ToolTexts = Readonly<Record<string, Static<typeof ToolText>>>

/** Reads texts of the tools from JSON. @param from names the source in errors @throws KvfoldError cli/bad-usage */
export function readToolTexts(json: string, from: string): ToolTexts {
  const wrong = (what: string) => new KvfoldError('cli/bad-usage', `${from} is not a file of tool texts: ${what}.`)
  let given: unknown
  try {
    given = JSON.parse(json)
  } catch (error) {
    throw wrong(`it is not JSON (${(error as Error).message})`)
  }
  const texts = checked(Type.Record(Type.String(), ToolText), given)
  if (!texts.ok) throw wrong(texts.faults.map(({ path, message }) => `${path.join('.')} ${message}`).join('; '))
  const names = contextTools.map(({ definition }) => definition.name)
  for (const [name, { arguments: shown }] of Object.entries(texts.value)) {
    const tool = contextTools.find(({ definition }) => definition.name === name)
    if (tool === undefined) throw wrong(`there is no tool ${name}; the tools are ${listed(names)}`)
    const { properties, required } = schemaOf(tool.definition)
    const unknown = Object.keys(shown).filter((argument) => !(argument in properties))
    if (unknown.length > 0) throw wrong(`${name} has no argument ${listed(unknown)}; it has ${listed(Object.keys(properties))}`)
    const missing = required.filter((argument) => !(argument in shown))
    if (missing.length > 0) throw wrong(`${name} needs a text for ${listed(missing)}`)
  }
  return texts.value
}

interface ArgumentsSchema {
  readonly properties: Readonly<Record<string, { readonly default?: unknown }>>
  readonly required: readonly string[]
}

const schemaOf = ({ parameters }: ToolDefinition): ArgumentsSchema => parameters as unknown as ArgumentsSchema

/** A context tool before its descriptions are added. */
interface Unworded extends Pick<ContextTool, 'givesIds'> {
  readonly tool: ContextTool
  /** Values for optional arguments that the model does not see or leaves out. */
  readonly usual?: Readonly<Record<string, unknown>>
  /** The argument that takes an id, and the ids that are valid now. */
  readonly names?: { readonly argument: string; readonly ids: IdsIn }
}

type IdsIn = (conversation: Pick<Conversation, 'fragments' | 'omitted' | 'state'>) => readonly string[]

/**
 * Returns the ids of fragments in one of these states. Fragments in a message that is hidden as a whole are left out: no call could show
 * or hide them.
 */
const fragmentsThatAre =
  (...kinds: readonly Fragment['state']['kind'][]): IdsIn =>
  ({ fragments, omitted }) =>
    fragments.filter(({ state, message }) => kinds.includes(state.kind) && !omitted.has(message)).map(({ id }) => id)

const named = (...kinds: readonly Fragment['state']['kind'][]): NonNullable<Unworded['names']> => ({
  argument: 'fragment_id',
  ids: fragmentsThatAre(...kinds),
})

/** A tool result quotes about this many characters from the beginning of a fragment. */
const BEGINNING = 60

/**
 * A tool result gives the token count of at most this many fragments, because each count reads the whole conversation. For further
 * fragments it gives the characters.
 */
const MOST_COUNTED = 20

/** Returns the beginning of a text, about 60 characters, on one line. */
function beginningOf(text: string): string {
  const line = text
    .slice(0, 4 * BEGINNING)
    .replaceAll(/\s+/g, ' ')
    .trim()
  return line.length <= BEGINNING ? line : `${line.slice(0, BEGINNING).trimEnd()}...`
}

/** `fragment_context` with a result that says how long each fragment is and how it begins. */
const fragmentContext = defineTool({
  name: 'fragment_context',
  description: '',
  arguments: cutArguments,
  async run(conversation, args) {
    const result = await cut(conversation, args)
    if (!result.ok) return result
    const lines = result.fragments.map((fragment, at) => {
      const { id, message, span } = fragment
      const tokens = at < MOST_COUNTED ? (conversation.tokensOf?.(fragment) ?? null) : null
      const size = tokens === null ? `${span.end - span.start} characters` : `${tokens} tokens`
      return `${id} (${size}): ${beginningOf(conversation.messages[message]!.content.slice(span.start, span.end))}`
    })
    return { text: [...lines, 'Now fold what you do not need, or answer.'].join('\n'), modifies: true }
  },
})

/** The six tools without descriptions, in the order of `contextTools`. */
const TOOLS: readonly Unworded[] = [
  { tool: fragmentContext, usual: { role: 'all' }, givesIds: true },
  { tool: foldFragment, names: named('open', 'summarised') },
  { tool: restoreFragment, names: named('folded', 'summarised') },
  { tool: summarizeFragment, names: named('open', 'folded', 'summarised') },
  { tool: searchContext, usual: { role: 'all', max_results: 5 }, givesIds: true },
  { tool: getSearchDetail, names: { argument: 'search_id', ids: ({ state }) => state.searches.map(({ id }) => id) } },
]

/** Makes the tools that have an entry in `texts`. Tools without one are left out. */
function shaped(texts: ToolTexts): readonly ContextTool[] {
  return TOOLS.flatMap(({ tool, usual = {}, givesIds = false, names }) => {
    const { name } = tool.definition
    const text = texts[name]
    if (text === undefined) return []
    const { properties, ...schema } = schemaOf(tool.definition)
    const shown = Object.entries(properties).flatMap(([argument, { default: _, ...of }]) => {
      const description = text.arguments[argument]
      return description === undefined ? [] : [[argument, { ...of, description }] as const]
    })
    const withProperties = (changed: Readonly<Record<string, unknown>>): ToolDefinition => ({
      name,
      description: text.description,
      parameters: { ...schema, properties: { ...Object.fromEntries(shown), ...changed } },
    })
    const worded: ContextTool = {
      definition: withProperties({}),
      givesIds,
      run: (conversation, args, ...rest) => tool.run(conversation, { ...usual, ...args }, ...rest),
    }
    if (names === undefined) return worded
    const { argument, ids } = names
    const narrowed = (conversation: Parameters<IdsIn>[0]) => {
      const known = ids(conversation)
      return known.length === 0 ? null : withProperties({ [argument]: { type: 'string', enum: known } })
    }
    return { ...worded, narrowed }
  })
}

const FRAGMENT = { fragment_id: 'Id of the fragment.' }

/** The six context tools with short texts. */
export const shortContextTools: readonly ContextTool[] = shaped({
  fragment_context: {
    description: 'Cut a passage of the conversation into fragments and get their ids. Call this first.',
    arguments: {
      start_marker: 'Exact words where the passage begins.',
      end_marker: 'Exact words where it ends.',
      num_fragments: 'How many fragments.',
    },
  },
  fold_fragment: {
    description: 'Hide a fragment that is outdated or not needed. It can be restored.',
    arguments: FRAGMENT,
  },
  restore_fragment: { description: 'Show the text of a hidden fragment again.', arguments: FRAGMENT },
  summarize_fragment: {
    description: 'Put a summary in the place of a fragment.',
    arguments: { ...FRAGMENT, focus: 'What the summary must keep.' },
  },
  search_context: {
    description: 'Find exact text in the whole conversation, hidden parts included.',
    arguments: { query: 'The exact text.' },
  },
  get_search_detail: { description: 'Show more text around a search result.', arguments: { search_id: 'Id of the result.' } },
})
