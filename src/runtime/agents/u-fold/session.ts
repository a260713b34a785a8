/** Owns the agent `u-fold`: a session that looks after its context before every user input. */
import type { ToolDefinition } from '../../chat/message.js'
import type { Conversation } from '../../context/conversation.js'
import { restoreFragment, searchContext } from '../../context/tools.js'
import type { Engine } from '../../engine/engine.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { TurnOutcome } from '../tool-loop.js'
import { type AskOptions, Session, type SessionOptions } from '../session.js'
import type { ClientTool } from '../toolbox.js'
import { linesOf, written } from './view.js'
import { type FoldReport, UFold, type UFoldOptions, type UFoldState } from './u-fold.js'

export interface UFoldSessionOptions extends Omit<SessionOptions, 'contextTools'> {
  readonly fold?: Omit<UFoldOptions, 'numbered'>
  /** Another model for the two helpers (U-Fold, "better folder"). */
  readonly folder?: Engine
  /** Whether the model may have folded text restored and searched. Default true. */
  readonly restores?: boolean
}

/** How many lines of a result carry their number: a number on each would be a quarter of all that is fetched. */
const NUMBERED = 10

export class UFoldSession {
  readonly session: Session
  readonly folding: UFold
  /** What every look at the context came to, oldest first. */
  readonly reports: FoldReport[] = []

  constructor({ fold, folder, restores = true, ...options }: UFoldSessionOptions, state?: UFoldState) {
    const clientTools = (options.clientTools ?? []).map((tool) => numberedTool(tool, () => this.conversation))
    this.session = new Session({ ...options, clientTools, contextTools: restores ? [restoreFragment, searchContext] : [] })
    this.folding = new UFold({
      engine: options.engine,
      conversation: this.conversation,
      tools: this.tools,
      ...(options.generation === undefined ? {} : { generation: options.generation }),
      ...(folder === undefined ? {} : { folder }),
      ...(fold === undefined ? {} : { options: fold }),
      ...(state === undefined ? {} : { state }),
    })
  }

  get conversation(): Conversation {
    return this.session.conversation
  }

  get tools(): readonly ToolDefinition[] {
    return this.session.toolbox.definitions
  }

  /** Entries of all steps and helpers so far; those of a folder's model are in `reports` alone. */
  get ledger(): readonly LedgerEntry[] {
    return this.session.ledger
  }

  /** Folds where it is due, then takes the turn. @throws KvfoldError what the engine throws */
  async ask(content: string, options: AskOptions = {}): Promise<TurnOutcome> {
    const report = await this.folding.fold(content, options.signal)
    this.reports.push(report)
    this.session.account(report.ledger)
    return this.session.ask(content, options)
  }
}

/** The tool with its results as helpers read them. */
const numberedTool = (tool: ClientTool, conversation: () => Conversation): ClientTool => ({
  definition: tool.definition,
  execute: async (args, signal) => written(await tool.execute(args, signal), linesOf(conversation().messages).length, NUMBERED),
})
