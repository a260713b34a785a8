/** Owns the tool loop of one turn: steps with tool calls until there is an answer; and what an agent tells of it, while it runs and at its end. */
import type { ChatMessage, ToolCall, ToolChoice } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import type { Fragment } from '../context/fragment.js'
import { noted } from '../context/size-note.js'
import { failure, type ToolOutcome } from '../context/tools.js'
import { invariant } from '../core/errors.js'
import type { Engine, EngineEvent, EngineReply, EngineRequest, Finish, Timing } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import type { Toolbox } from './toolbox.js'

/** One call of a step and what came of it. */
export interface CallReport {
  readonly call: ToolCall
  /** Content of the tool message. */
  readonly text: string
  /** True when a context-modifying tool changed the conversation. */
  readonly modifies: boolean
  readonly failed: boolean
}

/** One step: one answer generated, and the calls in it carried out. */
export interface StepReport {
  readonly ledger: LedgerEntry
  /** Steps that the calls themselves took (summaries). */
  readonly side: readonly LedgerEntry[]
  readonly timing: Timing
  readonly finish: Finish
  /** Index of the message that the step added; where it would have stood if a cancelled one was not kept. */
  readonly message: number
  readonly calls: readonly CallReport[]
}

export type AgentEvent =
  | { readonly type: 'step'; readonly step: number; readonly toolChoice: ToolChoice }
  /** What the engine reports while it works: plan, prefill, tokens, text, reasoning, calls, rewrites. */
  | { readonly type: 'engine'; readonly step: number; readonly event: EngineEvent }
  /** The step's own entry, or one of a summary. */
  | { readonly type: 'ledger'; readonly step: number; readonly entry: LedgerEntry }
  /** A call is about to be carried out. */
  | { readonly type: 'call'; readonly step: number; readonly call: ToolCall }
  | ({ readonly type: 'result'; readonly step: number } & CallReport)

/** How a turn ended: by itself, with calls that somebody else carries out, cut off at the token limit, or cancelled. */
export type TurnEnd = Finish

export interface TurnOutcome {
  /** The last message's text; what there is of it when the turn was cancelled. */
  readonly answer: string
  readonly end: TurnEnd
  readonly steps: readonly StepReport[]
  /** Calls carried out. */
  readonly calls: number
  /** Calls of the last step that somebody else carries out, in order; the conversation cannot go on before their results are in it. */
  readonly external: readonly ToolCall[]
  /** Results of own calls that stand behind one of those in the last step, in order: to be added after it, with its result. */
  readonly held: readonly ChatMessage[]
  /** Calls refused because the turn had used up its calls. */
  readonly refusedCalls: number
  /** Entries of all steps and summaries, oldest first. */
  readonly ledger: readonly LedgerEntry[]
  /**
   * Tokens the context held at the end of the first step and of the last, everything counted: system message, tools,
   * transcript, what was generated.
   */
  readonly contextBefore: number
  readonly contextAfter: number
}

// The loop.

export interface TurnOptions {
  readonly engine: Engine
  readonly conversation: Conversation
  readonly toolbox: Toolbox
  /** Whether the first step has to call a tool, or must not. Without tools it never does. */
  readonly firstStep: ToolChoice
  readonly maxCalls: number
  /** Whether results carry advice on the order of calls. */
  readonly hints: boolean
  /** Sampling, limits, the contract of edits and the like, the same for every step. */
  readonly generation: Pick<
    EngineRequest,
    | ('sampling' | 'maxTokens' | 'stop' | 'reasoningBudget' | 'grammar' | 'schema' | 'loose' | 'logprobs')
    | ('contract' | 'blend' | 'clientEdits' | 'known' | 'parent' | 'last')
  >
  /** What the answer of the first step begins with. Default: nothing. */
  readonly beginning?: string
  readonly signal?: AbortSignal
  readonly onEvent?: (event: AgentEvent) => void
  /** Whether a cancelled answer that has said something becomes a message, marked `cut`. Default true. */
  readonly keepsCancelled?: boolean
  /** Awaited before another step begins. An error ends the turn. */
  readonly betweenSteps?: () => Promise<void>
}

