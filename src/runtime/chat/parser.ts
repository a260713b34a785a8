/** Reply parsers: read the model's raw text as it streams in, and return text, reasoning and tool calls. */
import { readJson, writeJson } from '../core/written-json.js'
import { BLANK_LINE, type ToolCall, type ToolDefinition } from './message.js'
import { type BareCall, BareCalls } from './syntax/bare-calls.js'
import { ArgumentText, type BegunCall, type RawCall, toolCall } from './syntax/call.js'

export type ReplyEvent =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'reasoning'; readonly text: string }
  /** A call begins. `name` is null when the syntax writes the name later. */
  | { readonly type: 'call-start'; readonly name: string | null }
  /**
   * The next piece of the current call's arguments. All pieces joined are the arguments as JSON. Pieces may be missing when the syntax does
   * not write JSON, or when the arguments turn out to be invalid.
   */
  | { readonly type: 'arguments'; readonly id: string; readonly name: string; readonly text: string }
  /** The next call is a bare one (syntax/bare-calls.ts). `form`: how the model wrote it (`BareCall.form`). */
  | { readonly type: 'bare-call'; readonly name: string; readonly form: string }
  | { readonly type: 'call'; readonly call: ToolCall }

export interface ParsedReply {
  readonly content: string
  readonly reasoning?: string
  readonly toolCalls: readonly ToolCall[]
}

export interface FinishedReply extends ParsedReply {
  /** Set when the last call is a bare one (syntax/bare-calls.ts): whether all brackets and tags around it were closed. */
  readonly isBareClosed?: boolean
  /** The last events, for text that `push` had held back. */
  readonly events: readonly ReplyEvent[]
}

export interface ReplyParser {
  /**
   * Makes the parser also read bare calls of these tools (syntax/bare-calls.ts), that is, calls not written in the model's own syntax. Call
   * it before `push`.
   */
  withBare(tools: readonly ToolDefinition[]): this
  /** Parses more text. The text may be split anywhere. Text that might begin a tag or a call is held back. */
  push(text: string): ReplyEvent[]
  /** Ends the reply and returns all of it, including text that was held back. Call it once. */
  finish(): FinishedReply
}

/**
 * Filters a parser's events when the prompt already contains the beginning of the answer, so that they report only new text. The parser
 * reads the beginning first; it may hold back the end of it.
 */
export class ContinuationFilter {
  /** The parser of the answer. It has already read the beginning. */
  readonly parser: ReplyParser
  /** How many characters of the beginning the parser still holds back. It will report them together with new text. */
  #held = 0

  /** @param make makes a new parser */
  constructor(beginning: string, make: () => ReplyParser) {
    this.parser = make()
    if (beginning === '') return
    this.parser.push(beginning)
    // Another parser ends the answer here, and thereby reports what it had held back.
    const ended = make()
    ended.push(beginning)
    this.#held = textLength(ended.finish().events)
  }

