/** The tool that hides a fragment behind a short marker. */
import { z } from 'zod'
import { priceRemark } from '../price.js'
import { defineTool } from './tool.js'

export const foldFragment = defineTool({
  name: 'fold_fragment',
  description:
    'Hides a fragment: from your next step on you see a short marker with its id instead of its text. Use it on what is ' +
    'out of date or beside the point. Nothing is lost: restore_fragment brings the text back, search_context still finds it.',
  arguments: z.strictObject({
    fragment_id: z.string().describe('The id of the fragment, as fragment_context gave it (f and 5 characters).'),
  }),
  run(conversation, { fragment_id: id }) {
    const result = conversation.fold(id)
    if (!result.ok) return result
    const { fragment } = result
    return { text: [`Folded ${fragment.id}.`, priceRemark(fragment) ?? []].flat().join(' '), modifies: true }
  },
})