export class Turn {
  readonly #steps: StepReport[] = []
  #calls = 0
  #refused = 0
  #external: readonly ToolCall[] = []
  #held: readonly ChatMessage[] = []

  constructor(private readonly options: TurnOptions) {}

  /**
   * Runs to the answer, or to calls of external tools. Every message goes into the conversation as soon as it is complete, and every call that
   * is not external gets its result, so that the conversation can go on however the turn ends.
   *
   * @throws KvfoldError whatever the engine throws; what was said before stays in the conversation
   */
  async run(): Promise<TurnOutcome> {
    for (;;) {
      const choice = this.#toolChoice()
      const reply = await this.#respond(choice)
      const calls = choice === 'none' || reply.finish === 'cancelled' ? [] : (reply.message.toolCalls ?? [])
      const message = this.#keep(calls.length > 0 ? reply.message : withoutCalls(reply.message), reply.finish)
      const carriedOut = await this.#carryOut(calls)
      this.#steps.push({ ledger: reply.ledger, timing: reply.timing, finish: reply.finish, message, ...carriedOut })
      if (calls.length === 0) return this.#outcome(reply, reply.finish === 'tool-calls' ? 'stop' : reply.finish)
      if (this.#external.length > 0) return this.#outcome(reply, reply.finish)
      if (this.#cancelled) return this.#outcome(reply, 'cancelled')
      await this.options.betweenSteps?.()
    }
  }

  /** Says where the message stands, or would. */
  #keep(message: ChatMessage, finish: EngineReply['finish']): number {
    const { conversation, keepsCancelled = true } = this.options
    if (finish !== 'cancelled') return conversation.add(message)
    const { content, reasoning = '' } = message
    const isKept = keepsCancelled && content + reasoning !== ''
    return isKept ? conversation.add({ ...message, cut: true }) : conversation.messages.length
  }

  #toolChoice(): ToolChoice {
    const { toolbox, firstStep } = this.options
    if (toolbox.definitions.length === 0 || this.#refused > 0) return 'none'
    return this.#steps.length === 0 ? firstStep : 'auto'
  }

  async #respond(toolChoice: ToolChoice): Promise<EngineReply> {
    const { engine, conversation, toolbox, generation, beginning, signal } = this.options
    const step = this.#steps.length
    this.#emit({ type: 'step', step, toolChoice })
    const tools = toolbox.definitions
    const edits = conversation.edits()
    const running = engine.respond({
      conversation: conversation.id,
      messages: noted(conversation.messages, tools),
      ...generation,
      ...(beginning === undefined || step > 0 ? {} : begun(noted(conversation.messages, tools), beginning)),
      ...(edits.length === 0 ? {} : { edits }),
      ...(tools.length === 0 ? {} : { tools, toolChoice }),
      ...(toolbox.unlisted.length === 0 ? {} : { unlisted: toolbox.unlisted }),
      ...(signal === undefined ? {} : { signal }),
    })
    for await (const event of running) this.#emit({ type: 'engine', step, event })
    const reply = await running.reply
    this.#emit({ type: 'ledger', step, entry: reply.ledger })
    return reply
  }

  /** Carries the calls of one step out, in order; they only mark edits, so the next step shows all of them at once. External ones are left. */
  async #carryOut(calls: readonly ToolCall[]): Promise<Pick<StepReport, 'calls' | 'side'>> {
    const { conversation, toolbox } = this.options
    this.#external = calls.filter((call) => toolbox.isExternal(call))
    const first = this.#external[0]
    const held: ChatMessage[] = []
    const step = this.#steps.length
    const reports: CallReport[] = []
    const side: LedgerEntry[] = []
    for (const [at, call] of calls.entries()) {
      if (this.#external.includes(call)) continue
      const { text: said, modifies, failed, ledger } = await this.#call(call)
      const text = said + this.#hint({ call, text: said, modifies, failed }, calls.length)
      const result: ChatMessage = { role: 'tool', content: text, toolCallId: call.id, name: call.name }
      if (first !== undefined && at > calls.indexOf(first)) held.push(result)
      else conversation.add(result)
      reports.push({ call, text, modifies, failed })
      side.push(...ledger)
      for (const entry of ledger) this.#emit({ type: 'ledger', step, entry })
      this.#emit({ type: 'result', step, call, text, modifies, failed })
    }
    this.#held = held
    return { calls: reports, side }
  }

