/** Four agents to compare with, which rewrite their context as they work: ReAct (drops old turns), ReSum, IterResearch and AgentFold. */
import type { ChatMessage, ToolCall } from '../../runtime/chat/message.js'
import { isContextFull, KvfoldError } from '../../runtime/core/errors.js'
import { conversationId, type ConversationId } from '../../runtime/core/ids.js'
import { writeJson } from '../../runtime/core/written-json.js'
import { Conversation } from '../../runtime/context/conversation.js'
import type { EngineReply } from '../../runtime/engine/engine.js'
import { type AskOptions, MAX_CALLS, type SessionOptions } from '../../runtime/agents/session.js'
import type { CallReport } from '../../runtime/agents/tool-loop.js'
import { Toolbox } from '../../runtime/agents/toolbox.js'

/**
 * How an agent handles its context.
 * `react` appends everything. If a new turn would fill much of the window, it first drops the oldest turns until half of the window is
 * free.
 * `resum` replaces everything but the system message by a summary when 0.9 of the window is full. If the request for the summary does not
 * fit, it drops the oldest turns until it does.
 * `iterresearch` shows each step only the question, the last step's report, and the last step's call and result.
 * `agentfold` (arXiv 2510.24699) lets each step replace a range of earlier steps by one text. The last step stays complete.
 */
export type RoundsKind = 'react' | 'resum' | 'iterresearch' | 'agentfold'

export interface RoundsOptions extends Pick<SessionOptions, 'engine' | 'id' | 'system' | 'clientTools' | 'generation'> {
  readonly kind: RoundsKind
}

export interface RoundsOutcome {
  readonly answer: string
  readonly end: 'stop' | 'length' | 'cancelled'
  readonly refusedCalls: number
}

/** The tag that opens a report of IterResearch. Every step's prompt asks for a report in such tags. */
export const REPORT = '<report>'

/** The tag that opens AgentFold's directive to replace earlier steps by a text. Every step's prompt explains the directive. */
export const COMPRESS = '<compress>'

/** FULL: `resum` summarises when this share of the window is full, as WebResummer does. SUMMARY: the most tokens of the summary. */
const FULL = 0.9
const SUMMARY = 4096
/** `react` drops old turns if a turn would begin with at least the share ROOM of the window full. It stops at HALF. */
const ROOM = 0.75
const HALF = 0.5

/** An agent's state between two turns. Plain JSON, except that messages may hold sampled tokens (Int32Array). */
export interface RoundsState {
  readonly shown: readonly ChatMessage[]
  readonly asked: readonly string[]
  readonly report: string
  /** AgentFold's steps so far, in order and without gaps. */
  readonly steps: readonly FoldedStep[]
  /** How many times the agent has rewritten the context. Absent in states that older releases wrote. */
  readonly restarts?: number
}

/** AgentFold's steps `from` to `to` (counted from 1, both included), which the prompt shows as one text. */
interface FoldedStep {
  readonly from: number
  readonly to: number
  readonly text: string
}

export class BaselineAgent {
  readonly toolbox: Toolbox
  /** The messages of the next prompt, without the system message. */
  #shown: ChatMessage[] = []
  /** The contents of the user's messages so far. */
  #asked: string[] = []
  #report = ''
  #steps: readonly FoldedStep[] = []
  #restarts = 0

  constructor(
    private readonly options: RoundsOptions,
    state?: RoundsState,
  ) {
    this.toolbox = new Toolbox([], options.clientTools ?? [])
    if (state === undefined) return
    this.#shown = [...state.shown]
    this.#asked = [...state.asked]
    this.#report = state.report
    this.#steps = state.steps
    this.#restarts = state.restarts ?? 0
  }

