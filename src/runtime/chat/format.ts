import type { Contract } from '../core/contract.js'
import { invariant, KvfoldError } from '../core/errors.js'
import type { Span } from '../core/span.js'
import { atOnce, inTurns, type Steps } from '../core/turns.js'
import { writeJson } from '../core/written-json.js'
import { findCapabilities, type Capabilities } from './capabilities.js'
import { templateMessages, toolsValue, toValue } from './conversation.js'
import { applyToText, applyToTokens, changesOf, remembered, replacedBy, shifted } from './edits.js'
import { Template } from './jinja/template.js'
import type { ChatMessage, Edit, TemplateVariables, ToolDefinition } from './message.js'
import type { LazyGrammar } from './grammar.js'
import { type CallWriting, forcedGrammar, lazyGrammar } from './made-grammars.js'
import type { ReplyParser } from './parser.js'
import { findRewrite, type TemplateRewrite, type Trace } from './rewrite.js'
import { substitute } from './sampled.js'
import { detectSyntax } from './syntax/detect.js'
import type { ToolSyntax } from './syntax/syntax.js'
import { messageStarts, OffsetMap, type Tracked } from './tracked.js'
import { isBorder, tokenAt, within, type Aligned } from './tokens/aligned.js'
import { Encoder, type Fixed, type Tokenizer } from './tokens/encoder.js'

/** One model's chat format: messages to tokens with a span for each, edits applied; and the parser for what the model answers. */

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
  /** The prompt ends within the last message, which is an answer's beginning: behind its content, and without a generation prompt. Default false. */
  readonly continues?: boolean
}

/** What a prompt ends with. */
type Ending = 'prompt' | 'nothing' | 'beginning'

/** The beginning of an answer, as a prompt shows it. */
export interface AnswerBeginning {
  /** What the template writes before it. */
  readonly prompt: string
  readonly text: string
  readonly tokens: Int32Array
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
  /**
   * The tokens without the edits (FORGOTTEN where an edit asks for that), and in order the stretches of them that edits hide and how many tokens stand there instead: one for each edit
   * of shown text, or for several that share a token.
   */
  readonly origin: {
    readonly base: Int32Array
    readonly holes: readonly { readonly span: Span; readonly marker: number; readonly contract?: Contract }[]
    /** Of `base`: the first token of each message, then of the generation prompt, then the end. */
    readonly starts: readonly number[]
  }
}

/** A prompt before its edits. */
interface Base extends Trace {
  readonly maps: ReadonlyMap<number, OffsetMap>
}

/** A prompt before its edits and before it is tokenized. */
interface Layout extends Pick<Trace, 'messages' | 'tools' | 'text' | 'textStarts' | 'refused'> {
  readonly fixed: readonly Fixed[]
}

/** Formats with variables that are kept: a server's clients have a few. */
const MOST_VARIANTS = 8

export class ChatFormat {
  readonly #encoder: Encoder
  readonly #traces: WeakMap<Rendered, Trace>
  /** The same format with variables, by them. */
  readonly #variants = new Map<string, ChatFormat>()
  #recent: { readonly inputs: readonly unknown[]; readonly base: Base } | null = null
  #probed: { readonly prompt: string; readonly ending: string } | null = null

  private constructor(
    private readonly template: Template,
    private readonly tokenizer: Tokenizer,
    /** How this template is given messages, found out by trying. */
    readonly capabilities: Capabilities,
    /** The family whose syntax the model writes tool calls in. */
    readonly syntax: ToolSyntax,
    /** The format without variables, and the variables that this one has of those that the template reads; null: it is without. */
    private readonly variant: { readonly of: ChatFormat; readonly variables: readonly (readonly [string, unknown])[] } | null,
  ) {
    this.#encoder = variant === null ? new Encoder(tokenizer) : variant.of.#encoder
    this.#traces = variant === null ? new WeakMap<Rendered, Trace>() : variant.of.#traces
  }

  /** @throws KvfoldError chat/template-failed when the template does not parse or refuses a single user message */
  static create({ template: source, tokenizer, bosText, eosText, now = () => new Date() }: FormatOptions): ChatFormat {
    const template = new Template(source, { bosText, eosText, now })
    const capabilities = findCapabilities(template)
    return new ChatFormat(template, tokenizer, capabilities, detectSyntax(source, capabilities), null)
  }

  /** Whether the template reads a variable of that name. */
  reads(name: string): boolean {
    return this.template.reads(name)
  }

