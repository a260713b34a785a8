/** Measures how far a model's answer after a fold is from its answer after an exact prefill of the same shown text. */
import { KvfoldError } from '../core/errors.js'
import { type ConversationId, freshConversation } from '../core/ids.js'
import { definedFields } from '../core/json.js'
import type { BlendChoice, Contract } from '../core/contract.js'
import type { Edit } from '../chat/message.js'
import { Conversation } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import type { Result } from '../context/refusal.js'
import type { EngineReply } from '../engine/engine.js'
import type { LlamaEngine } from '../engine/llama.js'
import type { FidelityCase } from './cases.js'

/** One way to treat the text that a case folds. `whole`: fold nothing. */
export interface FidelityWay {
  readonly name: string
  readonly contract: Contract | 'whole'
  /** Which tokens `blend` recomputes. A function gets the answers of the ways before this one, by name. */
  readonly blend?: BlendChoice | ((before: ReadonlyMap<string, FidelityAnswer>) => BlendChoice)
}

/**
 * One answer, and its distance from the answer after an exact prefill. Distances are Kullback-Leibler divergences in nats, over the
 * likeliest tokens.
 */
export interface FidelityAnswer {
  /** The distance of the answer's first token: `form` + `word`. */
  readonly distance: number
  /** How much of the distance is about the form: a bare word, a word in quotes, or something else. */
  readonly form: number
  /** How much of the distance is about the word, given the form. */
  readonly word: number
  readonly said: string
  readonly isRight: boolean
  /** Whether the answer names a value that was right earlier. */
  readonly isOutdated: boolean
  /** How many tokens the step computed. */
  readonly computed: number
  /** Why the step fell back to `exact`; null when it did not. */
  readonly fallback: string | null
  /** The time for the step's cache work and its prefill. */
  readonly milliseconds: number
}

/** Distances are measured over this many of the likeliest tokens. */
const TOP = 500
/** The longest answer, in tokens. One word has no more. */
const ANSWER = 5

/**
 * Answers the case in each way. Returns the answers by name. The answer named `exact` comes first: a prefill of the shown text in a
 * conversation that never saw the hidden text. Each way then reads the whole text and folds it.
 */
export async function measureCase(
  engine: LlamaEngine,
  one: FidelityCase,
  ways: readonly FidelityWay[],
  signal?: AbortSignal,
): Promise<ReadonlyMap<string, FidelityAnswer>> {
  const folded = foldsOf(engine, one)
  const edits = folded.at(-1)!
  // The reference has a tenant of its own, because cells are shared within a tenant.
  const reference = await ask(engine, one, { contract: 'exact', edits, tenant: 'reference', signal })
  const textOf = (token: number) => engine.model.detokenize([token])
  const answers = new Map([['exact', answerOf(one, reference, reference, textOf)]])
  for (const { name, contract, blend } of ways) {
    const choice = typeof blend === 'function' ? blend(answers) : blend
    const isWhole = contract === 'whole'
    // An exact fold would reuse cells of the other ways. With its own tenant it has to compute them.
    const tenant = contract === 'exact' ? 'exact' : 'read'
    const conversation = freshConversation()
    const terms = { contract: isWhole ? 'exact' : contract, ...definedFields({ blend: choice }) } as const
    for (const step of one.steps)
      await engine.respond({
        ...{ conversation, tenant, ...terms, maxTokens: 1 },
        messages: one.messages.slice(0, step.messages),
        edits: isWhole ? [] : folded[step.folded]!,
        ...definedFields({ signal }),
      }).reply
    const reply = await ask(engine, one, { conversation, tenant, ...terms, edits: isWhole ? [] : edits, signal })
    answers.set(name, answerOf(one, reply, reference, textOf))
    engine.forget(conversation)
  }
  return answers
}

/**
 * Folds the case's spans one after another, with the context tools' markers or with the case's own replacement. Returns the edits before
 * the first fold and after each one.
 */
function foldsOf(engine: LlamaEngine, { messages, folds }: FidelityCase): readonly (readonly Edit[])[] {
  const id = freshConversation()
  const conversation = new Conversation(id, portsOf(engine, id))
  for (const message of messages) conversation.add(message)
  const after: (readonly Edit[])[] = [[]]
  for (const fold of folds) {
    const folded = hide(conversation, fold)
    if (!folded.ok) throw new KvfoldError('internal/invariant', `A generated case cannot be folded: ${folded.message}`)
    after.push(conversation.edits())
  }
  return after
}