  get state(): RoundsState {
    return { shown: this.#shown, asked: this.#asked, report: this.#report, steps: this.#steps, restarts: this.#restarts }
  }

  /** How many times the agent has rewritten the context. */
  get restarts(): number {
    return this.#restarts
  }

  /**
   * Runs one turn, and reports its steps and tool results as events. @throws KvfoldError any error of the engine; context/full when one
   * turn alone does not fit
   */
  async ask(content: string, { signal, onEvent }: AskOptions = {}): Promise<RoundsOutcome> {
    const { kind } = this.options
    this.#asked.push(content)
    if (kind === 'react') this.#forgetOldest(content)
    const isRewritten = kind === 'iterresearch' || kind === 'agentfold'
    if (isRewritten) this.#shown = [this.#question()]
    else this.#shown.push({ role: 'user', content })
    let done = 0
    for (let step = 0; ; step++) {
      if (kind === 'resum' && this.#tokens() >= FULL * this.#window) await this.#summarise(signal)
      const isLast = done >= MAX_CALLS
      onEvent?.({ type: 'step', step, toolChoice: isLast ? 'none' : 'auto' })
      const { message, finish } = await this.#respond(isLast, signal)
      const calls = finish === 'cancelled' || isLast ? [] : (message.toolCalls ?? [])
      const results = await this.#results(calls, (report) => onEvent?.({ type: 'result', step, ...report }), signal)
      done += results.length
      if (isRewritten && calls.length > 0) this.#shown = this.#nextRound(message, results)
      else this.#shown.push(message, ...results)
      if (calls.length > 0) continue
      if (kind === 'agentfold') this.#step(`Said: ${message.content}`)
      const end = finish === 'length' || finish === 'cancelled' ? finish : 'stop'
      return { answer: message.content, end, refusedCalls: message.toolCalls?.length ?? 0 }
    }
  }

  get #window(): number {
    return this.options.engine.info.context
  }

  get #aside(): ConversationId {
    return conversationId(`${this.options.id}/summary`)
  }

