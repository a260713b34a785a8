/** The tool that puts a summary, written by the model itself, in the place of a fragment. */
import { z } from 'zod'
import { priceRemark } from '../price.js'
import { defineTool } from './tool.js'

export const summarizeFragment = defineTool({
  name: 'summarize_fragment',
  description:
    'Puts a short summary in the place of a fragment, from your next step on. Use it on text whose gist you need but not its ' +
    'words. Nothing is lost: restore_fragment brings the text back.',
  arguments: z.strictObject({
    fragment_id: z.string().describe('The id of the fragment, as fragment_context gave it (f and 5 characters).'),
    focus: z
      .string()
      .describe('What the summary must keep, for example: decisions, open questions, figures, who is related to whom.'),
  }),
  async run(conversation, { fragment_id: id, focus }, signal) {
    const result = await conversation.summarize(id, focus, signal)
    if (!result.ok) return result
    const { fragment, ledger } = result
    return { text: [`Summarized ${fragment.id}.`, priceRemark(fragment) ?? []].flat().join(' '), modifies: true, ledger }
  },
})
