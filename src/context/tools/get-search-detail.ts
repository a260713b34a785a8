/** The tool that shows more of the text around an earlier search result. */
import { z } from 'zod'
import { excerpt } from './excerpt.js'
import { defineTool } from './tool.js'

export const getSearchDetail = defineTool({
  name: 'get_search_detail',
  description: 'Shows more of the text around a match that search_context found, from the original text, folded or not.',
  arguments: z.strictObject({
    search_id: z.string().describe('The id of the match, as search_context gave it (s and 5 characters).'),
    extended_context: z.int().min(100).max(2000).default(500).describe('How many characters to show before and after the match.'),
  }),
  run(conversation, { search_id: id, extended_context: reach }) {
    const result = conversation.detail(id, reach)
    return result.ok ? { text: excerpt(conversation.messages, result.hit), modifies: false } : result
  },
})
