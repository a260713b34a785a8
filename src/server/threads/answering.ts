/** Owns one answer: the turn of a thread from the request's messages to what the client gets. */
import type { AgentEvent, TurnOutcome } from '../../agents/events.js'
import { MAX_CALLS } from '../../agents/session.js'
import { Toolbox } from '../../agents/toolbox.js'
import { Turn } from '../../agents/turn.js'
import type { ShownPrompt } from '../../attention/answer-mass.js'
import { anyObject, jsonSchemaGrammar, refuseBadTools } from '../../chat/grammar.js'
import type { ChatMessage, ToolChoice } from '../../chat/message.js'
import { contextTools } from '../../context/tools.js'
import type { ContractChoice } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import { conversationId } from '../../core/ids.js'
import type { EngineEvent, TokenLogprob } from '../../engine/engine.js'
import type { Answer, AnswerFormat, Ask, AskEvent, Lost, Saved } from '../ask.js'
import { editsInWords } from './client-edits.js'
import { clearedIn, clearToolUses } from './context-edits.js'
import { foldByHelpers } from './helper-folds.js'
import type { ServedEngine } from './models.js'
import {
  type Acm,
  foldByPolicy,
  type Folded,
  type FoldPolicy,
  foldPrice,
  foldToFit,
  type Overflow,
  shownAgain,
} from './policies.js'
import type { Taken } from './thread-manager.js'
import { Voice } from './voice.js'

/** What prompts took on each engine so far. */
const paces = new WeakMap<ServedEngine, { milliseconds: number; tokens: number }>()

/** What asks do that do not say. */
export interface AskDefaults {
  readonly acm: Acm
  readonly policy: FoldPolicy
  readonly overflow: Overflow
  /** Default `exact`. */
  readonly clientEdits: ContractChoice
}

export interface AnsweringOptions {
  readonly ask: Ask
  readonly taken: Taken
  readonly engine: ServedEngine
  readonly defaults: AskDefaults
  readonly signal: AbortSignal
  readonly emit: (event: AskEvent) => void
  /** Makes what is new in the thread last. */
  readonly save: () => Promise<void>
}

/** Before anything is taken or changed. @throws KvfoldError engine/bad-request when the ask contradicts itself */
export function checkAsk({ format, toolChoice, tools, messages }: Ask): void {
  if (format?.kind === 'schema') jsonSchemaGrammar(format.schema)
  refuseBadTools(tools)
  const bad = (message: string) => new KvfoldError('engine/bad-request', message)
  if (messages.length === 0) throw bad('There are no messages; give at least one.')
  const forced = typeof toolChoice === 'object' || toolChoice === 'required'
  if (forced && format !== undefined) throw bad('An answer in a format cannot be a tool call too; leave out one of them.')
  if (forced && tools.length === 0) throw bad('A tool call is required and there are no tools.')
  if (typeof toolChoice === 'object' && !tools.some(({ name }) => name === toolChoice.name))
    throw bad(`The tool ${JSON.stringify(toolChoice.name)} is required and not among the tools.`)
}

/**
 * Runs the turn. The thread has the ask's messages and is its alone; afterwards it has what was carried out, and the answer unless that was
 * cancelled. @throws KvfoldError what the engine throws; context/full by the overflow policy
 */
