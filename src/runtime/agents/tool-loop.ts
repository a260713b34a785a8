/** One turn: steps with tool calls until the model answers. Also the events and the outcome of a turn. */
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

/** One tool call and its result. */
export interface CallReport {
  readonly call: ToolCall
  /** The content of the tool message, as the model gets it. */
  readonly text: string
  /** Whether the call succeeded and its tool counts as modifying the context (`ToolOutcome.modifies`). */
  readonly modifies: boolean
  readonly failed: boolean
  /** True when the turn did not run the call: the turn was cancelled, or `maxCalls` was used up. */
  readonly refused?: boolean
}

/** One step: one generated answer and the tool calls that were carried out. */
export interface StepReport {
  readonly ledger: LedgerEntry
  /** Ledger entries of summaries that the calls wrote. */
  readonly side: readonly LedgerEntry[]
  readonly timing: Timing
  readonly finish: Finish
  /** Index of the assistant message that the step added. If a cancelled answer was not kept, the index that it would have had. */
  readonly message: number
  readonly calls: readonly CallReport[]
}

export type AgentEvent =
  | { readonly type: 'step'; readonly step: number; readonly toolChoice: ToolChoice }
  /** An event of the engine: plan, prefill, token, text, reasoning, call or rewrite. */
  | { readonly type: 'engine'; readonly step: number; readonly event: EngineEvent }
  /** The ledger entry of the step itself, or of a summary that a call wrote. */
  | { readonly type: 'ledger'; readonly step: number; readonly entry: LedgerEntry }
  /** Emitted right before a call is carried out. */
  | { readonly type: 'call'; readonly step: number; readonly call: ToolCall }
  | ({ readonly type: 'result'; readonly step: number } & CallReport)

/** How a turn ended: the model finished, called external tools, hit the token limit, or the turn was cancelled. */
export type TurnEnd = Finish

export interface TurnOutcome {
  /** The content of the last answer. After a cancel, the text generated so far. */
  readonly answer: string
  readonly end: TurnEnd
  readonly steps: readonly StepReport[]
  /** How many tool calls were carried out. */
  readonly calls: number
  /** Calls of the last step to external tools, in order. The caller must add their results before the conversation can continue. */
  readonly external: readonly ToolCall[]
  /**
   * Results of the agent's own tools for calls that follow an external call in the last step, in order. The caller adds them after that
   * external call's result, so that results keep the order of the calls.
   */
  readonly held: readonly ChatMessage[]
  /** How many calls were refused because `maxCalls` was used up. */
  readonly refusedCalls: number
  /** Ledger entries of all steps and summaries, oldest first. */
  readonly ledger: readonly LedgerEntry[]
  /**
   * Tokens in the context at the end of the first step (`contextBefore`) and of the last one (`contextAfter`): system message, tool
   * definitions, messages and generated tokens.
   */
  readonly contextBefore: number
  readonly contextAfter: number
  /** The stop string that ended the last step, if the engine reports it. */
  readonly stop?: string | number
  /** The tokens of the first step's prompt, if the engine returns them. */
  readonly promptTokens?: Int32Array
  /** Log-probabilities of the first step's prompt, if requested and if the engine returns them. */
  readonly promptLogprobs?: readonly PromptLogprob[]
}

