/** One model's chat format: messages to tokens with a span for each, edits applied; and the parser for what the model answers. */
import type { Contract } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import type { Span } from '../core/span.js'
import { findCapabilities, type Capabilities } from './capabilities.js'
import { templateMessages, toolsValue } from './conversation.js'
import { applyToText, applyToTokens, changesOf, Shifts } from './edits.js'
import { messageStarts } from './extents.js'
import { Template } from './jinja/template.js'
import type { ChatMessage, Edit, ToolDefinition } from './message.js'
import type { ReplyParser } from './parser.js'
import { findRewrite, type TemplateRewrite, type Trace } from './rewrite.js'
import { substitute } from './sampled.js'
import { detectSyntax } from './syntax/detect.js'
import type { ToolSyntax } from './syntax/syntax.js'
import { OffsetMap } from './text/offsets.js'
import type { Tracked } from './text/tracked.js'
import { borderAt, tokenAt, type Aligned } from './tokens/aligned.js'
import { Encoder, type Fixed } from './tokens/encoder.js'
import type { Tokenizer } from './tokenizer.js'

export interface FormatOptions {
  /** Jinja source, as in GGUF `tokenizer.chat_template`. */
  readonly template: string
  readonly tokenizer: Tokenizer
  /** What `bos_token` and `eos_token` are in the template; empty when the vocabulary has none. */
  readonly bosText: string
  readonly eosText: string
  /** For templates that print the date. Default: the system's clock. */
  readonly now?: () => Date
}

export interface RenderRequest {
  /** Original contents. */
  readonly messages: readonly ChatMessage[]
  readonly tools?: readonly ToolDefinition[]
  readonly edits?: readonly Edit[]
  /** Default true. */
  readonly generationPrompt?: boolean
}

/** A message's place in a prompt. The generation prompt is the last one, with the index after the last message's. */
export interface RenderedMessage {
  readonly index: number
  readonly role: string
  /** Tokens; the messages are in order and cover all of them. */
  readonly span: Span
  /**
   * The content as shown, edits applied: characters of `Rendered.text`, and the tokens that lie wholly within them. Null when
   * the template shows none of it.
   */
  readonly content: { readonly chars: Span; readonly tokens: Span } | null
}

export interface Rendered {
  /** What the model sees, edits applied. */
  readonly text: string
  readonly tokens: Int32Array
  readonly messages: readonly RenderedMessage[]
  /** Tokens of the generation prompt. */
  readonly generation: Span
  /** The tokens without the edits, and for each edit, in order, the stretch of them it hides and how many tokens stand there instead. */
  readonly origin: {
    readonly base: Int32Array
    readonly holes: readonly { readonly span: Span; readonly marker: number; readonly contract?: Contract }[]
  }
}

/** A prompt before its edits. */
interface Base extends Trace {
  readonly maps: ReadonlyMap<number, OffsetMap>
}

export class ChatFormat {
  readonly #encoder: Encoder
  readonly #traces = new WeakMap<Rendered, Trace>()
  #recent: { readonly inputs: readonly unknown[]; readonly base: Base } | null = null
  #probed: { readonly prompt: string; readonly ending: string } | null = null

  private constructor(
    private readonly template: Template,
    tokenizer: Tokenizer,
    /** How this template is given messages, found out by trying. */
    readonly capabilities: Capabilities,
    /** The family whose syntax the model writes tool calls in. */
    readonly syntax: ToolSyntax,
  ) {
    this.#encoder = new Encoder(tokenizer)
  }

  /** @throws KvfoldError chat/template-failed when the template does not parse or refuses a single user message */
  static create({ template: source, tokenizer, bosText, eosText, now = () => new Date() }: FormatOptions): ChatFormat {
    const template = new Template(source, { bosText, eosText, now })
    const capabilities = findCapabilities(template)
    return new ChatFormat(template, tokenizer, capabilities, detectSyntax(source, capabilities))
  }

