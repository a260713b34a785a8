/** Computes one answer: runs a turn of a thread from the request's messages to the client's answer. */
import { MAX_CALLS } from '../../agents/session.js'
import type { MemToolMode } from '../../agents/memtool-asides.js'
import { type LoadedTools, Toolbox } from '../../agents/toolbox.js'
import { Turn, type TurnOutcome } from '../../agents/tool-loop.js'
import type { ShownPrompt } from '../../attention/answer-mass.js'
import { anyObject } from '../../chat/grammar.js'
import { grammarOfSchema, leftOutByCalls } from '../../chat/made-grammars.js'
import type { ChatMessage, ToolCall, ToolChoice, ToolDefinition } from '../../chat/message.js'
import { contextTools } from '../../context/tools.js'
import type { ContractChoice } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import { Feed } from '../../core/feed.js'
import { conversationId } from '../../core/ids.js'
import type { EngineRequest } from '../../engine/engine.js'
import {
  type Answer,
  type AnswerFormat,
  type Ask,
  type Asked,
  type AskEvent,
  type Lost,
  type RecognisedEdits,
  type Saved,
  variablesOf,
} from '../ask.js'
import { editsInWords, type TakenThread } from './client-edits.js'
import { clearedIn, clearToolUses } from './context-edits.js'
import { foundIn, ManagedThread, type OperatorTools, searchTools } from './server-tools.js'
import { samplingFor, type ServedEngine } from './models.js'
import {
  type Acm,
  foldByHelpers,
  foldByPolicy,
  type Folded,
  type FoldPolicy,
  foldPrice,
  foldToFit,
  type Overflow,
  shownAgain,
} from './policies.js'
import { sum, TurnReport } from './turn-report.js'
import { SILENT, AskEngine } from './ask-engine.js'

/** For each engine, the time and tokens of its prefills so far. */
const paces = new WeakMap<ServedEngine, { milliseconds: number; tokens: number }>()

/** Settings for asks that leave them out. */
export interface AskDefaults {
  readonly acm: Acm
  readonly policy: FoldPolicy
  readonly memToolMode: MemToolMode
  readonly overflow: Overflow
  /** Default `exact`. */
  readonly clientEdits: ContractChoice
  /** By tenant; overrides `clientEdits`. */
  readonly clientEditsOf?: ReadonlyMap<string, ContractChoice>
}

export interface AnsweringOptions {
  readonly ask: Ask
  readonly taken: TakenThread
  readonly engine: ServedEngine
  readonly defaults: AskDefaults
  readonly operatorTools: OperatorTools | null
  readonly signal: AbortSignal
  readonly emit: (event: AskEvent) => void
  /** The result of `checkAsk`. */
  readonly leftOut: readonly string[]
  /** Saves the thread's changes. */
  readonly save: () => Promise<void>
}

/**
 * Checks the ask before anything is taken or changed. Returns the places in schemas that the answer cannot be held to (`leftOut`).
 * @throws KvfoldError engine/bad-request when the ask contradicts itself
 */
export async function checkAsk(ask: Ask): Promise<readonly string[]> {
  const { acm, format, toolChoice, tools: shown, deferred, messages, beginning } = ask
  const tools = [...shown, ...(deferred?.tools ?? [])]
  const left = await leftOut(format, tools)
  const bad = (message: string) => new KvfoldError('engine/bad-request', message)
  if (messages.length === 0) throw bad('There are no messages; give at least one.')
  const forced = typeof toolChoice === 'object' || toolChoice === 'required'
  if (forced && format !== undefined) throw bad('An answer in a format cannot be a tool call too; leave out one of them.')
  if (beginning !== undefined && (forced || format !== undefined))
    throw bad(
      `The last message is the beginning of the answer, which cannot be ${forced ? 'a forced tool call' : 'in a format'}; leave out one of them.`,
    )
  if (forced && tools.length === 0) throw bad('A tool call is required and there are no tools.')
  if (typeof toolChoice === 'object' && acm === 'memtool')
    throw bad('With acm: memtool a call of one tool cannot be forced: the model has the tools that it found. Ask with acm: off.')
  if (typeof toolChoice === 'object' && !tools.some(({ name }) => name === toolChoice.name))
    throw bad(`The tool ${JSON.stringify(toolChoice.name)} is required and not among the tools.`)
  return left
}

/**
 * Runs the turn on a thread that has the ask's messages and that no other ask uses. Afterwards the thread has the answer and the results
 * of all calls that the server carried out. It keeps a cancelled answer only if that has text and was streamed or began with the client's
 * text.
 * @throws KvfoldError what the engine throws; context/full by the overflow policy
 */
