/**
 * Prepares a request for the scheduler. Finds the messages that a client edited, checks that sampled tokens in messages are this model's,
 * and makes the grammar of the answer.
 */
import type { AnswerBeginning, ChatFormat, Rendered } from '../chat/format.js'
import type { ChatMessage, Sampled, ToolDefinition } from '../chat/message.js'
import { contractOfStep, FORGOTTEN } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import type { StepCache } from '../kv/step-cache.js'
import type { CacheSalt } from '../kv/tenant-salts.js'
import { editedFrom, Lineage, Lineages, NOWHERE, type PlacedWording, type Wording } from '../kv/lineage.js'
import type { StepContract } from '../kv/plan/parts.js'
import type { ModelInfo, NativeGrammar, NativeModel, SamplerOptions } from '../native/types.js'
import type { EngineRequest } from './engine.js'
import { cancelledBeforeBegin, type JobRequest, type JobResult } from './job.js'
import { KvfoldError } from '../core/errors.js'
import { afterThought, eitherOf } from '../chat/grammar.js'
import { grammarOfSchema } from '../chat/made-grammars.js'

/**
 * If fewer tokens after a client's edit could be kept, they are computed again. Kept cells carry the trace of hidden text, so keeping them
 * must save time. Computing fewer takes about as long as the first tokens of the answer.
 */
export const FEWEST_KEPT = 64

/** The fields of a request that say whether its client edited earlier messages. */
type EditedRequest = Pick<EngineRequest, 'conversation' | 'clientEdits' | 'known' | 'parent'>

type SubmittedStep = Pick<JobRequest, 'salt' | 'prompt' | 'terms'>

export class ClientEdits {
  readonly #lineages = new Lineages()

  constructor(private readonly cache: Pick<StepCache, 'prompt' | 'inherit'>) {}

  /**
   * Returns the step to submit. Its prompt has exactly the tokens of the messages. If the client changed earlier messages, it also has
   * edits that describe the changes. Call it once per step, because it updates the lineage.
   */
  asked(request: EditedRequest, rendered: Rendered, salt: CacheSalt, terms: StepContract): SubmittedStep {
    const { conversation, clientEdits, parent, known: count } = request
    const { tokens, origin } = rendered
    const messages = rendered.messages.map(({ index, role, span }) => ({ index, role, span }))
    if (parent !== undefined) this.cache.inherit?.(conversation, salt, parent)
    const plain = { salt, prompt: { tokens, messages, origin }, terms }
    if (clientEdits === undefined) return plain
    // A lineage must not keep text that is to be forgotten. Without that text it would record a gap, which would hide the text once it is
    // restored. So drop all lineages of the conversation.
    if (origin.base.includes(FORGOTTEN)) {
      this.#lineages.delete(conversation)
      return plain
    }
    const wording = { tokens: origin.base, starts: origin.starts }
    const asked = contractOfStep(clientEdits)
    const known = asked === 'exact' ? [] : this.#known(conversation, parent)
    const { lineage, placed } = placedIn(known, wording, count)
    this.#lineages.set(conversation, [placed?.lineage ?? Lineage.of(wording), ...known.filter((each) => each !== lineage)])
    if (placed === null) return plain
    return {
      ...plain,
      prompt: { tokens, messages, origin: editedFrom(placed, origin, asked, terms.contract) },
      // A step without folds of its own has only the client's edits, so their contract is the step's.
      terms: origin.holes.length > 0 ? terms : { ...terms, contract: asked },
    }
  }

  forget(conversation: ConversationId): void {
    this.#lineages.delete(conversation)
  }

  /**
   * Returns the lineages of the conversation, else those of its parent. The latest one is extended by the text that the last step
   * generated.
   */
  #known(conversation: ConversationId, parent: ConversationId | undefined): readonly Lineage[] {
    for (const each of [conversation, ...(parent === undefined ? [] : [parent])]) {
      const [latest, ...others] = this.#lineages.of(each)
      const shown = this.cache.prompt(each)?.origin?.base
      if (latest !== undefined) return [shown === undefined ? latest : latest.grown(shown), ...others]
    }
    return []
  }
}

