/** Owns how well the catalogue's search finds a tool that a few words ask for: recall, by ranking. */
import Type, { type Static } from 'typebox'
import type { ToolDefinition } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { Random } from '../../runtime/core/random.js'
import { checked, nullable } from '../../runtime/core/schema.js'
import { readJson, writeJson } from '../../runtime/core/written-json.js'
import type { Catalogue, SearchRanking } from '../../runtime/tools/catalogue.js'
import { type Metric, metrics, type World } from './companies.js'

/** Words, and the tools that they are about. */
export interface Query {
  readonly words: string
  readonly tools: readonly string[]
}

export interface Recall {
  readonly ranking: SearchRanking
  readonly queries: number
  /** The share of queries whose first tool is one of theirs, and of a query's tools those among the first five (mean). */
  readonly at1: number
  readonly at5: number
  /** Mean of a query, in milliseconds; of an embedder that keeps its vectors, without the query's own if it was made before. */
  readonly milliseconds: number
}

/** How people ask who do not know what a tool is called. */
const LOOSE: Readonly<Record<Metric, string>> = {
  'stock price': 'what does one share cost at',
  revenue: 'sales of',
  'net income': 'how much did it earn after tax,',
  employees: 'headcount at',
  'market value': 'what is the whole company worth,',
}

/** `exact`: as tools are called, `<company> <metric>`. `loose`: other words for the metric, and the company by its symbol now and then. */
export const wordings = ['exact', 'loose'] as const
export type QueryWording = (typeof wordings)[number]

/** One query for each of `count` tools drawn from the world's. */
export function queriesOf(world: World, wording: QueryWording, count: number, seed: number): Query[] {
  const random = new Random(seed, 3)
  const all = world.companies.flatMap((company) => metrics.map((metric) => ({ company, metric })))
  return random
    .shuffled(all)
    .slice(0, count)
    .map(({ company, metric }) => {
      const name = wording === 'loose' && random.below(4) === 0 ? company.symbol : company.name
      const words = wording === 'exact' ? `${name} ${metric}` : `${LOOSE[metric]} ${name}`
      return { words, tools: [world.callOf({ company, metric }).name] }
    })
}

/** By every ranking that the catalogue has. @throws KvfoldError what the embedder throws */
export async function recallOf(catalogue: Catalogue, queries: readonly Query[], signal?: AbortSignal): Promise<Recall[]> {
  const recalls: Recall[] = []
  for (const ranking of catalogue.rankings) {
    let [first, five] = [0, 0]
    const begun = performance.now()
    for (const { words, tools } of queries) {
      const found = (await catalogue.search(words, 5, ranking, signal)).map(({ name }) => tools.includes(name))
      if (found[0] === true) first++
      five += found.filter((isOne) => isOne).length / tools.length
    }
    const count = Math.max(1, queries.length)
    recalls.push({
      ranking,
      queries: queries.length,
      at1: first / count,
      at5: five / count,
      milliseconds: (performance.now() - begun) / count,
    })
  }
  return recalls
}

// Catalogues of others: a JSON array of tools, a list of servers with their tools (LiveMCPBench), what an MCP server lists, or ToolRet's rows.

const Tool = Type.Object({
  name: Type.String(),
  description: Type.Optional(nullable(Type.String())),
  inputSchema: Type.Optional(nullable(Type.Record(Type.String(), Type.Unknown()))),
  parameters: Type.Optional(nullable(Type.Record(Type.String(), Type.Unknown()))),
  /** Not text: another's field of this name. */
  server: Type.Optional(Type.Unknown()),
})
const Listed = Type.Object({ tools: Type.Array(Tool) })
/** ToolRet: a tool's documentation, or a query with the tools that it is about. JSON may stand in a text. */
const Documented = Type.Object({ id: Type.String(), documentation: Type.Unknown() })
const Labelled = Type.Object({ query: Type.String(), labels: Type.Unknown() })
const Labels = Type.Array(Type.Object({ id: Type.String(), doc: Type.Unknown() }), { minItems: 1 })
const Rows = Type.Array(Type.Union([Documented, Labelled]), { minItems: 1 })
const Servers = Type.Array(Type.Object({ tools: Type.Record(Type.String(), Listed) }))