export async function answer(options: AnsweringOptions): Promise<Omit<Answer, 'waited'>> {
  const { ask, taken, engine, defaults, operatorTools, signal, emit, save } = options
  const { thread } = taken
  const { conversation } = thread
  const acm = ask.acm ?? defaults.acm
  const isAllowed = ask.toolChoice !== 'none' && ask.format === undefined
  const contract = ask.contract ?? thread.contract
  const { deferred: asked } = ask
  const sampling = samplingFor(engine, ask)
  const variables = variablesOf(ask.template)
  thread.runtime.variables = variables
  const generation = { ...(sampling === undefined ? {} : { sampling }), ...(contract === null ? {} : { contract }) }
  const managed =
    acm !== 'memtool' || !isAllowed
      ? null
      : await ManagedThread.of(thread, {
          ...{ engine: new AskEngine(engine, { ...SILENT, tenant: ask.tenant, variables: () => variables }), generation },
          mode: ask.memToolMode ?? defaults.memToolMode,
          tools: [...thread.tools, ...(asked?.tools ?? [])],
          operatorTools,
          restores: contract === 'splice' || contract === 'blend',
        })
  const deferred = managed === null ? asked : undefined
  const searches = deferred === undefined || !isAllowed ? [] : searchTools(deferred)
  const isSearch = ({ name }: Pick<ToolCall, 'name'>) => searches.some(({ definition }) => definition.name === name)
  const own = [...(acm === 'tools' ? contextTools : []), ...searches, ...(managed?.own ?? [])]
  const external = {
    definitions: managed === null ? thread.tools : [],
    allowed: isAllowed,
    get unlisted() {
      return managed?.loaded ?? (deferred === undefined ? [] : foundIn(conversation.messages, deferred))
    },
  }
  const toolbox = new Toolbox(own, [], external, managed === null ? null : carriedOutBy(managed))
  const askEngine = new AskEngine(engine, {
    tenant: ask.tenant,
    variables: () => variables,
    isExternal: (call) => toolbox.isExternal(call),
    single: ask.parallelCalls === false,
    isAlone: isSearch,
    ...callableOf(ask, [...[...searches, ...(managed?.own ?? [])].map(({ definition }) => definition), ...toolbox.unlisted]),
  })
  thread.runtime.own = own.map(({ definition }) => definition)
  thread.runtime.isCatalogue = managed !== null
  const recordFold = (folded: Folded | null, reason: string) => {
    if (folded === null) return
    const what = { folded: folded.fragments.map(({ id }) => id), saves: folded.saves, reason }
    thread.happened({ kind: 'policy', ...what })
    emit({ type: 'policy', ...what })
  }
  // Recorded also in a fork, so that it recognises messages that the client had removed.
  if (taken.edits.length + taken.hidden.length > 0)
    thread.happened({
      ...{ kind: 'client', folded: [], saves: 0, hidden: taken.hidden },
      reason: `the client changed messages: ${editsInWords(taken.edits) || 'those of the thread that it left'}`,
    })
  if (managed !== null) thread.account(await managed.begin(signal))
  const context = { engine: askEngine, conversation, tools: toolbox.definitions, pinned: new Set(ask.pinned) }
  if (ask.clear !== undefined) recordFold(clearToolUses(context, ask.clear), 'old tool results are cleared')
  if (acm === 'auto-policy') {
    const open = { ...context, pinned: new Set([...context.pinned, ...shownAgain(thread)]) }
    const [edit] = taken.edits
    const left = edit === undefined ? (taken.left?.place ?? null) : thread.placeOf(edit.message)
    const price = foldPrice(thread, contract, left, ask.expectedReuse)
    recordFold(foldByPolicy(open, { ...defaults.policy, ...ask.policy }, price), 'the context is past its threshold')
  }
  if (acm === 'u-fold' || acm === 'resum') {
    const looked = await foldByHelpers(acm, thread, { ...context, generation }, signal)
    if (looked !== null) {
      thread.account(looked.ledger)
      if (looked.reason !== '') recordFold(looked.folded, looked.reason)
    }
  }
  const overflow = ask.overflow ?? defaults.overflow
  if (overflow !== 'refuse') recordFold(foldToFit(context, overflow), 'the context is full')
  const cleared = ask.clear === undefined ? null : clearedIn(context)
  await save()

  thread.runtime.warm = true
  const from = conversation.messages.length
  const report = new TurnReport(toolbox, isSearch, emit)
  let step: Omit<ShownPrompt, 'contract'> = { messages: from, edits: [] }
  const wanted = ask.clientEdits ?? defaults.clientEditsOf?.get(ask.tenant) ?? defaults.clientEdits
  const clientEdits = taken.isOwn ? wanted : 'exact'
  const turn = new Turn({
    engine: askEngine,
    conversation,
    toolbox,
    firstStep: firstStepOf(ask, acm),
    ...(ask.beginning === undefined ? {} : { beginning: ask.beginning }),
    maxCalls: MAX_CALLS,
    hints: false,
    keepsCancelled: ask.streamed === true || ask.beginning !== undefined,
    generation: {
      ...(sampling === undefined ? {} : { sampling }),
      ...(ask.maxTokens === undefined ? {} : { maxTokens: ask.maxTokens }),
      ...(ask.stop === undefined ? {} : { stop: ask.stop }),
      ...(ask.reasoningBudget === undefined ? {} : { reasoningBudget: ask.reasoningBudget.tokens }),
      ...(ask.logprobs === undefined ? {} : { logprobs: ask.logprobs }),
      ...(ask.expectedReuse === 0 ? { last: true } : {}),
      ...(contract === null ? {} : { contract }),
      clientEdits,
      known: taken.known,
      ...(thread.parent === null ? {} : { parent: conversationId(thread.parent) }),
      ...formIn(ask.format),
    },
    signal,
    onEvent: (event) => {
      if (event.type === 'step') step = { messages: conversation.messages.length, edits: conversation.edits() }
      if (event.type === 'ledger') {
        thread.account([event.entry])
        if (event.entry.kind === 'answer')
          thread.shown.note({ ...step, contract: event.entry.contract }, event.entry.approximate === 0)
      }
      report.on(event)
    },
    betweenSteps: async () => {
      thread.answered(from, null, { isSearch })
      await save()
    },
  })
  let outcome: TurnOutcome
  const begun = performance.now()
  thread.runtime.costlyFolds = ask.costlyFolds ?? null
  try {
    outcome = await turn.run()
  } catch (error) {
    // Results of calls stay, so that the thread can continue from them.
    thread.answered(from, null, { isSearch })
    throw error
  } finally {
    thread.runtime.costlyFolds = null
  }
  const kept = conversation.messages[outcome.steps.at(-1)!.message]
  const message: ChatMessage = { ...report.message(outcome), ...(kept?.cut === true ? { cut: true } : {}) }
  const known = { ...message, content: (ask.beginning ?? '') + message.content }
  const isKept = outcome.end !== 'cancelled' || kept?.cut === true
  thread.answered(from, isKept ? known : null, { held: outcome.held, isSearch })
  const [first] = outcome.steps
  const saved = savedBy(outcome, engine)
  return {
    ...(report.searched.length === 0 ? {} : { searched: report.searched }),
    thread: thread.id,
    model: thread.model,
    message,
    finish: outcome.end,
    ...(askEngine.stop === null || outcome.end !== 'stop' ? {} : { stop: askEngine.stop }),
    usage: { ...report.usage(outcome), ...(saved === null ? {} : { saved }) },
    ledger: outcome.ledger,
    cleared,
    lost: lostOf(taken, outcome),
    edits: editsOf(taken, clientEdits, outcome),
    timing: {
      firstToken: first?.timing.firstToken ?? 0,
      total: performance.now() - begun,
      prefillTokens: sum(outcome, ({ prefillTokens }) => prefillTokens),
      generatedTokens: sum(outcome, ({ generatedTokens }) => generatedTokens),
    },
    ...(ask.logprobs === undefined ? {} : { logprobs: report.logprobs }),
    contextCalls: outcome.calls,
    ...(sampling === undefined ? {} : { sampling }),
    unread: [...unreadOf(ask, engine), ...options.leftOut],
  }
}

