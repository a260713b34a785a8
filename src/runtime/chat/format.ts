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
 * The chat format of one model: turns messages into tokens, with edits applied and a token span for each message. Also makes parsers and
 * grammars for the model's answers.
 */

export interface FormatOptions {
  /** The template's Jinja source, as in GGUF `tokenizer.chat_template`. */
  readonly template: string
  readonly tokenizer: Tokenizer
  /** The template's `bos_token` and `eos_token`; empty when the vocabulary has none. */
  readonly bosText: string
  readonly eosText: string
  /** The current date, for templates that print it. Default: the system's clock. */
  readonly now?: () => Date
}

export interface RenderRequest {
  /** The messages with their original contents. `edits` say what the prompt shows differently. */
  readonly messages: readonly ChatMessage[]
  readonly tools?: readonly ToolDefinition[]
  readonly edits?: readonly Edit[]
  /** Whether the prompt ends with a generation prompt. Default true. */
  readonly generationPrompt?: boolean
  /**
   * Whether the model is to continue the last message, which is the beginning of an answer. The prompt then ends right after its content,
   * without a generation prompt. Default false.
   */
  readonly continues?: boolean
}

/**
 * How a prompt ends. `prompt`: with the generation prompt. `nothing`: after the last message. `beginning`: after the content of an answer
 * to continue.
 */
type Ending = 'prompt' | 'nothing' | 'beginning'

/** The unfinished answer at the end of a prompt that the model is to continue. */
export interface AnswerBeginning {
  /** What the template writes between the previous message and the answer's text. */
  readonly prompt: string
  readonly text: string
  readonly tokens: Int32Array
}

/** Where a prompt shows a message. The generation prompt is the last entry; its index is the number of messages. */
export interface RenderedMessage {
  readonly index: number
  readonly role: string
  /** The message's tokens. The spans of all messages are in order, and together they cover the whole prompt. */
  readonly span: Span
  /**
   * Where the prompt shows the message's content, edits applied: characters of `Rendered.text`, and the tokens that show nothing else. Null
   * when the template does not show the content.
   */
  readonly content: { readonly chars: Span; readonly tokens: Span } | null
}

export interface Rendered {
  /** The text that the model sees, edits applied. */
  readonly text: string
  readonly tokens: Int32Array
  readonly messages: readonly RenderedMessage[]
  /** The tokens of the generation prompt. */
  readonly generation: Span
  /**
   * The unedited prompt. `base`: its tokens, with FORGOTTEN for those that the cache must forget. `holes`: the tokens that edits hide, in
   * order; `marker` is how many tokens stand in place of a hole. Each edit of shown text makes a hole; edits that share a token make one
   * together.
   */
  readonly origin: {
    readonly base: Int32Array
    readonly holes: readonly { readonly span: Span; readonly marker: number; readonly contract?: Contract }[]
    /** The index in `base` of each message's first token, then that of the generation prompt, then the length of `base`. */
    readonly starts: readonly number[]
  }
}

/** A tokenized prompt without edits. */
interface Base extends Trace, Pick<Layout, 'omitted'> {
  readonly maps: ReadonlyMap<number, OffsetMap>
}

/** A tokenized prompt without edits, and the inputs that it was made from. */
interface KeptBase {
  readonly inputs: readonly unknown[]
  readonly base: Base
}

/** The text of a prompt without edits, before tokenization. */
interface Layout extends Pick<Trace, 'messages' | 'tools' | 'text' | 'textStarts' | 'refused'> {
  readonly fixed: readonly Fixed[]
  readonly omitted: ReadonlyMap<number, OmittedText>
}

/** How many messages are handled between two yields to the event loop. */
const STEP = 1024

/** How many prompts the cache of this format keeps, and the most tokens of all together. The last prompt is always kept. */
const MOST_KEPT = { prompts: 8, tokens: 2 ** 20 }

