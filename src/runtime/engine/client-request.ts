/** Owns what the engine makes of a request: messages edited since the last step, sampled tokens that are this model's, the form that an answer is held to. */
import type { AnswerBeginning, ChatFormat, Rendered } from '../chat/format.js'
import type { ChatMessage, Sampled, ToolDefinition } from '../chat/message.js'
import { contractOfStep, FORGOTTEN } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import type { StepCache } from '../kv/step-cache.js'
import type { CacheSalt } from '../kv/tenant-salts.js'
import { editedFrom, Lineage, Lineages, NOWHERE, type PlacedWording } from '../kv/lineage.js'
import type { Terms } from '../kv/plan/parts.js'
import type { ModelInfo, NativeGrammar, NativeModel, SamplerOptions } from '../native/types.js'
import type { EngineRequest } from './engine.js'
import type { JobRequest, JobResult } from './job.js'
import { KvfoldError } from '../core/errors.js'
import { grammarOfSchema } from '../chat/made-grammars.js'

/**
 * Tokens behind a client's edit from which on it pays to keep their cells, which carry the trace of what is hidden. Fewer are computed: that takes about as
 * long as the first tokens of the answer.
 */
export const FEWEST_KEPT = 64

/** Of a request whose messages may have been changed. */
type EditedRequest = Pick<EngineRequest, 'conversation' | 'clientEdits' | 'known' | 'parent'>

type SubmittedStep = Pick<JobRequest, 'conversation' | 'salt' | 'prompt' | 'terms'>

export class ClientEdits {
  readonly #lineages = new Lineages()

  constructor(private readonly cache: Pick<StepCache, 'prompt' | 'inherit'>) {}

  /**
   * What is to be computed: the prompt with its edits, those among them that its client made by sending other messages than before, and what the step keeps to. To be asked
   * once a step. The tokens are those of the messages either way.
   */
  asked(request: EditedRequest, rendered: Rendered, salt: CacheSalt, terms: Terms): SubmittedStep {
    const { conversation, clientEdits, parent, known: count } = request
    const { tokens, origin } = rendered
    const messages = rendered.messages.map(({ index, role, span }) => ({ index, role, span }))
    if (parent !== undefined) this.cache.inherit?.(conversation, salt, parent)
    const plain = { conversation, salt, prompt: { tokens, messages, origin }, terms }
    if (clientEdits === undefined) return plain
    const wording = { tokens: origin.base, starts: origin.starts }
    const asked = contractOfStep(clientEdits)
    // Nothing is known any more of what is to be forgotten, and of what stood around it.
    const known = asked === 'exact' || origin.base.includes(FORGOTTEN) ? null : this.#known(conversation, parent)
    const found = known?.place(wording, count) ?? null
    const placed = known !== null && found !== null && keptIn(found, known) >= FEWEST_KEPT ? found : null
    this.#lineages.set(conversation, placed?.lineage ?? Lineage.of(wording))
    if (placed === null) return plain
    return {
      ...plain,
      prompt: { tokens, messages, origin: editedFrom(placed, origin, asked, terms.contract) },
      // Without folds of its own the client's edits are all that the step has to keep to.
      terms: origin.holes.length > 0 ? terms : { ...terms, contract: asked },
    }
  }

  forget(conversation: ConversationId): void {
    this.#lineages.delete(conversation)
  }

  /** What the conversation, or the one that it began as, was shown so far. */
  #known(conversation: ConversationId, parent: ConversationId | undefined): Lineage | null {
    for (const each of [conversation, ...(parent === undefined ? [] : [parent])]) {
      const lineage = this.#lineages.get(each)
      const shown = this.cache.prompt(each)?.origin?.base
      if (lineage !== undefined) return shown === undefined ? lineage : lineage.grown(shown)
    }
    return null
  }
}

/** Tokens of the lineage, as it was before, that are shown behind the first place where the wording differs from it; all of them where it does not. */
function keptIn({ places }: PlacedWording, { text }: Lineage): number {
  const first = places.findIndex((place, at) => place !== at)
  if (first < 0) return places.length
  return places.subarray(first).reduce((count, place) => count + (place !== NOWHERE && place < text.length ? 1 : 0), 0)
}

// Whether the sampled tokens that an answer carries are this model's: what was stored may have been answered by another one of the same name.

export class OwnAnswers {
  readonly #known = new WeakMap<Sampled, boolean>()

  constructor(private readonly model: Pick<NativeModel, 'info' | 'piece'>) {}