export async function answer(options: AnsweringOptions): Promise<Omit<Answer, 'waited'>> {
  const { ask, taken, engine, defaults, signal, emit, save } = options
  const { thread } = taken
  const { conversation } = thread
  const acm = ask.acm ?? defaults.acm
  const isAllowed = ask.toolChoice !== 'none' && ask.format === undefined
  const own = acm === 'tools' ? contextTools : []
  const toolbox = new Toolbox(own, [], { definitions: ask.tools, allowed: isAllowed })
  const voice = new Voice(engine, {
    tenant: ask.tenant,
    isExternal: (call) => toolbox.isExternal(call),
    single: ask.parallelCalls === false,
    ...callableOf(ask),
  })
  thread.kept.own = own.map(({ definition }) => definition)
  const told = (folded: Folded | null, reason: string) => {
    if (folded === null) return
    const what = { folded: folded.fragments.map(({ id }) => id), saves: folded.saves, reason }
    thread.happened({ kind: 'policy', ...what })
    emit({ type: 'policy', ...what })
  }
  if (taken.edits.length > 0)
    thread.happened({
      ...{ kind: 'client', folded: [], saves: 0, hidden: taken.hidden },
      reason: `the client changed messages: ${editsInWords(taken.edits)}`,
    })
  const contract = ask.contract ?? thread.contract
  const context = { engine, conversation, tools: toolbox.definitions, pinned: new Set(ask.pinned) }
  if (ask.clear !== undefined) told(clearToolUses(context, ask.clear), 'old tool results are cleared')
  if (acm === 'auto-policy') {
    const open = { ...context, pinned: new Set([...context.pinned, ...shownAgain(thread)]) }
    const [edit] = taken.edits
    const price = foldPrice(thread, contract, edit === undefined ? (taken.left?.place ?? null) : thread.placeOf(edit.message))
    told(foldByPolicy(open, { ...defaults.policy, ...ask.policy }, price), 'the context is past its threshold')
  }
  if (acm === 'u-fold' || acm === 'resum') {
    const { sampling } = ask
    const generation = { ...(sampling === undefined ? {} : { sampling }), ...(contract === null ? {} : { contract }) }
    const looked = await foldByHelpers(acm, thread, { ...context, engine: voice, generation }, signal)
    if (looked !== null) {
      thread.account(looked.ledger)
      if (looked.reason !== '') told(looked.folded, looked.reason)
    }
  }
  const overflow = ask.overflow ?? defaults.overflow
  if (overflow !== 'refuse') told(foldToFit(context, overflow), 'the context is full')
  const cleared = ask.clear === undefined ? null : clearedIn(context)
  await save()

  thread.kept.warm = true
  const from = conversation.messages.length
  const report = new Report(toolbox, emit)
  let step: Omit<ShownPrompt, 'contract'> = { messages: from, edits: [] }
  const clientEdits = ask.clientEdits ?? defaults.clientEdits
  const turn = new Turn({
    engine: voice,
    conversation,
    toolbox,
    firstStep: firstStepOf(ask, acm),
    maxCalls: MAX_CALLS,
    hints: false,
    keepsCancelled: false,
    generation: {
      ...(ask.sampling === undefined ? {} : { sampling: ask.sampling }),
      ...(ask.maxTokens === undefined ? {} : { maxTokens: ask.maxTokens }),
      ...(ask.stop === undefined ? {} : { stop: ask.stop }),
      ...(ask.logprobs === undefined ? {} : { logprobs: ask.logprobs }),
      ...(contract === null ? {} : { contract }),
      clientEdits,
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
      thread.answered(from, null)
      await save()
    },
  })
  let outcome: TurnOutcome
  const begun = performance.now()
  thread.kept.costlyFolds = ask.costlyFolds ?? null
  try {
    outcome = await turn.run()
  } catch (error) {
    // What was carried out stays, and the thread can go on from it.
    thread.answered(from, null)
    throw error
  } finally {
    thread.kept.costlyFolds = null
  }
  const message = report.message(outcome)
  thread.answered(from, outcome.end === 'cancelled' ? null : message, outcome.held)
  const [first] = outcome.steps
  const saved = savedBy(outcome, engine)
  return {
    thread: thread.id,
    model: thread.model,
    message,
    finish: outcome.end,
    ...(voice.stop === null || outcome.end !== 'stop' ? {} : { stop: voice.stop }),
    usage: { ...report.usage(outcome), ...(saved === null ? {} : { saved }) },
    ledger: outcome.ledger,
    cleared,
    lost: lostOf(taken, outcome),
    edits:
      taken.edits.length === 0
        ? null
        : { contract: clientEdits, changes: taken.edits, approximate: outcome.steps.at(-1)?.ledger.approximate ?? 0 },
    timing: {
      firstToken: first?.timing.firstToken ?? 0,
      total: performance.now() - begun,
      prefillTokens: sum(outcome, ({ prefillTokens }) => prefillTokens),
      generatedTokens: sum(outcome, ({ generatedTokens }) => generatedTokens),
    },
    ...(ask.logprobs === undefined ? {} : { logprobs: report.logprobs }),
    contextCalls: outcome.calls,
  }
}

const sum = ({ steps }: TurnOutcome, of: (timing: TurnOutcome['steps'][number]['timing']) => number): number =>
  steps.reduce((total, { timing }) => total + of(timing), 0)

/** A forced call is one of the client's, whatever tools of ours there are. */
function callableOf({ toolChoice, tools }: Ask): { readonly callable?: readonly string[] } {
  if (typeof toolChoice === 'object') return { callable: [toolChoice.name] }
  return toolChoice === 'required' ? { callable: tools.map(({ name }) => name) } : {}
}

