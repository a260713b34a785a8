/** Computes the answer to one request on its thread: folds and compacts the conversation, runs the turn, and reports the answer. */
import { MAX_CALLS } from '../../agents/session.js'
import type { MemToolMode } from '../../agents/memtool-asides.js'
import { Toolbox } from '../../agents/toolbox.js'
import { Turn, type TurnOutcome } from '../../agents/tool-loop.js'
import type { ShownPrompt } from '../../attention/answer-mass.js'
import type { ChatMessage, ToolCall, ToolChoice, ToolDefinition } from '../../chat/message.js'
import { contextToolsFor, type ToolTexts } from '../../context/short-tools.js'
import { noted } from '../../context/size-note.js'
import type { ContractChoice } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import { Feed } from '../../core/feed.js'
import { conversationId } from '../../core/ids.js'
import { definedFields } from '../../core/json.js'
import { inTurns } from '../../core/turns.js'
import type { GenerationOptions, RequestScope } from '../../engine/engine.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { ToolEmbedder } from '../../tools/catalogue.js'
import { type Answer, type Ask, type Asked, type AskEvent, nthSampling, variablesOf } from '../ask.js'
import type { RecognisedEdits, Saved } from '../ask.js'
import { editsInWords, type TakenThread } from './client-edits.js'
import { lossOf } from './cache-loss.js'
import { compact } from './compaction.js'
import { clearedIn, clearThinking, clearToolUses } from './context-edits.js'
import { drop, type Dropped, reposition, skippedIn } from './drops.js'
import { generationFor, leftOut } from './generation.js'
import type { ServedEngine } from './models.js'
import { foldByHelpers, foldByPolicy, foldPrice, foldToFit, isHopeless, shownAgain } from './policies.js'
import type { Acm, Folded, FoldPolicy, Overflow, PolicyContext } from './policies.js'
import type { Thread } from './thread.js'
import { foundIn, ManagedThread, type OperatorTools, searchTools } from './server-tools.js'
import { sum, TurnReport } from './turn-report.js'

/**
 * For each engine: the milliseconds of its prefills so far and the tokens they computed. `savedBy` turns saved tokens into seconds by it.
 */
const paces = new WeakMap<ServedEngine, { milliseconds: number; tokens: number }>()

/** The server's settings, for requests that leave them out. */
export interface AskDefaults {
  readonly acm: Acm
  readonly policy: FoldPolicy
  readonly memToolMode: MemToolMode
  /** Names and descriptions of the six context tools, as the model sees them. Default: those that suit the model. */
  readonly toolTexts?: ToolTexts
  readonly overflow: Overflow
  /** The contract when a client edits its conversation by sending different messages. Default `exact`. */
  readonly clientEdits: ContractChoice
  /** The same contract for single tenants. Tenants without an entry get `clientEdits`. */
  readonly clientEditsOf?: ReadonlyMap<string, ContractChoice>
}

export interface AnsweringOptions {
  readonly ask: Ask
  readonly taken: TakenThread
  readonly engine: ServedEngine
  readonly defaults: AskDefaults
  readonly operatorTools: OperatorTools | null
  /** Makes embedding vectors for the search of tools by meaning; null: the search uses words only. */
  readonly embedder: ToolEmbedder | null
  readonly signal: AbortSignal
  readonly emit: (event: AskEvent) => void
  /** JSON-schema parts that the grammar cannot enforce, as `checkAsk` returns them. The answer reports them in `unread`. */
  readonly leftOut: readonly string[]
  /** Saves the thread's changes. */
  readonly save: () => Promise<void>
}

/**
 * Checks the request before it gets a thread or changes anything. Returns the JSON-schema parts that the grammar cannot enforce
 * (`leftOut`).
 * @throws KvfoldError engine/bad-request when the request contradicts itself; the errors of `leftOut`
 */
