/**
 * Recognises the beginning of a bare call (see bare-calls.ts): its wrappers, and as much of the call as is needed to be sure that it is
 * one.
 */
import { isRecord } from '../../core/json.js'
import type { ToolDefinition } from '../message.js'
import { JsonScanner, namedCallOf, parseJson, parseObject, type RawCall } from './call.js'
import { PythonCalls, type PythonRead } from './python-calls.js'

// The declared tools, as bare calls may name them.

export class DeclaredTools {
  constructor(readonly definitions: readonly ToolDefinition[]) {}

  /** Returns the declared tool that a model means by this name; null when there is none. The name may begin with `functions.`. */
  find(written: string): string | null {
    const names = [written, written.replace(/^functions\./, '')]
    return names.find((name) => this.definitions.some((tool) => tool.name === name)) ?? null
  }

  /** Whether a tool's name, with or without `functions.`, may begin with this text. */
  begins(part: string): boolean {
    if (PREFIX.startsWith(part)) return true
    const rest = part.startsWith(PREFIX) ? part.slice(PREFIX.length) : part
    return this.definitions.some(({ name }) => name.startsWith(part) || name.startsWith(rest))
  }

  parameters(name: string): Readonly<Record<string, unknown>> {
    return this.definitions.find((tool) => tool.name === name)?.parameters ?? {}
  }
}

const PREFIX = 'functions.'

// What may be around bare calls.

/** A wrapper of bare calls: brackets, a code fence or a tag around one or more calls. */
export interface Wrapper {
  readonly kind: 'fence' | 'inline' | 'tag' | 'attributes' | 'list' | 'object'
  /** The wrapper's name in `BareCall.form`. */
  readonly label: string
  /** The texts of which any one closes the wrapper. Empty when it needs no closing. */
  readonly closers: readonly string[]
}

/** Closing tags. Any of them closes any tag, because models mix them up. */
export const CLOSING_TAGS = [
  ...['</tool_call>', '</tool_calls>', '</tools>', '</tool>', '</tool_use>', '</TOOLCALL>', '<|/tool_call|>', '<|/tool_calls|>'],
  ...['</function>', '</function_call>', '</function_calls>', '</functioncall>', '</functions>', '</minimax:tool_call>'],
  ...['<|tool_call_end|>', '<|tool_calls_end|>', '<|python_end|>', '[/TOOL_CALLS]'],
]

const OPENING_TAGS = [
  ...['<tool_call>', '<tool_calls>', '<tools>', '<tool>', '<tool_use>', '<TOOLCALL>', '<|tool_call|>', '<|tool_calls|>'],
  ...['<function_call>', '<function_calls>', '<functioncall>', '<functions>', '<minimax:tool_call>'],
  ...['<|tool_call_start|>', '<|python_start|>'],
]
/** Texts before a call that need no closing. */
const MARKS = ['[TOOL_CALLS]', '<|python_tag|>', 'functools', 'Action:']
/** Languages of code fences that may contain calls. */
const LANGUAGES = ['', 'json', 'jsonc', 'tool_call', 'tool_calls', 'tool_code', 'tool', 'xml', 'text', 'plaintext']

// The ways in which a bare call may begin.

export type BareItem =
  /** Certainly a call with JSON arguments. Its JSON begins at offset `start`, the JSON of its arguments at `from`. */
  | {
      readonly kind: 'json'
      readonly label: string
      readonly name: string
      readonly id?: string
      readonly start: number
      readonly from: number
    }
  /** Certainly a call; it ends at the tag `close`. */
  | { readonly kind: 'tag'; readonly label: string; readonly name: string; readonly start: number; readonly close: string }
  /** One or more complete calls. */
  | { readonly kind: 'whole'; readonly label: string; readonly calls: readonly RawCall[]; readonly end: number }

export interface Opening {
  readonly wrappers: readonly Wrapper[]
  readonly item: BareItem
}

/** The result of `openingAt`. `open`: with more text it may become a call. `no`: it is text. */
export type Opened = Opening | 'open' | 'no'

interface OpeningPlace {
  readonly tools: DeclaredTools
  /** Whether only white space precedes the opening on its line. */
  readonly isLineStart: boolean
  /** The open wrappers around the opening, outermost first. */
  readonly within: readonly Wrapper[]
  readonly attempt: Attempt
}

/** Parsing progress on a text that may become a call. When more of the text has arrived, parsing continues from here. */
export class Attempt {
  readonly #json = new Map<number, JsonScanner>()
  readonly #python = new Map<number, PythonCalls>()

