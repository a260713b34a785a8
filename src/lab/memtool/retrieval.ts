/**
 * Measures how well the catalogue's search finds the right tool for a few words, with each of its rankings. Also reads public tool
 * catalogues.
 */
import Type, { type Static } from 'typebox'
import type { ToolDefinition } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { Random } from '../../runtime/core/random.js'
import { checked, nullable } from '../../runtime/core/schema.js'
import { readJson, writeJson } from '../../runtime/core/written-json.js'
import type { Catalogue, SearchRanking } from '../../runtime/tools/catalogue.js'
import { type Metric, metrics, type World } from './companies.js'

/** A query's words, and the names of the tools that it should find. */
export interface Query {
  readonly words: string
  readonly tools: readonly string[]
}

export interface Recall {
  readonly ranking: SearchRanking
  readonly queries: number
  /** `at1`: share of queries whose first result is right. `at5`: mean share of a query's tools among the first five results. */
  readonly at1: number
  readonly at5: number
  /** Mean milliseconds per query. If the embedder caches vectors, a repeated query costs no embedding time. */
  readonly milliseconds: number
}

/** For each metric, the words of a person who does not know the tools' names. */
const LOOSE: Readonly<Record<Metric, string>> = {
  'stock price': 'what does one share cost at',
  revenue: 'sales of',
  'net income': 'how much did it earn after tax,',
  employees: 'headcount at',
  'market value': 'what is the whole company worth,',
}

/**
 * How queries are worded. `exact`: in the words of the tool's name, `<company> <metric>`. `loose`: in other words for the metric, and in a
 * quarter of the queries with the company's symbol.
 */
export const wordings = ['exact', 'loose'] as const
export type QueryWording = (typeof wordings)[number]

/** Draws `count` tools of the world, and returns one query for each. */
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

/** Measures the recall of each ranking of the catalogue. @throws KvfoldError any error of the embedder */
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

// Below: reads catalogues of other projects: a JSON array of tools, LiveMCPBench's list of servers, an MCP server's list, or ToolRet's
// rows.

const Tool = Type.Object({
  name: Type.String(),
  description: Type.Optional(nullable(Type.String())),
  inputSchema: Type.Optional(nullable(Type.Record(Type.String(), Type.Unknown()))),
  parameters: Type.Optional(nullable(Type.Record(Type.String(), Type.Unknown()))),
  /** The name of the tool's server. A value that is not text is ignored, because the file then uses the field for something else. */
  server: Type.Optional(Type.Unknown()),
})
const Listed = Type.Object({ tools: Type.Array(Tool) })
/** ToolRet's rows: a tool's documentation, or a query with its tools. Values may be strings that contain JSON. */
const Documented = Type.Object({ id: Type.String(), documentation: Type.Unknown() })
const Labelled = Type.Object({ query: Type.String(), labels: Type.Unknown() })
const Labels = Type.Array(Type.Object({ id: Type.String(), doc: Type.Unknown() }), { minItems: 1 })
const Rows = Type.Array(Type.Union([Documented, Labelled]), { minItems: 1 })
const Servers = Type.Array(Type.Object({ tools: Type.Record(Type.String(), Listed) }))

/** Returns the tools in a JSON array, a list of servers, or an MCP server's list; null for any other value. */
function catalogueIn(value: unknown): readonly Static<typeof Tool>[] | null {
  // Try the list of servers first. Servers have names, as tools do, so such a list would also pass as a list of tools.
  const servers = checked(Servers, value)
  if (servers.ok)
    return servers.value.flatMap(({ tools }) =>
      Object.entries(tools).flatMap(([server, { tools: own }]) => own.map((tool) => ({ ...tool, server }))),
    )
  const listed = checked(Listed, Array.isArray(value) ? { tools: value as unknown[] } : value)
  return listed.ok ? listed.value.tools : null
}

/**
 * Reads a file's tools and queries. If the file has no queries, each tool's description is its query. If several tools share a name, all
 * but the first get their server's name in front or a number at the end.
 * @throws KvfoldError eval/bad-data when the file is not a catalogue
 */
export function lookupsIn(text: string, file: string): { readonly tools: ToolDefinition[]; readonly queries: readonly Query[] } {
  const value = valueOf(text, file)
  const rows = checked(Rows, value)
  if (rows.ok) return toolRetIn(rows.value)
  const found = catalogueIn(value)
  if (found === null)
    throw new KvfoldError(
      'eval/bad-data',
      `${file} is not a catalogue of tools; give a list of {name, description, inputSchema}, {tools: [...]}, LiveMCPBench's list of servers, or ToolRet's rows.`,
    )
  const tools = definitionsOf(found)
  return { tools, queries: tools.map(({ name, description }) => ({ words: description, tools: [name] })) }
}

/** Parses the text as JSON; if that fails, as JSON Lines. @throws KvfoldError eval/bad-data */
function valueOf(text: string, file: string): unknown {
  try {
    return readJson(text)
  } catch (cause) {
    try {
      const lines = text.split('\n').filter((line) => line.trim() !== '')
      return lines.map((line) => readJson(line))
    } catch {
      throw new KvfoldError('eval/bad-data', `${file} is not JSON; give a list of tools as JSON or JSON Lines.`, { cause })
    }
  }
}

/**
 * Returns the tools and queries in ToolRet's rows. Each tool occurs once, and its id is its name. If the rows have no queries, each tool's
 * description is its query.
 */
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
