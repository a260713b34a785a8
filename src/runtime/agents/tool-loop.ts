/**
 * Runs one turn: steps with tool calls until the model answers. Defines the events that a running turn emits and the outcome that it
 * returns.
 */
import type { ChatMessage, ToolCall, ToolChoice } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import type { CostlyFolds, Fragment } from '../context/fragment.js'
import { noted } from '../context/size-note.js'
import { failure, type ToolOutcome } from '../context/tools.js'
import { invariant } from '../core/errors.js'
import { definedFields } from '../core/json.js'
import type {
  Engine,
  EngineEvent,
  EngineReply,
  EngineRequest,
  Finish,
  GenerationOptions,
  PromptLogprob,
  RequestScope,
  Timing,
} from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { ClientCalls, type ClientRules } from './client-calls.js'
import type { Toolbox } from './toolbox.js'

/** One tool call of a step and its result. */
export interface CallReport {
  readonly call: ToolCall
  /** The call's result, as the content of the tool message. */
  readonly text: string
  /** True when a context-modifying tool changed the conversation. */
  readonly modifies: boolean
  readonly failed: boolean
  /** True when the turn refused the call, because it was cancelled or had used up `maxCalls`. */
  readonly refused?: boolean
}

/** One step: one generated answer, and the tool calls in it that were carried out. */
export interface StepReport {
  readonly ledger: LedgerEntry
  /** Entries of steps that the calls themselves ran (summaries). */
  readonly side: readonly LedgerEntry[]
  readonly timing: Timing
  readonly finish: Finish
  /** Index of the message that the step added. When a cancelled answer was not kept, the index that it would have had. */
  readonly message: number
  readonly calls: readonly CallReport[]
}

export type AgentEvent =
  | { readonly type: 'step'; readonly step: number; readonly toolChoice: ToolChoice }
  /** An event of the engine: plan, prefill, tokens, text, reasoning, calls, rewrites. */
  | { readonly type: 'engine'; readonly step: number; readonly event: EngineEvent }
  /** The entry of the step itself, or of a summary that a call wrote. */
  | { readonly type: 'ledger'; readonly step: number; readonly entry: LedgerEntry }
  /** Emitted before a call is carried out. */
  | { readonly type: 'call'; readonly step: number; readonly call: ToolCall }
  | ({ readonly type: 'result'; readonly step: number } & CallReport)

/** How a turn ended: the model finished, it called external tools, the token limit cut it off, or it was cancelled. */
export type TurnEnd = Finish

export interface TurnOutcome {
  /** The text of the last message. A cancelled turn has the text generated so far. */
  readonly answer: string
  readonly end: TurnEnd
  readonly steps: readonly StepReport[]
  /** Number of tool calls that the turn carried out. */
  readonly calls: number
  /** Calls of the last step to external tools, in order. Their results must be added before the conversation can continue. */
  readonly external: readonly ToolCall[]
  /**
   * Results of own calls that come after an external call in the last step, in order. The caller adds them after the result of that
   * external call.
   */
  readonly held: readonly ChatMessage[]
  /** Calls refused because the turn had used up `maxCalls`. */
  readonly refusedCalls: number
  /** Entries of all steps and summaries, oldest first. */
  readonly ledger: readonly LedgerEntry[]
  /**
   * Tokens in the context at the end of the first step, and of the last one. They include the system message, the tool definitions, the
   * transcript and the generated tokens.
   */
  readonly contextBefore: number
  readonly contextAfter: number
  /** The stop string that ended the last step, if the engine reports it. */
  readonly stop?: string | number
  /** The tokens of the first step's prompt, if the engine has them. */
  readonly promptTokens?: Int32Array
  /** Log-probabilities of the first step's prompt, if they were requested and the engine has them. */
  readonly promptLogprobs?: readonly PromptLogprob[]
}