export async function checkAsk(ask: Ask): Promise<readonly string[]> {
  const { acm, format, toolChoice, tools: shown, deferred, messages, beginning } = ask
  const tools = [...shown, ...(deferred?.tools ?? [])]
  const bad = (message: string) => new KvfoldError('engine/bad-request', message)
  const left = await leftOut(format, tools)
  if (messages.length === 0) throw bad('There are no messages; give at least one.')
  const forced = firstStepOf(ask, 'off') === 'required'
  if (beginning !== undefined && (forced || format !== undefined))
    throw bad(
      `The last message is the beginning of the answer, which cannot be ${forced ? 'a forced tool call' : 'in a format'}; leave out one of them.`,
    )
  if (forced && tools.length === 0) throw bad('A tool call is required and there are no tools.')
  const named = namesIn(toolChoice)
  if (named.length > 0 && acm === 'memtool')
    throw bad('With acm: memtool calls cannot be kept to named tools: the model has the tools that it found. Ask with acm: off.')
  const unknown = named.find((name) => !tools.some((tool) => tool.name === name))
  if (unknown !== undefined) throw bad(`The tool ${JSON.stringify(unknown)} is asked for and not among the tools.`)
  return left
}

/**
 * Runs the turn on a thread that already has the request's messages and that no other request uses. Afterwards the thread has the answer
 * and the results of all calls that the server carried out. It keeps a cancelled answer only if the answer has text and was streamed, or
 * began with the client's text.
 * @throws KvfoldError what the engine throws; context/full by the overflow policy
 */
export async function answer(options: AnsweringOptions): Promise<Omit<Answer, 'waited'>> {
  const prepared = await prepare(options)
  const cleared = await fold(options, prepared)
  const compaction = await compacting(options, prepared)
  if (compaction?.compacted.paused === true) return pausedAt(options, compaction, cleared)
  // A compaction replaces the thread's conversation object, so the toolbox must be made again for the new one.
  const current = compaction === null ? prepared : await prepare(options)
  await findTools(options, current)
  const ran = await run(options, current)
  const dropped = await droppedBy(options, current, ran)
  const answered = { ...report(options, current, ran, cleared), ...definedFields({ dropped }) }
  if (compaction === null) return answered
  return { ...answered, ledger: [compaction.entry, ...answered.ledger], compacted: compaction.compacted }
}

/** The settings and tools of one request, shared by its folds and its steps. */
interface PreparedAnswer {
  readonly acm: Acm
  readonly contract: ContractChoice | null
  /** The contract when the client edited its conversation by sending different messages. */
  readonly clientEdits: ContractChoice
  readonly generation: GenerationOptions
  /** Settings for the model's side tasks, which write notes and summaries. */
  readonly helpers: GenerationOptions
  readonly scope: RequestScope
  /** The tool memory of `acm: memtool`: a catalogue that the model searches for tools; null for other values of `acm`. */
  readonly managed: ManagedThread | null
  readonly toolbox: Toolbox
  /** Names of the tools that the model may call when the client forces a call; undefined: no call is forced. */
  readonly callable: readonly string[] | undefined
  /** Names of the only tools that the model may call, the server's own included; undefined: no restriction. */
  readonly among: readonly string[] | undefined
  readonly isSearch: (call: Pick<ToolCall, 'name'>) => boolean
}

/** Records the ledger entries of side tasks, such as notes, in the thread's ledger, and sends them to the client. */
function accountAside({ taken, emit }: AnsweringOptions, entries: readonly LedgerEntry[]): void {
  taken.thread.account(entries)
  emit({ type: 'aside', entries })
}

