/**
 * Prepares a request for the scheduler: finds the messages that a client edited, checks whether an answer's sampled tokens are this
 * model's, and makes the answer's grammar.
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
 * The fewest tokens after a client's edit whose cells are kept. Kept cells carry the trace of hidden text, so keeping them must pay.
 * Computing fewer takes about as long as the first tokens of the answer.
 */
export const FEWEST_KEPT = 64

/** The fields of a request whose messages the client may have changed. */
type EditedRequest = Pick<EngineRequest, 'conversation' | 'clientEdits' | 'known' | 'parent'>

type SubmittedStep = Pick<JobRequest, 'salt' | 'prompt' | 'terms'>

export class ClientEdits {
  readonly #lineages = new Lineages()

  constructor(private readonly cache: Pick<StepCache, 'prompt' | 'inherit'>) {}

  /**
   * Returns the step to submit. If the client sent other messages than before, the prompt gets edits that account for the changes. The
   * prompt's tokens are those of the messages either way. Call it once per step, since it updates the lineage.
   */
  asked(request: EditedRequest, rendered: Rendered, salt: CacheSalt, terms: StepContract): SubmittedStep {
    const { conversation, clientEdits, parent, known: count } = request
    const { tokens, origin } = rendered
    const messages = rendered.messages.map(({ index, role, span }) => ({ index, role, span }))
    if (parent !== undefined) this.cache.inherit?.(conversation, salt, parent)
    const plain = { salt, prompt: { tokens, messages, origin }, terms }
    if (clientEdits === undefined) return plain
    // Text to be forgotten must not stay in a lineage, nor the text around it. A lineage of the gaps would hide the text once it is
    // restored.
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
      // Without folds of its own the step has only the client's edits to keep to.
      terms: origin.holes.length > 0 ? terms : { ...terms, contract: asked },
    }
  }

  forget(conversation: ConversationId): void {
    this.#lineages.delete(conversation)
  }

  /** The lineages of the conversation, else those of its parent. The latest one has the text that the last step generated. */
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
 * Finds the places of the client's messages (`wording`) in one of the lineages: the latest one that showed them before, else the latest one
 * that has enough of them. Both results are null if no lineage fits.
 */
function placedIn(known: readonly Lineage[], wording: Wording, count: number | undefined) {
  const before = known.filter((each) => each.showed(wording))
  for (const lineage of [...before, ...known]) {
    const placed = lineage.place(wording, count)
    if (keptIn(placed, lineage) >= FEWEST_KEPT) return { lineage, placed }
  }
  return { lineage: null, placed: null }
}

/**
 * Counts the tokens after the client's first change that the earlier lineage has, too. Returns the length of the wording if nothing
 * changed.
 */
function keptIn({ places }: PlacedWording, { text }: Lineage): number {
  const first = places.findIndex((place, at) => place !== at)
  if (first < 0) return places.length
  return places.subarray(first).reduce((count, place) => count + (place !== NOWHERE && place < text.length ? 1 : 0), 0)
}

// Whether the sampled tokens in a message are of this model's vocabulary. A stored answer may come from another model of the same name.

export class OwnAnswers {
  readonly #known = new WeakMap<Sampled, boolean>()

  constructor(private readonly model: Pick<NativeModel, 'info' | 'piece'>) {}

  /** Returns the messages. Removes sampled tokens that do not spell their text in this vocabulary; such messages are tokenized anew. */
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
    // Decode as `Job` does for streams.
    return new TextDecoder().decode(bytes) === text
  }
}

// The form that an answer must have: a grammar, a schema or forced calls. Also whether a cut answer closes the brackets and tags it opened.

