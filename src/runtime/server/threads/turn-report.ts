/** Reports a turn to the client as events, and counts its tokens and logprobs. */
import type { AgentEvent, TurnOutcome } from '../../agents/tool-loop.js'
import type { Toolbox } from '../../agents/toolbox.js'
import type { ChatMessage, ToolCall } from '../../chat/message.js'
import { type EngineEvent, promptLength, type TokenLogprob } from '../../engine/engine.js'
import { draftsIn } from '../../kv/ledger.js'
import type { Answer, AskEvent, BareCallReport, ToolSearchResult, SearchStep } from '../ask.js'
import { namesIn } from './server-tools.js'

export class TurnReport {
  logprobs: TokenLogprob[] = []
  /** The sampled tokens of the last step. */
  tokens: number[] = []
  /** Logprobs of the tokens in the text since the last search. */
  textLogprobs: TokenLogprob[] = []
  readonly #unsaid = new UnsaidTokens()
  readonly searched: SearchStep[] = []
  readonly bareCalls: BareCallReport[] = []
  /** The search of the current step, until its message is made. */
  #found: ToolSearchResult | null = null
  #step = 0
  /** Whether the current step's own costs were told, so that later ones are those of summaries. */
  #accounted = false
  /** The text and reasoning since the last search. `#spoke`: whether the current step has produced text. */
  #text = ''
  #reasoning = ''
  #spoke = false
  #mayCall = true
  /**
   * `#reused`: reused tokens of the first step's plan. `#prompt`: prompt tokens of the last step's plan. Null if the engine told no plan, as
   * vLLM and SGLang do not.
   */
  #reused: number | null = null
  #prompt: number | null = null
  /** `#unknown`: sampled tokens not yet known to be text or reasoning. `#reasoned`: reasoning tokens of the last step. */
  #unknown = 0
  #reasoned = 0

  constructor(
    private readonly toolbox: Toolbox,
    private readonly isSearch: (call: ToolCall) => boolean,
    private readonly emit: (event: AskEvent) => void,
  ) {}

