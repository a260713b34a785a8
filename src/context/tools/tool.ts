/** Owns what a context tool is: a definition for the model, and what happens when it is called. */
import { z } from 'zod'
import type { ToolDefinition } from '../../chat/message.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { Conversation } from '../conversation.js'
import type { Refusal } from '../refusal.js'
import { faults } from './faults.js'

/** What a call came to. */
export interface ToolOutcome {
  /** The content of the tool message. Starts with `Error: ` when the call failed. */
  readonly text: string
  /** True when a context-modifying call was carried out (the spec counts fragmenting, which only hands out ids, among them). */
  readonly modifies: boolean
  readonly failed: boolean
  /** Steps that the call itself took (summaries). */
  readonly ledger: readonly LedgerEntry[]
}

export interface ContextTool {
  readonly definition: ToolDefinition
  /**
   * Checks the arguments and carries the call out. What the model did wrong is in the outcome, the conversation unchanged.
   * @throws KvfoldError what the engine throws while it writes a summary
   */
  run(conversation: Conversation, args: Readonly<Record<string, unknown>>, signal?: AbortSignal): Promise<ToolOutcome>
}

/** Results of a call as its tool makes them. */
interface Success {
  readonly text: string
  readonly modifies: boolean
  readonly ledger?: readonly LedgerEntry[]
}

/** Everything that belongs to one tool, in one place; the JSON schema is made from `arguments`. */
interface Recipe<Arguments extends z.ZodObject> {
  readonly name: string
  readonly description: string
  readonly arguments: Arguments
  run(conversation: Conversation, args: z.output<Arguments>, signal?: AbortSignal): Success | Refusal | Promise<Success | Refusal>
}

export function defineTool<Arguments extends z.ZodObject>(recipe: Recipe<Arguments>): ContextTool {
  const parameters = z.toJSONSchema(recipe.arguments, { io: 'input' })
  delete parameters.$schema
  return {
    definition: { name: recipe.name, description: recipe.description, parameters },
    async run(conversation, args, signal) {
      const parsed = recipe.arguments.safeParse(args)
      if (!parsed.success) return failure(`${recipe.name}: ${faults(parsed.error, args, Object.keys(recipe.arguments.shape))}`)
      const result = await recipe.run(conversation, parsed.data, signal)
      if ('text' in result) return { ledger: [], ...result, failed: false }
      return failure(result.message, result.ledger)
    },
  }
}

/** The outcome of a call that changed nothing. */
export function failure(message: string, ledger: readonly LedgerEntry[] = []): ToolOutcome {
  return { text: `Error: ${message}`, modifies: false, failed: true, ledger }
}