/** The form of an answer's whole text. Without any field every text is allowed. */
interface AnswerForm {
  readonly grammar?: string | undefined
  /** A JSON schema. */
  readonly schema?: unknown
  /** Whether parts of the schema that a grammar cannot express are left out. */
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
 * Refuses a request with both a grammar and a schema. Refuses to continue an answer that must have a form from its first character on, or
 * whose beginning is more than text.
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

/** Returns the whole answer: its given beginning, followed by the sampled rest. */
export const wholeOf = ({ text, tokens }: JobResult, beginning: AnswerBeginning | null): Pick<JobResult, 'text' | 'tokens'> =>
  beginning === null
    ? { text, tokens }
    : { text: beginning.text + text, tokens: Int32Array.from([...beginning.tokens, ...tokens]) }

type HeldForm = Pick<SamplerOptions, 'lazy'> & { readonly grammar?: string }
type Held = HeldForm & Pick<SamplerOptions, 'budget'>

/**
 * Returns the grammar of the answer's form as a sampler takes it; a promise only if a schema must be converted.
 * @throws KvfoldError engine/bad-grammar for an invalid schema, or one that cannot be converted
 */
export function formGrammar({ grammar, schema, loose = false }: AnswerForm): HeldForm | Promise<HeldForm> {
  refuseTwoForms({ grammar, schema })
  if (schema !== undefined) return grammarOfSchema(schema, loose).then((made) => ({ grammar: made.grammar }))
  return grammar === undefined ? {} : { grammar }
}

/**
 * Returns `tools` and `unlisted` as one list. An unlisted tool replaces the tool of the same name. `callable` and `toolChoice` may allow
 * fewer; they are not applied here.
 */
export function callableTools({
  tools = [],
  unlisted = [],
}: Pick<EngineRequest, 'tools' | 'unlisted'>): readonly ToolDefinition[] {
  return [...tools.filter(({ name }) => !unlisted.some((tool) => tool.name === name)), ...unlisted]
}

/**
 * Returns the grammar of the request's form. If calls are allowed too, it allows calls of the callable tools in place of the form. Without a
 * form, or if a call is required, returns a grammar that allows calls of the callable tools only. It applies from the beginning if a call is required, else from the
 * place where a call begins.
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

/** Returns the tools that the request may call, and whether a call of any of them ends the answer. */
function allowedIn(request: EngineRequest): { readonly allowed: readonly ToolDefinition[]; readonly isSingle: boolean } {
  const allowed = allowedTools(request)
  return { allowed, isSingle: allowed.every(request.endsWith ?? (() => false)) }
}

/** @param reasons whether the grammar of the calls has the reasoning before them */
async function formOrCalls(format: ChatFormat, request: EngineRequest, reasons: boolean): Promise<HeldForm> {
  const { allowed, isSingle } = allowedIn(request)
  // If calls alone had optional reasoning, a model that begins to reason could only call.
  const [form, calls] = await Promise.all([formGrammar(request), format.callGrammarElsewhere(allowed, isSingle, reasons)])
  return calls === null || form.grammar === undefined ? form : { grammar: eitherOf(calls, form.grammar) }
}

async function callsOf(format: ChatFormat, request: EngineRequest, bare: boolean): Promise<HeldForm> {
  const { toolChoice = 'auto' } = request
  const { allowed, isSingle } = allowedIn(request)
  if (toolChoice !== 'required') {
    const lazy = await format.lazyCallsElsewhere(allowed, isSingle, bare)
    if (lazy === null) return {}
    return lazy.triggers.length + lazy.spaced.length === 0 ? { grammar: lazy.grammar } : { grammar: lazy.grammar, lazy }
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
 * or calls need one.
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

/** More tokens than an answer can have. */
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

/** An answer, the messages and tools before it, and its text as sampled. */
interface CutAnswer {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  readonly answer: ChatMessage
  readonly sampled: string
}

/**
 * Whether an answer that was cut after a call contains everything that the template writes after that call. If not, for example where a
 * list of calls is still open, the next prompt must use the template's own wording.
 */
export function isClosed(format: ChatFormat, model: NativeModel, { messages, tools, answer, sampled }: CutAnswer): boolean {
  const written = format.render({ messages: [...messages, answer], tools, generationPrompt: false })
  const { start, end } = written.messages.at(-1)!.span
  const own = written.tokens.subarray(start, end)
  const turn = own.findLastIndex((token) => model.isEndOfGeneration(token))
  const text = model.detokenize(turn < 0 ? own : own.subarray(0, turn), true)
  // The text after the JSON of the last call. If calls are tags only, the text from the last tag on.
  const from = text.includes('}') ? text.lastIndexOf('}') + 1 : text.lastIndexOf('<')
  return sampled.trimEnd().endsWith(text.slice(from).trim())
}
