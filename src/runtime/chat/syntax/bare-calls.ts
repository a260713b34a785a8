/**
 * Reads bare calls in streamed text. A bare call names a declared tool but is not written in the syntax of the model's template. Text that
 * cannot be such a call stays text.
 */
import type { ToolDefinition } from '../message.js'
import {
  Attempt,
  type BareItem,
  callOf,
  CLOSING_TAGS,
  DeclaredTools,
  openingAt,
  spaceEnd,
  type Opened,
  type Opening,
  type Wrapper,
} from './bare-opening.js'
import { type BegunCall, JsonScanner, parseJson, type RawCall } from './call.js'
import { functionTags, invokeTags } from './tagged-arguments.js'

export type BarePart =
  | { readonly kind: 'text'; readonly text: string }
  /** A call of this tool begins. */
  | { readonly kind: 'begun'; readonly name: string }
  /** The arguments of the begun call so far, while they stream. */
  | { readonly kind: 'arguments'; readonly call: BegunCall }
  | { readonly kind: 'call'; readonly call: BareCall }

export interface BareCall {
  readonly raw: RawCall
  /** How the model wrote the call: the wrappers around it and the beginning, for example "```json". */
  readonly form: string
  /** Whether all wrappers around the call were closed. */
  readonly isClosed: boolean
}

type Mode =
  /** Plain text. `code`: the backticks that opened inline code; empty outside inline code. */
  | { readonly name: 'text'; readonly code: string }
  /** In a code block that contains no call. */
  | { readonly name: 'block'; readonly ticks: string }
  /** In a JSON value that is not a call. `text`: what has arrived of it. */
  | { readonly name: 'value'; readonly scanner: JsonScanner; text: string }
  | {
      readonly name: 'json'
      readonly item: Extract<BareItem, { kind: 'json' }>
      readonly scanner: JsonScanner
      readonly form: string
    }
  /** In a call whose JSON is broken. It ends at the text that closes a code fence or tag around it. */
  | { readonly name: 'broken'; readonly item: Extract<BareItem, { kind: 'json' }>; readonly form: string }
  | {
      readonly name: 'tag'
      readonly item: Extract<BareItem, { kind: 'tag' }>
      readonly form: string
      scanner: JsonScanner | null
    }
  /** After a call. Its wrappers may close, or another call may follow. */
  | { readonly name: 'after' }

const TEXT: Mode = { name: 'text', code: '' }

export class BareCalls {
  readonly #tools: DeclaredTools
  #buffer = ''
  #mode: Mode = TEXT
  #isLineStart = true
  /** The wrappers around the current call that are still open, outermost first. */
  #wrappers: readonly Wrapper[] = []
  /** A complete call. It is passed on once its wrappers are closed. */
  #complete: Pick<BareCall, 'raw' | 'form'> | null = null
  #parts: BarePart[] = []
  /** Parsing progress on text that may become the next call. */
  #attempt = new Attempt()

  constructor(tools: readonly ToolDefinition[]) {
    this.#tools = new DeclaredTools(tools)
  }

