/** Owns how well the catalogue's search finds a tool that a few words ask for: recall, by ranking. */
import { z } from 'zod'
import type { ToolDefinition } from '../../chat/message.js'
import { KvfoldError } from '../../core/errors.js'
import { Random } from '../../core/random.js'
import type { Catalogue, Ranking } from '../../tools/catalogue.js'
import { metrics, type Metric, type World } from './companies.js'

/** Words, and the tool that they are about. */
export interface Query {
  readonly words: string
  readonly tool: string
}

export interface Recall {
  readonly ranking: Ranking
  readonly queries: number
  /** The share of queries whose tool is the first, and among the first five. */
  readonly at1: number
  readonly at5: number
  /** Mean of a query, in milliseconds. */
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
export type Wording = (typeof wordings)[number]

/** One query for each of `count` tools drawn from the world's. */
export function queriesOf(world: World, wording: Wording, count: number, seed: number): Query[] {
  const random = new Random(seed, 3)
  const all = world.companies.flatMap((company) => metrics.map((metric) => ({ company, metric })))
  return random
    .shuffled(all)
    .slice(0, count)
    .map(({ company, metric }) => {
      const name = wording === 'loose' && random.below(4) === 0 ? company.symbol : company.name
      const words = wording === 'exact' ? `${name} ${metric}` : `${LOOSE[metric]} ${name}`
      return { words, tool: world.callOf({ company, metric }).name }
    })
}

/** By every ranking that the catalogue has. @throws KvfoldError what the embedder throws */
export async function recallOf(catalogue: Catalogue, queries: readonly Query[], signal?: AbortSignal): Promise<Recall[]> {
  const recalls: Recall[] = []
  for (const ranking of catalogue.rankings) {
    let [first, five] = [0, 0]
    const begun = performance.now()
    for (const { words, tool } of queries) {
      const place = (await catalogue.search(words, 5, ranking, signal)).findIndex(({ name }) => name === tool)
      if (place === 0) first++
      if (place >= 0) five++
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

// Catalogues of others: a JSON array of tools, a list of servers with their tools (LiveMCPBench), or what an MCP server lists.

const Tool = z.looseObject({
  name: z.string(),
  description: z.string().nullish(),
  inputSchema: z.record(z.string(), z.unknown()).nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
})
const Listed = z.looseObject({ tools: z.array(Tool) })
const Servers = z
  .array(z.looseObject({ tools: z.record(z.string(), Listed) }))
  .transform((servers) =>
    servers.flatMap(({ tools }) =>
      Object.entries(tools).flatMap(([server, { tools: own }]) => own.map((tool) => ({ ...tool, server }))),
    ),
  )
// Servers have names, too, so they come first.
const Form = z.union([Servers, Listed.transform(({ tools }) => tools), z.array(Tool)])

/**
 * The tools of a file's text. Of tools that share a name all but the first are named after their server, or by number.
 * @throws KvfoldError eval/bad-data for what is no catalogue
 */
export function toolsIn(text: string, file: string): ToolDefinition[] {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (cause) {
    throw new KvfoldError('eval/bad-data', `${file} is no JSON; give a list of tools as JSON.`, { cause })
  }
  const parsed = Form.safeParse(value)
  if (!parsed.success)
    throw new KvfoldError(
      'eval/bad-data',
      `${file} is no catalogue of tools: neither a list of {name, description, inputSchema}, nor {tools: [...]}, nor LiveMCPBench's list of servers.`,
    )
  const names = new Set<string>()
  return parsed.data.map(({ name, description, inputSchema, parameters, ...rest }) => {
    const server = 'server' in rest && typeof rest.server === 'string' ? rest.server : null
    let own = names.has(name) && server !== null ? `${server}_${name}` : name
    for (let number = 2; names.has(own); number++) own = `${name}_${number}`
    names.add(own)
    return {
      name: own,
      description: description ?? '',
      parameters: inputSchema ?? parameters ?? { type: 'object', properties: {} },
    }
  })
}
