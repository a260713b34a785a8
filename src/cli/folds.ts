/** Owns carrying out a transcript's folds, as a chat would: borders snapped to tokens, markers with ids. */
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { Conversation } from '../context/conversation.js'
import type { Fragment } from '../context/fragment.js'
import { portsOf } from '../context/ports.js'
import { KvfoldError } from '../core/errors.js'
import { freshConversation, type LlamaEngine } from '../engine/llama.js'
import type { Transcript } from './transcript.js'

/** The folded fragments, in order. @throws KvfoldError cli/bad-usage for a fold that cannot be made */
export async function foldedBy(
  engine: LlamaEngine,
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  folds: Transcript['folds'],
): Promise<readonly Fragment[]> {
  const id = freshConversation()
  let summary = ''
  const conversation = new Conversation(id, {
    ...portsOf(engine, id, tools),
    summarize: () => Promise.resolve({ ok: true, summary, ledger: [] }),
  })
  for (const message of messages) conversation.add(message)
  for (const [index, fold] of folds.entries()) {
    if (fold.message >= messages.length)
      throw new KvfoldError('cli/bad-usage', `folds.${index} is in the answer, which cannot be folded.`)
    const cut = conversation.cut([fold], 1)
    const fragment = cut.ok ? cut.fragments[0] : undefined
    if (fragment === undefined)
      throw new KvfoldError(
        'cli/bad-usage',
        `folds.${index} cannot be made: ${cut.ok ? 'it is less than a token.' : cut.message}`,
      )
    summary = fold.summary ?? ''
    if (fold.summary === null) conversation.fold(fragment.id)
    else await conversation.summarize(fragment.id, 'what follows')
  }
  return conversation.fragments
}
