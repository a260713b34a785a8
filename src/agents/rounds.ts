/** Owns three agents to compare with, whose context is written anew on the way: ReAct that lets its oldest turns go, ReSum, IterResearch. */
import type { ChatMessage, ToolCall } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import { conversationId, type ConversationId } from '../core/ids.js'
import { Conversation } from '../context/conversation.js'
import type { EngineReply } from '../engine/engine.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { type AskOptions, MAX_CALLS, type SessionOptions } from './session.js'
import { Toolbox } from './toolbox.js'

/**
 * `react`: appends everything; before a turn that may not fit, its oldest turns go, down to half of the window. `resum`: at 0.9 of the window a summary
 * takes the place of everything but the rules. `iterresearch`: every step sees the question, a report that the last step wrote, and its call and result.
 */
export type RoundsKind = 'react' | 'resum' | 'iterresearch'

export interface RoundsOptions extends Pick<
  SessionOptions,
  'engine' | 'id' | 'system' | 'clientTools' | 'maxCalls' | 'generation'
> {
  readonly kind: RoundsKind
  /** Tokens of the context. Default: the engine's. */
  readonly window?: number
}

export interface RoundsOutcome {
  readonly answer: string
  readonly end: 'stop' | 'length' | 'cancelled'
  readonly calls: readonly { readonly call: ToolCall; readonly failed: boolean }[]
  readonly refusedCalls: number
}

/** By which a step of IterResearch is told to write its report. */
export const REPORT = '<report>'

/** WebResummer's trigger; tokens that its summary may take. */
const FULL = 0.9
const SUMMARY = 4096
/** ReAct keeps so much of the window free for a turn, and lets turns go down to so much. */
const ROOM = 0.75
const HALF = 0.5

/** Plain JSON, but for sampled tokens. */
export interface RoundsState {
  readonly shown: readonly ChatMessage[]
  readonly asked: readonly string[]
  readonly report: string
}

export class Rounds {
  readonly toolbox: Toolbox
  readonly #ledger: LedgerEntry[] = []
  /** What the next step shows, rules aside. */
  #shown: ChatMessage[] = []
  /** The user's words so far. */
  #asked: string[] = []
  #report = ''
  /** Times that the context was written anew. */
  restarts = 0

  constructor(
    private readonly options: RoundsOptions,
    state?: RoundsState,
  ) {
    this.toolbox = new Toolbox([], options.clientTools ?? [])
    if (state === undefined) return
    this.#shown = [...state.shown]
    this.#asked = [...state.asked]
    this.#report = state.report
  }

  get state(): RoundsState {
    return { shown: this.#shown, asked: this.#asked, report: this.#report }
  }

  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** @throws KvfoldError what the engine throws, context/full where a turn alone does not fit */
  async ask(content: string, { signal }: Pick<AskOptions, 'signal'> = {}): Promise<RoundsOutcome> {
    const { kind, maxCalls = MAX_CALLS } = this.options
    this.#asked.push(content)
    if (kind === 'react') this.#forgetOldest(content)
    if (kind === 'iterresearch') this.#shown = [this.#question()]
    else this.#shown.push({ role: 'user', content })
    const done: { call: ToolCall; failed: boolean }[] = []
    for (;;) {
      if (kind === 'resum' && this.#tokens() >= FULL * this.#window) await this.#summarise(signal)
      const { message, finish } = await this.#respond(done.length >= maxCalls, signal)
      const calls = finish === 'cancelled' || done.length >= maxCalls ? [] : (message.toolCalls ?? [])
      const results = await this.#results(calls, done, signal)
      if (kind === 'iterresearch' && calls.length > 0) this.#shown = this.#nextRound(message, results)
      else this.#shown.push(message, ...results)
      if (calls.length > 0) continue
      const end = finish === 'length' || finish === 'cancelled' ? finish : 'stop'
      return { answer: message.content, end, calls: done, refusedCalls: message.toolCalls?.length ?? 0 }
    }
  }

  get #window(): number {
    return Math.min(this.options.window ?? Infinity, this.options.engine.info.context)
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
    const { reply } = engine.respond({
      conversation: id,
      messages: this.#messages,
      ...generation,
      ...(tools.length === 0 ? {} : { tools, toolChoice: isLast ? ('none' as const) : ('auto' as const) }),
      ...(signal === undefined ? {} : { signal }),
    })
    return reply.then((answer) => {
      this.#ledger.push(answer.ledger)
      return answer
    })
  }

  async #results(
    calls: readonly ToolCall[],
    done: { call: ToolCall; failed: boolean }[],
    signal?: AbortSignal,
  ): Promise<ChatMessage[]> {
    const results: ChatMessage[] = []
    for (const call of calls) {
      const { text, failed } = await this.toolbox.run(new Conversation(this.options.id), call, signal)
      done.push({ call, failed })
      results.push({ role: 'tool', content: text, toolCallId: call.id, name: call.name })
    }
    return results
  }

  /** Whole turns, so that no result loses its call. */
  #forgetOldest(content: string): void {
    const next: ChatMessage = { role: 'user', content }
    if (this.#tokens([...this.#messages, next]) < ROOM * this.#window) return
    while (this.#shown.length > 0 && this.#tokens([...this.#messages, next]) > HALF * this.#window) {
      const second = this.#shown.findIndex(({ role }, at) => at > 0 && role === 'user')
      this.#shown = second === -1 ? [] : this.#shown.slice(second)
    }
    this.restarts++
  }

  /** In a dialogue there is no one question: it is the first request with all that the user said since, which we say wherever it is shown. */
  async #summarise(signal?: AbortSignal): Promise<void> {
    const { engine } = this.options
    const question = this.#asked.map((words, at) => `${at + 1}. ${words}`).join('\n')
    const request = `Summarize the conversation above so that the work can go on from your summary and the user's words alone: what was found out, with every id and number, what was done, what is open. The user's words so far:\n${question}`
    const { reply } = engine.respond({
      conversation: this.#aside,
      parent: this.options.id,
      messages: [...this.#messages, { role: 'user', content: request }],
      tools: this.toolbox.definitions,
      toolChoice: 'none',
      ...(this.options.generation?.sampling === undefined ? {} : { sampling: this.options.generation.sampling }),
      maxTokens: SUMMARY,
      kind: 'summary',
      ...(signal === undefined ? {} : { signal }),
    })
    const { message, finish, ledger } = await reply
    this.#ledger.push(ledger)
    engine.forget(this.#aside)
    if (finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'The summary was cancelled.')
    this.#shown = [
      {
        role: 'user',
        content: `Question: ${question}\n\nBelow is a summary of the conversation so far.\nSummary: <summary>${message.content}</summary>`,
      },
    ]
    this.restarts++
  }

  #question(): ChatMessage {
    const words = this.#asked.map((one, at) => `${at + 1}. ${one}`).join('\n')
    return {
      role: 'user',
      content: `The user's words so far, the last ones to be answered now:\n${words}\n\nReport: ${this.#report === '' ? 'none yet' : this.#report}\n\nThink, then act. When you call a tool, first write the report anew between ${REPORT} and </report>, with all that the next step needs: it will see nothing else but this call and its result.`,
    }
  }

  #nextRound({ content, toolCalls = [] }: ChatMessage, results: readonly ChatMessage[]): ChatMessage[] {
    const written = /<report>([\s\S]*?)<\/report>/.exec(content)?.[1]
    if (written !== undefined) this.#report = written.trim()
    this.restarts++
    return [this.#question(), { role: 'assistant', content: '', toolCalls }, ...results]
  }
}