  get #messages(): readonly ChatMessage[] {
    const { system } = this.options
    return system === undefined ? this.#shown : [{ role: 'system', content: system }, ...this.#shown]
  }

  #tokens(messages = this.#messages): number {
    return this.options.engine.count(messages, this.toolbox.definitions)
  }

  #respond(isLast: boolean, signal?: AbortSignal): Promise<EngineReply> {
    const { engine, id, generation = {} } = this.options
    const tools = this.toolbox.definitions
    return engine.respond({
      conversation: id,
      messages: this.#messages,
      ...generation,
      ...(tools.length === 0 ? {} : { tools, toolChoice: isLast ? ('none' as const) : ('auto' as const) }),
      ...(signal === undefined ? {} : { signal }),
    }).reply
  }

  async #results(
    calls: readonly ToolCall[],
    onResult: (report: CallReport) => void,
    signal?: AbortSignal,
  ): Promise<ChatMessage[]> {
    const results: ChatMessage[] = []
    for (const call of calls) {
      const { text, modifies, failed } = await this.toolbox.run(new Conversation(this.options.id), call, signal)
      onResult({ call, text, modifies, failed })
      results.push({ role: 'tool', content: text, toolCallId: call.id, name: call.name })
    }
    return results
  }

  /** Drops the oldest turns if the prompt with this new message would fill too much of the window. */
  #forgetOldest(content: string): void {
    const next: ChatMessage = { role: 'user', content }
    if (this.#tokens([...this.#messages, next]) < ROOM * this.#window) return
    while (this.#shown.length > 0 && this.#tokens([...this.#messages, next]) > HALF * this.#window) {
      if (!this.#dropOldest()) this.#shown = []
    }
    this.#restarts++
  }

  /** Drops the oldest turn. It goes as a whole, so that no tool result loses its call. Returns false if there is only one turn. */
  #dropOldest(): boolean {
    const second = this.#shown.findIndex(({ role }, at) => at > 0 && role === 'user')
    if (second !== -1) this.#shown = this.#shown.slice(second)
    return second !== -1
  }

  /**
   * Replaces all messages by a summary. ReSum's prompt needs one question, which a dialogue does not have. So all user messages so far
   * serve as the question.
   */
  async #summarise(signal?: AbortSignal): Promise<void> {
    const question = this.#asked.map((words, at) => `${at + 1}. ${words}`).join('\n')
    const request = `Summarize the conversation above so that the work can go on from your summary and the user's words alone: what was found out, with every id and number, what was done, what is open. The user's words so far:\n${question}`
    const { message, finish } = await this.#summary(request, signal)
    this.options.engine.forget(this.#aside)
    if (finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'The summary was cancelled.')
    this.#shown = [
      {
        role: 'user',
        content: `Question: ${question}\n\nBelow is a summary of the conversation so far.\nSummary: <summary>${message.content}</summary>`,
      },
    ]
    this.#restarts++
  }

  async #summary(request: string, signal?: AbortSignal): Promise<EngineReply> {
    const { engine, id, generation = {} } = this.options
    for (;;)
      try {
        return await engine.respond({
          conversation: this.#aside,
          parent: id,
          messages: [...this.#messages, { role: 'user', content: request }],
          tools: this.toolbox.definitions,
          toolChoice: 'none',
          ...(generation.sampling === undefined ? {} : { sampling: generation.sampling }),
          maxTokens: SUMMARY,
          kind: 'summary',
          ...(signal === undefined ? {} : { signal }),
        }).reply
      } catch (error) {
        if (!isContextFull(error) || !this.#dropOldest()) throw error
      }
  }

  /** Makes the message that replaces the dialogue so far in IterResearch and AgentFold. @param steps AgentFold's steps to show */
  #question(steps = this.#steps): ChatMessage {
    const words = this.#asked.map((one, at) => `${at + 1}. ${one}`).join('\n')
    const question = `The user's words so far, the last ones to be answered now:\n${words}`
    if (this.options.kind === 'agentfold') {
      const told = steps.map(
        ({ from, to, text }) => (from === to ? `[Step ${to}] ` : `[Compressed Step ${from} to ${to}] `) + text,
      )
      const how = `When you call a tool, first write ${COMPRESS}{"compress_range": [first, last], "compress_text": "..."}</compress>: these steps are told by that text from then on. Keep every id and number that is still needed.`
      return { role: 'user', content: `${question}\n\n${told.join('\n') || 'No steps yet.'}\n\nThink, then act. ${how}` }
    }
    return {
      role: 'user',
      content: `${question}\n\nReport: ${this.#report === '' ? 'none yet' : this.#report}\n\nThink, then act. When you call a tool, first write the report anew between ${REPORT} and </report>, with all that the next step needs: it will see nothing else but this call and its result.`,
    }
  }

  #nextRound({ content, toolCalls = [] }: ChatMessage, results: readonly ChatMessage[]): ChatMessage[] {
    this.#restarts++
    const last: ChatMessage[] = [{ role: 'assistant', content: '', toolCalls }, ...results]
    if (this.options.kind === 'agentfold') {
      this.#compress(/<compress>([\s\S]*?)<\/compress>/.exec(content)?.[1])
      const before = this.#steps
      const calls = toolCalls.map(({ name, arguments: args }) => `${name} ${writeJson(args)}`)
      this.#step([...calls, ...results.map((result) => `-> ${result.content}`)].join('\n'))
      return [this.#question(before), ...last]
    }
    const written = /<report>([\s\S]*?)<\/report>/.exec(content)?.[1]
    if (written !== undefined) this.#report = written.trim()
    return [this.#question(), ...last]
  }

  #step(text: string): void {
    const number = (this.#steps.at(-1)?.to ?? 0) + 1
    this.#steps = [...this.#steps, { from: number, to: number, text }]
  }

  /** Carries out AgentFold's directive. Ignores it if it is malformed, or if its range cuts a compressed step in two. */
  #compress(said: string | undefined): void {
    const directive = directiveIn(said)
    if (directive === null) return
    const [from, to] = directive.range
    const first = this.#steps.findIndex((step) => step.from === from)
    const last = this.#steps.findIndex((step) => step.to === to)
    if (first === -1 || last < first) return
    this.#steps = [...this.#steps.slice(0, first), { from, to, text: directive.text }, ...this.#steps.slice(last + 1)]
  }
}

function directiveIn(said = ''): { readonly range: readonly [number, number]; readonly text: string } | null {
  try {
    const { compress_range: range, compress_text: text } = JSON.parse(said) as Record<string, unknown>
    const [from, to] = Array.isArray(range) ? (range as unknown[]) : []
    return typeof from === 'number' && typeof to === 'number' && typeof text === 'string' ? { range: [from, to], text } : null
  } catch {
    return null
  }
}

/** For scripts: returns an AgentFold directive that replaces all steps in the prompt `shown` by `text`; '' if the prompt shows no steps. */
export function compressed(shown: string, text: string): string {
  const last = Array.from(shown.matchAll(/^\[(?:Compressed )?Step (?:\d+ to )?(\d+)\]/gm)).at(-1)?.[1]
  return last === undefined
    ? ''
    : `${COMPRESS}${JSON.stringify({ compress_range: [1, Number(last)], compress_text: text })}</compress>`
}