export interface TurnOptions {
  readonly engine: Engine
  readonly conversation: Conversation
  readonly toolbox: Toolbox
  /** Whether the first step must call a tool, may call one, or must not. Without tools it never calls one. */
  readonly firstStep: ToolChoice
  readonly maxCalls: number
  /** Whether the model's folds and summaries that save no tokens are refused. Default: as the conversation's ports say. */
  readonly costlyFolds?: CostlyFolds
  /** Whether a fold's result gets a line of advice when the order of folds is expensive. */
  readonly hints: boolean
  /** Sampling, limits, contract and similar settings, the same for every step. */
  readonly generation: GenerationOptions
  /** The other fields of every step's request that do not follow from the conversation and its tools. Default: none. */
  readonly request?: RequestScope & Pick<EngineRequest, 'clientEdits' | 'known' | 'parent' | 'last'>
  /** Asks the first step for log-probabilities of its prompt (`EngineRequest.promptLogprobs`). Default: none. */
  readonly promptLogprobs?: number
  /** Names of the tools that a required call may use. Default: all. */
  readonly callable?: readonly string[]
  /** Present if the calls go to a client that keeps the conversation too. Default: calls stay as the engine reports them. */
  readonly client?: ClientRules
  /** Text that the answer of the first step begins with. Default: none. */
  readonly beginning?: string
  readonly signal?: AbortSignal
  readonly onEvent?: (event: AgentEvent) => void
  /** Whether a cancelled answer with some text becomes a message, marked `cut`. Default true. */
  readonly keepsCancelled?: boolean
  /** Called and awaited before each step after the first. An error that it throws ends the turn. */
  readonly betweenSteps?: () => Promise<void>
}

export class Turn {
  readonly #steps: StepReport[] = []
  #calls = 0
  #refused = 0
  #external: readonly ToolCall[] = []
  #held: readonly ChatMessage[] = []
  /** The tokens and log-probabilities of the first step's prompt. */
  #prompt: Pick<EngineReply, 'promptTokens' | 'promptLogprobs'> = {}

  constructor(private readonly options: TurnOptions) {}

