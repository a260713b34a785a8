/**
 * U-Fold: before a turn, two helpers read the conversation; one writes notes, the other chooses lines of tool results. Then the agent
 * sees only the notes and the chosen lines of the earlier text.
 */
import type { ChatMessage, Edit, ToolDefinition } from '../../chat/message.js'
import type { Conversation } from '../../context/conversation.js'
import type { Hidden, Stretch } from '../../context/stretch.js'
import { editOf, type Fragment, isForgotten, omissionEdit } from '../../context/fragment.js'
import { noted } from '../../context/size-note.js'
import { definedFields } from '../../core/json.js'
import { overlaps, span } from '../../core/span.js'
import { CellsBusy, isContextFull, KvfoldError } from '../../core/errors.js'
import { conversationId, fragmentId, type FragmentId } from '../../core/ids.js'
import {
  type Engine,
  type EngineReply,
  type EngineRequest,
  type GenerationOptions,
  goodContext,
  type RequestScope,
} from '../../engine/engine.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import {
  type ChosenLines,
  type Extraction,
  extractionOf,
  extractionPrompt,
  extractionSchema,
  type Memory,
  memoryOf,
  memoryPrompt,
  memorySchema,
  notesText,
  type Parsed,
  sameTodo,
} from './helpers.js'
import { hiddenIn, linesOf, numbered, type Range } from './view.js'

export interface UFoldOptions {
  /** The smallest number of shown tokens at which to fold. Default 8,192, or a quarter of the context if that is less. */
  readonly foldFrom?: number
  /**
   * `changed`: fold only if the to-do list differs from that of the last fold, or the context is three quarters full. `every-turn`: as in
   * the paper. Default `changed`.
   */
  readonly when?: 'changed' | 'every-turn'
  /** Every how many folds the helper writes the notes anew, from the original messages. Default 4; with 1, at every fold. */
  readonly rebuildEvery?: number
  /**
   * What to hide of tool results. `lines`: everything but the lines that a helper chooses. `all`: nothing. `none`: everything, as ReSum
   * does. Default `lines`.
   */
  readonly results?: 'lines' | 'all' | 'none'
  /** Whether other messages are folded and replaced by notes. False: only tool results are folded. Default true. */
  readonly notes?: boolean
  /** Whether the prompt of the helper that chooses lines has the paper's principles about tasks. Default false. */
  readonly principles?: boolean
  /**
   * Whether tool results in the conversation carry line numbers (`written`). If not, the question to the helper repeats all lines, with
   * numbers. Default true.
   */
  readonly numbered?: boolean
}

/** The state of folding as plain JSON. A session restored from it behaves the same. */
export interface UFoldState {
  /** The notes that the agent sees now; null before the first fold. */
  readonly memory: Memory | null
  readonly blocks: readonly ChosenLines[]
  readonly own: readonly FragmentId[]
  /** How many messages, from the first on, the notes cover. */
  readonly upTo: number
  readonly folds: number
  /** How many line ranges from helpers could not be used so far. */
  readonly refused: number
  /** Below this many shown tokens no helper is asked. Set after a fold whose questions took more tokens than it hid. Default 0. */
  readonly patience?: number
}

/**
 * The result of one call of `UFold.fold`. `small`: no helper was asked; the context is below `foldFrom` or `patience`, or has no answer
 * yet. `same`: the to-do list has not changed since the last fold. `folded`: the view is new. `kept`: the old view stays; `why` says
 * whether the answer was unusable or the new view would not be shorter.
 */
export interface FoldReport {
  readonly kind: 'small' | 'same' | 'folded' | 'kept'
  readonly why: string | null
  /** The line ranges of this fold that could not be used. */
  readonly refused: readonly string[]
  /** Tokens shown before the fold; `after`: those after it. */
  readonly before: number
  readonly after: number
  /** Ledger entries of the helpers on the agent's own engine; `folder`: those on the separate folder engine. */
  readonly ledger: readonly LedgerEntry[]
  readonly folder: readonly LedgerEntry[]
}

export interface UFoldSetting {
  readonly engine: Engine
  readonly conversation: Conversation
  /** The tool definitions of the conversation's requests. */
  readonly tools: readonly ToolDefinition[]
  readonly generation?: Pick<GenerationOptions, 'sampling' | 'contract' | 'blend'>
  /** The request fields of the conversation that change the prompt or who owns its cells. */
  readonly scope?: RequestScope
  /** Another model for the helpers. Default: the agent's own engine, on forks of the conversation. */
  readonly folder?: Engine
  readonly options?: UFoldOptions
  /** Ids of tool calls whose results are never folded. */
  readonly pinned?: ReadonlySet<string>
  readonly state?: UFoldState
  /** Called with the ledger entry of each question to a helper, as soon as it is answered. */
  readonly onSpent?: (entries: readonly LedgerEntry[]) => void
}