  on(event: AgentEvent): void {
    switch (event.type) {
      case 'step':
        this.#afterSearches()
        this.#step = event.step
        this.#accounted = false
        this.#prompt = null
        this.#mayCall = event.toolChoice !== 'none'
        this.#spoke = false
        this.#reasoned = 0
        this.#unknown = 0
        this.logprobs = []
        this.tokens = []
        this.#unsaid.clear()
        return
      case 'engine':
        this.#engine(event.event)
        return
      case 'result':
        if (this.isSearch(event.call)) {
          const { call, failed, text } = event
          const result = { call, found: failed ? [] : namesIn(text), error: failed ? text : null }
          this.#found = result
          this.emit({ type: 'search', ...result })
          return
        }
        this.emit({ type: 'acm', step: this.#step, call: event.call, result: event.text, failed: event.failed })
        return
      case 'ledger':
        if (this.#accounted) this.emit({ type: 'aside', entries: [event.entry] })
        this.#accounted = true
        return
      case 'call':
    }
  }

  /** Makes one message of the text before a search and the search's call, as the client sends it back later. */
  #afterSearches(): void {
    const result = this.#found
    if (result === null) return
    const said = { content: this.#text, ...(this.#reasoning === '' ? {} : { reasoning: this.#reasoning }) }
    this.searched.push({ message: { role: 'assistant', ...said, toolCalls: [result.call] }, result })
    this.#found = null
    this.#text = ''
    this.#reasoning = ''
    this.textLogprobs = []
  }

  /** Returns the text of all steps since the last search, with the client's calls. */
  message({ external }: TurnOutcome): ChatMessage {
    this.#afterSearches()
    return {
      role: 'assistant',
      content: this.#text,
      ...(this.#reasoning === '' ? {} : { reasoning: this.#reasoning }),
      ...(external.length === 0 ? {} : { toolCalls: external }),
    }
  }

  usage(outcome: TurnOutcome): Answer['usage'] {
    const last = outcome.steps.at(-1)
    const prompt = this.#prompt ?? (last === undefined ? 0 : promptLength(last))
    return {
      promptTokens: prompt,
      cachedTokens: Math.min(prompt, this.#reused ?? outcome.steps[0]?.ledger.reused ?? 0),
      completionTokens: sum(outcome, ({ generatedTokens }) => generatedTokens),
      reasoningTokens: this.#reasoned,
      ...draftsIn(outcome.ledger),
    }
  }

  #engine(event: EngineEvent): void {
    const step = this.#step
    switch (event.type) {
      case 'plan':
        this.#prompt = event.shown
        this.#reused ??= event.reused
        this.emit({ type: 'plan', step, shown: event.shown, reused: event.reused, compute: event.compute })
        return
      case 'prefill':
        this.emit({ type: 'progress', step, done: event.done, total: event.total })
        return
      case 'tokens':
        this.#unknown += event.tokens.length
        this.tokens.push(...event.tokens)
        if (event.logprobs !== undefined) {
          this.logprobs.push(...event.logprobs)
          this.#unsaid.push(event.logprobs)
        }
        this.emit(event)
        return
      case 'text': {
        this.#unknown = 0
        const between = this.#spoke || this.#text === '' ? '' : '\n\n'
        this.#spoke = true
        this.#text += between + event.text
        const logprobs = this.#unsaid.take(event.text)
        this.textLogprobs.push(...logprobs)
        this.emit({ type: 'text', text: between + event.text, ...(logprobs.length === 0 ? {} : { logprobs }) })
        return
      }
      case 'reasoning':
        this.#reasoned += this.#unknown
        this.#unknown = 0
        this.#reasoning += event.text
        this.#unsaid.take(event.text)
        this.emit(event)
        return
      case 'call':
        this.#unsaid.clear()
        if (this.#mayCall && this.toolbox.isExternal(event.call)) this.emit(event)
        return
      case 'bare-call': {
        const { name, form } = event
        this.bareCalls.push({ name, form })
        this.emit({ type: 'bare-call', name, form })
        return
      }
      case 'arguments':
        this.#unsaid.clear()
        if (this.#mayCall && this.toolbox.isExternal(event)) this.emit(event)
        return
      case 'rewrite':
        this.emit(event)
    }
  }
}

/** Finds the tokens of a text among all sampled tokens, which also write tags, reasoning and calls. */
class UnsaidTokens {
  #tokens: TokenLogprob[] = []
  /** The end of the last taken token, whose text comes later. */
  #ahead = ''

  push(tokens: readonly TokenLogprob[]): void {
    this.#tokens.push(...tokens)
  }

  clear(): void {
    this.#tokens = []
    this.#ahead = ''
  }

  /** Returns the tokens that have this text, without one that an earlier text had already. Drops the tokens before them. */
  take(text: string): readonly TokenLogprob[] {
    const known = this.#ahead
    if (known === '' && this.#tokens.length === 0) return []
    const all = bytesOf({ text })
    this.#ahead = known.startsWith(all) ? known.slice(all.length) : ''
    const bytes = all.startsWith(known) ? all.slice(known.length) : known.startsWith(all) ? '' : all
    if (bytes === '') return []
    const pieces = this.#tokens.map(bytesOf)
    const joined = pieces.join('')
    let length = 0
    const starts = pieces.map((piece) => (length += piece.length) - piece.length)
    // The text begins with a token, unless the parser trimmed it.
    const begin = starts.find((at) => joined.startsWith(bytes, at)) ?? Math.max(0, joined.lastIndexOf(bytes))
    const end = begin + bytes.length
    const next = starts.findIndex((at) => at >= end)
    const to = next < 0 ? starts.length : next
    this.#ahead = joined.slice(end, starts[to])
    const taken = this.#tokens.slice(
      Math.max(
        0,
        starts.findLastIndex((at) => at <= begin),
      ),
      to,
    )
    this.#tokens = this.#tokens.slice(to)
    return taken
  }
}

/** Returns the bytes of a token or text, each as one character: a token may have only part of a character. */
const bytesOf = ({ text, bytes }: Pick<TokenLogprob, 'text' | 'bytes'>): string =>
  Buffer.from(bytes ?? Buffer.from(text)).toString('latin1')

/** Sums one of the timings' figures over all steps of a turn. */
export const sum = ({ steps }: TurnOutcome, of: (timing: TurnOutcome['steps'][number]['timing']) => number): number =>
  steps.reduce((total, { timing }) => total + of(timing), 0)
