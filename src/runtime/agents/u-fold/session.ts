/** The agent `u-fold`: a session that folds old text before a user's message when that pays. */
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
  /** Another model for the two helpers (U-Fold, "better folder"). Default: the session's own. */
  readonly folder?: Engine
  /** Whether the model has tools to restore and to search folded text. Default true. */
  readonly restores?: boolean
}

/** Every tenth line of a tool result carries its number. Numbers on all lines would make up a quarter of the text. */
const NUMBERED = 10

export class UFoldSession {
  readonly session: Session
  readonly folding: UFold
  /** The reports of all calls of `UFold.fold`, oldest first. */
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

  /** Ledger entries of all steps and helpers. Those of a separate folder model are only in `reports`. */
  get ledger(): readonly LedgerEntry[] {
    return this.session.ledger
  }

  /** Folds the context if needed, then adds the user message and runs a turn. @throws KvfoldError what the engine throws */
  async ask(content: string, options: AskOptions = {}): Promise<TurnOutcome> {
    const report = await this.folding.fold(content, options.signal)
    this.reports.push(report)
    this.session.account(report.ledger)
    return this.session.ask(content, options)
  }
}

/** Wraps a tool so that its results carry line numbers. The helpers name lines by them. */
const numberedTool = (tool: ClientTool, conversation: () => Conversation): ClientTool => ({
  definition: tool.definition,
  execute: async (args, signal) => written(await tool.execute(args, signal), linesOf(conversation().messages).length, NUMBERED),
})