/**
 * Returns the fields that have no effect: the template reads none of their variables. A reasoning budget that the engine enforces counts
 * as read.
 */
function unreadOf({ template = [], reasoningBudget }: Ask, engine: ServedEngine): readonly string[] {
  const isRead = (field: string) =>
    (field === reasoningBudget?.field && engine.boundsReasoning === true) ||
    template.some((each) => each.field === field && each.names.some((name) => engine.reads?.(name) ?? false))
  return [...new Set(template.map(({ field }) => field))].filter((field) => !isRead(field))
}

/** A forced call must be of the client's tools, even if the server has tools of its own. */
function callableOf({ toolChoice, tools }: Ask, more: readonly ToolDefinition[]): { readonly callable?: readonly string[] } {
  if (typeof toolChoice === 'object') return { callable: [toolChoice.name] }
  return toolChoice === 'required' ? { callable: [...tools, ...more].map(({ name }) => name) } : {}
}

/** Calls of tools that are not loaded get a refusal. Of loaded tools, the client calls its own and the server the rest. */
const carriedOutBy = (managed: ManagedThread): LoadedTools => ({
  rendered: [],
  get unlisted() {
    return managed.carriedOut
  },
  refusal: (name) => managed.refusal(name),
  execute: (call, signal) => managed.execute(call, signal),
})