function firstStepOf({ toolChoice, format }: Ask, acm: Acm): ToolChoice {
  if (format !== undefined) return 'none'
  if (typeof toolChoice === 'object') return 'required'
  return toolChoice === 'none' && acm === 'tools' ? 'auto' : toolChoice
}

/** Against a plain prefix cache, by what the ledger says; null where it does not. */
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

function lostOf({ left }: Taken, { steps }: TurnOutcome): Lost | null {
  if (left === null) return null
  const messages = steps[0]?.ledger.messages ?? []
  const before = messages.filter(({ index }) => index < left.place)
  const token = messages.length === 0 ? null : before.reduce((total, { shown }) => total + shown, 0)
  return { message: left.message, token, reason: left.reason }
}

/** What the client hears of the turn, and what is counted on the way. */
class Report {
  logprobs: TokenLogprob[] = []
  #step = 0
  /** Text of the steps so far, and whether the present one has said something. */
  #text = ''
  #reasoning = ''
  #spoke = false
  #mayCall = true
  /** Of the first step's plan, and the last one's. */
  #reused: number | null = null
  #prompt = 0
  /** Tokens that are not known to be anything yet, and those of the last step that were reasoning. */
  #unknown = 0
  #reasoned = 0

  constructor(
    private readonly toolbox: Toolbox,
    private readonly emit: (event: AskEvent) => void,
  ) {}

  on(event: AgentEvent): void {
    switch (event.type) {
      case 'step':
        this.#step = event.step
        this.#mayCall = event.toolChoice !== 'none'
        this.#spoke = false
        this.#reasoned = 0
        this.logprobs = []
        return
      case 'engine':
        this.#engine(event.event)
        return
      case 'result':
        this.emit({ type: 'acm', step: this.#step, call: event.call, result: event.text, failed: event.failed })
        return
      case 'ledger':
      case 'call':
    }
  }

  /** The text of all steps, and the calls that are the client's. */
  message({ external }: TurnOutcome): ChatMessage {
    return {
      role: 'assistant',
      content: this.#text,
      ...(this.#reasoning === '' ? {} : { reasoning: this.#reasoning }),
      ...(external.length === 0 ? {} : { toolCalls: external }),
    }
  }

  usage(outcome: TurnOutcome): Answer['usage'] {
    return {
      promptTokens: this.#prompt,
      cachedTokens: Math.min(this.#prompt, this.#reused ?? 0),
      completionTokens: sum(outcome, ({ generatedTokens }) => generatedTokens),
      reasoningTokens: this.#reasoned,
    }
  }

  #engine(event: EngineEvent): void {
    const step = this.#step
    switch (event.type) {
      case 'plan':
        this.#prompt = event.shown
        this.#reused ??= event.reused
        this.emit({ type: 'plan', step, shown: event.shown, reused: event.reused, compute: event.compute })
        return
      case 'prefill':
        this.emit({ type: 'progress', step, done: event.done, total: event.total })
        return
      case 'tokens':
        this.#unknown += event.tokens.length
        if (event.logprobs !== undefined) this.logprobs.push(...event.logprobs)
        this.emit({
          type: 'tokens',
          tokens: event.tokens,
          ...(event.logprobs === undefined ? {} : { logprobs: event.logprobs }),
        })
        return
      case 'text': {
        this.#unknown = 0
        const between = this.#spoke || this.#text === '' ? '' : '\n\n'
        this.#spoke = true
        this.#text += between + event.text
        this.emit({ type: 'text', text: between + event.text })
        return
      }
      case 'reasoning':
        this.#reasoned += this.#unknown
        this.#unknown = 0
        this.#reasoning += event.text
        this.emit({ type: 'reasoning', text: event.text })
        return
      case 'call':
        if (this.#mayCall && this.toolbox.isExternal(event.call)) this.emit({ type: 'call', call: event.call })
        return
      case 'arguments':
        if (this.#mayCall && this.toolbox.isExternal(event)) this.emit(event)
        return
      case 'rewrite':
        this.emit({ type: 'rewrite', message: event.message, reason: event.reason })
    }
  }
}

// How the form that an answer must have is asked of an engine.

export function formIn(format: AnswerFormat | undefined): { readonly grammar?: string; readonly schema?: unknown } {
  switch (format?.kind) {
    case undefined:
      return {}
    case 'json':
      return { grammar: anyObject }
    case 'grammar':
      return { grammar: format.grammar }
    case 'schema':
      return { schema: format.schema }
  }
}