  /** The messages; those whose sampled tokens do not spell their sampled text in this vocabulary go without them, and are tokenised anew. */
  of(messages: readonly ChatMessage[]): readonly ChatMessage[] {
    if (messages.every(({ sampled }) => sampled === undefined || this.#isOwn(sampled))) return messages
    return messages.map((message) => {
      const { sampled, ...rest } = message
      return sampled === undefined || this.#isOwn(sampled) ? message : rest
    })
  }

  #isOwn(sampled: Sampled): boolean {
    let own = this.#known.get(sampled)
    if (own === undefined) this.#known.set(sampled, (own = this.#spells(sampled)))
    return own
  }

  #spells({ text, tokens }: Sampled): boolean {
    if (tokens.some((token) => token < 0 || token >= this.model.info.vocabulary)) return false
    const bytes = Buffer.concat(Array.from(tokens, (token) => this.model.piece(token, true)))
    // As streams decode it (Job).
    return new TextDecoder().decode(bytes) === text
  }
}

// The form that an answer is held to: a grammar, a schema, or calls that are forced; and whether a cut answer closes what it opened.

/** What an answer's whole text must be; nothing: anything. */
interface AnswerForm {
  readonly grammar?: string | undefined
  /** A JSON schema. */
  readonly schema?: unknown
  /** What of it cannot be kept is left out. */
  readonly loose?: boolean | undefined
}

/** @throws KvfoldError engine/bad-request for a grammar and a schema */
function refuseTwoForms({ grammar, schema }: AnswerForm): void {
  if (grammar !== undefined && schema !== undefined)
    throw new KvfoldError('engine/bad-request', 'Give a grammar or a schema, not both.')
}

/** @throws KvfoldError engine/bad-request for tokens to go on from that the model does not have */
export function refuseForeign(tokens: Int32Array, { vocabulary }: Pick<ModelInfo, 'vocabulary'>): void {
  const bad = tokens.findIndex((token) => token < 0 || token >= vocabulary)
  if (bad >= 0)
    throw new KvfoldError('engine/bad-request', `Token ${tokens[bad]} at place ${bad} is not in the vocabulary of ${vocabulary}.`)
}

/** @throws KvfoldError engine/bad-request for two forms, and for the beginning of an answer that must be in a form from its first character on, or that says more than text */
export function refuseBadForm({ continues = false, messages, grammar, schema, toolChoice }: EngineRequest): void {
  refuseTwoForms({ grammar, schema })
  if (!continues) return
  const bad = (message: string) => new KvfoldError('engine/bad-request', message)
  const last = messages.at(-1)
  if (last?.role !== 'assistant') throw bad('To go on with an answer the last message must be one of the assistant.')
  if (last.toolCalls !== undefined || last.reasoning !== undefined || last.content === '')
    throw bad('An answer that is to be gone on with begins with text; leave out its tool calls and its reasoning.')
  if (grammar !== undefined || schema !== undefined)
    throw bad('An answer in a format begins with the format; leave the format or the beginning of the answer out.')
  if (toolChoice === 'required')
    throw bad('An answer that has begun with text cannot be a tool call; leave tool_choice or the beginning of the answer out.')
}

/** What was sampled, behind what was given. */
export const wholeOf = ({ text, tokens }: JobResult, beginning: AnswerBeginning | null): Pick<JobResult, 'text' | 'tokens'> =>
  beginning === null
    ? { text, tokens }
    : { text: beginning.text + text, tokens: Int32Array.from([...beginning.tokens, ...tokens]) }

type HeldForm = Pick<SamplerOptions, 'lazy'> & { readonly grammar?: string }
type Held = HeldForm & Pick<SamplerOptions, 'budget'>

/** The form as a sampler takes it; at once where no schema is read. @throws KvfoldError engine/bad-grammar for a schema that is none or cannot be converted */
export function formGrammar({ grammar, schema, loose = false }: AnswerForm): HeldForm | Promise<HeldForm> {
  refuseTwoForms({ grammar, schema })
  if (schema !== undefined) return grammarOfSchema(schema, loose).then((made) => ({ grammar: made.grammar }))
  return grammar === undefined ? {} : { grammar }
}

/** What calls may be of, listed or not. An unlisted tool stands for the listed one of its name. */
function callableTools({ tools = [], unlisted = [] }: Pick<EngineRequest, 'tools' | 'unlisted'>): readonly ToolDefinition[] {
  return [...tools.filter(({ name }) => !unlisted.some((tool) => tool.name === name)), ...unlisted]
}

