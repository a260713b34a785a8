import type { Contract } from '../core/contract.js'
import { invariant, KvfoldError } from '../core/errors.js'
import type { Span } from '../core/span.js'
import { atOnce, inTurns, type Steps } from '../core/turns.js'
import { writeJson } from '../core/written-json.js'
import { findCapabilities, type Capabilities } from './capabilities.js'
import { templateMessageSteps, toolsValueSteps, toValue } from './conversation.js'
import { applyToText, applyToTokens, changesOf, omissionOf, type OmittedText, remembered, replacedBy, shifted } from './edits.js'
import { Template } from './jinja/template.js'
import { type ChatMessage, type Edit, type OmittedPart, type TemplateVariables, type ToolDefinition, without } from './message.js'
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

/**
 * The chat format of one model. Turns messages into tokens, with a span for each message and with edits applied. Makes the parsers for the
 * model's answers.
 */

export interface FormatOptions {
  /** The template's Jinja source, as in GGUF `tokenizer.chat_template`. */
  readonly template: string
  readonly tokenizer: Tokenizer
  /** The template's `bos_token` and `eos_token`; empty when the vocabulary has none. */
  readonly bosText: string
  readonly eosText: string
  /** The date for templates that print it. Default: the system's clock. */
  readonly now?: () => Date
}

export interface RenderRequest {
  /** The messages with their original contents; `edits` change them. */
  readonly messages: readonly ChatMessage[]
  readonly tools?: readonly ToolDefinition[]
  readonly edits?: readonly Edit[]
  /** Whether the prompt ends with a generation prompt. Default true. */
  readonly generationPrompt?: boolean
  /**
   * Whether the last message is the beginning of an answer that the model is to continue. The prompt then ends after its content, without a
   * generation prompt. Default false.
   */
  readonly continues?: boolean
}

/** How a prompt ends: with the generation prompt, after the last message, or with the beginning of an answer. */
type Ending = 'prompt' | 'nothing' | 'beginning'

/** The beginning of an answer, as a prompt shows it. */
export interface AnswerBeginning {
  /** The text that the template writes before the answer. */
  readonly prompt: string
  readonly text: string
  readonly tokens: Int32Array
}

/** A message's place in a prompt. The generation prompt is the last entry; its index is the number of messages. */
export interface RenderedMessage {
  readonly index: number
  readonly role: string
  /** The message's tokens. The messages are in order, and the spans of all of them together cover all tokens. */
  readonly span: Span
  /**
   * The content of the message as the prompt shows it, with edits applied: its characters in `Rendered.text`, and the tokens that show only
   * these characters. Null when the template shows none of it.
   */
  readonly content: { readonly chars: Span; readonly tokens: Span } | null
}

export interface Rendered {
  /** The text that the model sees, edits applied. */
  readonly text: string
  readonly tokens: Int32Array
  readonly messages: readonly RenderedMessage[]
  /** Tokens of the generation prompt. */
  readonly generation: Span
  /**
   * The unedited prompt: its tokens (FORGOTTEN for tokens that the cache must forget), and its holes in order. A hole is a span of tokens
   * that edits hide, with the number of tokens that are shown in its place. Each edit of shown text makes one hole; edits that share a
   * token make one together.
   */
  readonly origin: {
    readonly base: Int32Array
    readonly holes: readonly { readonly span: Span; readonly marker: number; readonly contract?: Contract }[]
    /** The index in `base` of each message's first token, then of the generation prompt's, then the end. */
    readonly starts: readonly number[]
  }
}

/** A prompt before its edits. */
interface Base extends Trace, Pick<Layout, 'omitted'> {
  readonly maps: ReadonlyMap<number, OffsetMap>
}

/** A prompt before its edits, with the inputs that it was made from. */
interface KeptBase {
  readonly inputs: readonly unknown[]
  readonly base: Base
}