async function prepare(options: AnsweringOptions): Promise<PreparedAnswer> {
  const { ask, taken, engine, defaults, operatorTools, embedder } = options
  const { thread } = taken
  if (ask.promptLogprobs !== undefined && engine.model === undefined)
    throw new KvfoldError('model/unsupported', `The engine of ${engine.info.model} reports no log-probabilities of prompts.`)
  const acm = ask.acm ?? defaults.acm
  const contract = ask.contract ?? thread.contract
  const variables = variablesOf(ask.template)
  const adapted = definedFields({ lora: ask.lora })
  const scope = { tenant: thread.engineTenant, variables, ...adapted }
  const generation = generationFor(engine, ask, contract)
  const helpers = definedFields({ sampling: generation.sampling, contract: generation.contract })
  const managed =
    acm !== 'memtool'
      ? null
      : await ManagedThread.of(thread, {
          ...{ engine, generation: helpers, scope, operatorTools, embedder },
          mode: ask.memToolMode ?? defaults.memToolMode,
          tools: [...thread.tools, ...(ask.deferred?.tools ?? [])],
          restores: contract === 'splice' || contract === 'blend',
          onSpent: (entries) => {
            accountAside(options, entries)
          },
        })
  const deferred = managed === null ? ask.deferred : undefined
  const searches = deferred === undefined ? [] : searchTools(deferred, embedder)
  const more = [...searches, ...(managed?.own ?? [])]
  const external = {
    definitions: managed === null ? thread.tools : [],
    allowed: ask.toolChoice !== 'none',
    get unlisted() {
      return managed?.loaded ?? (deferred === undefined ? [] : foundIn(thread.conversation.messages, deferred))
    },
  }
  const own = [...(acm === 'tools' ? contextToolsFor(engine.info.base ?? engine.info.model, defaults.toolTexts) : []), ...more]
  const toolbox = new Toolbox(own, [], external, managed)
  thread.prompted = { tools: toolbox.definitions, variables, ...adapted }
  const wanted = ask.clientEdits ?? defaults.clientEditsOf?.get(ask.tenant) ?? defaults.clientEdits
  return {
    ...{ acm, contract, generation, helpers, scope, managed, toolbox },
    clientEdits: taken.isOwn ? wanted : 'exact',
    callable: callableOf(ask, [...more.map(({ definition }) => definition), ...toolbox.unlisted]),
    among: amongOf(
      ask,
      own.map(({ definition }) => definition.name),
      searches.map(({ definition }) => definition.name),
    ),
    isSearch: ({ name }) => searches.some(({ definition }) => definition.name === name),
  }
}

/**
 * Returns the only tool names that the model may call; undefined: no restriction. With tool choice `none` the model may not search for
 * tools either, but it may call context tools.
 * @param own names of the server's own tools
 * @param searches those of them that search for deferred tools
 */
function amongOf({ toolChoice }: Ask, own: readonly string[], searches: readonly string[]): readonly string[] | undefined {
  if (typeof toolChoice === 'object' && 'names' in toolChoice) return [...toolChoice.names, ...own]
  return toolChoice === 'none' && searches.length > 0 ? own.filter((name) => !searches.includes(name)) : undefined
}

/** Records a fold as an event of the thread, with its reason, and tells the client. Does nothing when `folded` is null. */
function record({ taken, emit }: AnsweringOptions, folded: Folded | null, reason: string): void {
  if (folded === null) return
  const what = { folded: folded.fragments.map(({ id }) => id), saves: folded.saves, reason }
  taken.thread.happened({ kind: 'policy', ...what })
  emit({ type: 'policy', ...what })
}