function hide(conversation: Conversation, { instead, ...stretch }: FidelityCase['folds'][number]): Result<object> {
  if (instead !== undefined) return conversation.replace([{ ...stretch, marker: instead }])
  const cut = conversation.cut([stretch], 1)
  return cut.ok ? conversation.fold(cut.fragments[0]!.id) : cut
}

interface Asked {
  readonly conversation?: ConversationId
  readonly contract: Contract
  readonly blend?: BlendChoice
  readonly edits: readonly Edit[]
  readonly tenant: string
  readonly signal: AbortSignal | undefined
}

async function ask(engine: LlamaEngine, one: FidelityCase, asked: Asked): Promise<EngineReply> {
  const { conversation = freshConversation(), signal, ...rest } = asked
  const reply = await engine.respond({
    ...rest,
    conversation,
    messages: [...one.messages, { role: 'assistant', content: one.opening }],
    continues: true,
    sampling: { temperature: 0 },
    maxTokens: ANSWER,
    logprobs: TOP,
    ...definedFields({ signal }),
  }).reply
  if (asked.conversation === undefined) engine.forget(conversation)
  return reply
}

function answerOf(
  one: FidelityCase,
  reply: EngineReply,
  reference: EngineReply,
  textOf: (token: number) => string,
): FidelityAnswer {
  const said = reply.message.content.slice(one.opening.length)
  const isOutdated = one.outdated.some((value) => names(said, value))
  const { ledger } = reply
  return {
    ...distanceOf(likelihoods(reference), likelihoods(reply), (token) => formOf(textOf(token))),
    said,
    isRight: !isOutdated && names(said, one.right),
    isOutdated,
    computed: ledger.submitted,
    fallback: ledger.fallback,
    milliseconds: ledger.milliseconds.cache + ledger.milliseconds.prefill,
  }
}

/** Whether an answer contains the value, ignoring case: `velvet` is in "changed to Velvet". */
export const names = (said: string, value: string): boolean => said.toLowerCase().includes(value.toLowerCase())

/** Returns the log-probabilities of the answer's first token, by token. */
function likelihoods({ logprobs = [], endLogprob }: EngineReply): ReadonlyMap<number, number> {
  // If the answer ends at once, the token that ended it counts as the first.
  const first = logprobs[0] ?? endLogprob
  if (first === undefined) throw new KvfoldError('internal/invariant', 'An engine reported no likelihoods.')
  return new Map(first.top.map(({ token, logprob }) => [token, logprob]))
}

type Form = 'bare' | 'quoted' | 'other'

function formOf(token: string): Form {
  const text = token.trimStart()
  if (/^["'`*“‘]/u.test(text)) return 'quoted'
  return /^\p{L}/u.test(text) ? 'bare' : 'other'
}

/**
 * Splits the distance by the chain rule: into that of the forms, and the mean distance of the words within each form. A token that `other`
 * does not list counts as likely as the least likely one listed.
 */
export function distanceOf(
  exact: ReadonlyMap<number, number>,
  other: ReadonlyMap<number, number>,
  form: (token: number) => Form,
): Pick<FidelityAnswer, 'distance' | 'form' | 'word'> {
  const floor = Math.min(...other.values())
  let distance = 0
  for (const [token, logprob] of exact) distance += Math.exp(logprob) * (logprob - (other.get(token) ?? floor))
  const mass = (of: ReadonlyMap<number, number>) => {
    const sums = new Map<Form, number>()
    for (const [token, logprob] of of) sums.set(form(token), (sums.get(form(token)) ?? 0) + Math.exp(logprob))
    return sums
  }
  const others = mass(other)
  let ofForm = 0
  for (const [one, p] of mass(exact)) ofForm += p * Math.log(p / (others.get(one) ?? Math.exp(floor)))
  return { distance: Math.max(0, distance), form: Math.max(0, ofForm), word: Math.max(0, distance - Math.max(0, ofForm)) }
}