export interface TurnOptions {
  readonly engine: Engine
  readonly conversation: Conversation
  readonly toolbox: Toolbox
  /** Whether the first step must, may or must not call a tool. Without tools, no step calls one. */
  readonly firstStep: ToolChoice
  readonly maxCalls: number
  /** Whether the model's folds and summaries are refused when they save no tokens. Default: the conversation's `costlyFolds`. */
  readonly costlyFolds?: CostlyFolds
  /** Whether a fold's result gets a hint when the order of folds is expensive (`foldOrderHint`). */
  readonly hints: boolean
  /** Sampling, limits, contract and similar settings of every step. */
  readonly generation: GenerationOptions
  /** Further fields of every step's request, beyond those from the conversation and its tools. Default: none. */
  readonly request?: RequestScope & Pick<EngineRequest, 'clientEdits' | 'known' | 'parent' | 'last'>
  /** How many log-probabilities of its prompt the first step asks for (`EngineRequest.promptLogprobs`). Default: none. */
  readonly promptLogprobs?: number
  /** Names of the tools that a required call (`firstStep: 'required'`) may use. Default: all. */
  readonly callable?: readonly string[]
  /**
   * Set when the client also keeps the conversation: which calls it gets, and with which ids. Default: calls stay as the engine reports
   * them.
   */
  readonly client?: ClientRules
  /** Text that the first step's answer must begin with. Default: none. */
  readonly beginning?: string
  readonly signal?: AbortSignal
  readonly onEvent?: (event: AgentEvent) => void
  /** Whether the text of a cancelled answer becomes a message, marked `cut`. An empty one never does. Default true. */
  readonly keepsCancelled?: boolean
  /** Awaited before each step after the first. If it throws, the turn ends with that error. */
  readonly betweenSteps?: () => Promise<void>
}

export class Turn {
  readonly #steps: StepReport[] = []
  #calls = 0
  #refused = 0
  #external: readonly ToolCall[] = []
  #held: readonly ChatMessage[] = []
  /** The tokens and log-probabilities of the first step's prompt, as far as the engine returns them. */
  #prompt: Pick<EngineReply, 'promptTokens' | 'promptLogprobs'> = {}

  constructor(private readonly options: TurnOptions) {}

  /**
   * Runs steps until the model answers or calls external tools. Each message is added to the conversation as soon as it is complete, and
   * every call of an own tool gets a result. So the conversation can continue however the turn ends.
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
   * Adds the answer to the conversation, with two exceptions: a cancelled answer that is not to be kept, and a request for 0 tokens.
   * Returns the message's index, or the index that it would have had.
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
   * Carries out the calls of one step in order, but skips calls of external tools. Context edits take effect at the next step, all at
   * once.
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
        // Later failures in a step mostly have the same cause as the first. So only the first failure counts towards `maxCalls`.
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
      // The conversation must be able to continue, so every call gets a result here, external calls too. The client never hears of this
      // step's calls.
      for (const result of held) conversation.add(result)
      for (const { id, name } of calls.filter((call) => !reports.some((one) => one.call === call)))
        conversation.add({ role: 'tool', content: 'Error: the call was not carried out.', toolCallId: id, name })
      throw error
    }
    this.#held = held
    return { calls: reports, side }
  }

  /** Returns the hint to append to a tool result, or an empty string. */
  #hint(report: CallReport, calls: number): string {
    const { hints, conversation, generation } = this.options
    if (!hints || calls > 1 || (generation.contract ?? 'exact') !== 'exact') return ''
    const hint = foldOrderHint(conversation.fragments, this.#steps.at(-1)?.calls ?? [], [report])
    return hint === null ? '' : `\n${hint}`
  }

  /** Returns the error result when the turn must refuse the next call, else null. */
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

/** Makes a request's messages for an answer that must begin with `content`. */
const begun = (messages: readonly ChatMessage[], content: string): Pick<EngineRequest, 'messages' | 'continues'> => ({
  messages: [...messages, { role: 'assistant', content }],
  continues: true,
})

/** Removes the tool calls from an answer. A kept call would wait for its result for ever, and chat templates refuse such a step. */
function withoutCalls(message: ChatMessage): ChatMessage {
  if (message.toolCalls === undefined) return message
  const { role, content, reasoning } = message
  return { role, content, ...(reasoning === undefined ? {} : { reasoning }) }
}

// A hint for a model that folds correctly, but in an expensive order.

/**
 * Returns a hint to append to a fold's result, or null. Under `exact`, each fold recomputes all text after it. So folding one fragment
 * per step from first to last is the most expensive order. Pure.
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

/** Returns the fragment's id if the step's only call folded it successfully, else null. */
function onlyFold(calls: readonly CallReport[]): string | null {
  const [report, ...more] = calls
  if (report === undefined || more.length > 0 || report.failed || report.call.name !== 'fold_fragment') return null
  const id = report.call.arguments['fragment_id']
  return typeof id === 'string' ? id : null
}
