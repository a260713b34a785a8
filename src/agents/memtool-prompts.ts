/** Owns what the memtool agent is told: by its mode, and when it is asked aside what to remove and what to search for; and reading those answers. */

/**
 * `autonomous`: the model searches and removes by tools. `workflow`: before each turn it is asked aside what to remove and what to search for, and then
 * has neither tool. `hybrid`: it is asked aside what to remove, and searches by a tool.
 */
export const memToolModes = ['autonomous', 'workflow', 'hybrid'] as const
export type MemToolMode = (typeof memToolModes)[number]

const SHARED =
  'There are thousands of tools, and only a few of them are loaded. The result of a search shows the definitions of tools that were loaded by it; ' +
  'you can call them from then on, in this turn and in later ones, until they are removed. '

/** To the effect of the paper's (MemTool, figures 5 to 7), in words of ours and without the number of tools, which would change the beginning of every prompt. */
export const memToolPrompts: Readonly<Record<MemToolMode, string>> = {
  autonomous:
    `You are an assistant that answers by calling tools. ${SHARED}` +
    'When a request comes for which the loaded tools will not do, first remove with remove_tools those that it does not need, at the latest when two ' +
    'more requests have not used them; then load what is missing with search_tools, all keywords in one call. Search again with other words where ' +
    'nothing fits, and say so when it cannot be answered. Answer in few words.',
  workflow:
    `You are an assistant that answers by calling tools. ${SHARED}` +
    'Searching and removing is done for you before every request. Call the tools that you see, and say so when they do not suffice. Answer in few words.',
  hybrid:
    `You are an assistant that answers by calling tools. ${SHARED}` +
    'Tools that are no longer needed are removed for you before every request. Load what is missing with search_tools, all keywords in one call. ' +
    'Search again with other words where nothing fits, and say so when it cannot be answered. Answer in few words.',
}

/** A question beside the conversation, and the form of its answer. */
export interface AsideQuestion {
  readonly prompt: string
  readonly schema: Readonly<Record<string, unknown>>
}

/** @param room tools that the loaded ones have to make room for; 0 when it is only about what is of no more use */
export const pruneQuestion = (names: readonly string[], request: string, room: number): AsideQuestion => ({
  prompt:
    `Do not answer the request below yet. These tools are loaded: ${names.join(', ')}.\n` +
    (room > 0 ? `At least ${room} of them must go to make room for others. ` : '') +
    `Which of them are not directly needed for the next request? It is:\n${request}\n` +
    'Answer with JSON: {"remove": [names]}; an empty list when all are needed.',
  schema: listSchema('remove', { enum: names }),
})

export const searchQuestion = (names: readonly string[], request: string): AsideQuestion => ({
  prompt:
    `Do not answer the request below yet. These tools are loaded: ${names.length === 0 ? 'none' : names.join(', ')}.\n` +
    `Which others does the next request need? It is:\n${request}\n` +
    'Answer with JSON: {"keywords": [one string of a few words for each tool: what it does, and for whom or what]}; an empty list when the loaded ones suffice.',
  schema: listSchema('keywords', { type: 'string' }),
})

const listSchema = (key: string, items: unknown): AsideQuestion['schema'] => ({
  type: 'object',
  properties: { [key]: { type: 'array', items } },
  required: [key],
  additionalProperties: false,
})

/** The list in an answer to a question aside; null where there is none, as of engines that hold nothing to a schema. */
export function listIn(said: string): readonly string[] | null {
  const json = said.slice(said.indexOf('{'), said.lastIndexOf('}') + 1)
  try {
    const value: unknown = JSON.parse(json)
    const [list] = Object.values(value as Record<string, unknown>)
    return Array.isArray(list) && list.every((item): item is string => typeof item === 'string') ? list : null
  } catch {
    return null
  }
}