const NOTHING: UFoldState = { memory: null, blocks: [], own: [], upTo: 0, folds: 0, refused: 0 }

/** The shortest text, in characters, that is hidden. A marker alone has about 70. */
const LEAST = 160
/** Above this share of the context, `changed` folds even if the to-do list has not changed. */
const URGENT = 0.75
/** The longest answer of a helper, in tokens. */
const HELPER_TOKENS = 1024

export class UFold {
  #state: UFoldState
  #looks = 0

  constructor(private readonly setting: UFoldSetting) {
    this.#state = setting.state ?? NOTHING
  }

  get state(): UFoldState {
    return this.#state
  }

  /** The line ranges that a helper chose at the last fold. They stay visible. */
  get selected(): readonly Range[] {
    return this.#state.blocks.map(({ lines }) => lines)
  }

  /**
   * Decides before `query` is answered whether to fold, and folds. Whatever the helpers answer, the conversation can continue.
   *
   * @param upTo how many messages to count and to fold, from the first one on. Default: all
   * @param question index of the message with `query`, if it is among these messages; it stays visible
   * @throws KvfoldError what the engine throws, except when a helper's question does not fit the context
   */
  async fold(
    query: string,
    signal?: AbortSignal,
    upTo = this.setting.conversation.messages.length,
    question?: number,
  ): Promise<FoldReport> {
    const { options = {}, engine } = this.setting
    const { foldFrom = Math.min(8192, Math.floor(goodContext(engine.info) / 4)), when = 'changed', results = 'lines' } = options
    const before = this.#count(upTo)
    const isFirst = !this.setting.conversation.messages.slice(0, upTo).some(({ role }) => role === 'assistant')
    const urgent = before > URGENT * goodContext(engine.info)
    if (before < foldFrom || isFirst || (before < (this.#state.patience ?? 0) && !urgent)) return quiet('small', before)
    const aside = new Aside(this.setting, conversationId(`${this.setting.conversation.id}/fold-${++this.#looks}`), signal)
    const report = (kind: FoldReport['kind'], why: string | null, refused: readonly string[] = []): FoldReport => ({
      ...quiet(kind, before),
      why,
      refused,
      after: this.#count(upTo),
      ...aside.costs,
    })
    try {
      const anew = this.#state.folds % (options.rebuildEvery ?? 4) === 0
      aside.read(this.#log(upTo, anew))
      const memory =
        options.notes === false ? { ok: true as const, value: nothingNoted(query) } : await this.#memory(aside, query, anew)
      if (!memory.ok) return report('kept', `The agent cannot use the summary: ${memory.why}.`)
      const due = when === 'every-turn' || !sameTodo(this.#state.memory, memory.value) || urgent
      if (!due) return report('same', null)
      const extraction = results === 'lines' ? await this.#extraction(aside, memory.value, upTo, anew) : none
      if (!extraction.ok) return report('kept', `The agent cannot use the choice of lines: ${extraction.why}.`)
      const { blocks, refused } = extraction.value
      this.#state = { ...this.#state, refused: this.#state.refused + refused.length }
      const saved = this.#show({ memory: memory.value, blocks, upTo, question, before })
      const done = saved
        ? report('folded', null, refused)
        : report('kept', 'The view would not be shorter than the text that it hides.', refused)
      const cost = [...done.ledger, ...done.folder].reduce((sum, { submitted }) => sum + submitted, 0)
      // The helpers took more tokens than the fold hid. So the next fold waits until the context has grown.
      const patience = before - done.after < cost ? done.after + Math.ceil(foldFrom / 4) : 0
      this.#state = { ...this.#state, patience }
      return done
    } catch (error) {
      if (!isContextFull(error)) throw error
      // The cells may be free at the next call, so the text stays visible for now.
      if (error instanceof CellsBusy) return report('kept', 'Other conversations hold the cells that a helper needs.')
      const why = 'The context has no room for the question to the helper'
      // No helper could read the new text. It is hidden without notes about it, because the conversation could not continue otherwise.
      const { memory, blocks } = this.#state
      const fits = this.#show({ memory: memory ?? nothingNoted(query), blocks, upTo, question, before })
      return fits ? report('folded', `${why}. The agent hid the new text; it can be restored.`) : report('kept', `${why}.`)
    } finally {
      aside.end()
    }
  }

  /** The notes as the agent sees them; null when there are none. */
  get notes(): string | null {
    const { memory, blocks } = this.#state
    return memory === null || this.setting.options?.notes === false ? null : notesText(memory, blocks)
  }

  /** Whether this agent made the fold and may change it. A fragment that was restored or forgotten since then is left alone. */
  #isOwn(fragment: Fragment): boolean {
    return this.#state.own.includes(fragment.id) && fragment.state.kind !== 'open' && !isForgotten(fragment)
  }

  /** Counts the tokens of the first `upTo` messages under the edits. */
  #count(upTo: number, edits = this.setting.conversation.edits()): number {
    const { engine, conversation, tools, scope } = this.setting
    const shown = edits.filter(({ message }) => message < upTo)
    return engine.count(noted(conversation.messages.slice(0, upTo), tools), tools, shown, scope?.variables)
  }

  /** Returns the edits in the first `upTo` messages that this agent did not make. */
  #others(upTo: number): readonly Edit[] {
    const { fragments, omissions } = this.setting.conversation
    const folds = fragments.filter((one) => !this.#isOwn(one)).flatMap((one) => editOf(one) ?? [])
    return [...omissions.map(omissionEdit), ...folds].filter(({ message }) => message < upTo).sort(inOrder)
  }

  /**
   * Returns the messages that the helpers read. They see the original text if it fits and if that is cheap or needed: the helpers have
   * their own engine, the contract keeps hidden cells, or the notes are written anew. In all other cases they see what the agent sees:
   * under `exact`, showing the original text would recompute everything from the first fold on.
   */
  #log(upTo: number, anew: boolean): FoldLog {
    const { engine, conversation, tools, folder, generation = {} } = this.setting
    const messages = noted(conversation.messages.slice(0, upTo), tools)
    const others = this.#others(upTo)
    const held = folder !== undefined || (generation.contract ?? 'exact') !== 'exact' || anew
    if (held && this.#count(upTo, others) < URGENT * goodContext((folder ?? engine).info))
      return { messages, edits: others, whole: true }
    return { messages, edits: conversation.edits().filter(({ message }) => message < upTo), whole: false }
  }

  async #memory(aside: Aside, query: string, anew: boolean): Promise<Parsed<Memory>> {
    // If the log shows what the agent sees, it contains the last notes already. The question need not repeat them.
    const before = anew || !aside.whole ? null : this.#state.memory
    return memoryOf(await aside.ask(memoryPrompt({ before, query }), memorySchema))
  }

  async #extraction(aside: Aside, memory: Memory, upTo: number, anew: boolean): Promise<Parsed<Extraction>> {
    const { conversation, options = {} } = this.setting
    const messages = conversation.messages.slice(0, upTo)
    const lines = linesOf(messages)
    const forgotten = conversation.fragments.filter(isForgotten)
    const { omitted } = conversation
    const isOffered = ({ number, message, span }: (typeof lines)[number]) =>
      !omitted.has(message) &&
      !forgotten.some((one) => one.message === message && overlaps(one.span, span)) &&
      (anew || message >= this.#state.upTo || this.selected.some(({ first, last }) => first <= number && number <= last))
    const said = await aside.ask(
      extractionPrompt({
        ...(options.notes === false ? { memory } : {}),
        ...(options.numbered === false ? { lines: numbered(messages, lines.filter(isOffered)) } : {}),
        principles: options.principles ?? false,
      }),
      extractionSchema,
    )
    return extractionOf(said, lines.length)
  }

  /** Hides and shows text so that the agent sees the new view. Returns false and changes nothing when the view would not be shorter. */
  #show({ memory, blocks, upTo, question, before }: WantedView): boolean {
    const { engine, conversation, tools, scope, options = {}, pinned } = this.setting
    const messages = conversation.messages
    const others = conversation.fragments.filter((one) => !this.#isOwn(one))
    const hidden = hiddenIn(linesOf(messages), {
      messages,
      selected: blocks.map(({ lines }) => lines),
      omitted: conversation.omitted,
      before: upTo,
      ...definedFields({ question }),
      least: LEAST,
      snap: (message, chars) => engine.snap(noted(messages.slice(0, upTo), tools), tools, message, chars, scope?.variables),
    })
      .filter(({ message }) => {
        const { role, toolCallId = '' } = messages[message]!
        if (pinned?.has(toolCallId) === true) return false
        return role === 'tool' ? options.results !== 'all' : options.notes !== false
      })
      .flatMap((stretch) => outside(stretch, others))
    const last = hidden.at(-1)
    if (last === undefined || memory === null) return false
    // The notes replace the last hidden span, so that changed notes leave the cells before it valid.
    const summary = options.notes === false ? {} : { summary: notesText(memory, blocks) }
    const wanted: readonly Hidden[] = [...hidden.slice(0, -1), { ...last, ...summary }]
    const edits = [...this.#others(upTo), ...wanted.map(editLike)].sort(inOrder)
    if (this.#count(upTo, edits) >= before) return false
    const mine = conversation.fragments.filter((one) => this.#isOwn(one)).map(({ id }) => id)
    const own = conversation.rearrange(mine, wanted).map(({ id }) => id)
    this.#state = { ...this.#state, memory, blocks, upTo, own, folds: this.#state.folds + 1 }
    return true
  }
}

/** The edit of a span that is not a fragment yet. Its placeholder id is as long as a real id, so that token counts are about right. */
const editLike = ({ message, span, summary }: Hidden): Edit =>
  editOf({
    id: fragmentId('f00000'),
    message,
    span,
    state: summary === undefined ? { kind: 'folded' } : { kind: 'summarised', summary, focus: '' },
  })!

/** Cuts the given fragments out of a span. Returns the remaining spans that are long enough to hide. The fragments must be in order. */
function outside({ message, span: { start, end } }: Stretch, fragments: readonly Fragment[]): readonly Stretch[] {
  const within = fragments.filter((one) => one.message === message && overlaps(one.span, { start, end }))
  const starts = [start, ...within.map((one) => one.span.end)]
  const ends = [...within.map((one) => one.span.start), end]
  return starts.flatMap((from, at) => (ends[at]! - from < LEAST ? [] : [{ message, span: span(from, ends[at]!) }]))
}

const inOrder = (a: Edit, b: Edit): number => a.message - b.message || a.span.start - b.span.start

interface WantedView extends Pick<UFoldState, 'memory' | 'blocks' | 'upTo'> {
  readonly question: number | undefined
  /** Tokens shown before the fold. */
  readonly before: number
}

interface FoldLog {
  readonly messages: readonly ChatMessage[]
  readonly edits: readonly Edit[]
  /** Whether the log shows all text that this agent has folded. */
  readonly whole: boolean
}

/**
 * A dialogue with the helpers. On the agent's own engine, each call of `fold` gets a new fork. On a separate folder engine, all calls use
 * one conversation, whose cache keeps the earlier messages.
 */
class Aside {
  readonly #ledger: LedgerEntry[] = []
  readonly #folder: LedgerEntry[] = []
  #messages: readonly ChatMessage[] = []
  #log: FoldLog = { messages: [], edits: [], whole: false }

  constructor(
    private readonly setting: UFoldSetting,
    private readonly fork: EngineRequest['conversation'],
    private readonly signal: AbortSignal | undefined,
  ) {}

  get costs(): Pick<FoldReport, 'ledger' | 'folder'> {
    return { ledger: this.#ledger, folder: this.#folder }
  }

  get whole(): boolean {
    return this.#log.whole
  }

  read(log: FoldLog): void {
    this.#log = log
    this.#messages = log.messages
  }

  /** Asks a helper a question and returns its answer. @throws KvfoldError what the engine throws; engine/cancelled */
  async ask(content: string, schema: unknown): Promise<string> {
    const { engine, folder, conversation, tools, generation = {}, scope } = this.setting
    const messages: readonly ChatMessage[] = [...this.#messages, { role: 'user', content }]
    const { sampling } = generation
    const whose =
      folder === undefined
        ? { conversation: this.fork, parent: conversation.id, ...generation, ...scope }
        : { conversation: conversationId(`${conversation.id}/folder`), ...(sampling === undefined ? {} : { sampling }) }
    const { reply } = (folder ?? engine).respond({
      ...whose,
      messages,
      ...(this.#log.edits.length === 0 ? {} : { edits: this.#log.edits }),
      ...(tools.length === 0 ? {} : { tools, toolChoice: 'none' as const }),
      schema,
      maxTokens: HELPER_TOKENS,
      kind: 'summary',
      ...(this.signal === undefined ? {} : { signal: this.signal }),
    })
    const { message, finish, ledger }: EngineReply = await reply
    ;(folder === undefined ? this.#ledger : this.#folder).push(ledger)
    this.setting.onSpent?.([ledger])
    if (finish === 'cancelled')
      throw new KvfoldError('engine/cancelled', 'Folding was cancelled; the conversation keeps its last good view.')
    const { role, content: said, sampled } = message
    this.#messages = [...messages, { role, content: said, ...(sampled === undefined ? {} : { sampled }) }]
    return said
  }

  end(): void {
    if (this.setting.folder === undefined) this.setting.engine.forget(this.fork)
  }
}

const quiet = (kind: FoldReport['kind'], tokens: number): FoldReport => ({
  kind,
  why: null,
  refused: [],
  before: tokens,
  after: tokens,
  ledger: [],
  folder: [],
})

const none: Parsed<Extraction> = { ok: true, value: { blocks: [], refused: [] } }

/** Notes for when there are none from a helper: the user's message is both summary and to-do list. */
const nothingNoted = (query: string): Memory => ({ summary: query, todo: [query] })
