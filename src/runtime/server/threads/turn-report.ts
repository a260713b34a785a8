/** Turns the events of a turn into events for the client, and collects its text, tokens and logprobs. */
import type { AgentEvent, TurnOutcome } from '../../agents/tool-loop.js'
import type { Toolbox } from '../../agents/toolbox.js'
import { BLANK_LINE, type ChatMessage, type ToolCall } from '../../chat/message.js'
import { type EngineEvent, promptLength, type TokenLogprob } from '../../engine/engine.js'
import { draftsIn } from '../../kv/ledger.js'
import type { Answer, AskEvent, BareCallReport, ToolSearchResult, SearchStep } from '../ask.js'
import { namesIn } from './server-tools.js'

export class TurnReport {
  logprobs: TokenLogprob[] = []
  /** Tokens sampled in the latest step. */
  tokens: number[] = []
  /** Logprobs of the tokens in `#text`, that is, since the last search. */
  textLogprobs: TokenLogprob[] = []
  readonly #unsaid = new UnsaidTokens()
  readonly searched: SearchStep[] = []
  readonly bareCalls: BareCallReport[] = []
  /** The search that the current step made; null once its message is in `searched`. */
  #found: ToolSearchResult | null = null
  #step = 0
  /** Whether the current step's own ledger entry was seen. Further entries in the step are those of summaries. */
  #accounted = false
  /** Text and reasoning since the last search. `#spoke`: whether the current step has produced text. */
  #text = ''
  #reasoning = ''
  #spoke = false
  #mayCall = true
  /**
   * `#reused`: the least reused tokens in the first step's plans; a prompt that waited for cells has several. `#prompt`: prompt tokens in the latest step's plan. Null for engines that report no
   * plan, such as vLLM and SGLang.
   */
  #reused: number | null = null
  #prompt: number | null = null
  /** `#unknown`: sampled tokens not yet known to be text or reasoning. `#reasoned`: reasoning tokens of the latest step. */
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

  /** Turns the text so far and the search call into a message of its own, as the client will send it back. */
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

  /** Returns the answer's message: the text since the last search, and the calls of the client's tools. */
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
        if (step === 0) this.#reused = Math.min(this.#reused ?? Infinity, event.reused)
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
        const between = this.#spoke || this.#text === '' ? '' : BLANK_LINE
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

/** Finds the tokens of a piece of text among all sampled tokens; others belong to tags, reasoning and call syntax. */
class UnsaidTokens {
  #tokens: TokenLogprob[] = []
  /** Bytes of the last taken token that belong to text still to come. */
  #ahead = ''

  push(tokens: readonly TokenLogprob[]): void {
    this.#tokens.push(...tokens)
  }

  clear(): void {
    this.#tokens = []
    this.#ahead = ''
  }

  /** Returns the tokens of this text and drops all tokens before them. A token that spans two texts is returned with the first one only. */
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
    // The parser may have written the blank line before a text behind a call.
    const own = joined.includes(bytes) ? bytes : bytes.slice(bytes.startsWith(BLANK_LINE) ? BLANK_LINE.length : 0)
    // A text begins at a token boundary, unless the parser trimmed its beginning.
    const begin = starts.find((at) => joined.startsWith(own, at)) ?? Math.max(0, joined.lastIndexOf(own))
    const end = begin + own.length
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

/** Returns the bytes of a text, one character each. A token may hold only part of a UTF-8 character. */
const bytesOf = ({ text, bytes }: Pick<TokenLogprob, 'text' | 'bytes'>): string =>
  Buffer.from(bytes ?? Buffer.from(text)).toString('latin1')

/** Sums a timing figure over all steps of a turn. */
export const sum = ({ steps }: TurnOutcome, of: (timing: TurnOutcome['steps'][number]['timing']) => number): number =>
  steps.reduce((total, { timing }) => total + of(timing), 0)