  /**
   * Runs until the model answers or calls external tools. Every message is added to the conversation as soon as it is complete. Every call
   * of an own tool gets its result. So the conversation can continue however the turn ends.
   *
   * @throws KvfoldError whatever the engine throws; messages added before stay in the conversation
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

  /**
   * Adds the answer to the conversation unless it is a cancelled one that is not kept, or one that may have no token. Returns its index, or
   * the index that it would have had.
   */
  #keep(message: ChatMessage, finish: EngineReply['finish']): number {
    const { conversation, generation, keepsCancelled = true } = this.options
    if (generation.maxTokens === 0) return conversation.messages.length
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
    const { engine, conversation, toolbox, generation, request, beginning, callable, client, signal } = this.options
    const step = this.#steps.length
    const { promptLogprobs } = step === 0 ? this.options : {}
    this.#emit({ type: 'step', step, toolChoice })
    const tools = toolbox.definitions
    const { hopeless, definitions: narrower } = toolbox.narrowed(conversation)
    const unlisted = [...narrower, ...toolbox.unlisted]
    const allowed = toolChoice === 'required' ? callable : toolChoice === 'auto' ? client?.among : undefined
    const hasEnds = client?.single === true || tools.some((tool) => toolbox.endsStep(tool))
    const messages = noted(conversation.messages, tools)
    const edits = conversation.edits()
    const running = engine.respond({
      ...generation,
      ...request,
      conversation: conversation.id,
      ...(beginning === undefined || step > 0 ? { messages } : begun(messages, beginning)),
      ...(edits.length === 0 ? {} : { edits }),
      ...(tools.length === 0 ? {} : { tools, toolChoice }),
      ...(unlisted.length === 0 ? {} : { unlisted }),
      ...(allowed === undefined && hopeless.length === 0
        ? {}
        : { callable: (allowed ?? [...tools, ...unlisted].map(({ name }) => name)).filter((name) => !hopeless.includes(name)) }),
      ...(hasEnds ? { endsWith: (call) => toolbox.endsStep(call) || (client?.single === true && toolbox.isExternal(call)) } : {}),
      ...definedFields({ promptLogprobs, signal }),
    })
    const tell = (event: EngineEvent) => {
      this.#emit({ type: 'engine', step, event })
    }
    const calls = client === undefined ? null : new ClientCalls(client, toolbox, tell)
    const whole = await running.each((event) => {
      if (calls === null) tell(event)
      else calls.on(event)
    })
    const reply = calls?.end(whole) ?? whole
    if (step === 0) this.#prompt = reply
    this.#emit({ type: 'ledger', step, entry: reply.ledger })
    return reply
  }

  /**
   * Carries out the calls of one step, in order. Edits only mark the conversation, so the next step applies all of them at once. Calls of
   * external tools are skipped.
   */
  async #carryOut(calls: readonly ToolCall[]): Promise<Pick<StepReport, 'calls' | 'side'>> {
    const { conversation, toolbox } = this.options
    this.#external = calls.filter((call) => toolbox.isExternal(call))
    const first = this.#external[0]
    const held: ChatMessage[] = []
    const step = this.#steps.length
    const reports: CallReport[] = []
    const side: LedgerEntry[] = []
    let hasFailed = false
    try {
      for (const [at, call] of calls.entries()) {
        if (this.#external.includes(call)) continue
        const before = this.#calls
        const refusal = this.#refusal()
        const { text: said, modifies, failed, ledger } = refusal ?? (await this.#call(call))
        // Later failures of a step mostly have the same cause as its first failure, so they do not count towards `maxCalls`.
        if (failed && hasFailed) this.#calls = before
        hasFailed ||= failed
        const text = said + this.#hint({ call, text: said, modifies, failed }, calls.length)
        const result: ChatMessage = { role: 'tool', content: text, toolCallId: call.id, name: call.name }
        if (first !== undefined && at > calls.indexOf(first)) held.push(result)
        else conversation.add(result)
        const report: CallReport = { call, text, modifies, failed, ...(refusal !== null && { refused: true }) }
        reports.push(report)
        side.push(...ledger)
        for (const entry of ledger) this.#emit({ type: 'ledger', step, entry })
        this.#emit({ type: 'result', step, ...report })
      }
    } catch (error) {
      // Every call gets a result, because the conversation goes on. The client never hears of its own calls in this step.
      for (const result of held) conversation.add(result)
      for (const { id, name } of calls.filter((call) => !reports.some((one) => one.call === call)))
        conversation.add({ role: 'tool', content: 'Error: the call was not carried out.', toolCallId: id, name })
      throw error
    }
    this.#held = held
    return { calls: reports, side }
  }

  /** Returns the advice to add to a result, or an empty string. */
  #hint(report: CallReport, calls: number): string {
    const { hints, conversation, generation } = this.options
    if (!hints || calls > 1 || (generation.contract ?? 'exact') !== 'exact') return ''
    const hint = foldOrderHint(conversation.fragments, this.#steps.at(-1)?.calls ?? [], [report])
    return hint === null ? '' : `\n${hint}`
  }

  /** Returns the result of a call that the turn refuses, or null. */
  #refusal(): ToolOutcome | null {
    const { maxCalls } = this.options
    if (this.#cancelled) return failure('cancelled before it was carried out.')
    if (this.#calls < maxCalls) return null
    this.#refused++
    return failure(`the ${maxCalls} calls of this turn are used up. Answer now from what you see.`)
  }

  #call(call: ToolCall): ToolOutcome | Promise<ToolOutcome> {
    const { conversation, toolbox, costlyFolds, signal } = this.options
    this.#calls++
    this.#emit({ type: 'call', step: this.#steps.length, call })
    return toolbox.run(conversation, call, signal, costlyFolds)
  }

  get #cancelled(): boolean {
    return this.options.signal?.aborted === true
  }

  #outcome({ message, stop }: EngineReply, end: TurnEnd): TurnOutcome {
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
      ...definedFields({ stop, promptTokens: this.#prompt.promptTokens, promptLogprobs: this.#prompt.promptLogprobs }),
    }
  }

  #emit(event: AgentEvent): void {
    this.options.onEvent?.(event)
  }
}

/** A request whose answer continues `content`. */
const begun = (messages: readonly ChatMessage[], content: string): Pick<EngineRequest, 'messages' | 'continues'> => ({
  messages: [...messages, { role: 'assistant', content }],
  continues: true,
})

/** Removes the calls from an answer. A call without a result would leave the step unfinished for good. */
function withoutCalls(message: ChatMessage): ChatMessage {
  if (message.toolCalls === undefined) return message
  const { role, content, reasoning } = message
  return { role, content, ...(reasoning === undefined ? {} : { reasoning }) }
}

// Advice to a model whose calls are right but come in an order that costs more than necessary.

/**
 * Returns a line to add to the result of this step's fold, or null. Under `exact`, each fold computes the text after it again, so folding
 * one fragment a step from first to last is the most expensive order. Pure.
 *
 * @param before the calls of the previous step
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

/** Returns the id of the fragment when folding it was the step's only call, else null. */
function onlyFold(calls: readonly CallReport[]): string | null {
  const [report, ...more] = calls
  if (report === undefined || more.length > 0 || report.failed || report.call.name !== 'fold_fragment') return null
  const id = report.call.arguments['fragment_id']
  return typeof id === 'string' ? id : null
}
