/** The tool that shows the original text of a hidden fragment again. */
import { z } from 'zod'
import { defineTool } from './tool.js'

export const restoreFragment = defineTool({
  name: 'restore_fragment',
  description: 'Shows the original text of a folded or summarized fragment again, from your next step on.',
  arguments: z.strictObject({
    fragment_id: z.string().describe('The id of a folded or summarized fragment (f and 5 characters).'),
  }),
  run(conversation, { fragment_id: id }) {
    const result = conversation.restore(id)
    return result.ok ? { text: `Restored ${result.fragment.id}.`, modifies: true } : result
  },
})