  /** Reads more text, which may be split anywhere. */
  push(text: string): readonly BarePart[] {
    this.#buffer += text
    while (this.#buffer !== '' && this.#step(false));
    return this.#take()
  }

  /** Ends the text. Held-back characters become text, or a call that was cut off. The reader can then start on another text. */
  finish(): readonly BarePart[] {
    while (this.#buffer !== '' && this.#step(true));
    this.#say(this.#buffer.length)
    this.#leave()
    this.#wrappers = []
    this.#mode = TEXT
    this.#isLineStart = true
    return this.#take()
  }

  /** Reads the next piece of the buffer, depending on the mode. Returns false when it needs more text, which never happens with `final`. */
  #step(final: boolean): boolean {
    const mode = this.#mode
    switch (mode.name) {
      case 'text':
        return mode.code === '' ? this.#search(final) : this.#code(mode.code)
      case 'block': {
        const end = this.#buffer.indexOf(mode.ticks)
        const [run] = end === -1 ? [''] : /^`+/.exec(this.#buffer.slice(end))!
        const isEnded = end !== -1 && end + run.length < this.#buffer.length
        if (!isEnded && !final) {
          // More backticks may still come, also after those that close the block.
          this.#say(end === -1 ? this.#buffer.length - /`*$/.exec(this.#buffer)![0].length : end)
          return false
        }
        this.#say(end === -1 ? this.#buffer.length : end + run.length)
        this.#mode = TEXT
        return true
      }
      case 'value':
        return this.#value(mode)
      case 'json':
        return this.#json(mode, final)
      case 'broken':
        return this.#broken(mode, final)
      case 'tag':
        return this.#tag(mode, final)
      case 'after':
        return this.#after(final)
    }
  }

  /** Searches for the next call. All text before its possible beginning is passed on. */
  #search(final: boolean): boolean {
    let isLineStart = this.#isLineStart
    for (let at = 0; at < this.#buffer.length; at++) {
      if (at > 0) isLineStart = startsLine(this.#buffer.charAt(at - 1), 1, isLineStart)
      const char = this.#buffer.charAt(at)
      if (!/[{[<`]/.test(char) && !(isLineStart && /\w/.test(char))) continue
      const text = this.#buffer.slice(at)
      const opened = this.#opening(text, isLineStart, [], final)
      if (opened === 'open' && !final) {
        this.#say(at)
        return false
      }
      if (typeof opened !== 'string') {
        this.#say(at)
        this.#enter(opened)
        return true
      }
      if (char === '{' || char === '[') {
        this.#say(at)
        this.#mode = { name: 'value', scanner: new JsonScanner(0), text: '' }
        return true
      }
      if (char === '`') {
        const [ticks] = /^`+/.exec(text)!
        this.#say(at + ticks.length)
        this.#mode = ticks.length < 3 ? { name: 'text', code: ticks } : { name: 'block', ticks }
        return true
      }
    }
    this.#say(this.#buffer.length)
    return false
  }

  /** Tries to read the beginning of a call. While the result is `open`, the parsing progress is kept for when more text has arrived. */
  #opening(text: string, isLineStart: boolean, within: readonly Wrapper[], final: boolean): Opened {
    const opened = openingAt(text, { tools: this.#tools, isLineStart, within, attempt: this.#attempt })
    if (opened !== 'open' || final) this.#attempt = new Attempt()
    return opened
  }

  /** Passes inline code on as text. Inline code ends at as many backticks as opened it, or at the end of the line. */
  #code(ticks: string): boolean {
    for (let at = 0; at < this.#buffer.length; at++) {
      const [run] = /^`+/.exec(this.#buffer.slice(at)) ?? ['']
      if (run !== '' && at + run.length === this.#buffer.length) {
        this.#say(at)
        // More backticks may still come.
        return false
      }
      if (run === ticks || this.#buffer.charAt(at) === '\n') {
        this.#say(at + Math.max(1, run.length))
        this.#mode = TEXT
        return true
      }
      at += Math.max(0, run.length - 1)
    }
    this.#say(this.#buffer.length)
    return false
  }

  #value(mode: Extract<Mode, { name: 'value' }>): boolean {
    const before = mode.text.length
    mode.text += this.#buffer
    const scan = mode.scanner.scan(mode.text)
    const end = scan.state === 'complete' ? scan.end : scan.state === 'invalid' ? mode.scanner.valid(mode.text) : mode.text.length
    this.#say(end - before)
    if (scan.state !== 'incomplete') this.#mode = TEXT
    return true
  }

  #enter({ wrappers, item }: Opening): void {
    this.#leave()
    this.#wrappers = [...this.#wrappers, ...wrappers]
    const around = this.#wrappers.map(({ label }) => label)
    const form = (item.label === 'json' && around.length > 0 ? around : [...around, item.label]).join(' ')
    if (item.kind === 'whole') {
      this.#buffer = this.#buffer.slice(item.end)
      item.calls.forEach((raw, index) => {
        if (index > 0) this.#leave()
        this.#parts.push({ kind: 'begun', name: raw.name })
        this.#complete = { raw, form }
      })
      this.#mode = { name: 'after' }
      this.#end()
      return
    }
    this.#parts.push({ kind: 'begun', name: item.name })
    this.#buffer = this.#buffer.slice(item.start)
    if (item.kind === 'tag') this.#mode = { name: 'tag', item, form, scanner: null }
    else
      this.#mode = {
        name: 'json',
        item: { ...item, start: 0, from: item.from - item.start },
        scanner: new JsonScanner(0),
        form,
      }
  }

  #json({ item, scanner, form }: Extract<Mode, { name: 'json' }>, final: boolean): boolean {
    const { name, from, id } = item
    this.#parts.push({
      kind: 'arguments',
      call: { name, text: this.#buffer.slice(from), ...(id === undefined ? {} : { id }) },
    })
    const scan = scanner.scan(this.#buffer, final)
    if (scan.state === 'incomplete' && !final) return false
    if (scan.state !== 'complete') {
      this.#mode = { name: 'broken', item, form }
      return true
    }
    const text = this.#buffer.slice(0, scan.end)
    const own = id === undefined ? {} : { id }
    const found = from === 0 ? { name, arguments: text } : callOf(parseJson(text), this.#tools)
    this.#buffer = this.#buffer.slice(scan.end)
    this.#complete = { raw: { ...(found ?? { name, arguments: text.slice(from) }), ...own, name }, form }
    this.#mode = { name: 'after' }
    this.#end()
    return true
  }

  #broken({ item, form }: Extract<Mode, { name: 'broken' }>, final: boolean): boolean {
    const closers = this.#wrappers.filter(({ kind }) => kind === 'fence' || kind === 'tag').flatMap((each) => each.closers)
    const found = closers.map((text) => ({ text, at: this.#buffer.indexOf(text) })).filter(({ at }) => at !== -1)
    const first = found.sort((a, b) => a.at - b.at)[0]
    if (first === undefined && !final) return false
    const text = this.#buffer.slice(item.from, first?.at).trim()
    this.#buffer = first === undefined ? '' : this.#buffer.slice(first.at + first.text.length)
    this.#complete = { raw: { name: item.name, arguments: text, ...(item.id === undefined ? {} : { id: item.id }) }, form }
    this.#wrappers = []
    this.#mode = { name: 'after' }
    this.#end()
    return true
  }

  #tag(mode: Extract<Mode, { name: 'tag' }>, final: boolean): boolean {
    const { item, form } = mode
    const { close, name } = item
    const body = this.#buffer.indexOf('>') + 1
    const json = spaceEnd(this.#buffer, body)
    const scan = this.#buffer.charAt(json) === '{' ? (mode.scanner ??= new JsonScanner(json)).scan(this.#buffer, final) : null
    if (scan !== null) this.#parts.push({ kind: 'arguments', call: { name, text: this.#buffer.slice(json) } })
    if (scan?.state === 'incomplete' && !final) return false
    const at = this.#buffer.indexOf(close, scan?.state === 'complete' ? scan.end : body)
    if (at === -1 && !final) return false
    const end = at === -1 ? this.#buffer.length : at + close.length
    const text = this.#buffer.slice(0, end)
    const tools = this.#tools.definitions.map((tool) => (tool.name === name ? { ...tool, name: writtenIn(text) } : tool))
    const [raw = { name, arguments: '' }] =
      item.label === '<function>' ? functionTags(text, at !== -1, tools) : [invokeTags(text, at !== -1, tools)]
    this.#buffer = this.#buffer.slice(end)
    this.#complete = { raw: { ...raw, name }, form }
    this.#mode = { name: 'after' }
    this.#end()
    return true
  }

  /** Reads what follows a call: the closing of its wrappers, or the next call. Anything else is text. */
  #after(final: boolean): boolean {
    const innermost = this.#wrappers.at(-1)
    const at = spaceEnd(this.#buffer, 0)
    const rest = this.#buffer.slice(at)
    const closers = innermost?.closers ?? CLOSING_TAGS
    if (!final && (rest === '' || closers.some((text) => text.length > rest.length && text.startsWith(rest)))) return false
    const closer = closers.find((text) => rest.startsWith(text))
    if (closer !== undefined) {
      this.#buffer = rest.slice(closer.length)
      this.#wrappers = this.#wrappers.slice(0, -1)
      this.#end()
      return true
    }
    const [separator = ''] = /^[,;]\s*/.exec(rest) ?? []
    const isNext = innermost !== undefined || separator !== ''
    const text = rest.slice(separator.length)
    const opened = !isNext ? 'no' : text === '' ? 'open' : this.#opening(text, true, this.#wrappers, final)
    if (opened === 'open' && !final) return false
    if (typeof opened !== 'string') {
      this.#buffer = text
      this.#enter(opened)
      return true
    }
    this.#leave()
    this.#wrappers = []
    this.#mode = TEXT
    return true
  }

  /** Drops wrappers that need no closing. If none is left open, passes the call on. */
  #end(): void {
    while (this.#wrappers.at(-1)?.closers.length === 0) this.#wrappers = this.#wrappers.slice(0, -1)
    if (this.#wrappers.length === 0) this.#leave()
  }

  /** Passes the complete call on, if there is one. */
  #leave(): void {
    if (this.#complete !== null)
      this.#parts.push({ kind: 'call', call: { ...this.#complete, isClosed: this.#wrappers.length === 0 } })
    this.#complete = null
  }

  /** Passes the first `length` characters of the buffer on as text. */
  #say(length: number): void {
    if (length === 0) return
    const text = this.#buffer.slice(0, length)
    this.#isLineStart = startsLine(text, length, this.#isLineStart)
    this.#parts.push({ kind: 'text', text })
    this.#buffer = this.#buffer.slice(length)
  }

  #take(): readonly BarePart[] {
    const parts = this.#parts
    this.#parts = []
    return parts
  }
}

/**
 * Whether only white space lies between the beginning of the line and offset `at`. `before`: whether that holds at the beginning of `text`.
 */
function startsLine(text: string, at: number, before: boolean): boolean {
  const line = text.lastIndexOf('\n', at - 1)
  if (at > 0 && line !== -1) return text.slice(line, at).trim() === ''
  return before && text.slice(0, at).trim() === ''
}

/** Returns the tool name in a call's opening tag, as the model wrote it. */
const writtenIn = (text: string): string => /^<(?:function=|invoke name=")([^">]*)/.exec(text)?.[1] ?? ''
