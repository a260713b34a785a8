/** Measures which messages an earlier answer attended to: shows its prompts again, and captures the attention of the answer's tokens. */
import type { ChatMessage, Edit, TemplateVariables, ToolDefinition } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import type { Contract } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import { contains, length, span, type Span } from '../core/span.js'
import type { AttentionPattern, KeySet } from '../engine/attention.js'
import type { AdapterScale, Engine, EngineRequest } from '../engine/engine.js'
import type { LlamaEngine } from '../engine/llama.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { massOn, messageSet, overall } from './measurement.js'
import { mean } from '../core/mean.js'
import { place, type PlacedSpans } from './places.js'

/** An engine loaded with the option `attention`. */
export type LookingEngine = Engine & Pick<LlamaEngine, 'format' | 'ownMessages'>

/** One prompt of the conversation, and the contract of its edits. */
export interface ShownPrompt {
  /** How many messages the prompt has, counted from the first. */
  readonly messages: number
  readonly edits: readonly Edit[]
  readonly contract: Contract
}

/** A span of a message: its attention is reported separately, or an edit hides it. */
export interface Cut {
  readonly id: string
  readonly message: number
  /** In characters of the message's original content. */
  readonly span: Span
}

export interface AnswerMassOptions {
  readonly engine: LookingEngine
  /** A new id. Afterwards the engine forgets this conversation. */
  readonly conversation: ConversationId
  readonly tenant?: string
  /** All messages up to the answer. The answer is the last one. */
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  /** The chat template's variables; `lora`: the adapters. Both as in EngineRequest. */
  readonly variables?: TemplateVariables
  readonly lora?: readonly AdapterScale[]
  /**
   * The prompts to show, at least one, oldest first. The last one is the answer's. Under an approximate contract its cells depend on the
   * prompts before it.
   */
  readonly shown: readonly ShownPrompt[]
  readonly cuts: readonly Cut[]
  readonly layers?: readonly number[]
  readonly signal?: AbortSignal
  /** Called with the ledger entry of each shown prompt. */
  readonly onSpent?: (entries: readonly LedgerEntry[]) => void
}

export interface CutMass {
  readonly id: string
  /** Whether the prompt shows the text of the cut, or the marker of an edit that hides it. */
  readonly shows: 'text' | 'marker'
  readonly tokens: number
  readonly mass: number
}

export interface MessageMass {
  readonly index: number
  readonly role: string
  /** Shown tokens of the message, template tokens included. */
  readonly tokens: number
  /** The share of attention on the whole message, cuts included. From 0 to 1. */
  readonly mass: number
  /** The message's cuts, in order. Cuts that the template does not show are left out. */
  readonly cuts: readonly CutMass[]
}

/** Shares of attention, each the mean over layers, heads and the answer's tokens. The shares of all messages, `own` and `rest` sum to 1. */
export interface AnswerMass {
  /** The messages before the answer. */
  readonly messages: readonly MessageMass[]
  /** The share on the answer's own earlier tokens, and on the template tokens before them. */
  readonly own: number
  /** The share on no shown token: built-in attention sinks of the model, and rounding. */
  readonly rest: number
  /** The share on the prompt's first token. It is part of the first message's share, too. */
  readonly sink: number
  /** How many of the answer's tokens had their attention captured. */
  readonly queries: number
  readonly layers: readonly number[]
  readonly heads: number
  readonly skipped: AttentionPattern['skipped']
  /** Why the last prompt's step fell back to another contract; null when it did not. */
  readonly fallback: string | null
}

/**
 * Shows the prompts again, and returns the attention of the answer's tokens on messages and cuts.
 * @throws KvfoldError engine/cancelled, attention/unavailable for an answer without tokens, and as LlamaEngine.respond
 */
export async function answerMass(asked: AnswerMassOptions): Promise<AnswerMass> {
  const { engine, conversation, shown, cuts } = asked
  // An answer sampled with another vocabulary is shown in the template's wording. Its sampled tokens must not be used to find spans.
  const messages = engine.ownMessages(asked.messages)
  const options = { ...asked, messages }
  const last = shown.at(-1)
  if (last === undefined) throw new KvfoldError('engine/bad-request', 'The measurement needs the prompt of the answer.')
  const looking = prepare(options, last, cuts)
  try {
    for (const prompt of shown.slice(0, -1)) await show(options, prompt, withAnswer(messages, prompt))
    const { ledger, attention } = await show(options, last, messages, {
      keys: [...looking.keys],
      queries: { prompt: [looking.queries] },
      ...(options.layers === undefined ? {} : { layers: options.layers }),
    })
    if (attention === undefined) throw cancelled()
    return { ...massOf(attention, looking), queries: length(looking.queries), fallback: ledger.fallback }
  } finally {
    engine.forget(conversation)
  }
}

interface FoundCut extends Pick<CutMass, 'id' | 'shows'> {
  readonly message: number
  readonly tokens: Span
}

interface MassQuery {
  readonly placed: PlacedSpans
  readonly queries: Span
  readonly keys: readonly KeySet[]
  /** The cuts that the prompt shows, by their text or by a marker, in order. */
  readonly cuts: readonly FoundCut[]
}