function firstStepOf({ toolChoice, format }: Ask, acm: Acm): ToolChoice {
  if (format !== undefined) return 'none'
  if (typeof toolChoice === 'object') return 'required'
  return toolChoice === 'none' && acm === 'tools' ? 'auto' : toolChoice
}

/** Returns the savings against a plain prefix cache by the ledger; null where the ledger does not have them. */
function savedBy({ steps, ledger }: TurnOutcome, engine: ServedEngine): Saved | null {
  const told = ledger.filter(({ plain }) => plain !== undefined)
  if (told.length === 0) return null
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

function lostOf({ left }: TakenThread, { steps }: TurnOutcome): Lost | null {
  if (left === null) return null
  const messages = steps[0]?.ledger.messages ?? []
  const before = messages.filter(({ index }) => index < left.place)
  const token = messages.length === 0 ? null : before.reduce((total, { shown }) => total + shown, 0)
  return { message: left.message, token, reason: left.reason }
}

// Translates the form that an answer must have into fields of the engine's request.

/**
 * Returns the places, in a loose format and in tools that are not strict, that answers and calls are not held to.
 * @throws KvfoldError engine/bad-grammar for a required part of a schema that cannot be enforced
 */
export async function leftOut(format: AnswerFormat | undefined, tools: readonly ToolDefinition[]): Promise<readonly string[]> {
  const form = format?.kind === 'schema' ? await grammarOfSchema(format.schema, format.loose === true) : { leftOut: [] }
  const calls = tools.length === 0 ? [] : await leftOutByCalls(tools)
  const all = [...form.leftOut.map((place) => `format: ${place}`), ...calls]
  const told = all.slice(0, MOST_TOLD)
  return told.length === all.length ? told : [...told, `and ${all.length - told.length} more places in schemas`]
}

/** The most places that a response names. */
const MOST_TOLD = 50

export function formIn(format: AnswerFormat | undefined): Pick<EngineRequest, 'grammar' | 'schema' | 'loose'> {
  switch (format?.kind) {
    case undefined:
      return {}
    case 'json':
      return { grammar: anyObject }
    case 'grammar':
      return { grammar: format.grammar }
    case 'schema':
      return { schema: format.schema, ...(format.loose === true ? { loose: true } : {}) }
  }
}

// Several answers to one ask.

/** Seeds of samplers are below this number, which itself means a random seed. */
const SEEDS = 2 ** 32 - 1

/**
 * Returns `n` asks. The first computes the prompt; the others begin when it is computed.
 * @param view the messages that clients now know of the thread to append to, so that the others do not see the first answer; null when
 * the ask does not append
 */
export function several(
  ask: Ask,
  n: number,
  view: Promise<readonly ChatMessage[] | null>,
  begin: (ask: Ask, emit: (event: AskEvent) => void) => Promise<Answer>,
): readonly Asked[] {
  const { sampling } = ask
  const nth = (index: number): Ask =>
    sampling?.seed === undefined ? ask : { ...ask, sampling: { ...sampling, seed: (sampling.seed + index) % SEEDS } }
  const whole = async (index: number): Promise<Ask> => {
    const known = await view
    return known === null ? nth(index) : { ...nth(index), appended: false, messages: [...known, ...ask.messages] }
  }
  let computed = (): void => undefined
  const prompt = new Promise<void>((resolve) => (computed = resolve))
  const first = new Feed<AskEvent, Answer>(async (emit) => {
    // If the thread does not exist, the ask itself reports it.
    await view.catch(() => undefined)
    return begin(nth(0), (event) => {
      if (event.type === 'tokens') computed()
      emit(event)
    }).finally(computed)
  })
  const others = Array.from(
    { length: n - 1 },
    (_, index) =>
      new Feed<AskEvent, Answer>(async (emit) => {
        const other = await whole(index + 1)
        await prompt
        return begin(other, emit)
      }),
  )
  return [first, ...others]
}