/** A prompt before its edits and before it is tokenized. */
interface Layout extends Pick<Trace, 'messages' | 'tools' | 'text' | 'textStarts' | 'refused'> {
  readonly fixed: readonly Fixed[]
  readonly omitted: ReadonlyMap<number, OmittedText>
}

/** How many messages are handled before other work may run. */
const STEP = 1024

/** How many prompts are kept, and the most tokens of all of them together. The last prompt is kept whatever its length. */
const MOST_KEPT = { prompts: 8, tokens: 2 ** 20 }

/** How many variants (formats with template variables) are kept. The clients of a server use only a few. */
const MOST_VARIANTS = 8

export class ChatFormat {
  readonly #encoder: Encoder
  readonly #traces: WeakMap<Rendered, Trace>
  /** The variants of this format with template variables, by the JSON of the variables. */
  readonly #variants = new Map<string, ChatFormat>()
  /**
   * The last prompts, the last one first. A fold needs its prompt with tools and without. A cut needs it with and without the answers as
   * they were sampled, while other requests render theirs.
   */
  #recent: readonly KeptBase[] = []
  /** The last prompt of a single message. */
  #alone: readonly KeptBase[] = []
  #probed: { readonly prompt: string; readonly ending: string } | null = null

  private constructor(
    private readonly template: Template,
    private readonly tokenizer: Tokenizer,
    /** The form in which this template takes messages, found by trying. */
    readonly capabilities: Capabilities,
    /** The syntax family of the model's tool calls. */
    readonly syntax: ToolSyntax,
    /**
     * For a variant: the format without variables, and the variables of this variant that the template reads. Null for the format without
     * variables.
     */
    private readonly variant: { readonly of: ChatFormat; readonly variables: readonly (readonly [string, unknown])[] } | null,
  ) {
    this.#encoder = variant === null ? new Encoder(tokenizer) : variant.of.#encoder
    this.#traces = variant === null ? new WeakMap<Rendered, Trace>() : variant.of.#traces
  }

  /**
   * Makes the format of a model. @throws KvfoldError chat/template-failed when the template does not parse or refuses a single user message
   */
  static create({ template: source, tokenizer, bosText, eosText, now = () => new Date() }: FormatOptions): ChatFormat {
    const template = new Template(source, { bosText, eosText, now })
    const capabilities = findCapabilities(template)
    return new ChatFormat(template, tokenizer, capabilities, detectSyntax(source, capabilities), null)
  }

  /** Whether the template reads a variable with this name. */
  reads(name: string): boolean {
    return this.template.reads(name)
  }

  /** Returns this chat format with exactly these template variables. */
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
    // Move this variant to the end of the Map, because the variant that was used last is dropped last.
    root.#variants.delete(key)
    root.#variants.set(key, made)
    for (const oldest of [...root.#variants.keys()].slice(0, -MOST_VARIANTS)) root.#variants.delete(oldest)
    return made
  }

  /** The text of the generation prompt if this format's variables change it, else undefined. `Sampled.prompt` of an answer stores it. */
  get ownPrompt(): string | undefined {
    const { prompt } = this.#probe()
    return prompt === this.#root.#probe().prompt ? undefined : prompt
  }

  /** Whether the generation prompt ends with this tag. */
  opens(tag: string): boolean {
    return this.#probe().prompt.trimEnd().endsWith(tag)
  }

  get #root(): ChatFormat {
    return this.variant?.of ?? this
  }