  of(events: readonly ReplyEvent[]): readonly ReplyEvent[] {
    if (this.#held === 0) return events
    return events.flatMap((event): ReplyEvent[] => {
      if (event.type !== 'text') {
        // The parser took the held-back characters for something other than text.
        this.#held = 0
        return [event]
      }
      const text = event.text.slice(this.#held)
      this.#held = Math.max(0, this.#held - event.text.length)
      return text === '' ? [] : [{ ...event, text }]
    })
  }
}

const textLength = (events: readonly ReplyEvent[]): number =>
  events.reduce((sum, event) => sum + (event.type === 'text' ? event.text.length : 0), 0)

/**
 * For an answer that was forced to be a call and was cut off. The parser held back text that might begin a call. Here it did begin one, so
 * it is removed from the content.
 */
export function withoutHeld(parsed: FinishedReply): FinishedReply {
  const held = textLength(parsed.events)
  const { content } = parsed
  return {
    ...parsed,
    content: content.slice(0, content.length - held),
    events: parsed.events.filter(({ type }) => type !== 'text'),
  }
}

/** Removes all calls of these tools from a text, in every form that kvfold reads. Cut-off calls are removed, too. */
export function withoutCalls(text: string, tools: readonly ToolDefinition[]): string {
  const bare = new BareCalls(tools)
  return [...bare.push(text), ...bare.finish()].map((part) => (part.kind === 'text' ? part.text : '')).join('')
}

// The base class of all reply parsers. It holds text back and emits events; the finished reply equals the sum of its events.

/** A streamed text. It holds trailing white space back until more text comes, and can drop leading white space. */
class Flow {
  value = ''
  waiting = ''

  /**
   * Adds text and returns what can be passed on. With `apart`, a blank line replaces the white space before it, held-back white space too.
   * At the very beginning, that white space is only dropped.
   */
  add(text: string, apart: boolean): string {
    const all = this.waiting + text
    const whole = apart ? all.trimStart() : all
    const kept = whole.trimEnd()
    this.waiting = whole.slice(kept.length)
    const added = apart && kept !== '' && this.value !== '' ? BLANK_LINE + kept : kept
    this.value += added
    return added
  }
}

export abstract class StreamParser implements ReplyParser {
  /** Text that is not parsed yet. */
  protected buffer = ''
  #events: ReplyEvent[] = []
  readonly #text = new Flow()
  readonly #reasoning = new Flow()
  /** True after reasoning or a call. White space before the next text is then only a separator. */
  #separated = false
  readonly #calls: ToolCall[] = []
  /** Reads bare calls (syntax/bare-calls.ts) in the text; null when bare calls count as text. */
  #bare: BareCalls | null = null
  #isBareClosed: boolean | null = null
  /** The call whose arguments are streaming. */
  #begun: { readonly id: string; readonly name: string; readonly text: ArgumentText } | null = null

  withBare(tools: readonly ToolDefinition[]): this {
    this.#bare = tools.length === 0 ? null : new BareCalls(tools)
    return this
  }

  push(text: string): ReplyEvent[] {
    this.buffer += text
    this.drain(false)
    return this.#take()
  }

  finish(): FinishedReply {
    this.drain(true)
    if (this.buffer !== '') this.say(this.buffer)
    this.buffer = ''
    this.#endText()
    const content = this.#text.value + (this.#separated ? '' : this.#text.waiting)
    if (!this.#separated && this.#text.waiting !== '') this.#events.push({ type: 'text', text: this.#text.waiting })
    const reasoning = this.#reasoning.value
    return {
      content,
      ...(reasoning === '' ? {} : { reasoning }),
      toolCalls: this.#calls,
      events: this.#take(),
      ...(this.#isBareClosed === null ? {} : { isBareClosed: this.#isBareClosed }),
    }
  }

  /**
   * Parses as much of `buffer` as can be decided; with `final`, all of it. Precondition for subclasses: the result does not depend on how
   * the text was split.
   */
  protected abstract drain(final: boolean): void

  protected say(text: string): void {
    if (this.#bare === null) this.#say(text)
    else this.#read(this.#bare.push(text))
  }

  #read(parts: ReturnType<BareCalls['push']>): void {
    for (const part of parts)
      if (part.kind === 'text') this.#say(part.text)
      else if (part.kind === 'begun') this.#begin(part.name)
      else if (part.kind === 'arguments') this.goOn(part.call)
      else this.#bareCall(part.call)
  }

  #bareCall({ raw, form, isClosed }: BareCall): void {
    this.#events.push({ type: 'bare-call', name: raw.name, form })
    this.#call(raw)
    this.#isBareClosed = isClosed
  }

  /** Ends a run of text. An unfinished bare call (syntax/bare-calls.ts) in it becomes text. */
  #endText(): void {
    if (this.#bare !== null) this.#read(this.#bare.finish())
  }

  #say(text: string): void {
    const added = this.#text.add(text, this.#separated)
    if (added === '') return
    this.#separated = false
    this.#events.push({ type: 'text', text: added })
  }

  protected think(text: string): void {
    this.#endText()
    const added = this.#reasoning.add(text, this.#reasoning.value === '')
    if (added !== '') this.#events.push({ type: 'reasoning', text: added })
    this.separate()
  }

  protected begin(name: string | null): void {
    this.#endText()
    this.#begin(name)
  }

  #begin(name: string | null): void {
    this.#events.push({ type: 'call-start', name })
    this.separate()
  }

  /** Emits the new piece of an unfinished call's arguments. The call's name and id must be final. */
  protected goOn({ name, id, text }: BegunCall): void {
    const begun = this.#begun ?? { id: this.#idOf(id), name, text: new ArgumentText() }
    const added = begun.text.push(text)
    if (added === '') return
    this.#begun = begun
    this.#events.push({ type: 'arguments', id: begun.id, name: begun.name, text: added })
  }

  protected call(raw: RawCall): void {
    this.#endText()
    this.#call(raw)
    this.#isBareClosed = null
  }

  #call(raw: RawCall): void {
    const call = this.#asBegun(toolCall(raw, this.#idOf(raw.id)))
    this.#calls.push(call)
    this.#events.push({ type: 'call', call })
    this.separate()
  }

  /** Returns a call's id: the model's own. If the model wrote none, or one that an earlier call in the reply has, makes one up. */
  #idOf(own: string | undefined): string {
    const isFree = (id: string) => this.#calls.every((call) => call.id !== id)
    if (own !== undefined && isFree(own)) return own
    let number = this.#calls.length + 1
    while (!isFree(`call_${number}`)) number++
    return `call_${number}`
  }

  /** Makes the finished call equal to the arguments that were already emitted. */
  #asBegun(call: ToolCall): ToolCall {
    const begun = this.#begun
    this.#begun = null
    if (begun === null) return call
    const { id, name, text } = begun
    const { sent, isComplete } = text
    const isSame = !isComplete || call.malformed !== undefined || writeJson(call.arguments) === sent
    return { ...call, id, name, ...(isSame ? {} : { arguments: readJson(sent) as ToolCall['arguments'], text: sent }) }
  }

  /** Removes `length` characters from the front of the buffer and returns them. */
  protected consume(length: number): string {
    const taken = this.buffer.slice(0, length)
    this.buffer = this.buffer.slice(length)
    return taken
  }

  /** Returns how many characters at the front of the buffer are certainly not the beginning of one of the tags. */
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
