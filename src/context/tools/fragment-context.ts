/** The tool that cuts text into fragments, the first step of folding or summarizing. */
import { z } from 'zod'
import { length } from '../../core/span.js'
import type { Fragment } from '../fragment.js'
import { scopes } from '../scope.js'
import { defineTool } from './tool.js'

export const fragmentContext = defineTool({
  name: 'fragment_context',
  description:
    'Cuts a part of the conversation into fragments and gives each an id, first to last. Nothing changes in what you see; ' +
    'the ids are what fold_fragment, summarize_fragment and restore_fragment take. Call this before any of them.',
  arguments: z.strictObject({
    start_marker: z
      .string()
      .describe(
        'A few words copied exactly from the text, where the first fragment starts. Their first occurrence counts; they are included.',
      ),
    end_marker: z
      .string()
      .describe(
        'A few words copied exactly from the text, where the last fragment ends. Their first occurrence after start_marker counts; they are included.',
      ),
    num_fragments: z.int().min(1).max(20).default(5).describe('How many fragments of about equal length to make.'),
    role: z.enum(scopes).default('user').describe('Whose messages the markers stand in. "all" also takes in tool results.'),
  }),
  run(conversation, args) {
    const result = conversation.fragment({
      startMarker: args.start_marker,
      endMarker: args.end_marker,
      numFragments: args.num_fragments,
      role: args.role,
    })
    if (!result.ok) return result
    const messages = [...new Set(result.fragments.map(({ message }) => message))]
    const lines = messages.map((message) =>
      cutLine(
        message,
        result.fragments.filter((fragment) => fragment.message === message),
      ),
    )
    const made = result.fragments.length
    if (made > args.num_fragments)
      lines.push(
        `That is more than the ${args.num_fragments} asked for: the markers are in different messages, and each gets one at least.`,
      )
    if (made < args.num_fragments) lines.push(`That is fewer than the ${args.num_fragments} asked for: the text is too short.`)
    return { text: lines.join('\n'), modifies: true }
  },
})

/** The last one is marked, so that a small model sees where the list ends. The built-in model knows this form. */
const inOrder = (ids: readonly string[]): string =>
  [ids.slice(0, -1).join(', then '), ...ids.slice(-1)].filter(Boolean).join(' and last ')

function cutLine(message: number, fragments: readonly Fragment[]): string {
  const ids = inOrder(fragments.map(({ id }) => id))
  const mean = Math.round(fragments.reduce((sum, { span }) => sum + length(span), 0) / fragments.length)
  return fragments.length === 1
    ? `Cut message ${message + 1} into 1 fragment of about ${mean} characters: ${ids}.`
    : `Cut message ${message + 1} into ${fragments.length} fragments of about ${mean} characters, first to last: ${ids}.`
}