  /** Scans the JSON value that begins at offset `at`. */
  json(text: string, at: number): ReturnType<JsonScanner['scan']> {
    const scanner = this.#json.get(at) ?? new JsonScanner(at)
    this.#json.set(at, scanner)
    return scanner.scan(text)
  }

  /** Reads the Python calls that begin at offset `at`. */
  python(text: string, at: number, isList: boolean): PythonRead {
    const calls = this.#python.get(at) ?? new PythonCalls()
    this.#python.set(at, calls)
    return calls.read(isList, text.slice(at))
  }
}

/** The most wrappers around a call. */
const MOST_WRAPPERS = 4

/**
 * Reads a call's opening at the beginning of `text`. More text can only change the result `open`. Offsets in the result count from the
 * beginning of `text`. Use an `attempt` only for one text that grows.
 */
export function openingAt(text: string, { tools, isLineStart, within, attempt }: OpeningPlace): Opened {
  const wrappers: Wrapper[] = []
  for (let at = 0; wrappers.length < MOST_WRAPPERS;) {
    if (wrappers.length > 0) at = spaceEnd(text, at)
    const rest = text.slice(at)
    if (rest === '') return 'open'
    const named = attributesAt(text, at, tools)
    if (typeof named !== 'string') return { wrappers: [...wrappers, ...named.wrappers], item: named.item }
    if (named === 'open') return 'open'
    const place = { tools, isLineStart: isLineStart || wrappers.length > 0, within: [...within, ...wrappers], attempt }
    const wrapper = wrapperAt(rest, place)
    if (wrapper === 'open') return 'open'
    if (wrapper === 'no') {
      const item = itemAt(text, at, place)
      return typeof item === 'string' ? item : { wrappers, item }
    }
    wrappers.push(...wrapper.wrappers)
    at += wrapper.length
  }
  return 'no'
}

/** How a tag begins that has the name and the arguments of a call as attributes. Qwen2.5-Coder writes such tags. */
const NAMED_TAGS = ['<tool_call name="', '<function_call name="', '<tool name="', '<function name="']
const ARGUMENTS_ATTRIBUTE = ' arguments='

/** The ends of such a tag, longest first: with the outer brace of `={{...}}`, which is often closed though it was not opened. */
const TAG_ENDS = ["}'/>", "}'>", '}/>', "'/>", '}>', "'>", '/>', "}'", '}', "'", '>']