/** Null: none of the three, which are JSON. */
function catalogueIn(value: unknown): readonly Static<typeof Tool>[] | null {
  // Servers have names, too, so they come first.
  const servers = checked(Servers, value)
  if (servers.ok)
    return servers.value.flatMap(({ tools }) =>
      Object.entries(tools).flatMap(([server, { tools: own }]) => own.map((tool) => ({ ...tool, server }))),
    )
  const listed = checked(Listed, Array.isArray(value) ? { tools: value as unknown[] } : value)
  return listed.ok ? listed.value.tools : null
}

/**
 * The tools of a file's text, and the queries that it has for them; without any each tool is looked up by its own description. Of tools that share
 * a name all but the first are named after their server, or by number.
 * @throws KvfoldError eval/bad-data for what is no catalogue
 */
export function lookupsIn(text: string, file: string): { readonly tools: ToolDefinition[]; readonly queries: readonly Query[] } {
  const value = valueOf(text, file)
  const rows = checked(Rows, value)
  if (rows.ok) return toolRetIn(rows.value)
  const found = catalogueIn(value)
  if (found === null)
    throw new KvfoldError(
      'eval/bad-data',
      `${file} is no catalogue of tools: neither a list of {name, description, inputSchema}, nor {tools: [...]}, nor LiveMCPBench's list of servers, nor ToolRet's rows.`,
    )
  const tools = definitionsOf(found)
  return { tools, queries: tools.map(({ name, description }) => ({ words: description, tools: [name] })) }
}

/** JSON, or a line of it each. */
function valueOf(text: string, file: string): unknown {
  try {
    return readJson(text)
  } catch (cause) {
    try {
      const lines = text.split('\n').filter((line) => line.trim() !== '')
      return lines.map((line) => readJson(line))
    } catch {
      throw new KvfoldError('eval/bad-data', `${file} is no JSON; give a list of tools as JSON, or as lines of it.`, { cause })
    }
  }
}

/** Tools of all rows, each once, called by their ids; queries where there are some. */
function toolRetIn(rows: Static<typeof Rows>): { readonly tools: ToolDefinition[]; readonly queries: readonly Query[] } {
  const tools = new Map<string, ToolDefinition>()
  const queries: Query[] = []
  for (const row of rows) {
    if ('documentation' in row) {
      tools.set(row.id, documented(row.id, row.documentation))
      continue
    }
    const labels = checked(Labels, unpacked(row.labels))
    if (!labels.ok) continue
    for (const { id, doc } of labels.value) tools.set(id, documented(id, doc))
    queries.push({ words: row.query, tools: labels.value.map(({ id }) => id) })
  }
  const all = [...tools.values()]
  const own = () => all.map(({ name, description }) => ({ words: description, tools: [name] }))
  return { tools: all, queries: queries.length === 0 ? own() : queries }
}

function documented(id: string, about: unknown): ToolDefinition {
  const value = unpacked(about)
  const description = typeof value === 'string' ? value : writeJson(value)
  return { name: id, description, parameters: { type: 'object', properties: {} } }
}

function unpacked(value: unknown): unknown {
  if (typeof value !== 'string') return value
  try {
    return readJson(value)
  } catch {
    return value
  }
}

function definitionsOf(tools: readonly Static<typeof Tool>[]): ToolDefinition[] {
  const names = new Set<string>()
  return tools.map(({ name, description, inputSchema, parameters, server }) => {
    let own = names.has(name) && typeof server === 'string' ? `${server}_${name}` : name
    for (let number = 2; names.has(own); number++) own = `${name}_${number}`
    names.add(own)
    return {
      name: own,
      description: description ?? '',
      parameters: inputSchema ?? parameters ?? { type: 'object', properties: {} },
    }
  })
}
