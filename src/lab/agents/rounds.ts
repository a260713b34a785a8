/** Owns four agents to compare with, whose context is written anew on the way: ReAct that lets its oldest turns go, ReSum, IterResearch, AgentFold. */
import type { ChatMessage, ToolCall } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { conversationId, type ConversationId } from '../../runtime/core/ids.js'
import { writeJson } from '../../runtime/core/written-json.js'
import { Conversation } from '../../runtime/context/conversation.js'
import type { EngineReply } from '../../runtime/engine/engine.js'
import type { LedgerEntry } from '../../runtime/kv/ledger.js'
import { type AskOptions, MAX_CALLS, type SessionOptions } from '../../runtime/agents/session.js'
import { Toolbox } from '../../runtime/agents/toolbox.js'

/**
 * `react`: appends everything; before a turn that may not fit, its oldest turns go, down to half of the window. `resum`: at 0.9 of the window a summary
 * takes the place of everything but the rules. `iterresearch`: every step sees the question, a report that the last step wrote, and its call and result.
 * `agentfold`: every step may write a range of earlier steps anew as one (2510.24699), and sees the last one whole.
 */
export type RoundsKind = 'react' | 'resum' | 'iterresearch' | 'agentfold'

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

/** By which a step of AgentFold is told to write earlier steps anew. */
export const COMPRESS = '<compress>'

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
  /** AgentFold's, in order and without a gap. */
  readonly steps: readonly FoldedStep[]
}

/** Steps that are told as one; numbers from 1, the last included. */
interface FoldedStep {
  readonly from: number
  readonly to: number
  readonly text: string
}

export class BaselineAgent {
  readonly toolbox: Toolbox
  readonly #ledger: LedgerEntry[] = []
  /** What the next step shows, rules aside. */
  #shown: ChatMessage[] = []
  /** The user's words so far. */
  #asked: string[] = []
  #report = ''
  #steps: readonly FoldedStep[] = []
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
    this.#steps = state.steps
  }

  get state(): RoundsState {
    return { shown: this.#shown, asked: this.#asked, report: this.#report, steps: this.#steps }
  }

  get ledger(): readonly LedgerEntry[] {
    return this.#ledger
  }

  /** @throws KvfoldError what the engine throws, context/full where a turn alone does not fit */
  async ask(content: string, { signal }: Pick<AskOptions, 'signal'> = {}): Promise<RoundsOutcome> {
    const { kind, maxCalls = MAX_CALLS } = this.options
    this.#asked.push(content)
    if (kind === 'react') this.#forgetOldest(content)
    const isRewritten = kind === 'iterresearch' || kind === 'agentfold'
    if (isRewritten) this.#shown = [this.#question()]
    else this.#shown.push({ role: 'user', content })
    const done: { call: ToolCall; failed: boolean }[] = []
    for (;;) {
      if (kind === 'resum' && this.#tokens() >= FULL * this.#window) await this.#summarise(signal)
      const { message, finish } = await this.#respond(done.length >= maxCalls, signal)
      const calls = finish === 'cancelled' || done.length >= maxCalls ? [] : (message.toolCalls ?? [])
      const results = await this.#results(calls, done, signal)
      if (isRewritten && calls.length > 0) this.#shown = this.#nextRound(message, results)
      else this.#shown.push(message, ...results)
      if (calls.length > 0) continue
      if (kind === 'agentfold') this.#step(`Said: ${message.content}`)
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

  /** What the next step sees of all before. @param steps AgentFold's, as they are shown */
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
    this.restarts++
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

  /** A directive that is none, or whose range cuts a step that is told with others, changes nothing. */
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

/** The directive of a step that tells all steps that it is shown by one text; nothing where there are none. */
export function compressed(shown: string, text: string): string {
  const last = Array.from(shown.matchAll(/^\[(?:Compressed )?Step (?:\d+ to )?(\d+)\]/gm)).at(-1)?.[1]
  return last === undefined
    ? ''
    : `${COMPRESS}${JSON.stringify({ compress_range: [1, Number(last)], compress_text: text })}</compress>`
}