/** Reads the beginning of `<tool_call name="search" arguments={"query": "x"}>`, with or without quotes or braces around the JSON. */
function attributesAt(text: string, at: number, tools: DeclaredTools): Opened {
  const open = NAMED_TAGS.find((tag) => text.startsWith(tag, at))
  if (open === undefined) return NAMED_TAGS.some((tag) => tag.startsWith(text.slice(at))) ? 'open' : 'no'
  const nameEnd = text.indexOf('"', at + open.length)
  const written = text.slice(at + open.length, nameEnd === -1 ? undefined : nameEnd)
  if (nameEnd === -1) return tools.begins(written) ? 'open' : 'no'
  const name = tools.find(written)
  if (name === null) return 'no'
  const rest = text.slice(nameEnd + 1)
  if (!rest.startsWith(ARGUMENTS_ATTRIBUTE)) return ARGUMENTS_ATTRIBUTE.startsWith(rest) ? 'open' : 'no'
  const around = /^['{]?\{/.exec(rest.slice(ARGUMENTS_ATTRIBUTE.length))?.[0]
  const value = nameEnd + 1 + ARGUMENTS_ATTRIBUTE.length
  // One brace may be the first of two.
  if (around === undefined || text.length <= value + around.length) return /^['{]?\{?$/.test(text.slice(value)) ? 'open' : 'no'
  const from = value + around.length - 1
  const label = open.replace('="', '>')
  return {
    wrappers: [{ kind: 'attributes', label, closers: TAG_ENDS }],
    item: { kind: 'json', label: 'json', name, start: from, from },
  }
}

type Wrapped = { readonly wrappers: readonly Wrapper[]; readonly length: number } | 'open' | 'no'

function wrapperAt(rest: string, { isLineStart, within }: OpeningPlace): Wrapped {
  if (rest.startsWith('`')) return fenceAt(rest, isLineStart, within.length > 0)
  const tag = OPENING_TAGS.find((each) => rest.startsWith(each))
  if (tag !== undefined) return { wrappers: [{ kind: 'tag', label: tag, closers: CLOSING_TAGS }], length: tag.length }
  const mark = MARKS.find((each) => rest.startsWith(each))
  if (mark !== undefined) {
    if (/^\w/.test(mark) && !isLineStart) return 'no'
    return { wrappers: [{ kind: 'tag', label: mark, closers: [] }], length: mark.length }
  }
  if ([...OPENING_TAGS, ...MARKS].some((each) => each.startsWith(rest))) return isLineStart || !/^\w/.test(rest) ? 'open' : 'no'
  const list = LIST.exec(rest)
  if (list !== null) return { wrappers: [{ kind: 'list', label: '[', closers: [']'] }], length: list[0].length }
  const [object] = CALLS_OBJECT.exec(rest) ?? []
  if (object === undefined) return 'no'
  const wrappers: readonly Wrapper[] = [
    { kind: 'object', label: '{"tool_calls"}', closers: ['}'] },
    { kind: 'list', label: '[', closers: [']'] },
  ]
  return { wrappers, length: object.length }
}

/** Matches the opening bracket of a list of objects. */
const LIST = /^\[\s*(?=\{)/
const CALLS_OBJECT = /^\{\s*"tool_calls"\s*:\s*\[/

function fenceAt(rest: string, isLineStart: boolean, isInside: boolean): Wrapped {
  const ticks = /^`+/.exec(rest)![0]
  if (ticks.length === rest.length) return 'open'
  if (ticks.length < 3) {
    if (!isLineStart || isInside) return 'no'
    return { wrappers: [{ kind: 'inline', label: '`', closers: [ticks] }], length: ticks.length }
  }
  const line = rest.slice(ticks.length)
  const end = line.indexOf('\n')
  const language = (end === -1 ? line.trimStart() : line.slice(0, end).trim()).toLowerCase()
  // A model may omit the line break after the fence.
  const [inLine] = /^(?:json)?[ \t]*(?=[{[])/.exec(line) ?? []
  if (inLine !== undefined) return { wrappers: [fence(ticks, '')], length: ticks.length + inLine.length }
  if (end === -1) return LANGUAGES.some((each) => each.startsWith(language.trimEnd())) ? 'open' : 'no'
  if (!LANGUAGES.includes(language)) return 'no'
  return { wrappers: [fence(ticks, language)], length: ticks.length + end + 1 }
}

const fence = (ticks: string, language: string): Wrapper => ({ kind: 'fence', label: ticks + language, closers: [ticks] })

type Item = BareItem | 'open' | 'no'

function itemAt(text: string, at: number, place: OpeningPlace): Item {
  const { tools, isLineStart, within } = place
  const innermost = within.at(-1)
  const char = text.charAt(at)
  if (char === '{') return objectAt(text, at, place)
  if (innermost?.kind === 'list') return 'no'
  if (char === '[') return pythonAt(text, at, place, true)
  if (char === '<') return tagAt(text, at, tools)
  if (innermost?.label.endsWith('tool_code') === true) return pythonAt(text, at, place, false)
  if (!isLineStart || innermost?.kind === 'fence' || innermost?.kind === 'inline') return 'no'
  const named = namedAt(text, at, place)
  return named === 'no' && innermost?.kind === 'tag' ? pythonAt(text, at, place, false) : named
}

// Calls as JSON objects that name a tool.

const NAMES = ['name', 'function', 'tool', 'tool_name', 'function_name', 'action']
const INNER = ['function', 'function_call', 'tool_call']
const ARGUMENTS = ['arguments', 'parameters', 'args', 'params', 'kwargs', 'input', 'tool_input', 'action_input']
const IDS = ['id', 'tool_call_id', 'call_id', 'index']
const TYPES = ['function', 'function_call', 'tool_call', 'tool_use']
const KEYS = [...new Set([...NAMES, ...INNER, ...ARGUMENTS, ...IDS, 'type', 'tool_calls'])]

function objectAt(text: string, at: number, place: OpeningPlace): Item {
  const { tools } = place
  const head = headAt(text, at, place, 0)
  if (typeof head === 'string') return head
  const id = head.id === undefined ? {} : { id: head.id }
  if (head.end === null) return { kind: 'json', label: 'json', name: head.name, start: at, from: head.from, ...id }
  const call = callOf(parseJson(text.slice(at, head.end)), tools)
  return call === null ? 'no' : { kind: 'whole', label: 'json', calls: [call], end: head.end }
}

/**
 * The beginning of an object that is a call. `from`: offset of the arguments. `end`: offset of the object's end; null when the beginning
 * alone makes it certainly a call.
 */
type Head = { readonly name: string; readonly id?: string; readonly from: number; readonly end: number | null } | 'open' | 'no'

/** Reads an object's fields: up to the arguments if the name comes first, else all of them. */
function headAt(text: string, start: number, place: OpeningPlace, depth: number): Head {
  const { tools, attempt } = place
  let name: string | null = null
  let id: string | undefined
  let hasArguments = false
  let at = start + 1
  for (let count = 0; ; count++) {
    at = spaceEnd(text, at)
    if (at >= text.length) return 'open'
    if (text.charAt(at) === '}') {
      if (name === null || !(hasArguments || takesNothing(tools.parameters(name)))) return 'no'
      return { name, from: at, end: at + 1, ...(id === undefined ? {} : { id }) }
    }
    if (count > 0) {
      if (text.charAt(at) !== ',') return 'no'
      at = spaceEnd(text, at + 1)
      if (at >= text.length) return 'open'
    }
    const key = stringAt(text, at)
    if (key === null) return 'no'
    if (key.end === null) return KEYS.some((each) => each.startsWith(key.value)) ? 'open' : 'no'
    if (!KEYS.includes(key.value)) return 'no'
    at = spaceEnd(text, key.end)
    if (at >= text.length) return 'open'
    if (text.charAt(at) !== ':') return 'no'
    at = spaceEnd(text, at + 1)
    if (at >= text.length) return 'open'
    const char = text.charAt(at)
    if (char === '{' && name === null && INNER.includes(key.value)) {
      if (depth > 0) return 'no'
      const inner = headAt(text, at, place, depth + 1)
      if (typeof inner === 'string' || inner.end === null) return inner
      name = inner.name
      hasArguments = true
      at = inner.end
    } else if (ARGUMENTS.includes(key.value) && !hasArguments) {
      if (name !== null && char === '{') return { name, from: at, end: null, ...(id === undefined ? {} : { id }) }
      if (char !== '{' && char !== '"' && char !== 'n') return 'no'
      const scan = attempt.json(text, at)
      if (scan.state !== 'complete') return scan.state === 'invalid' ? 'no' : 'open'
      hasArguments = true
      at = scan.end
    } else {
      const value = stringAt(text, at)
      if (IDS.includes(key.value) && value === null && /[\d]/.test(char)) {
        at += /^\d+/.exec(text.slice(at))![0].length
        if (at >= text.length) return 'open'
        continue
      }
      if (value === null) return 'no'
      const isName = NAMES.includes(key.value) && name === null
      const isFit = (part: string, isWhole: boolean) =>
        isName
          ? isWhole
            ? tools.find(part) !== null
            : tools.begins(part)
          : key.value === 'type'
            ? TYPES.some((each) => (isWhole ? each === part : each.startsWith(part)))
            : IDS.includes(key.value)
      if (!isFit(value.value, value.end !== null)) return 'no'
      if (value.end === null) return 'open'
      if (isName) name = tools.find(value.value)
      else if (key.value !== 'type' && value.value !== '') id = value.value
      at = value.end
    }
  }
}

/** Whether a tool may be called without arguments. */
const takesNothing = ({ required }: Readonly<Record<string, unknown>>): boolean =>
  !Array.isArray(required) || required.length === 0

/**
 * Reads a call from a parsed object. Arguments given as a string must be JSON of an object. Returns null when the object does not call a
 * declared tool.
 */
export function callOf(value: unknown, tools: DeclaredTools): RawCall | null {
  if (!isRecord(value)) return null
  const nested = INNER.find((key) => isRecord(value[key]))
  if (nested !== undefined) {
    const inner = callOf(value[nested], tools)
    const id = IDS.map((key) => value[key]).find((each) => typeof each === 'string' && each !== '')
    return inner === null ? null : { ...inner, ...(typeof id === 'string' ? { id } : {}) }
  }
  const written = NAMES.map((key) => value[key]).find((each) => typeof each === 'string')
  const name = typeof written === 'string' ? tools.find(written) : null
  if (name === null) return null
  const given = ARGUMENTS.map((key) => value[key]).find((each) => each != null) ?? {}
  if (typeof given === 'string' && parseObject(given) === null) return null
  const id = IDS.map((key) => value[key]).find((each) => typeof each === 'string')
  return namedCallOf({ name, arguments: given, id })
}

// Calls that are not JSON objects: Python calls, tags, and a name with arguments after it.

function pythonAt(text: string, at: number, { tools, attempt }: OpeningPlace, isList: boolean): Item {
  const [head, printed, written = ''] = (isList ? /^\[\s*()([\w.-]*)/ : /^(print\(\s*)?([\w.-]*)/).exec(text.slice(at)) ?? ['']
  const next = text.charAt(at + head.length)
  if (next === '') return tools.begins(written) || (!isList && 'print('.startsWith(written)) ? 'open' : 'no'
  if (next !== '(' || tools.find(written) === null) return !isList && written === 'print' && next === '(' ? 'open' : 'no'
  const before = at + (printed ?? '').length
  const read = attempt.python(text, before, isList)
  if (typeof read === 'string') return read
  const calls = read.calls.flatMap((call) => {
    const name = tools.find(call.name)
    return name === null ? [] : [{ ...call, name }]
  })
  if (calls.length < read.calls.length) return 'no'
  const end = before + read.end
  if ((printed ?? '') === '') return { kind: 'whole', label: 'python', calls, end }
  const closed = spaceEnd(text, end)
  if (closed >= text.length) return 'open'
  return text.charAt(closed) === ')' ? { kind: 'whole', label: 'python', calls, end: closed + 1 } : 'no'
}

const TAGS = [
  { label: '<function>', open: '<function=', nameEnd: '>', close: '</function>' },
  { label: '<invoke>', open: '<invoke name="', nameEnd: '">', close: '</invoke>' },
]

function tagAt(text: string, at: number, tools: DeclaredTools): Item {
  const rest = text.slice(at)
  for (const { label, open, nameEnd, close } of TAGS) {
    if (open.startsWith(rest)) return 'open'
    if (!rest.startsWith(open)) continue
    const end = rest.indexOf(nameEnd, open.length)
    const written = rest.slice(open.length, end === -1 ? undefined : end)
    if (end === -1) return tools.begins(written.replace(/"$/, '')) ? 'open' : 'no'
    const name = tools.find(written)
    return name === null ? 'no' : { kind: 'tag', label, name, start: at, close }
  }
  return 'no'
}

/** Texts that may stand between a tool's name and its JSON arguments. Each of them makes it certainly a call. */
const BETWEEN = ['[ARGS]', '<|tool_call_argument_begin|>', 'Action Input:']

/**
 * Reads a tool's name that is followed by JSON arguments. Unless a text of BETWEEN separates the two, it is only a call if all arguments
 * are parameters of the tool.
 */
function namedAt(text: string, at: number, { tools, attempt }: OpeningPlace): Item {
  const [written] = /^[\w.:-]+/.exec(text.slice(at)) ?? []
  if (written === undefined) return 'no'
  const bare = written.replace(/:\d*$/, '')
  if (at + written.length >= text.length) return tools.begins(bare) ? 'open' : 'no'
  const name = tools.find(bare)
  if (name === null) return 'no'
  let from = spaceEnd(text, at + written.length)
  const [id = ''] = /^\[CALL_ID\][\w-]*/.exec(text.slice(from)) ?? []
  from = spaceEnd(text, from + id.length)
  const rest = text.slice(from)
  if (rest === '' || BETWEEN.some((each) => each.startsWith(rest)) || '[CALL_ID]'.startsWith(rest)) return 'open'
  const mark = BETWEEN.find((each) => rest.startsWith(each))
  const start = mark === undefined ? from : spaceEnd(text, from + mark.length)
  if (start >= text.length) return 'open'
  if (text.charAt(start) !== '{') return 'no'
  if (mark !== undefined) {
    const own = id.slice('[CALL_ID]'.length)
    return { kind: 'json', label: mark, name, start, from: start, ...(own === '' ? {} : { id: own }) }
  }
  const scan = attempt.json(text, start)
  if (scan.state !== 'complete') return scan.state === 'invalid' ? 'no' : 'open'
  const given = parseJson(text.slice(start, scan.end))
  const { properties } = tools.parameters(name)
  const isOwn = isRecord(given) && Object.keys(given).every((key) => !isRecord(properties) || key in properties)
  return isOwn ? { kind: 'whole', label: 'name and json', calls: [{ name, arguments: given }], end: scan.end } : 'no'
}

/** Reads a JSON string. If its end has not arrived, `end` is null. Returns null when there is no string. */
function stringAt(text: string, at: number): { readonly value: string; readonly end: number | null } | null {
  if (text.charAt(at) !== '"') return null
  for (let end = at + 1; end < text.length; end++) {
    const char = text.charAt(end)
    if (char === '\\') end++
    else if (char < ' ') return null
    else if (char === '"') {
      const value = parseJson(text.slice(at, end + 1))
      return typeof value === 'string' ? { value, end: end + 1 } : null
    }
  }
  return { value: text.slice(at + 1), end: null }
}

/** Returns the offset of the first character at or after `at` that is not white space. */
export function spaceEnd(text: string, at: number): number {
  let end = at
  while (end < text.length && /\s/.test(text.charAt(end))) end++
  return end
}
