/** Measures how much attention an answer gives to chosen spans of any prompt, complete and folded. */
import { freshConversation } from '../../runtime/core/ids.js'
import type { ChatMessage, Edit, ToolDefinition } from '../../runtime/chat/message.js'
import type { BlendChoice, Contract } from '../../runtime/core/contract.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { span, type Span } from '../../runtime/core/span.js'
import type { LlamaEngine } from '../../runtime/engine/llama.js'
import {
  type AnswerChoice,
  measureAttention,
  type Measurement,
  type MeasurementOptions,
  massOn,
  overall,
} from '../../runtime/attention/measurement.js'
import type { MessageSpan } from '../../runtime/attention/places.js'
import type { StudyRow, StudyTable } from './tables.js'

/** A span of a message to which the answer's attention is measured. */
export interface WatchedSpan extends MessageSpan {
  readonly name: string
  readonly text: string
}

/** The attention of the whole answer to one span, under one contract: mean over the answer's tokens, layers and heads. */
export interface SpanRow {
  readonly name: string
  readonly contract: Contract
  readonly message: number
  /** Number of tokens of the span in the complete prompt. */
  readonly tokens: number
  readonly complete: number
  /** The attention in the folded prompt; null if that prompt does not show the whole span. */
  readonly folded: number | null
  /** The change from `complete` to `folded` in percent; null if `folded` is null or `complete` is 0. */
  readonly change: number | null
  /**
   * The attention from only those answer tokens that repeat the span's text. Null if the answer to the complete prompt does not repeat it.
   * `folded` is null if the answer to the folded prompt does not repeat it, or if that prompt does not show the whole span.
   */
  readonly said: { readonly complete: number; readonly folded: number | null } | null
}

export interface SpanStudy {
  readonly rows: readonly SpanRow[]
  /** The answer to the complete prompt, then the answer under each contract. `shown`: number of tokens of the prompt. */
  readonly answers: readonly {
    readonly side: Contract | 'complete'
    readonly answer: string
    readonly shown: number
    readonly fallback: string | null
  }[]
}

export interface SpanStudyOptions {
  readonly engine: LlamaEngine
  readonly messages: readonly ChatMessage[]
  readonly tools?: readonly ToolDefinition[]
  readonly edits: readonly Edit[]
  readonly spans: readonly WatchedSpan[]
  readonly answer: AnswerChoice
  readonly contracts: readonly Contract[]
  readonly blend?: BlendChoice
  readonly layers?: readonly number[]
  readonly signal?: AbortSignal
  readonly onProgress?: (done: number, total: number, next: string) => void
}

const WHOLE = 'the whole answer'
/** Returns a span's name in a measurement. The prefix keeps it apart from the sets for messages, markers and the whole answer. */
const watchedName = (name: string): string => `span ${name}`

/**
 * Measures the spans in the complete prompt, and again under each contract.
 * @throws KvfoldError attention/bad-request when a generated answer is empty; engine/cancelled; the errors of `measureAttention`
 */
export async function compareSpans(options: SpanStudyOptions): Promise<SpanStudy> {
  const { engine, messages, tools, spans, contracts, blend, layers, signal, edits, onProgress } = options
  const base = {
    engine,
    messages,
    answer: options.answer,
    find: (answer: string) => found(answer, spans),
    watched: spans.map(({ name, message, chars }) => ({ name: watchedName(name), stretches: [{ message, chars }] })),
    ...(tools === undefined ? {} : { tools }),
    ...(layers === undefined ? {} : { layers }),
    ...(signal === undefined ? {} : { signal }),
  }
  const total = contracts.length + 1
  const once = async (side: Contract | 'complete', of: MeasurementOptions): Promise<Measurement> => {
    const seen = await measureAttention(of)
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    if (!seen.said.has(WHOLE))
      throw new KvfoldError(
        'attention/bad-request',
        `The model's answer is empty (${side}), so no token looks at anything; give an answer with --answer.`,
      )
    return seen
  }
  const home = freshConversation()
  try {
    onProgress?.(0, total, 'complete')
    const complete = await once('complete', { ...base, conversation: home, terms: { contract: 'exact' } })
    const rows: SpanRow[] = []
    const answers: SpanStudy['answers'][number][] = [answerOf('complete', complete)]
    for (const [index, contract] of contracts.entries()) {
      onProgress?.(index + 1, total, `folded, ${contract}`)
      const conversation = freshConversation()
      try {
        // Compute the complete prompt first, so that the fold finds cells in the cache, as in a conversation.
        await engine.respond({
          conversation,
          messages,
          ...(tools === undefined ? {} : { tools }),
          maxTokens: 0,
          contract: 'exact',
        }).reply
        const terms = contract === 'blend' && blend !== undefined ? { contract, blend } : { contract }
        const folded = await once(contract, { ...base, conversation, edits, terms })
        answers.push(answerOf(contract, folded))
        rows.push(...spans.map((one) => rowOf(one, contract, complete, folded)))
      } finally {
        engine.forget(conversation)
      }
    }
    onProgress?.(total, total, 'done')
    return { rows, answers }
  } finally {
    engine.forget(home)
  }
}

/**
 * Returns the answer's spans whose tokens are the queries. They are the whole answer without surrounding white space, and the last
 * occurrence of each watched span's text.
 */
function found(answer: string, spans: readonly WatchedSpan[]): ReadonlyMap<string, Span> {
  const start = answer.length - answer.trimStart().length
  const end = answer.trimEnd().length
  const said = spans.flatMap(({ name, text }) => {
    const at = text === '' ? -1 : answer.lastIndexOf(text)
    return at < 0 ? [] : [[watchedName(name), span(at, at + text.length)] as const]
  })
  return new Map(end > start ? [[WHOLE, span(start, end)] as const, ...said] : [])
}

const answerOf = (side: Contract | 'complete', { answer, prompt, fallback }: Measurement): SpanStudy['answers'][number] => ({
  side,
  answer,
  shown: prompt.tokens.length,
  fallback,
})

function rowOf({ name, message }: WatchedSpan, contract: Contract, before: Measurement, after: Measurement): SpanRow {
  const own = watchedName(name)
  const [complete, folded] = [massFrom(before, WHOLE, own) ?? 0, massFrom(after, WHOLE, own)]
  const [saidComplete, saidFolded] = [massFrom(before, own, own), massFrom(after, own, own)]
  return {
    name,
    contract,
    message,
    tokens: before.sets.get(own)?.size ?? 0,
    complete,
    folded,
    change: folded === null || complete === 0 ? null : 100 * (folded / complete - 1),
    said: saidComplete === null ? null : { complete: saidComplete, folded: saidFolded },
  }
}

function massFrom({ pattern, said, sets }: Measurement, from: string, on: string): number | null {
  const looking = said.get(from)
  if (pattern === null || looking === undefined || (sets.get(on)?.size ?? 0) === 0) return null
  const map = massOn(pattern, looking.value, on)
  return map === null ? null : overall(map)
}

/** Returns a table with one row per span and contract. */
export function spanTable(rows: readonly SpanRow[]): StudyTable {
  return {
    columns: {
      name: 'text',
      contract: 'text',
      message: 'integer',
      tokens: 'integer',
      complete: 'real',
      folded: 'real',
      change: 'real',
      said_complete: 'real',
      said_folded: 'real',
    },
    rows: rows.map(({ said, ...row }): StudyRow => ({
      ...row,
      said_complete: said?.complete ?? null,
      said_folded: said?.folded ?? null,
    })),
  }
}