/** Folds the text that the request and the server's policies name, and saves the thread. Returns the field `cleared` of the answer. */
async function fold(options: AnsweringOptions, prepared: PreparedAnswer): Promise<Answer['cleared']> {
  const { ask, taken, engine, defaults, operatorTools, signal, save } = options
  const { acm, contract, helpers, scope, toolbox } = prepared
  const { thread } = taken
  // A fork records this event too. By its `hidden` keys the fork later recognises messages that the client removed and sends again.
  if (taken.edits.length + taken.hidden.length > 0)
    thread.happened({
      ...{ kind: 'client', folded: [], saves: 0, hidden: taken.hidden },
      reason: `the client changed messages: ${editsInWords(taken.edits) || 'those of the thread that it left'}`,
    })
  const { conversation } = thread
  const unknown = unknownResults(thread, operatorTools)
  const context = { engine, conversation, tools: toolbox.definitions, scope, pinned: new Set(ask.pinned), unknown }
  const overflow = ask.overflow ?? defaults.overflow
  const counts = ask.drops !== undefined || ask.clear !== undefined || acm === 'auto-policy' || overflow !== 'refuse'
  if (counts) await readyToCount(context)
  if (ask.drops !== undefined) record(options, drop(thread, context, ask.drops), 'the client drops messages')
  if (ask.clear?.thinking !== undefined) record(options, clearThinking(context, ask.clear.thinking), 'old reasoning is cleared')
  if (ask.clear?.toolUses !== undefined)
    record(options, await inTurns(clearToolUses(context, ask.clear.toolUses)), 'old tool results are cleared')
  if (acm === 'auto-policy') {
    const open = { ...context, pinned: new Set([...context.pinned, ...shownAgain(thread)]) }
    const [edit] = taken.edits
    const left = edit === undefined ? (taken.left?.place ?? null) : thread.placeOf(edit.message)
    const price = foldPrice(thread, contract, left, ask.expectedReuse)
    const folded = await inTurns(foldByPolicy(open, { ...defaults.policy, ...ask.policy }, price))
    record(options, folded, 'the context is past its threshold')
  }
  if (acm === 'u-fold' || acm === 'resum') {
    const onSpent = (entries: readonly LedgerEntry[]) => {
      accountAside(options, entries)
    }
    const looked = await foldByHelpers(acm, thread, { ...context, generation: helpers, onSpent }, signal)
    if (looked !== null && looked.reason !== '') record(options, looked.folded, looked.reason)
  }
  if (overflow !== 'refuse') record(options, await inTurns(foldToFit(context, overflow)), 'the context is full')
  const cleared = ask.clear === undefined ? null : clearedIn(context)
  await save()
  return cleared
}

/**
 * With `acm: memtool`, lets the model choose the tools for this request. The search results with their definitions make the conversation
 * longer, so this then folds until it fits again.
 */
async function findTools(options: AnsweringOptions, { managed, scope, toolbox }: PreparedAnswer): Promise<void> {
  const { ask, taken, engine, defaults, signal, save } = options
  const { thread } = taken
  if (managed === null || ask.toolChoice === 'none') return
  const from = thread.seen.length
  await managed.begin(signal)
  // Clients do not see these searches. They are recorded before the answer, because they stay in the thread even if the answer fails.
  thread.answered(from, null)
  const { conversation } = thread
  const overflow = ask.overflow ?? defaults.overflow
  if (overflow !== 'refuse' && conversation.messages.length > from) {
    const context = { engine, conversation, tools: toolbox.definitions, scope, pinned: new Set(ask.pinned) }
    await readyToCount(context)
    record(options, await inTurns(foldToFit(context, overflow)), 'the context is full')
  }
  await save()
}

/** Prepares the engine to count the conversation's tokens. Skips conversations that are far too long to fit. */
async function readyToCount(context: PolicyContext): Promise<void> {
  const { engine, conversation, tools, scope } = context
  if (isHopeless(context)) return
  await engine.prepare?.(noted(conversation.messages, tools), tools, conversation.edits(), scope?.variables)
}

/**
 * Returns the indexes of tool results that clients do not see: results of context tools and of searches for tools. Results of the
 * operator's tools are left out: clients do not see them either, but they are data, may be long, and may be cleared.
 */
function unknownResults({ conversation, seen }: Thread, operatorTools: OperatorTools | null): ReadonlySet<number> {
  const isOperators = (name: string) => (operatorTools?.catalogue.get(name) ?? null) !== null
  const isUnknown = ({ role, name = '' }: ChatMessage, at: number) =>
    role === 'tool' && seen[at] === 'nothing' && !isOperators(name)
  return new Set(conversation.messages.flatMap((message, at) => (isUnknown(message, at) ? [at] : [])))
}

type CompactedThread = NonNullable<Awaited<ReturnType<typeof compact>>>

/**
 * Compacts the conversation if the client asks for it. The summary's ledger entry stays in the thread's ledger even if the answer fails.
 */
async function compacting(options: AnsweringOptions, prepared: PreparedAnswer): Promise<CompactedThread | null> {
  const { ask, taken, engine, signal, emit, save } = options
  const { helpers, scope, toolbox, clientEdits } = prepared
  const { thread } = taken
  if (ask.compaction === undefined) return null
  const context = { engine, conversation: thread.conversation, tools: toolbox.definitions, scope }
  const parent = thread.parent === null ? {} : { parent: conversationId(thread.parent) }
  const request = { ...scope, ...parent, clientEdits, known: taken.known, signal }
  const done = await compact(thread, context, ask.compaction, helpers, request, (entries) => {
    accountAside(options, entries)
  })
  if (done === null) return null
  thread.runtime.warm = true
  thread.account([done.entry])
  record(options, done.folded, 'the conversation is compacted')
  emit({ type: 'compaction', ...done.compacted })
  await save()
  return done
}