/** How many variants (this format with other template variables) are kept. The clients of a server use only a few. */
const MOST_VARIANTS = 8

export class ChatFormat {
  readonly #encoder: Encoder
  readonly #traces: WeakMap<Rendered, Trace>
  /** Variants of this format with template variables. The key is the JSON of the variables. */
  readonly #variants = new Map<string, ChatFormat>()
  /**
   * The prompts made last, newest first. One fold needs its prompt with and without tools; a cut needs it with and without sampled answers.
   * Other requests render theirs in between.
   */
  #recent: readonly KeptBase[] = []
  /** The last prompt that had a single message. */
  #alone: readonly KeptBase[] = []
  #probed: { readonly prompt: string; readonly ending: string } | null = null

  private constructor(
    private readonly template: Template,
    private readonly tokenizer: Tokenizer,
    /** How this template takes messages, found by probing it. */
    readonly capabilities: Capabilities,
    /** The syntax of the model's tool calls. */
    readonly syntax: ToolSyntax,
    /** For a variant: the format without variables, and the variables that the template reads. Null for the format without variables. */
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

  /** Whether the template reads a variable of this name. */
  reads(name: string): boolean {
    return this.template.reads(name)
  }

  /** Returns this format with these template variables and no others. */
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
    // The Map is in order of use, and the first entries are dropped. So this variant moves to the end.
    root.#variants.delete(key)
    root.#variants.set(key, made)
    for (const oldest of [...root.#variants.keys()].slice(0, -MOST_VARIANTS)) root.#variants.delete(oldest)
    return made
  }

  /** The generation prompt's text if it is not the usual one, else undefined. An answer keeps it in `Sampled.prompt`. */
  get ownPrompt(): string | undefined {
    const { prompt } = this.#probe()
    return prompt === this.#root.#probe().prompt ? undefined : prompt
  }

  /**
   * Returns this format for an answer behind another generation prompt, since a template may let it depend on the messages. Only parsers,
   * grammars, `opens` and `ownPrompt` differ; render with this format, which keeps the caches.
   */
  behind(prompt: string): ChatFormat {
    const probed = this.#probe()
    if (prompt === probed.prompt) return this
    const { variables = [] } = this.variant ?? {}
    const other = new ChatFormat(this.template, this.tokenizer, this.capabilities, this.syntax, { of: this.#root, variables })
    other.#probed = { ...probed, prompt }
    return other
  }

  /** Returns the text of a prompt's generation prompt. */
  promptOf(rendered: Rendered): string {
    const trace = this.#traces.get(rendered)
    invariant(trace !== undefined, 'promptOf takes only prompts that this format rendered')
    const { text, textStarts, messages } = trace
    return text.value.slice(textStarts[messages.length])
  }

  /** Whether the generation prompt ends with this tag, so that the model's answer begins inside it. */
  opens(tag: string): boolean {
    return this.#probe().prompt.trimEnd().endsWith(tag)
  }

  get #root(): ChatFormat {
    return this.variant?.of ?? this
  }

  /**
   * Renders messages as tokens, edits applied. Changes nothing but its caches. Edits must be disjoint.
   * A token that shows edited text is replaced as a whole; all other tokens stay. If an edit does not end on a token border (`snap`), the
   * rest of that token's text is tokenized again with the replacement.
   * @throws KvfoldError chat/template-failed, chat/bad-message; internal/invariant for edits that overlap
   */
  render(request: RenderRequest): Rendered {
    return atOnce(this.#rendered(request, this.#base(...baseOf(request))))
  }

  /** Like `render`, but yields to the event loop while it renders and tokenizes a long conversation. */
  async renderInTurns(request: RenderRequest): Promise<Rendered> {
    return inTurns(this.#rendered(request, await this.#baseInTurns(...baseOf(request))))
  }

  /** Returns the number of tokens of the prompt that `render` makes. */
  count(request: RenderRequest): number {
    if (request.edits !== undefined && request.edits.length > 0) return this.render(request).tokens.length
    return this.#base(...baseOf(request)).base.tokens.length
  }

  /**
   * Prepares `render` and `count` for this request: does the slow work now, yielding to the event loop, and caches it. A request whose
   * edits omit other parts, or touch other sampled answers, needs its own preparation. With `snaps`, also prepares `snap`.
   */
  async prepareInTurns(request: RenderRequest, snaps = false): Promise<void> {
    await this.#baseInTurns(...baseOf(request))
    if (!snaps) return
    const { messages, tools = [] } = request
    await this.#baseInTurns(messages, tools, NO_EDITS, 'prompt')
    if (messages.some(isSampled)) await this.#baseInTurns(messages, tools, allEdited(messages), 'prompt')
  }

  /** Returns only the text of the prompt, not its tokens. Edits are not applied. @throws KvfoldError like `render` */
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
   * Widens a span of a message's original content to token borders, but not beyond the content. The content's ends count as borders even if
   * a token there also shows template text. A span that the template does not show is returned unchanged.
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
    // A cut in a sampled answer shows all answers as the template writes them. How other answers are worded does not move borders in this
    // one.
    const edits = own !== undefined && isSampled(own) ? allEdited(messages) : NO_EDITS
    const { base, maps } = this.#base(messages, tools, edits, 'prompt')
    const map = maps.get(message)
    return map === undefined ? chars : snapTo(base, map, chars)
  }

  /** Returns the unfinished answer at the end of a prompt. Precondition: the prompt was rendered with `continues`. */
  beginningOf(rendered: Rendered): AnswerBeginning {
    const trace = this.#traces.get(rendered)
    invariant(trace !== undefined, 'beginningOf takes only prompts that this format rendered')
    const { text, textStarts, messages } = trace
    const last = messages.length - 1
    const { start, end } = this.#shown(text, messages)
    const shown = text.value.slice(start, end)
    return { prompt: text.value.slice(textStarts[last], start), text: shown, tokens: this.#encoder.inner(shown) }
  }

  /**
   * Returns the first message that `next` shows differently than `previous` although the caller did not change it; null when there is none.
   */
  check(previous: Rendered, next: Rendered): TemplateRewrite | null {
    const [before, after] = [this.#traces.get(previous), this.#traces.get(next)]
    return before === undefined || after === undefined ? null : findRewrite(before, after)
  }

  /**
   * Makes a parser for one answer. Tags that `prompt` (default: the generation prompt) leaves open count as open.
   * @param tools the declared tools. Without them, the parser accepts calls of any name, even in a syntax where such a call may be plain
   *   text
   * @param bare the tools whose calls are also read without the model's call syntax (syntax/bare-calls.ts); default: none
   */
  parser(tools?: readonly ToolDefinition[], prompt = this.#probe().prompt, bare: readonly ToolDefinition[] = []): ReplyParser {
    return this.syntax.parser(prompt, tools).withBare(bare)
  }

  /**
   * Makes a GBNF grammar that forces calls of these tools: at least one, or exactly one with `single`. Returns null when this call syntax
   * has no such grammar. Grammars are cached; slow ones are made on another thread.
   * @param reasons whether the answer may reason before the calls
   */
  callGrammarElsewhere(tools: readonly ToolDefinition[], single = false, reasons = true): Promise<string | null> {
    const by = this.#callWriting
    // After a prompt that closes its reasoning, the grammar allows no more reasoning.
    const prompt = reasons ? by.prompt : by.prompt + (this.syntax.reasoning?.close ?? '')
    return forcedGrammar({ ...by, prompt }, tools, single)
  }

  /** Like `lazyCalls`, but grammars are cached, and slow ones are made on another thread. */
  lazyCallsElsewhere(tools: readonly ToolDefinition[], single = false, bare = false): Promise<LazyGrammar | null> {
    return lazyGrammar(this.#callWriting, tools, single, bare)
  }

  get #callWriting(): CallWriting {
    const { tools, calls } = this.capabilities
    return { source: this.template.source, form: { tools, calls }, prompt: this.#probe().prompt }
  }

  /**
   * Makes a grammar that applies only once the model begins a call: then it must be a call of these tools. With `bare`, it applies to bare
   * calls too (syntax/bare-calls.ts). Returns null when this call syntax has no such grammar.
   */
  lazyCalls(tools: readonly ToolDefinition[], single = false, bare = false): LazyGrammar | null {
    return this.syntax.lazy(tools, this.#probe().prompt, single, bare)
  }

  /** Returns the unedited prompt. The last few are cached, because a fold calls `snap` and `count` several times before it renders. */
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
   * Returns a cached prompt that has the same inputs. If there is none, returns the inputs to make the prompt from, and the key to cache it
   * under.
   */
  #known([messages, tools, edits, ending]: BaseRequest):
    { readonly base: Base } | { readonly inputs: readonly unknown[]; readonly of: BaseRequest } {
    checkMessages(messages)
    // An edited answer is shown in the template's wording, not by its sampled tokens. Edits of other messages do not change the unedited
    // prompt.
    const edited = new Set([...edits.edited].filter((index) => messages[index]?.sampled !== undefined))
    const omits = JSON.stringify([...edits.omits])
    const inputs: readonly unknown[] = [ending, omits, ...edited, 'tools', ...tools, 'messages', ...messages]
    const kept = [...this.#recent, ...this.#alone].find((recent) => sameItems(recent.inputs, inputs))
    if (kept !== undefined) return { base: this.#keep(kept) }
    return { inputs, of: [[...messages], [...tools], { edited, omits: edits.omits }, ending] }
  }

  /** Caches a prompt. Single messages, which policies count, have their own place, so that they never evict a conversation's prompt. */
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
   * Finds the omissions' changes: renders the messages without the omitted parts, and compares the two texts. For a wholly omitted message,
   * the change is its whole text.
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

  /**
   * Returns where the prompt shows the last message's content. @throws KvfoldError engine/bad-request when the template does not show it
   */
  #shown(text: Tracked, messages: readonly ChatMessage[]): Span {
    const last = messages.length - 1
    const map = OffsetMap.of(text, last, messages[last]?.content.length ?? 0)
    if (map !== null) return map.text
    throw new KvfoldError(
      'engine/bad-request',
      'This model’s chat template does not show an unfinished answer, so the model cannot continue it; end with a user message.',
    )
  }

  /** Returns the messages' notes with tokens of their own, so that the content before a note keeps its token borders. */
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

  /** Parses an answer's text again. Bare calls are read only for tools that `message` calls. */
  #parse(reply: string, { toolCalls = [] }: ChatMessage, tools: readonly ToolDefinition[]) {
    const called = [...new Set(toolCalls.map(({ name }) => name))]
    const bare = called.map((name) => tools.find((tool) => tool.name === name) ?? { name, description: '', parameters: {} })
    const parser = this.syntax.parser('').withBare(bare)
    parser.push(reply)
    return parser.finish()
  }

  /** Returns the text of the generation prompt, and the text that the template writes after an answer. */
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

/** Which messages edits touch, by index, and what edits omit of them. */
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

/** Returns where the first message's own text begins: after what the template writes before all messages, such as tool definitions. */
function ownStart(text: Tracked): number {
  let at = 0
  for (const { text: shown, origin, owner } of text.pieces) {
    if (owner === 0 || (typeof origin !== 'string' && origin.field !== 'tool' && origin.message === 0)) return at
    at += shown.length
  }
  return 0
}

/** The inputs of an unedited prompt: messages, tools, what edits touch, and the ending. */
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
 * Returns the first token of the message that begins at offset `char`. Index 0 includes all text before the first message. Index `count` is
 * the generation prompt; higher indexes give the end of the prompt.
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