  /** What is added to a result: advice, if it is wanted and there is some. */
  #hint(report: CallReport, calls: number): string {
    const { hints, conversation, generation } = this.options
    if (!hints || calls > 1 || (generation.contract ?? 'exact') !== 'exact') return ''
    const hint = foldOrderHint(conversation.fragments, this.#steps.at(-1)?.calls ?? [], [report])
    return hint === null ? '' : `\n${hint}`
  }

  #call(call: ToolCall): ToolOutcome | Promise<ToolOutcome> {
    const { conversation, toolbox, maxCalls, signal } = this.options
    if (this.#cancelled) return failure('cancelled before it was carried out.')
    if (this.#calls >= maxCalls) {
      this.#refused++
      return failure(`the ${maxCalls} calls of this turn are used up. Answer now from what you see.`)
    }
    this.#calls++
    this.#emit({ type: 'call', step: this.#steps.length, call })
    return toolbox.run(conversation, call, signal)
  }

  get #cancelled(): boolean {
    return this.options.signal?.aborted === true
  }

  #outcome({ message }: EngineReply, end: TurnEnd): TurnOutcome {
    const first = this.#steps[0]
    const last = this.#steps.at(-1)
    invariant(first !== undefined && last !== undefined, 'A turn ended without a step.')
    return {
      answer: message.content,
      end,
      steps: this.#steps,
      calls: this.#calls,
      external: this.#external,
      held: this.#held,
      refusedCalls: this.#refused,
      ledger: this.#steps.flatMap(({ ledger, side }) => [ledger, ...side]),
      contextBefore: first.ledger.shown,
      contextAfter: last.ledger.shown,
    }
  }

  #emit(event: AgentEvent): void {
    this.options.onEvent?.(event)
  }
}

/** The request for an answer that begins so. */
const begun = (messages: readonly ChatMessage[], content: string): Pick<EngineRequest, 'messages' | 'continues'> => ({
  messages: [...messages, { role: 'assistant', content }],
  continues: true,
})

/** An answer that makes no calls, whatever was sampled: calls without results would be an unfinished step for ever. */
function withoutCalls(message: ChatMessage): ChatMessage {
  if (message.toolCalls === undefined) return message
  const { role, content, reasoning } = message
  return { role, content, ...(reasoning === undefined ? {} : { reasoning }) }
}

// The advice to a model whose calls are right but in an order that costs more than it need.

/**
 * A line for the result of this step's fold, null when there is nothing to say: folded one a step from first to last, every fold has all that
 * follows computed again under contract `exact`. Pure.
 *
 * @param before the calls of the step before
 * @param now the calls of this step
 */
export function foldOrderHint(
  fragments: readonly Pick<Fragment, 'id'>[],
  before: readonly CallReport[],
  now: readonly CallReport[],
): string | null {
  const earlier = onlyFold(before)
  const later = onlyFold(now)
  if (earlier === null || later === null) return null
  const place = (id: string) => fragments.findIndex((fragment) => fragment.id === id)
  if (place(later) <= place(earlier)) return null
  return 'Hint: each fold has the text after it read again. Fold several fragments in one step, or the last one first.'
}

/** The fragment that the step's one call folded; null when it did anything else. */
function onlyFold(calls: readonly CallReport[]): string | null {
  const [report, ...more] = calls
  if (report === undefined || more.length > 0 || report.failed || report.call.name !== 'fold_fragment') return null
  const id = report.call.arguments['fragment_id']
  return typeof id === 'string' ? id : null
}
