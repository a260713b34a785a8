/** The tool that finds exact text in the original conversation, folded parts included. */
import { z } from 'zod'
import { quoted } from '../refusal.js'
import { scopeName, scopes } from '../scope.js'
import { match } from './excerpt.js'
import { defineTool } from './tool.js'

const matches = (count: number): string => (count === 1 ? '1 match' : `${count} matches`)

export const searchContext = defineTool({
  name: 'search_context',
  description:
    'Finds every place where exact text stands in the conversation, folded and summarized parts included, and shows it with the ' +
    'text around it. Upper and lower case count. Each match has an id for get_search_detail.',
  arguments: z.strictObject({
    query: z.string().describe('The exact text to look for: a name or a few words.'),
    role: z.enum(scopes).default('user').describe('Whose messages to search. "all" also takes in tool results.'),
    max_results: z.int().min(1).max(50).default(10).describe('How many matches to show, first to last.'),
    context_size: z.int().min(50).max(1000).default(200).describe('How many characters to show before and after each match.'),
  }),
  run(conversation, args) {
    const { query, role } = args
    const result = conversation.search({ query, role, maxResults: args.max_results, contextSize: args.context_size })
    if (!result.ok) return result
    const { hits, total, ignoringCase, elsewhere } = result
    if (total === 0) {
      const none = `No match for ${quoted(query)} in ${scopeName(role)}.`
      const ignoring =
        ignoringCase > 0 ? ` Upper and lower case aside there would be ${matches(ignoringCase)}: use the exact spelling.` : ''
      const other = elsewhere > 0 ? ` Other messages have ${matches(elsewhere)}: search with role "all".` : ''
      return { text: none + ignoring + other, modifies: false }
    }
    const shown = hits.length < total ? `, the first ${hits.length} of them here` : ''
    const head = `${matches(total)} for ${quoted(query)} in ${scopeName(role)}${shown}.`
    return { text: [head, ...hits.map((hit, index) => match(conversation.messages, hit, index))].join('\n\n'), modifies: false }
  },
})