/**
 * A form; else calls of the callable tools, where a call is required from the beginning, otherwise from where one
 * begins, so that no other call can be made.
 * @throws KvfoldError engine/bad-grammar for a schema that cannot be converted, engine/bad-request where the template's way to write calls cannot be forced
 */
function grammarOf(format: ChatFormat, request: EngineRequest): HeldForm | Promise<HeldForm> {
  const { grammar, schema, toolChoice = 'auto' } = request
  const tools = callableTools(request)
  if (grammar !== undefined || schema !== undefined) return formGrammar(request)
  if (tools.length === 0 && toolChoice !== 'required') return {}
  return callsOf(format, tools, request)
}

async function callsOf(
  format: ChatFormat,
  tools: readonly ToolDefinition[],
  { toolChoice = 'auto', callable, endsWith = () => false }: EngineRequest,
): Promise<HeldForm> {
  const allowed = toolChoice === 'none' ? [] : tools.filter(({ name }) => callable?.includes(name) ?? true)
  const isSingle = allowed.every(endsWith)
  if (toolChoice !== 'required') {
    const lazy = await format.lazyCallsElsewhere(allowed, isSingle)
    if (lazy === null) return {}
    return lazy.triggers.length === 0 ? { grammar: lazy.grammar } : { grammar: lazy.grammar, lazy }
  }
  const calls = await format.callGrammarElsewhere(allowed, isSingle)
  if (calls === null)
    throw new KvfoldError(
      'engine/bad-request',
      `This model's template has no tool-call syntax that kvfold can force (${format.syntax.name}); use toolChoice auto.`,
    )
  return { grammar: calls }
}

/**
 * What a request holds its answer to: its form or its calls, and how long it may reason, where the template's reasoning can be told. At once where no
 * schema is read.
 * @throws KvfoldError as `grammarOf`
 */
export const heldTo = (format: ChatFormat, model: NativeModel, request: EngineRequest): Held | Promise<Held> => {
  const form = grammarOf(format, request)
  const budget = budgetOf(format, model, request)
  return form instanceof Promise ? form.then((made) => ({ ...made, ...budget })) : { ...form, ...budget }
}

/**
 * A grammar, compiled off the event loop.
 * @throws KvfoldError engine/bad-grammar; engine/cancelled as soon as `signal` aborts
 */
export function compiled(model: NativeModel, grammar: string, signal?: AbortSignal): Promise<NativeGrammar> {
  const compiling = model.compileGrammar(grammar)
  if (signal === undefined) return compiling
  return new Promise((resolve, reject) => {
    const cancel = () => {
      reject(new KvfoldError('engine/cancelled', 'The request was cancelled before it began.'))
    }
    if (signal.aborted) cancel()
    signal.addEventListener('abort', cancel, { once: true })
    void compiling.then(resolve, reject).finally(() => {
      signal.removeEventListener('abort', cancel)
    })
  })
}

function budgetOf(
  format: ChatFormat,
  model: NativeModel,
  { reasoningBudget: tokens, continues = false }: EngineRequest,
): Pick<SamplerOptions, 'budget'> {
  const { reasoning } = format.syntax
  if (tokens === undefined || reasoning === null) return {}
  const { open, close, then = '' } = reasoning
  const forced = model.tokenize(close + then, { parseSpecial: true })
  return { budget: { tokens, open, close, opened: !continues && format.opens(open), forced } }
}

/** An answer, what it was given after, and the text it was sampled as. */
interface CutAnswer {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  readonly answer: ChatMessage
  readonly sampled: string
}

/**
 * Whether an answer that was cut after a call closes all that the template closes behind it. Where the template would still close a list of
 * calls, its own wording must be shown.
 */
export function isClosed(format: ChatFormat, model: NativeModel, { messages, tools, answer, sampled }: CutAnswer): boolean {
  const written = format.render({ messages: [...messages, answer], tools, generationPrompt: false })
  const { start, end } = written.messages.at(-1)!.span
  const own = written.tokens.subarray(start, end)
  const turn = own.findLastIndex((token) => model.isEndOfGeneration(token))
  const text = model.detokenize(turn < 0 ? own : own.subarray(0, turn), true)
  // Behind the JSON of the last call; where calls are written as tags alone, the last of them.
  const from = text.includes('}') ? text.lastIndexOf('}') + 1 : text.lastIndexOf('<')
  return sampled.trimEnd().endsWith(text.slice(from).trim())
}