  /** The same format with these variables of its template, and with no others. */
  with(variables: TemplateVariables = {}): ChatFormat {
    const root = this.#root
    const read = Object.entries(variables)
      .filter(([name]) => root.reads(name))
      .sort(([a], [b]) => (a < b ? -1 : 1))
    if (read.length === 0) return root
    const key = writeJson(read)
    const made =
      root.#variants.get(key) ??
      new ChatFormat(root.template, root.tokenizer, root.capabilities, root.syntax, { of: root, variables: read })
    // The one used last is the last to go.
    root.#variants.delete(key)
    root.#variants.set(key, made)
    for (const oldest of [...root.#variants.keys()].slice(0, -MOST_VARIANTS)) root.#variants.delete(oldest)
    return made
  }

  /** The generation prompt's text where variables make it another; undefined where they do not. What is sampled after it remembers it. */
  get ownPrompt(): string | undefined {
    const { prompt } = this.#probe()
    return prompt === this.#root.#probe().prompt ? undefined : prompt
  }

  /** Whether the generation prompt ends with a tag. */
  opens(tag: string): boolean {
    return this.#probe().prompt.trimEnd().endsWith(tag)
  }

  get #root(): ChatFormat {
    return this.variant?.of ?? this
  }

  /**
   * Messages as tokens. Pure but for caches. Edits are disjoint. Tokens that show text of an edit are replaced as a whole, and all others stay: what
   * such a token shows beside the edit (the template's space, or anything where the edit does not lie on token borders, see `snap`) goes
   * with the replacement.
   * @throws KvfoldError chat/template-failed, chat/bad-message; internal/invariant for edits that overlap
   */
  render(request: RenderRequest): Rendered {
    return this.#rendered(request, this.#base(...baseOf(request)))
  }

  /** As `render`. The event loop goes on while a long conversation is rendered and tokenized. */
  async renderInTurns(request: RenderRequest): Promise<Rendered> {
    return this.#rendered(request, await this.#baseInTurns(...baseOf(request)))
  }

  /** The text of `render` alone; nothing is tokenized. @throws KvfoldError as `render` */
  async textInTurns({ messages, tools = [] }: Pick<RenderRequest, 'messages' | 'tools'>): Promise<string> {
    checkMessages(messages)
    const { text } = await inTurns(this.#layout(messages, tools, new Set(), 'prompt'))
    return text.value
  }

  #rendered({ messages, edits = [], ...request }: RenderRequest, base: Base): Rendered {
    const ending = endingOf(request)
    const { value } = base.text
    const changes = changesOf(edits, base.base, (message) => base.maps.get(message) ?? null)
    const replaced = replacedBy(changes, value, base.base, (text) => this.#encoder.innerAligned(text))
    const text = applyToText(value, changes)
    const shown = applyToTokens(base.base, replaced, text.length)
    const count = messages.length
    const starts =
      replaced.length === 0
        ? base.tokenStarts
        : base.textStarts.map((start, index) => firstToken(shown, shifted(start, changes), index, count))
    const spanOf = (index: number): Span => ({ start: starts[index] ?? 0, end: starts[index + 1] ?? 0 })
    const contentOf = (index: number): RenderedMessage['content'] => {
      const place = base.maps.get(index)?.text
      if (place === undefined) return null
      const chars = { start: shifted(place.start, changes), end: shifted(place.end, changes) }
      return { chars, tokens: within(shown, chars) }
    }
    const rendered: Rendered = {
      text,
      tokens: shown.tokens,
      messages: [
        ...messages.map(({ role }, index) => ({ index, role, span: spanOf(index), content: contentOf(index) })),
        ...(ending === 'prompt' ? [{ index: count, role: 'assistant', span: spanOf(count), content: null }] : []),
      ],
      generation: spanOf(count),
      origin: {
        base: remembered(base.base, replaced),
        holes: replaced.map(({ tokens, by, contract }) => ({
          span: tokens,
          marker: by.aligned.tokens.length,
          ...(contract === null ? {} : { contract }),
        })),
        starts: base.tokenStarts,
      },
    }
    this.#traces.set(rendered, base)
    return rendered
  }

  /**
   * Widens a stretch of a message's content to the nearest token borders around it, at most to all of the content (characters of the original
   * content), whose ends are borders even where a token shows text of the template beside them. Text that the template does not show is
   * left as it is.
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
    const { base, maps } = this.#base(messages, tools, new Set([message]), 'prompt')
    const map = maps.get(message)
    return map === undefined ? chars : snapTo(base, map, chars)
  }

  /** Of the answer that a prompt rendered here `continues`. */
  beginningOf(rendered: Rendered): AnswerBeginning {
    const trace = this.#traces.get(rendered)
    invariant(trace !== undefined, 'a prompt is asked about that this format did not render')
    const { text, textStarts, messages } = trace
    const last = messages.length - 1
    const { start, end } = this.#shown(text, messages)
    const shown = text.value.slice(start, end)
    return { prompt: text.value.slice(textStarts[last], start), text: shown, tokens: this.#encoder.inner(shown) }
  }

  /** Says whether `next` shows messages of `previous` differently although the caller changed nothing about them. */
  check(previous: Rendered, next: Rendered): TemplateRewrite | null {
    const [before, after] = [this.#traces.get(previous), this.#traces.get(next)]
    return before === undefined || after === undefined ? null : findRewrite(before, after)
  }

  /** A fresh parser for one answer; what the prompt before it, by default the generation prompt, has already opened is taken into account. */
  parser(tools: readonly ToolDefinition[] = [], prompt = this.#probe().prompt): ReplyParser {
    return this.syntax.parser(prompt, tools)
  }

  /** As `callGrammar`; what takes long is done on another thread, and what was made before is kept. */
  callGrammarElsewhere(tools: readonly ToolDefinition[], single = false): Promise<string | null> {
    return forcedGrammar(this.#callWriting, tools, single)
  }

  /** As `lazyCalls`; see `callGrammarElsewhere`. */
  lazyCallsElsewhere(tools: readonly ToolDefinition[], single = false): Promise<LazyGrammar | null> {
    return lazyGrammar(this.#callWriting, tools, single)
  }

  get #callWriting(): CallWriting {
    const { tools, calls } = this.capabilities
    return { source: this.template.source, form: { tools, calls }, prompt: this.#probe().prompt }
  }

  /** GBNF that forces at least one call of one of the tools, or exactly one when `single`; null when the family has none. */
  callGrammar(tools: readonly ToolDefinition[], single = false): string | null {
    return this.syntax.grammar(tools, this.#probe().prompt, single)
  }

  /** What holds an answer to calls of these tools from where it begins one; null when the family has none. */
  lazyCalls(tools: readonly ToolDefinition[], single = false): LazyGrammar | null {
    return this.syntax.lazy(tools, this.#probe().prompt, single)
  }

  /** The prompt without its edits. The last one is kept: a fold snaps several times before it renders. */
  #base(...asked: BaseRequest): Base {
    const known = this.#known(asked)
    if ('base' in known) return known.base
    const layout = atOnce(this.#layout(...known.of))
    return this.#keep(known.inputs, this.#based(layout, this.#encoder.encode(layout.text, layout.fixed)))
  }

  async #baseInTurns(...asked: BaseRequest): Promise<Base> {
    const known = this.#known(asked)
    if ('base' in known) return known.base
    const layout = await inTurns(this.#layout(...known.of))
    return this.#keep(known.inputs, this.#based(layout, await this.#encoder.encodeInTurns(layout.text, layout.fixed)))
  }

  /** The last prompt, where the same is asked again; else what to make, and by what it is known. */
  #known([messages, tools, edits, ending]: BaseRequest):
    { readonly base: Base } | { readonly inputs: readonly unknown[]; readonly of: BaseRequest } {
    checkMessages(messages)
    // Edits change an unedited prompt only where they keep the template's wording instead of a sampled one.
    const edited = new Set([...edits].filter((index) => messages[index]?.sampled !== undefined))
    const inputs: readonly unknown[] = [ending, ...edited, 'tools', ...tools, 'messages', ...messages]
    const recent = this.#recent
    if (recent !== null && sameItems(recent.inputs, inputs)) return { base: recent.base }
    return { inputs, of: [[...messages], [...tools], edited, ending] }
  }

  #keep(inputs: readonly unknown[], base: Base): Base {
    this.#recent = { inputs, base }
    return base
  }

  *#layout(...[messages, tools, edited, ending]: BaseRequest): Steps<Layout> {
    const whole = yield* this.#text(messages, tools, ending === 'prompt')
    const plain = ending === 'beginning' ? whole.slice(0, this.#shown(whole, messages).end) : whole
    yield
    const count = messages.length
    const plainStarts = [...messageStarts(plain, count), plain.length]
    const answered = messages.some(({ sampled }) => sampled !== undefined)
    const { text, fixed, refused } = answered
      ? substitute(plain, plainStarts, messages, {
          encoder: this.#encoder,
          ...this.#root.#probe(),
          parse: (reply) => this.#parse(reply),
          edited,
        })
      : { text: plain, fixed: [], refused: [] }
    const textStarts = text === plain ? plainStarts : [...messageStarts(text, count), text.length]
    const beginning = ending === 'beginning' ? [{ ...this.#shown(text, messages), tokens: null }] : []
    return { messages, tools, text, textStarts, refused, fixed: [...fixed, ...this.#notes(text), ...beginning] }
  }

  #based({ messages, tools, text, textStarts, refused }: Layout, base: Aligned): Base {
    const count = messages.length
    const tokenStarts = textStarts.map((start, index) => firstToken(base, start, index, count))
    const maps = OffsetMap.all(text, (index) => messages[index]?.content.length ?? null)
    return { messages, tools, variables: this.variant?.variables ?? [], text, base, textStarts, tokenStarts, refused, maps }
  }

  /** Where the content of the last message is. @throws KvfoldError engine/bad-request when the template shows none of it */
  #shown(text: Tracked, messages: readonly ChatMessage[]): Span {
    const last = messages.length - 1
    const map = OffsetMap.of(text, last, messages[last]?.content.length ?? 0)
    if (map !== null) return map.text
    throw new KvfoldError(
      'engine/bad-request',
      'This model’s chat template shows nothing of an answer that has only begun, so that it cannot be gone on with; end with a message of the user.',
    )
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

  #text(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], generationPrompt: boolean): Steps<Tracked> {
    const { capabilities: form } = this
    return this.template.steps({
      messages: templateMessages(messages, tools, form, this.syntax.writer),
      tools: toolsValue(tools, form),
      generationPrompt,
      variables: (this.variant?.variables ?? []).map(([name, value]) => [name, toValue(value, 'unknown')] as const),
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
    const asked = atOnce(this.#text([user], [], true))
    const [, prompt = asked.length] = messageStarts(asked, 1)
    const answered = atOnce(this.#text([user, { role: 'assistant', content: 'y' }, user], [], false))
    const [, , next = answered.length] = messageStarts(answered, 3)
    const end = OffsetMap.of(answered, 1, 1)?.text.end ?? next
    return (this.#probed = { prompt: asked.value.slice(prompt), ending: answered.value.slice(end, next) })
  }
}

/** Messages, tools, messages with edits and ending of a prompt without its edits. */
type BaseRequest = readonly [readonly ChatMessage[], readonly ToolDefinition[], ReadonlySet<number>, Ending]

const endingOf = ({
  generationPrompt = true,
  continues = false,
}: Pick<RenderRequest, 'generationPrompt' | 'continues'>): Ending =>
  continues ? 'beginning' : generationPrompt ? 'prompt' : 'nothing'

const baseOf = (request: RenderRequest): BaseRequest => [
  request.messages,
  request.tools ?? [],
  new Set((request.edits ?? []).map(({ message }) => message)),
  endingOf(request),
]

/**
 * The first token of a message that begins at a character; the first message has all before it too, and the end comes after `count` and the
 * generation prompt.
 */
const firstToken = (aligned: Aligned, char: number, index: number, count: number): number =>
  index === 0 ? 0 : index > count ? aligned.tokens.length : tokenAt(aligned, char)

function snapTo(base: Aligned, map: OffsetMap, chars: Span): Span {
  const { start, end } = map.text
  const shown = map.toText(chars)
  const hidden = shown === 'hidden' ? map.placeOfHidden(chars) : 0
  const wanted = shown === 'hidden' ? { start: hidden, end: hidden } : shown
  const outwards = (at: number, step: 1 | -1, original: number): number => {
    for (let char = at; char >= start && char <= end; char += step) {
      const place = char === start || char === end || isBorder(base, char) ? map.toContent(char) : null
      if (place !== null) return Math.min(Math.max(original, place.low), place.high)
    }
    return original
  }
  return { start: outwards(wanted.start, -1, chars.start), end: outwards(wanted.end, 1, chars.end) }
}

const sameItems = (a: readonly unknown[], b: readonly unknown[]): boolean =>
  a.length === b.length && a.every((item, index) => item === b[index])

function checkMessages(messages: readonly ChatMessage[]): void {
  if (messages.length === 0) throw new KvfoldError('chat/bad-message', 'A prompt needs at least one message; add a user message.')
}