  /**
   * Messages as tokens. Pure but for caches. Edits: disjoint, on token borders (`snap`).
   * @throws KvfoldError chat/template-failed, chat/bad-message; internal/invariant for edits off token borders
   */
  render({ messages, tools = [], edits = [], generationPrompt = true }: RenderRequest): Rendered {
    const base = this.#base(messages, tools, new Set(edits.map(({ message }) => message)), generationPrompt)
    const changes = changesOf(
      edits,
      base.base,
      (message) => base.maps.get(message) ?? null,
      (text) => this.#encoder.inner(text),
    )
    const shifts = new Shifts(changes)
    const count = messages.length
    const spanOf = (index: number): Span => ({
      start: shifts.token(base.tokenStarts[index] ?? 0),
      end: shifts.token(base.tokenStarts[index + 1] ?? 0),
    })
    const rendered: Rendered = {
      text: applyToText(base.text.value, changes),
      tokens: applyToTokens(base.base.tokens, changes),
      messages: [
        ...messages.map(({ role }, index) => ({ index, role, span: spanOf(index), content: contentOf(base, index, shifts) })),
        ...(generationPrompt ? [{ index: count, role: 'assistant', span: spanOf(count), content: null }] : []),
      ],
      generation: spanOf(count),
      origin: {
        base: base.base.tokens,
        holes: changes.map(({ tokens, replacement, contract }) => ({
          span: tokens,
          marker: replacement.tokens.length,
          ...(contract === null ? {} : { contract }),
        })),
      },
    }
    this.#traces.set(rendered, base)
    return rendered
  }

  /**
   * Widens a stretch of a message's content to the nearest token borders around it, within the content (characters of the
   * original content). Where the outermost border is shared with the template's text, the nearest one inside is taken.
   */
  snap({
    messages,
    tools = [],
    message,
    chars,
  }: {
    readonly messages: readonly ChatMessage[]
    readonly tools?: readonly ToolDefinition[]
    readonly message: number
    readonly chars: Span
  }): Span {
    const { base, maps } = this.#base(messages, tools, new Set([message]), true)
    const map = maps.get(message)
    return map === undefined ? chars : snapTo(base, map, chars)
  }

  /** Says whether `next` shows messages of `previous` differently although the caller changed nothing about them. */
  check(previous: Rendered, next: Rendered): TemplateRewrite | null {
    const [before, after] = [this.#traces.get(previous), this.#traces.get(next)]
    return before === undefined || after === undefined ? null : findRewrite(before, after)
  }

  /** A fresh parser for one answer; what the generation prompt has already opened is taken into account. */
  parser(): ReplyParser {
    return this.syntax.parser(this.#probe().prompt)
  }

  /** GBNF that forces at least one call of one of the tools, or exactly one when `single`; null when the family has none. */
  callGrammar(tools: readonly ToolDefinition[], single = false): string | null {
    return this.syntax.grammar(tools, this.#probe().prompt, single)
  }

  /** The prompt without its edits. The last one is kept: a fold snaps several times before it renders. */
  #base(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edits: ReadonlySet<number>,
    generationPrompt: boolean,
  ): Base {
    checkMessages(messages)
    // Edits change an unedited prompt only where they keep the template's wording instead of a sampled one.
    const edited = new Set([...edits].filter((index) => messages[index]?.sampled !== undefined))
    const inputs: readonly unknown[] = [generationPrompt, ...edited, 'tools', ...tools, 'messages', ...messages]
    const recent = this.#recent
    if (recent !== null && sameItems(recent.inputs, inputs)) return recent.base
    const base = this.#compute([...messages], [...tools], edited, generationPrompt)
    this.#recent = { inputs, base }
    return base
  }

  #compute(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    edited: ReadonlySet<number>,
    generationPrompt: boolean,
  ): Base {
    const plain = this.#text(messages, tools, generationPrompt)
    const count = messages.length
    const plainStarts = [...messageStarts(plain, count), plain.length]
    const answered = messages.some(({ sampled }) => sampled !== undefined)
    const { text, fixed, refused } = answered
      ? substitute(plain, plainStarts, messages, {
          encoder: this.#encoder,
          ...this.#probe(),
          parse: (reply) => this.#parse(reply),
          edited,
        })
      : { text: plain, fixed: [], refused: [] }
    const textStarts = text === plain ? plainStarts : [...messageStarts(text, count), text.length]
    const base = this.#encoder.encode(text, [...fixed, ...this.#notes(text)])
    const tokenStarts = textStarts.map((start, index) =>
      index === 0 ? 0 : index > count ? base.tokens.length : tokenAt(base, start),
    )
    const maps = new Map<number, OffsetMap>()
    messages.forEach(({ content }, index) => {
      const map = OffsetMap.of(text, index, content.length)
      if (map !== null) maps.set(index, map)
    })
    return { messages, tools, text, base, textStarts, tokenStarts, refused, maps }
  }

  /** Notes, whose tokens are their own: the content before one keeps the borders it would have without. */
  #notes(text: Tracked): Fixed[] {
    const notes: Fixed[] = []
    let at = 0
    for (const { text: shown, origin } of text.pieces) {
      const start = at
      at += shown.length
      if (typeof origin === 'string' || origin.field !== 'note') continue
      const last = notes.at(-1)?.end === start ? notes.pop() : undefined
      const from = last?.start ?? start
      notes.push({ start: from, end: at, tokens: this.#encoder.inner(text.value.slice(from, at)) })
    }
    return notes
  }

  #text(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], generationPrompt: boolean): Tracked {
    const { capabilities: form } = this
    return this.template.render({
      messages: templateMessages(messages, tools, form, this.syntax.writer),
      tools: toolsValue(tools, form),
      generationPrompt,
    })
  }

  #parse(reply: string) {
    const parser = this.syntax.parser('')
    parser.push(reply)
    return parser.finish()
  }

