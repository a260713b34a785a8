/** Owns tools of a request that the model does not see until it finds them: the searches that it may make, and which of the tools it has found. */
import Type from 'typebox'
import type { ChatMessage, ToolDefinition } from '../../chat/message.js'
import { refuse } from '../../context/refusal.js'
import { type ContextTool, defineTool } from '../../context/tools.js'
import { strict } from '../../core/schema.js'
import { Catalogue } from '../../tools/catalogue.js'
import { definitionIn, lineOf } from '../../tools/late-definitions.js'

/** A search that the server carries out; its calls and results are the client's to know. */
export interface ToolSearch {
  readonly name: string
  readonly by: 'words' | 'pattern'
}

export interface Deferral {
  /** May be called once the conversation has shown them, in the result of whatever tool. */
  readonly tools: readonly ToolDefinition[]
  readonly searches: readonly ToolSearch[]
  /** Names of searches that the client carries out: what their results define may be called, too. Default: none. */
  readonly clientSearches?: readonly string[]
}

/** Tools found in one search, as Anthropic's API has it. */
const FOUND = 5
/** Characters of a search. */
const LONGEST = 200

const QUERY = Type.String({ minLength: 1, maxLength: LONGEST, description: 'what the tool does, in a few words' })
const PATTERN = Type.String({
  minLength: 1,
  maxLength: LONGEST,
  description: 'a regular expression that its name, its description or an argument has, case ignored, such as "weather|forecast"',
})

/** What the model is told of a search. */
const about = (how: string) =>
  `Finds tools that are not shown yet${how}. The result has the definitions of at most ${FOUND}; you can call them from then on.`

/** What a result says of the tools found: their definitions, so that the same tools give the same text wherever it is made. */
export const foundText = (tools: readonly ToolDefinition[]): string =>
  tools.length === 0 ? 'No tool found.' : tools.map(lineOf).join('\n')

/** The searches of a request as tools of the model; each finds in `tools`, which is indexed once somebody searches. */
export function searchTools({ tools, searches }: Deferral): readonly ContextTool[] {
  let catalogue: Promise<Catalogue> | null = null
  const made = () => (catalogue ??= Catalogue.of(tools))
  return searches.map(({ name, by }) =>
    by === 'words'
      ? defineTool({
          ...{ name, description: about(''), arguments: strict({ query: QUERY }) },
          async run(_, { query }, signal) {
            return { text: foundText(await (await made()).search(query, FOUND, undefined, signal)), modifies: false }
          },
        })
      : defineTool({
          ...{ name, description: about(' by a regular expression'), arguments: strict({ pattern: PATTERN }) },
          async run(_, { pattern }) {
            const found = (await made()).matching(pattern, FOUND)
            return found.ok ? { text: foundText(found.tools), modifies: false } : refuse('tool/bad-arguments', found.message)
          },
        }),
  )
}

/** Those of the deferred tools that the conversation has shown, in the order in which it did. */
export function foundIn(messages: readonly ChatMessage[], { tools, clientSearches = [] }: Deferral): readonly ToolDefinition[] {
  const lines = new Map(tools.map((tool) => [lineOf(tool), tool]))
  const found = new Map<string, ToolDefinition>()
  for (const { role, content, name = '' } of messages) {
    if (role !== 'tool') continue
    for (const line of content.split('\n')) {
      const tool = lines.get(line) ?? (clientSearches.includes(name) ? definitionIn(line) : null)
      if (tool !== null) found.set(tool.name, tool)
    }
  }
  return [...found.values()]
}

/** Names in the text of a result. */
export const namesIn = (text: string): readonly string[] => text.split('\n').flatMap((line) => definitionIn(line)?.name ?? [])