/** Makes the answer of a client that wants to pause after a compaction: no text, and only the summary's tokens and times. */
function pausedAt(
  { ask, taken, engine, leftOut }: AnsweringOptions,
  { compacted, entry }: CompactedThread,
  cleared: Answer['cleared'],
): Omit<Answer, 'waited'> {
  const { id, model } = taken.thread
  const { cache, prefill, decode } = entry.milliseconds
  return {
    ...{ thread: id, model, message: { role: 'assistant', content: '' }, finish: 'stop', ledger: [entry], cleared, compacted },
    ...{ contextCalls: 0, lost: null, edits: null, tokens: [] },
    usage: { ...compacted.usage, reasoningTokens: 0 },
    timing: {
      firstToken: cache + prefill,
      total: cache + prefill + decode,
      prefillTokens: compacted.usage.promptTokens - compacted.usage.cachedTokens,
      generatedTokens: compacted.usage.completionTokens,
    },
    unread: [...unreadOf(ask, engine), ...leftOut],
  }
}

/** The result of a turn: its outcome, its events, its duration, and the message that the client may see. */
interface RanTurn {
  readonly outcome: TurnOutcome
  readonly events: TurnReport
  readonly message: ChatMessage
  readonly milliseconds: number
}

async function run(options: AnsweringOptions, prepared: PreparedAnswer): Promise<RanTurn> {
  const { ask, taken, engine, signal, emit, save } = options
  const { generation, scope, toolbox, callable, among, isSearch } = prepared
  const { thread } = taken
  const { conversation } = thread
  thread.refuseGone()
  thread.runtime.warm = true
  const from = conversation.messages.length
  const events = new TurnReport(toolbox, isSearch, emit)
  let step: Omit<ShownPrompt, 'contract'> = { messages: from, edits: [] }
  const turn = new Turn({
    ...{ engine, conversation, toolbox, generation, signal },
    ...definedFields({ beginning: ask.beginning, callable, costlyFolds: ask.costlyFolds }),
    ...definedFields({ promptLogprobs: ask.promptLogprobs }),
    request: {
      ...scope,
      ...{ clientEdits: prepared.clientEdits, known: taken.known },
      ...(ask.expectedReuse === 0 ? { last: true } : {}),
      ...(ask.session === undefined ? {} : { sessionHeaders: ask.session.headers }),
      ...(thread.parent === null ? {} : { parent: conversationId(thread.parent) }),
    },
    client: { single: ask.parallelCalls === false, isAlone: isSearch, ...definedFields({ among, callId: ask.callId }) },
    firstStep: firstStepOf(ask, prepared.acm),
    maxCalls: MAX_CALLS,
    hints: false,
    keepsCancelled: ask.streamed === true || ask.beginning !== undefined,
    onEvent: (event) => {
      if (event.type === 'step') step = { messages: conversation.messages.length, edits: conversation.edits() }
      if (event.type === 'ledger') {
        thread.account([event.entry])
        if (event.entry.kind === 'answer')
          thread.shown.note({ ...step, contract: event.entry.contract }, event.entry.approximate === 0)
      }
      events.on(event)
    },
    betweenSteps: async () => {
      thread.answered(from, null, { isSearch })
      await save()
      thread.refuseGone()
    },
  })
  let outcome: TurnOutcome
  const begun = performance.now()
  try {
    outcome = await turn.run()
  } catch (error) {
    // Calls that were carried out stay in the thread with their results, so that the next request can continue from them.
    thread.answered(from, null, { isSearch })
    throw error
  }
  const last = conversation.messages[outcome.steps.at(-1)!.message]
  // A cancelled turn has an answer only if its last message is marked `cut`.
  const kept = outcome.end === 'cancelled' && last?.cut !== true ? undefined : last
  const message: ChatMessage = { ...events.message(outcome), ...(kept?.cut === true ? { cut: true } : {}) }
  const known = { ...message, content: (ask.beginning ?? '') + message.content }
  thread.answered(from, kept === undefined ? null : known, { held: outcome.held, isSearch })
  return { outcome, events, message, milliseconds: performance.now() - begun }
}