  /**
   * Renders messages as tokens. It changes nothing but its caches. Edits must be disjoint. A token that shows text of an edit is replaced
   * as a whole; all other tokens stay. So when an edit does not lie on token borders (`snap`), the neighbouring text in its tokens is
   * tokenized again with the replacement.
   * @throws KvfoldError chat/template-failed, chat/bad-message; internal/invariant for edits that overlap
   */
  render(request: RenderRequest): Rendered {
    return atOnce(this.#rendered(request, this.#base(...baseOf(request))))
  }

  /** Does the same as `render`, but lets other work run while a long conversation is rendered and tokenized. */
  async renderInTurns(request: RenderRequest): Promise<Rendered> {
    return inTurns(this.#rendered(request, await this.#baseInTurns(...baseOf(request))))
  }

  /** Returns how many tokens the prompt has that `render` makes. */
  count(request: RenderRequest): number {
    if (request.edits !== undefined && request.edits.length > 0) return this.render(request).tokens.length
    return this.#base(...baseOf(request)).base.tokens.length
  }

  /**
   * Prepares `render` and `count` for this request: does their slow part now, and lets other work run meanwhile. Edits that omit other
   * parts, or change other sampled answers, need a preparation of their own. With `snaps` it prepares `snap`, too.
   */
  async prepareInTurns(request: RenderRequest, snaps = false): Promise<void> {
    await this.#baseInTurns(...baseOf(request))
    if (!snaps) return
    const { messages, tools = [] } = request
    await this.#baseInTurns(messages, tools, NO_EDITS, 'prompt')
    if (messages.some(isSampled)) await this.#baseInTurns(messages, tools, allEdited(messages), 'prompt')
  }

  /** Returns only the text that `render` would tokenize. @throws KvfoldError like `render` */
  async textInTurns(request: Omit<RenderRequest, 'edits'>): Promise<string> {
    const { messages, tools = [] } = request
    checkMessages(messages)
    const { text } = await inTurns(this.#layout(messages, tools, NO_EDITS, endingOf(request)))
    return text.value
  }

  *#rendered({ messages, edits = [], ...request }: RenderRequest, base: Base): Steps<Rendered> {
    const ending = endingOf(request)
    const { value } = base.text
    const changes = changesOf(edits, base.base, (message) => base.maps.get(message) ?? null, base.omitted)
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
    const places: RenderedMessage[] = []
    for (const [index, { role }] of messages.entries()) {
      if (index % STEP === STEP - 1) yield
      places.push({ index, role, span: spanOf(index), content: contentOf(index) })
    }
    if (ending === 'prompt') places.push({ index: count, role: 'assistant', span: spanOf(count), content: null })
    const rendered: Rendered = {
      text,
      tokens: shown.tokens,
      messages: places,
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
   * Widens a stretch of a message's original content to the nearest token borders around it, but not beyond the content. The ends of the
   * content count as borders even when a token shows template text beside them. A stretch that the template does not show is returned
   * unchanged.
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
    const own = messages[message]
    // One prompt serves all answers: the wording of others does not move the borders in this one.
    const edits = own !== undefined && isSampled(own) ? allEdited(messages) : NO_EDITS
    const { base, maps } = this.#base(messages, tools, edits, 'prompt')
    const map = maps.get(message)
    return map === undefined ? chars : snapTo(base, map, chars)
  }

  /** Returns the unfinished answer with which a prompt ends. The prompt must have been rendered with `continues`. */
  beginningOf(rendered: Rendered): AnswerBeginning {
    const trace = this.#traces.get(rendered)
    invariant(trace !== undefined, 'beginningOf takes only prompts that this format rendered')
    const { text, textStarts, messages } = trace
    const last = messages.length - 1
    const { start, end } = this.#shown(text, messages)
    const shown = text.value.slice(start, end)
    return { prompt: text.value.slice(textStarts[last], start), text: shown, tokens: this.#encoder.inner(shown) }
  }

  /** Compares two prompts. Returns the first message that `next` shows differently although the caller did not change it, or null. */
  check(previous: Rendered, next: Rendered): TemplateRewrite | null {
    const [before, after] = [this.#traces.get(previous), this.#traces.get(next)]
    return before === undefined || after === undefined ? null : findRewrite(before, after)
  }

  /**
   * Makes a parser for one answer. It takes into account the tags that `prompt` (default: the generation prompt) has already opened.
   * @param tools the declared tools; without them the parser reads calls of any name, also if the syntax cannot tell them from text
   * @param bare the tools of which the parser also reads bare calls (syntax/bare-calls.ts); default: none
   */
  parser(tools?: readonly ToolDefinition[], prompt = this.#probe().prompt, bare: readonly ToolDefinition[] = []): ReplyParser {
    return this.syntax.parser(prompt, tools).withBare(bare)
  }

  /**
   * Makes a GBNF grammar that forces calls of these tools: at least one, or exactly one when `single`. Returns null when the syntax family
   * has no such grammar. Keeps the grammars, and makes slow ones on another thread.
   * @param reasons whether reasoning may come before the calls
   */
  callGrammarElsewhere(tools: readonly ToolDefinition[], single = false, reasons = true): Promise<string | null> {
    const by = this.#callWriting
    // No reasoning follows a prompt that has ended it.
    const prompt = reasons ? by.prompt : by.prompt + (this.syntax.reasoning?.close ?? '')
    return forcedGrammar({ ...by, prompt }, tools, single)
  }

  /** Does the same as `lazyCalls`, but keeps the grammars, and makes slow grammars on another thread. */
  lazyCallsElsewhere(tools: readonly ToolDefinition[], single = false, bare = false): Promise<LazyGrammar | null> {
    return lazyGrammar(this.#callWriting, tools, single, bare)
  }

  get #callWriting(): CallWriting {
    const { tools, calls } = this.capabilities
    return { source: this.template.source, form: { tools, calls }, prompt: this.#probe().prompt }
  }

  /**
   * Makes a grammar that constrains an answer to calls of these tools, from the beginning of a call on. With `bare` it also applies from
   * the beginning of a bare call on (syntax/bare-calls.ts). Returns null when the syntax family has no such grammar.
   */
  lazyCalls(tools: readonly ToolDefinition[], single = false, bare = false): LazyGrammar | null {
    return this.syntax.lazy(tools, this.#probe().prompt, single, bare)
  }

  /** Returns the unedited prompt. The last ones are kept, because a fold calls `snap` and `count` several times before it renders. */
  #base(...asked: BaseRequest): Base {
    const known = this.#known(asked)
    if ('base' in known) return known.base
    const layout = atOnce(this.#layout(...known.of))
    const base = atOnce(this.#based(layout, this.#encoder.encode(layout.text, layout.fixed)))
    return this.#keep({ inputs: known.inputs, base })
  }

  async #baseInTurns(...asked: BaseRequest): Promise<Base> {
    const known = this.#known(asked)
    if ('base' in known) return known.base
    const layout = await inTurns(this.#layout(...known.of))
    const encoded = await this.#encoder.encodeInTurns(layout.text, layout.fixed)
    return this.#keep({ inputs: known.inputs, base: await inTurns(this.#based(layout, encoded)) })
  }

  /**
   * Returns a kept prompt when it has the same inputs. Otherwise returns the key under which to keep the new prompt, and the inputs to
   * make it from.
   */
  #known([messages, tools, edits, ending]: BaseRequest):
    { readonly base: Base } | { readonly inputs: readonly unknown[]; readonly of: BaseRequest } {
    checkMessages(messages)
    // An edited message keeps the template's wording instead of its sampled tokens. Other edits do not change the unedited prompt.
    const edited = new Set([...edits.edited].filter((index) => messages[index]?.sampled !== undefined))
    const omits = JSON.stringify([...edits.omits])
    const inputs: readonly unknown[] = [ending, omits, ...edited, 'tools', ...tools, 'messages', ...messages]
    const kept = [...this.#recent, ...this.#alone].find((recent) => sameItems(recent.inputs, inputs))
    if (kept !== undefined) return { base: this.#keep(kept) }
    return { inputs, of: [[...messages], [...tools], { edited, omits: edits.omits }, ending] }
  }

  /** Keeps a prompt. A message alone, whose tokens a policy counts, displaces only another one. */
  #keep(kept: KeptBase): Base {
    const { base } = kept
    if (base.messages.length === 1) this.#alone = [kept]
    else {
      let tokens = base.base.tokens.length
      const fits = ({ base: other }: KeptBase): boolean => (tokens += other.base.tokens.length) <= MOST_KEPT.tokens
      const others = this.#recent.filter((one) => one !== kept && fits(one))
      this.#recent = [kept, ...others.slice(0, MOST_KEPT.prompts - 1)]
    }
    return base
  }

  *#layout(...[messages, tools, { edited, omits }, ending]: BaseRequest): Steps<Layout> {
    const whole = yield* this.#text(messages, tools, ending === 'prompt')
    const plain = ending === 'beginning' ? whole.slice(0, this.#shown(whole, messages).end) : whole
    yield
    const count = messages.length
    const plainStarts = [...messageStarts(plain, count), plain.length]
    yield
    const answered = messages.some(({ sampled }) => sampled !== undefined)
    const { text, fixed, refused } = answered
      ? substitute(plain, plainStarts, messages, {
          encoder: this.#encoder,
          ...this.#root.#probe(),
          parse: (reply, message) => this.#parse(reply, message, tools),
          edited,
        })
      : { text: plain, fixed: [], refused: [] }
    const textStarts = text === plain ? plainStarts : [...messageStarts(text, count), text.length]
    const beginning = ending === 'beginning' ? [{ ...this.#shown(text, messages), tokens: null }] : []
    const omitted = omits.size === 0 ? NOTHING_OMITTED : yield* this.#omitted(messages, tools, omits, { text, textStarts })
    return { messages, tools, text, textStarts, refused, fixed: [...fixed, ...this.#notes(text), ...beginning], omitted }
  }

  /**
   * Renders the messages again without the omitted parts, and compares the two texts. A message that is omitted as a whole is just taken
   * out.
   */
  *#omitted(
    messages: readonly ChatMessage[],
    tools: readonly ToolDefinition[],
    omits: EditedParts['omits'],
    { text, textStarts }: Pick<Layout, 'text' | 'textStarts'>,
  ): Steps<Layout['omitted']> {
    const rests = messages.map((message, index) => (omits.has(index) ? without(message, omits.get(index)!) : message))
    const isWhole = (index: number) => rests[index] === null
    const made = new Map<number, OmittedText>()
    const all = [...omits.keys()].filter((index) => index < messages.length)
    for (const index of all.filter(isWhole)) {
      const start = index === 0 ? ownStart(text) : textStarts[index]!
      made.set(index, { isWhole: true, changes: [{ text: { start, end: textStarts[index + 1]! }, replacement: '' }] })
    }
    const others = all.filter((index) => !isWhole(index))
    if (others.length === 0) return made
    const shown = rests.map((rest, index) => rest ?? messages[index]!)
    const rest = yield* this.#text(shown, tools, true)
    const restStarts = [...messageStarts(rest, shown.length), rest.length]
    const lengths = (index: number) => (omits.has(index) ? shown[index]!.content.length : null)
    const [maps, restMaps] = [yield* OffsetMap.all(text, lengths), yield* OffsetMap.all(rest, lengths)]
    for (const index of others) {
      const [at, restAt] = [textStarts[index]!, restStarts[index]!]
      const [map, restMap] = [maps.get(index)?.text, restMaps.get(index)?.text]
      const moved = ({ start, end }: Span, by: number): Span => ({ start: start - by, end: end - by })
      const contents = map === undefined || restMap === undefined ? null : ([moved(map, at), moved(restMap, restAt)] as const)
      const texts = [text.value.slice(at, textStarts[index + 1]), rest.value.slice(restAt, restStarts[index + 1])] as const
      made.set(index, omissionOf(texts, at, contents))
    }
    return made
  }

  *#based({ messages, tools, text, textStarts, refused, omitted }: Layout, base: Aligned): Steps<Base> {
    const count = messages.length
    const tokenStarts: number[] = []
    for (const [index, start] of textStarts.entries()) {
      if (index % STEP === STEP - 1) yield
      tokenStarts.push(firstToken(base, start, index, count))
    }
    const maps = yield* OffsetMap.all(text, (index) => messages[index]?.content.length ?? null)
    const { variables = [] } = this.variant ?? {}
    return { messages, tools, variables, text, base, textStarts, tokenStarts, refused, maps, omitted }
  }

  /** Returns the place of the last message's content. @throws KvfoldError engine/bad-request when the template shows none of it */
  #shown(text: Tracked, messages: readonly ChatMessage[]): Span {
    const last = messages.length - 1
    const map = OffsetMap.of(text, last, messages[last]?.content.length ?? 0)
    if (map !== null) return map.text
    throw new KvfoldError(
      'engine/bad-request',
      'This model’s chat template does not show an unfinished answer, so the model cannot continue it; end with a user message.',
    )
  }

  /** Returns the notes of the messages with their own tokens, so that the content before a note keeps its token borders. */
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

  *#text(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], generationPrompt: boolean): Steps<Tracked> {
    const { capabilities: form } = this
    return yield* this.template.steps({
      messages: yield* templateMessageSteps(messages, tools, form, this.syntax.writer),
      tools: yield* toolsValueSteps(tools, form),
      generationPrompt,
      variables: (this.variant?.variables ?? []).map(([name, value]) => [name, toValue(value, 'unknown')] as const),
    })
  }

  /** Parses the text of an answer that was parsed to `message` before. Bare calls are read only for the tools that the message calls. */
  #parse(reply: string, { toolCalls = [] }: ChatMessage, tools: readonly ToolDefinition[]) {
    const called = [...new Set(toolCalls.map(({ name }) => name))]
    const bare = called.map((name) => tools.find((tool) => tool.name === name) ?? { name, description: '', parameters: {} })
    const parser = this.syntax.parser('').withBare(bare)
    parser.push(reply)
    return parser.finish()
  }

  /** Returns the generation prompt's text, and the text that follows an answer. */
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

/** The messages that edits touch, by their indexes, and the parts of them that edits omit. */
interface EditedParts {
  readonly edited: ReadonlySet<number>
  readonly omits: ReadonlyMap<number, readonly OmittedPart[]>
}

const NO_EDITS: EditedParts = { edited: new Set(), omits: new Map() }
const NOTHING_OMITTED: Layout['omitted'] = new Map()

const isSampled = ({ sampled }: ChatMessage): boolean => sampled !== undefined

const allEdited = (messages: readonly ChatMessage[]): EditedParts => ({ ...NO_EDITS, edited: new Set(messages.keys()) })

function editedParts(edits: readonly Edit[]): EditedParts {
  const omits = new Map<number, OmittedPart[]>()
  for (const { message, omits: part } of edits) if (part !== undefined) omits.set(message, [...(omits.get(message) ?? []), part])
  return { edited: new Set(edits.map(({ message }) => message)), omits }
}

/** Returns where the first message's own text begins: behind the text that the template writes before all messages, such as the tools. */
function ownStart(text: Tracked): number {
  let at = 0
  for (const { text: shown, origin, owner } of text.pieces) {
    if (owner === 0 || (typeof origin !== 'string' && origin.field !== 'tool' && origin.message === 0)) return at
    at += shown.length
  }
  return 0
}

/** The inputs of an unedited prompt: messages, tools, the parts that edits touch, and the ending. */
type BaseRequest = readonly [readonly ChatMessage[], readonly ToolDefinition[], EditedParts, Ending]

const endingOf = ({
  generationPrompt = true,
  continues = false,
}: Pick<RenderRequest, 'generationPrompt' | 'continues'>): Ending =>
  continues ? 'beginning' : generationPrompt ? 'prompt' : 'nothing'

const baseOf = (request: RenderRequest): BaseRequest => [
  request.messages,
  request.tools ?? [],
  editedParts(request.edits ?? []),
  endingOf(request),
]

/**
 * Returns the first token of the message that begins at `char`. The first message includes everything before it. Index `count` is the
 * generation prompt, and higher indexes are the end of the prompt.
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
