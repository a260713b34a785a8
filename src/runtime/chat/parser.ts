/** What every reply parser does: takes the model's raw text as it comes, hands out text, reasoning and tool calls. */
import { readJson, writeJson } from '../core/written-json.js'
import type { ToolCall } from './message.js'
import { ArgumentText, type BegunCall, type RawCall, toolCall } from './syntax/call.js'

export type ReplyEvent =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** A call has begun; its name is known when the syntax gives it first. */
  | { readonly type: 'call-start'; readonly name: string | null }
  /** More of the arguments of the call that is being made; together they are the whole call's. Where the syntax writes them otherwise than as JSON, and where they turn out to be none, there are fewer of them or none. */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  | { readonly type: 'call'; readonly call: ToolCall }

export interface ParsedReply {
  readonly content: string
  readonly reasoning?: string
  readonly toolCalls: readonly ToolCall[]
}

interface FinishedReply extends ParsedReply {
  /** What `push` had held back. */
  readonly events: readonly ReplyEvent[]
}

export interface ReplyParser {
  /** Text may be split anywhere. */
  push(text: string): ReplyEvent[]
  /** The whole reply; what was held back or unfinished is in it. Call once. */
  finish(): FinishedReply
}

/** What is new of an answer whose beginning was given: the parser has read that, and may have held some of its end back. */
export class News {
  /** Characters of the beginning that come with what is new. */
  #held: number

  constructor(beginning: string, parser: ReplyParser) {
    const read = beginning === '' ? [] : parser.push(beginning)
    const told = read.reduce((text, event) => (event.type === 'text' ? text + event.text : text), '')
    this.#held = beginning.startsWith(told) ? beginning.length - told.length : 0
  }

  of(events: readonly ReplyEvent[]): readonly ReplyEvent[] {
    if (this.#held === 0) return events
    return events.flatMap((event): ReplyEvent[] => {
      if (event.type !== 'text') return [event]
      const text = event.text.slice(this.#held)
      this.#held = Math.max(0, this.#held - event.text.length)
      return text === '' ? [] : [{ ...event, text }]
    })
  }
}

/** Of an answer that had to be a call and was cut off: what was held back as it might begin one does, and is no text. */
export function withoutHeld(parsed: FinishedReply): FinishedReply {
  const held = parsed.events.reduce((sum, event) => sum + (event.type === 'text' ? event.text.length : 0), 0)
  const { content } = parsed
  return {
    ...parsed,
    content: content.slice(0, content.length - held),
    events: parsed.events.filter(({ type }) => type !== 'text'),
  }
}

// The part all reply parsers share: what is held back, what is handed out, and the reply that adds up.

/** Text whose whitespace at the end waits, and whose whitespace at the beginning may be dropped. */
class Flow {
  value = ''
  waiting = ''

  /** `trim`: drop whitespace as long as nothing else came since. */
  add(text: string, trim: boolean): string {
    const all = this.waiting + text
    const whole = trim ? all.trimStart() : all
    const kept = whole.trimEnd()
    this.waiting = whole.slice(kept.length)
    this.value += kept
    return kept
  }
}

export abstract class StreamParser implements ReplyParser {
  /** Text not yet understood. */
  protected buffer = ''
  #events: ReplyEvent[] = []
  readonly #text = new Flow()
  readonly #reasoning = new Flow()
  /** True after a reasoning or a call: whitespace before the next text separates, it says nothing. */
  #separated = false
  readonly #calls: ToolCall[] = []
  /** The call whose arguments have begun. */
  #begun: { readonly id: string; readonly name: string; readonly text: ArgumentText } | null = null

  push(text: string): ReplyEvent[] {
    this.buffer += text
    this.drain(false)
    return this.#take()
  }

  finish(): FinishedReply {
    this.drain(true)
    if (this.buffer !== '') this.say(this.buffer)
    this.buffer = ''
    const content = this.#text.value + (this.#separated ? '' : this.#text.waiting)
    if (!this.#separated && this.#text.waiting !== '') this.#events.push({ type: 'text', text: this.#text.waiting })
    const reasoning = this.#reasoning.value
    return { content, ...(reasoning === '' ? {} : { reasoning }), toolCalls: this.#calls, events: this.#take() }
  }

  /** Consumes of `buffer` what can be decided; all of it when `final`. What it decides never depends on how the text was split. */
  protected abstract drain(final: boolean): void

  protected say(text: string): void {
    const added = this.#text.add(text, this.#separated)
    if (added === '') return
    this.#separated = false
    this.#events.push({ type: 'text', text: added })
  }

  protected think(text: string): void {
    const added = this.#reasoning.add(text, this.#reasoning.value === '')
    if (added !== '') this.#events.push({ type: 'reasoning', text: added })
    this.separate()
  }

  protected begin(name: string | null): void {
    this.#events.push({ type: 'call-start', name })
    this.separate()
  }

  /** Hands out what is new of the arguments of a call that is not whole; its name and id are final. */
  protected goOn({ name, id, text }: BegunCall): void {
    const begun = this.#begun ?? { id: this.#idOf(id), name, text: new ArgumentText() }
    const added = begun.text.push(text)
    if (added === '') return
    this.#begun = begun
    this.#events.push({ type: 'arguments', id: begun.id, name: begun.name, text: added })
  }

  protected call(raw: RawCall): void {
    const call = this.#asBegun(toolCall(raw, this.#idOf(raw.id)))
    this.#calls.push(call)
    this.#events.push({ type: 'call', call })
    this.separate()
  }

  /** The model's own id, or one made up: where it wrote none, or one that an earlier call of the reply has. */
  #idOf(own: string | undefined): string {
    const isFree = (id: string) => this.#calls.every((call) => call.id !== id)
    if (own !== undefined && isFree(own)) return own
    let number = this.#calls.length + 1
    while (!isFree(`call_${number}`)) number++
    return `call_${number}`
  }

  /** What was handed out holds. */
  #asBegun(call: ToolCall): ToolCall {
    const begun = this.#begun
    this.#begun = null
    if (begun === null) return call
    const { id, name, text } = begun
    const { sent, isComplete } = text
    const isSame = !isComplete || call.malformed !== undefined || writeJson(call.arguments) === sent
    return { ...call, id, name, ...(isSame ? {} : { arguments: readJson(sent) as ToolCall['arguments'], text: sent }) }
  }

  /** Takes `length` characters off the buffer. */
  protected consume(length: number): string {
    const taken = this.buffer.slice(0, length)
    this.buffer = this.buffer.slice(length)
    return taken
  }

  /** Characters at the front of the buffer that cannot belong to any of the tags. */
  protected clear(tags: readonly string[]): number {
    let safe = this.buffer.length
    const longest = Math.max(...tags.map(({ length }) => length))
    for (let at = Math.max(0, safe - longest + 1); at < safe; at++) {
      const rest = this.buffer.slice(at)
      if (tags.some((tag) => tag.startsWith(rest))) return at
    }
    safe = this.buffer.length
    return safe
  }

  protected separate(): void {
    this.#separated = true
  }

  #take(): ReplyEvent[] {
    const events = this.#events
    this.#events = []
    return events
  }
}