/** Returns how many tokens the request's drops hide. If the client asked for it, also closes the gaps in positions that the drops left. */
async function droppedBy(
  { ask, taken, engine }: AnsweringOptions,
  { scope, toolbox }: PreparedAnswer,
  { outcome }: RanTurn,
): Promise<Dropped | undefined> {
  if (ask.drops === undefined) return undefined
  const { conversation } = taken.thread
  const skippedTokens = skippedIn({ engine, conversation, tools: toolbox.definitions, scope })
  const turned = outcome.ledger.reduce((sum, entry) => sum + (entry.turned ?? 0), 0)
  const moved = ask.drops.repositions ? await reposition(taken.thread, engine, outcome.ledger.at(-1)) : 0
  return { skippedTokens, repositionedTokens: turned + moved }
}

function report(
  { ask, taken, engine, leftOut }: AnsweringOptions,
  { generation: { sampling }, clientEdits, scope }: PreparedAnswer,
  { outcome, events, message, milliseconds }: RanTurn,
  cleared: Answer['cleared'],
): Omit<Answer, 'waited'> {
  const { thread } = taken
  const { end, ledger, steps, stop, calls } = outcome
  return {
    ...{ thread: thread.id, model: thread.model, message, finish: end, ledger, cleared, contextCalls: calls },
    tokens: events.tokens,
    usage: { ...events.usage(outcome), ...definedFields({ saved: savedBy(outcome, engine) }) },
    lost: lossOf(taken, scope.variables ?? {}, outcome.steps[0]?.ledger),
    edits: editsOf(taken, clientEdits, outcome),
    timing: {
      firstToken: steps[0]?.timing.firstToken ?? 0,
      total: milliseconds,
      prefillTokens: sum(outcome, ({ prefillTokens }) => prefillTokens),
      generatedTokens: sum(outcome, ({ generatedTokens }) => generatedTokens),
    },
    ...definedFields({
      searched: events.searched.length === 0 ? undefined : events.searched,
      bareCalls: events.bareCalls.length === 0 ? undefined : events.bareCalls,
      stop: end === 'stop' ? stop : undefined,
      logprobs: ask.logprobs === undefined ? undefined : events.logprobs,
      textLogprobs: ask.logprobs === undefined ? undefined : events.textLogprobs,
      promptTokens: outcome.promptTokens,
      promptLogprobs: outcome.promptLogprobs,
      sampling,
    }),
    unread: [...unreadOf(ask, engine), ...leftOut],
  }
}

/**
 * Returns the request's template fields that have no effect: the chat template reads none of their variables. A reasoning budget counts as
 * read when the engine enforces it.
 */
function unreadOf({ template = [], reasoningBudget }: Ask, engine: ServedEngine): readonly string[] {
  const isRead = (field: string) =>
    (field === reasoningBudget?.field && engine.boundsReasoning === true) ||
    template.some((each) => each.field === field && each.names.some((name) => engine.reads?.(name) ?? false))
  return [...new Set(template.map(({ field }) => field))].filter((field) => !isRead(field))
}

/** Returns the tool names that a tool choice gives; empty for `auto`, `none` and `required`. */
const namesIn = (choice: Ask['toolChoice']): readonly string[] =>
  typeof choice !== 'object' ? [] : 'names' in choice ? choice.names : [choice.name]

/** Returns the names of the tools that a forced call may use; undefined when no call is forced. The six context tools do not count. */
function callableOf({ toolChoice, tools }: Ask, more: readonly ToolDefinition[]): readonly string[] | undefined {
  if (typeof toolChoice === 'object') return namesIn(toolChoice)
  return toolChoice === 'required' ? [...tools, ...more].map(({ name }) => name) : undefined
}