/**
 * Places the client's messages (`wording`) in one of the known lineages. It takes the latest lineage that showed these messages before,
 * else the latest one with enough of their tokens (FEWEST_KEPT). Both results are null if no lineage fits.
 */
function placedIn(known: readonly Lineage[], wording: Wording, count: number | undefined) {
  const before = known.filter((each) => each.showed(wording))
  for (const lineage of [...before, ...known]) {
    const placed = lineage.place(wording, count)
    if (keptIn(placed, lineage) >= FEWEST_KEPT) return { lineage, placed }
  }
  return { lineage: null, placed: null }
}

/** Counts the tokens after the client's first change that the lineage already has. If nothing changed, returns the number of all tokens. */
function keptIn({ places }: PlacedWording, { text }: Lineage): number {
  const first = places.findIndex((place, at) => place !== at)
  if (first < 0) return places.length
  return places.subarray(first).reduce((count, place) => count + (place !== NOWHERE && place < text.length ? 1 : 0), 0)
}

// Checks that sampled tokens in messages belong to this model's vocabulary. A stored answer may come from another model of the same name.

export class OwnAnswers {
  readonly #known = new WeakMap<Sampled, boolean>()

  constructor(private readonly model: Pick<NativeModel, 'info' | 'piece'>) {}

  /** Returns the messages without sampled tokens that do not spell their text in this vocabulary. Such messages are tokenized from text. */
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
    // Decode the bytes in the same way as `Job` does for streams.
    return new TextDecoder().decode(bytes) === text
  }
}

// The required form of an answer: a grammar, a schema or tool calls. Also whether a cut answer closes the brackets and tags that it opened.

/** The required form of an answer's whole text. If no field is set, any text is allowed. */
interface AnswerForm {
  readonly grammar?: string | undefined
  /** A JSON schema. */
  readonly schema?: unknown
  /** Whether constraints of the schema that a grammar cannot express are dropped. */
  readonly loose?: boolean | undefined
}

/** @throws KvfoldError engine/bad-request if both a grammar and a schema are given */
function refuseTwoForms({ grammar, schema }: AnswerForm): void {
  if (grammar !== undefined && schema !== undefined)
    throw new KvfoldError('engine/bad-request', 'Give a grammar or a schema, not both.')
}

/** @throws KvfoldError engine/bad-request for prompt tokens that are not in the model's vocabulary */
export function refuseForeign(tokens: Int32Array, { vocabulary }: Pick<ModelInfo, 'vocabulary'>): void {
  const bad = tokens.findIndex((token) => token < 0 || token >= vocabulary)
  if (bad >= 0)
    throw new KvfoldError('engine/bad-request', `Token ${tokens[bad]} at place ${bad} is not in the vocabulary of ${vocabulary}.`)
}

/**
 * Refuses a request with both a grammar and a schema. If the request continues an answer, also refuses a required form, which would apply
 * from the first character on. Refuses a beginning of an answer that has more than text.
 * @throws KvfoldError engine/bad-request
 */
export function refuseBadForm({ continues = false, messages, grammar, schema, toolChoice }: EngineRequest): void {
  refuseTwoForms({ grammar, schema })
  if (!continues) return
  const bad = (message: string) => new KvfoldError('engine/bad-request', message)
  const last = messages.at(-1)
  if (last?.role !== 'assistant') throw bad("To continue an answer, the last message must be the assistant's.")
  if (last.toolCalls !== undefined || last.reasoning !== undefined || last.content === '')
    throw bad('The engine can only continue an answer of text; leave out its tool calls and its reasoning.')
  if (grammar !== undefined || schema !== undefined)
    throw bad('An answer in a format follows it from the first character; leave out the format or the beginning of the answer.')
  if (toolChoice === 'required')
    throw bad('An answer that begins with text cannot be a tool call; leave out tool_choice or the beginning of the answer.')
}