  /** The generation prompt's text, and what follows an answer. */
  #probe(): { readonly prompt: string; readonly ending: string } {
    if (this.#probed !== null) return this.#probed
    const user: ChatMessage = { role: 'user', content: 'x' }
    const asked = this.#text([user], [], true)
    const [, prompt = asked.length] = messageStarts(asked, 1)
    const answered = this.#text([user, { role: 'assistant', content: 'y' }, user], [], false)
    const [, , next = answered.length] = messageStarts(answered, 3)
    const end = OffsetMap.of(answered, 1, 1)?.text.end ?? next
    return (this.#probed = { prompt: asked.value.slice(prompt), ending: answered.value.slice(end, next) })
  }
}

function contentOf({ base, maps }: Base, index: number, shifts: Shifts): RenderedMessage['content'] {
  const map = maps.get(index)
  if (map === undefined) return null
  const { start, end } = map.text
  let first = tokenAt(base, start)
  while (first < base.tokens.length && base.borders[first] === 0) first++
  let last = tokenAt(base, end)
  if (borderAt(base, end) === null) last--
  while (last > first && base.borders[last] === 0) last--
  last = Math.max(first, last)
  return {
    chars: { start: shifts.text(start), end: shifts.text(end) },
    tokens: { start: shifts.token(first), end: shifts.token(last) },
  }
}

function snapTo(base: Aligned, map: OffsetMap, chars: Span): Span {
  const { start, end } = map.text
  const wanted = map.toText(chars)
  const from = wanted === 'hidden' || wanted === 'inside' ? start : wanted.start
  const to = wanted === 'hidden' || wanted === 'inside' ? end : wanted.end
  const clamp = (value: number, { low, high }: { low: number; high: number }) => Math.min(Math.max(value, low), high)
  const outwards = (at: number, step: 1 | -1, limit: number): number | null => {
    for (let char = at; step === 1 ? char <= limit : char >= limit; char += step) {
      const place = borderAt(base, char) === null ? null : map.toContent(char)
      if (place !== null) return clamp(step === 1 ? chars.end : chars.start, place)
    }
    return null
  }
  const first = outwards(from, -1, start) ?? outwards(from, 1, end)
  const last = outwards(to, 1, end) ?? outwards(to, -1, start)
  if (first === null || last === null || last < first) return { start: chars.start, end: chars.start }
  return { start: first, end: last }
}

const sameItems = (a: readonly unknown[], b: readonly unknown[]): boolean =>
  a.length === b.length && a.every((item, index) => item === b[index])

function checkMessages(messages: readonly ChatMessage[]): void {
  if (messages.length === 0) throw new KvfoldError('chat/bad-message', 'A prompt needs at least one message; add a user message.')
}