function prepare(
  { engine, messages, tools, variables }: AnswerMassOptions,
  { edits }: ShownPrompt,
  cuts: readonly Cut[],
): MassQuery {
  const format = engine.format.with(variables)
  const isHidden = (cut: Cut) => edits.some((edit) => edit.message === cut.message && contains(edit.span, cut.span))
  // A span of an answer can be found only when the template writes the answer. A sampled answer is shown by its sampled tokens.
  const isPlain = ({ message }: Cut) => messages[message]?.sampled === undefined || edits.some((edit) => edit.message === message)
  const open = cuts.filter((cut) => cut.message < messages.length - 1 && !isHidden(cut) && isPlain(cut))
  const stretches = open.map(({ message, span: chars }) => ({ message, chars }))
  const placed = place(format, { messages, tools, edits }, stretches)
  const found: FoundCut[] = [
    ...open.flatMap(({ id, message }, at) => {
      const tokens = placed.stretches[at]
      return tokens === undefined || tokens === 'hidden' ? [] : [{ id, message, tokens, shows: 'text' as const }]
    }),
    ...markersOf(placed, edits, cuts.filter(isHidden)),
  ].sort((a, b) => a.tokens.start - b.tokens.start)
  return {
    placed,
    queries: tokensOf(format, { messages, tools, edits }, placed),
    keys: [
      ...placed.messages.flatMap(({ index, span: tokens }) =>
        length(tokens) > 0 ? [{ name: messageSet(index), tokens: [tokens] }] : [],
      ),
      ...found.map(({ id, tokens }) => ({ name: cutSet(id), tokens: [tokens] })),
    ],
    cuts: found,
  }
}

const cutSet = (id: string): string => `cut ${id}`

/** Returns the marker that stands for each hidden cut. A message that the template does not show has no markers. */
function markersOf({ messages, markers }: PlacedSpans, edits: readonly Edit[], hidden: readonly Cut[]): FoundCut[] {
  return messages.flatMap(({ index, span: whole }) => {
    const own = edits.filter(({ message }) => message === index)
    const inside = markers.filter((marker) => contains(whole, marker))
    if (own.length !== inside.length) return []
    return hidden.flatMap(({ id, message, span: chars }) => {
      const at = own.findIndex((edit) => message === index && contains(edit.span, chars))
      return at < 0 ? [] : [{ id, message, tokens: inside[at]!, shows: 'marker' as const }]
    })
  })
}

type AnswerPrompt = Parameters<LlamaEngine['format']['render']>[0]

/**
 * Returns the answer's generated tokens: as many as were sampled, counted from the end of the prompt. If that number is unknown, returns
 * all tokens up to the end of the message.
 */
function tokensOf(
  format: LlamaEngine['format'],
  { messages, ...rest }: AnswerPrompt,
  { tokens, messages: spans }: PlacedSpans,
): Span {
  const before = messages.length - 1
  const { end, start } = spans[before]!.span
  const { tokens: prompt } = format.render({ messages: messages.slice(0, before), ...rest })
  const isBeginning = prompt.length <= end && prompt.every((token, at) => token === tokens[at])
  const first = isBeginning ? prompt.length : start
  const sampled = messages[before]?.sampled?.tokens.length
  const looking = span(first, sampled === undefined ? end : Math.min(end, first + sampled))
  if (length(looking) > 0) return looking
  throw new KvfoldError(
    'attention/unavailable',
    'The answer has no tokens, so there is no attention to measure; ask for another answer.',
  )
}

/** Returns the messages of the prompt, and the answer to it if there is one. */
const withAnswer = (messages: readonly ChatMessage[], { messages: count }: ShownPrompt): readonly ChatMessage[] =>
  messages.slice(0, messages[count]?.role === 'assistant' ? count + 1 : count)

async function show(
  { engine, conversation, tenant, tools, variables, lora, signal, onSpent }: AnswerMassOptions,
  { edits, contract }: ShownPrompt,
  messages: readonly ChatMessage[],
  attention?: EngineRequest['attention'],
) {
  const { reply } = engine.respond({
    conversation,
    messages,
    tools,
    edits,
    contract,
    maxTokens: 0,
    ...(variables === undefined ? {} : { variables }),
    ...(lora === undefined ? {} : { lora }),
    ...(tenant === undefined ? {} : { tenant }),
    ...(attention === undefined ? {} : { attention }),
    ...(signal === undefined ? {} : { signal }),
  })
  const done = await reply
  onSpent?.([done.ledger])
  if (done.finish === 'cancelled') throw cancelled()
  return done
}

const cancelled = (): KvfoldError => new KvfoldError('engine/cancelled', 'The measurement of the answer was cancelled.')

function massOf(pattern: AttentionPattern, { placed, cuts }: MassQuery): Omit<AnswerMass, 'queries' | 'fallback'> {
  const queries = [...pattern.queries]
  const mass = (key: string): number => {
    const map = massOn(pattern, queries, key)
    return map === null ? 0 : overall(map)
  }
  // The last two entries are the answer and the generation prompt after it, which the answer does not see.
  const before = placed.messages.slice(0, -2)
  const messages = before.map(({ index, role, span: tokens }): MessageMass => ({
    index,
    role,
    tokens: length(tokens),
    mass: mass(messageSet(index)),
    cuts: cuts
      .filter(({ message }) => message === index)
      .map((cut): CutMass => ({ id: cut.id, shows: cut.shows, tokens: length(cut.tokens), mass: mass(cutSet(cut.id)) })),
  }))
  const own = mass(messageSet(before.length))
  return {
    messages,
    own,
    rest: 1 - own - messages.reduce((sum, message) => sum + message.mass, 0),
    sink: mean(pattern.sink.data),
    layers: pattern.layers,
    heads: pattern.heads.length,
    skipped: pattern.skipped,
  }
}