/** Returns the whole answer: its given beginning, if any, and the sampled rest. */
export const wholeOf = ({ text, tokens }: JobResult, beginning: AnswerBeginning | null): Pick<JobResult, 'text' | 'tokens'> =>
  beginning === null
    ? { text, tokens }
    : { text: beginning.text + text, tokens: Int32Array.from([...beginning.tokens, ...tokens]) }

type HeldForm = Pick<SamplerOptions, 'lazy'> & { readonly grammar?: string }
type Held = HeldForm & Pick<SamplerOptions, 'budget'>

/**
 * Returns the sampler's grammar for this form; a promise only if a schema must be converted.
 * @throws KvfoldError engine/bad-grammar for an invalid schema, or one that cannot be converted
 */
export function formGrammar({ grammar, schema, loose = false }: AnswerForm): HeldForm | Promise<HeldForm> {
  refuseTwoForms({ grammar, schema })
  if (schema !== undefined) return grammarOfSchema(schema, loose).then((made) => ({ grammar: made.grammar }))
  return grammar === undefined ? {} : { grammar }
}

/**
 * Returns `tools` and `unlisted` as one list. An unlisted tool replaces a listed one of the same name. Does not apply `callable` and
 * `toolChoice`, which may allow fewer.
 */
export function callableTools({
  tools = [],
  unlisted = [],
}: Pick<EngineRequest, 'tools' | 'unlisted'>): readonly ToolDefinition[] {
  return [...tools.filter(({ name }) => !unlisted.some((tool) => tool.name === name)), ...unlisted]
}

/**
 * Returns the grammar of the answer:
 *
 * - With a required form: the form; if calls are optional, either the form or calls.
 * - If a call is required: calls only, from the beginning of the answer.
 * - Otherwise, with tools: calls only, from the place where a call begins (lazy grammar).
 * - Behind a given beginning of the answer: only a lazy grammar that has triggers. One that describes the whole answer does not apply.
 *
 * @throws KvfoldError engine/bad-grammar for a schema that cannot be converted, engine/bad-request if kvfold cannot force the template's
 * call syntax
 */
function grammarOf(format: ChatFormat, request: EngineRequest, bare: boolean): HeldForm | Promise<HeldForm> {
  const { grammar, afterReasoning = false, schema, toolChoice = 'auto' } = request
  const tools = callableTools(request)
  if (toolChoice !== 'required' && (grammar !== undefined || schema !== undefined)) {
    const { reasoning } = format.syntax
    const isOpened = reasoning !== null && format.opens(reasoning.open)
    const isBehind = isOpened && (schema !== undefined || afterReasoning)
    const form =
      tools.length === 0 || toolChoice === 'none' ? formGrammar(request) : formOrCalls(format, request, isOpened && !isBehind)
    return isBehind ? Promise.resolve(form).then((made) => ({ grammar: afterThought(made.grammar!, reasoning) })) : form
  }
  if (tools.length === 0 && toolChoice !== 'required') return {}
  return callsOf(format, request, bare)
}

/** Returns the tools that the answer may call. */
export function allowedTools(request: EngineRequest): readonly ToolDefinition[] {
  const { toolChoice, callable } = request
  return toolChoice === 'none' ? [] : callableTools(request).filter(({ name }) => callable?.includes(name) ?? true)
}

/** Returns the tools that the answer may call, and whether a call of any of them ends it. */
function allowedIn(request: EngineRequest): { readonly allowed: readonly ToolDefinition[]; readonly isSingle: boolean } {
  const allowed = allowedTools(request)
  return { allowed, isSingle: allowed.every(request.endsWith ?? (() => false)) }
}

/** @param reasons whether the grammar of calls includes the reasoning before them */
async function formOrCalls(format: ChatFormat, request: EngineRequest, reasons: boolean): Promise<HeldForm> {
  const { allowed, isSingle } = allowedIn(request)
  // If calls but not the form could begin with reasoning, a model that begins to reason would have to call.
  const [form, calls] = await Promise.all([formGrammar(request), format.callGrammarElsewhere(allowed, isSingle, reasons)])
  return calls === null || form.grammar === undefined ? form : { grammar: eitherOf(calls, form.grammar) }
}