function firstStepOf({ toolChoice }: Ask, acm: Acm): ToolChoice {
  if (typeof toolChoice === 'object') return 'names' in toolChoice ? toolChoice.mode : 'required'
  return toolChoice === 'none' && acm === 'tools' ? 'auto' : toolChoice
}

/**
 * Returns the tokens and seconds saved against a plain prefix cache; undefined if no ledger entry compares with one. The seconds assume the
 * engine's mean prefill speed so far.
 */
function savedBy({ steps, ledger }: TurnOutcome, engine: ServedEngine): Saved | undefined {
  const told = ledger.filter(({ plain }) => plain !== undefined)
  if (told.length === 0) return undefined
  const pace = paces.get(engine) ?? { milliseconds: 0, tokens: 0 }
  paces.set(engine, pace)
  for (const step of steps) {
    pace.milliseconds += step.ledger.milliseconds.prefill
    pace.tokens += step.timing.prefillTokens
  }
  const tokens = told.reduce((sum, { plain = 0, submitted }) => sum + plain - submitted, 0)
  return { tokens, seconds: pace.tokens === 0 ? 0 : (tokens * pace.milliseconds) / pace.tokens / 1000 }
}

function editsOf({ edits: changes }: TakenThread, asked: ContractChoice, { steps }: TurnOutcome): RecognisedEdits | null {
  const approximate = Math.max(0, ...steps.map(({ ledger }) => ledger.approximate))
  const contract = steps.at(-1)?.ledger.contract ?? asked
  if (changes.length === 0 && approximate === 0) return null
  return { contract: changes.length === 0 ? contract : asked, changes, approximate }
}

// Several answers to one request (`n` of the OpenAI dialects).

const withoutPromptLogprobs = ({ promptLogprobs: _, ...ask }: Ask): Ask => ask

/**
 * Starts `n` answers to one request, as `sharingPrompt` has it.
 * @param view the messages that clients knew of the thread before the first answer; null unless the request appends to a thread. The other
 * answers send these messages in full, because the thread itself already has the first answer
 */
export function several(
  ask: Ask,
  n: number,
  view: Promise<readonly ChatMessage[] | null>,
  begin: (ask: Ask, emit: (event: AskEvent) => void) => Promise<Answer>,
): readonly Asked[] {
  const { sampling } = ask
  const nth = (index: number): Ask => ({
    // Only the first answer returns the prompt's logprobs.
    ...(index === 0 ? ask : { ...withoutPromptLogprobs(ask), follows: true }),
    ...definedFields({ sampling: sampling === undefined ? undefined : nthSampling(sampling, index) }),
  })
  const whole = async (index: number): Promise<Ask> => {
    const known = await view
    return known === null ? nth(index) : { ...nth(index), appended: false, messages: [...known, ...ask.messages] }
  }
  // If the thread is missing, the request itself fails with that error.
  const first = async (): Promise<Ask> => {
    await view.catch(() => undefined)
    return nth(0)
  }
  return sharingPrompt(
    Array.from({ length: n }, (_, index) => () => (index === 0 ? first() : whole(index))),
    begin,
  )
}

/**
 * Starts one answer for each of these requests with the same prompt. The first computes the prompt; the others wait for its first token and
 * then reuse the prompt's cells.
 */
export function sharingPrompt<A, R>(
  asks: readonly (() => Promise<A>)[],
  begin: (ask: A, emit: (event: AskEvent) => void) => Promise<R>,
): readonly Feed<AskEvent, R>[] {
  let computed = (): void => undefined
  const prompt = new Promise<void>((resolve) => (computed = resolve))
  const first = (ask: () => Promise<A>) =>
    new Feed<AskEvent, R>(async (emit) => {
      try {
        return await begin(await ask(), (event) => {
          if (event.type === 'tokens') computed()
          emit(event)
        })
      } finally {
        computed()
      }
    })
  const other = (ask: () => Promise<A>) =>
    new Feed<AskEvent, R>(async (emit) => {
      const own = await ask()
      await prompt
      return begin(own, emit)
    })
  return asks.map((ask, index) => (index === 0 ? first(ask) : other(ask)))
}