async function callsOf(format: ChatFormat, request: EngineRequest, bare: boolean): Promise<HeldForm> {
  const { toolChoice = 'auto', continues = false } = request
  const { allowed, isSingle } = allowedIn(request)
  if (toolChoice !== 'required') {
    const lazy = await format.lazyCallsElsewhere(allowed, isSingle, bare)
    if (lazy === null) return {}
    const { grammar } = lazy
    if (lazy.triggers.length + lazy.spaced.length === 0) return continues ? {} : { grammar }
    // Behind the text of the beginning, the answer is not inside a tag of the generation prompt.
    return { grammar, lazy: continues ? { ...lazy, opened: '' } : lazy }
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
 * Returns the grammar of a request's answer, and its reasoning budget if the template marks reasoning. Returns a promise only if a schema
 * or calls must be converted.
 * @param bare whether the grammar also covers bare calls (`GenerationOptions.bareCalls`)
 * @throws KvfoldError as `grammarOf`
 */
export const heldTo = (format: ChatFormat, model: NativeModel, request: EngineRequest, bare: boolean): Held | Promise<Held> => {
  const form = grammarOf(format, request, bare)
  const budget = budgetOf(format, model, request)
  return form instanceof Promise ? form.then((made) => ({ ...made, ...budget })) : { ...form, ...budget }
}

/**
 * Compiles a grammar off the event loop.
 * @throws KvfoldError engine/bad-grammar; engine/cancelled as soon as `signal` aborts
 */
export function compiled(model: NativeModel, grammar: string, signal?: AbortSignal): Promise<NativeGrammar> {
  const compiling = model.compileGrammar(grammar)
  if (signal === undefined) return compiling
  return new Promise((resolve, reject) => {
    const cancel = () => {
      reject(cancelledBeforeBegin())
    }
    if (signal.aborted) cancel()
    signal.addEventListener('abort', cancel, { once: true })
    void compiling.then(resolve, reject).finally(() => {
      signal.removeEventListener('abort', cancel)
    })
  })
}

/** A reasoning budget that no answer reaches. */
const NO_BOUND = 2 ** 31 - 1

function budgetOf(
  format: ChatFormat,
  model: NativeModel,
  { reasoningBudget, endReasoning, continues = false }: EngineRequest,
): Pick<SamplerOptions, 'budget'> {
  const { reasoning } = format.syntax
  const tokens = reasoningBudget ?? (endReasoning === undefined ? undefined : NO_BOUND)
  if (tokens === undefined || reasoning === null) return {}
  const { open, close, then = '', isFirst = false } = reasoning
  // The text of the continued answer comes first, so no tag opens reasoning behind it.
  if (continues && isFirst) return {}
  const forced = model.tokenize(close + then, { parseSpecial: true })
  return { budget: { tokens, open, close, isFirst, opened: !continues && format.opens(open), forced } }
}

/** An answer that was cut after a call, the messages and tools before it, and its text as sampled. */
interface CutAnswer {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  readonly answer: ChatMessage
  readonly sampled: string
}

/**
 * Whether an answer that was cut after a call contains everything that the template writes after that call. If not, e.g. because a list of
 * calls is still open, the next prompt must use the template's rendering of the answer instead of the sampled tokens.
 */
export function isClosed(format: ChatFormat, model: NativeModel, { messages, tools, answer, sampled }: CutAnswer): boolean {
  const written = format.render({ messages: [...messages, answer], tools, generationPrompt: false })
  const { start, end } = written.messages.at(-1)!.span
  const own = written.tokens.subarray(start, end)
  const turn = own.findLastIndex((token) => model.isEndOfGeneration(token))
  const text = model.detokenize(turn < 0 ? own : own.subarray(0, turn), true)
  // The text after the JSON of the last call. If calls are only tags, the text from the last tag on.
  const from = text.includes('}') ? text.lastIndexOf('}') + 1 : text.lastIndexOf('<')
  return sampled.trimEnd().endsWith(text.slice(from).trim())
}
