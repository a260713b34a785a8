/**
 * The demo's reader. It lets the model read a stream of updates that is several times longer than the context, chunk by chunk. If a chunk
 * does not fit beside the unfolded ones, it first folds the oldest unfolded chunk. All counts come from the ledger.
 */
import type { Contract } from '../../../runtime/core/contract.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import { freshConversation } from '../../../runtime/core/ids.js'
import { span, type Span } from '../../../runtime/core/span.js'
import { plain } from '../../../runtime/agents/sculptor.js'
import type { Conversation } from '../../../runtime/context/conversation.js'
import type { EngineReply } from '../../../runtime/engine/engine.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import type { LedgerEntry } from '../../../runtime/kv/ledger.js'
import { piScore, piText, type PiUpdate } from '../../pi-llm.js'
import type { TokenRun } from './context-bar.js'

export interface ReaderPlan {
  readonly keys: readonly string[]
  readonly updates: readonly PiUpdate[]
  /** `partTokens`: tokens of a chunk, approximately. `openTokens`: the most tokens of all unfolded chunks together. */
  readonly partTokens: number
  readonly openTokens: number
  readonly contract: Contract
  /**
   * Approximate limit in seconds for reading the stream. A slower model reads only the first chunks, but at least `leastTokens` tokens.
   * Default: no limit.
   */
  readonly seconds?: number
  readonly leastTokens: number
}

/** The number of computed tokens, and the seconds that they took. */
export interface Work {
  readonly tokens: number
  readonly seconds: number
}

export interface Cost {
  readonly ours: Work
  /**
   * What the same step would cost with a prefix cache, which keeps only the common beginning of two prompts. The tokens are the ledger's
   * `plain`. The seconds are estimated from the speed of the last chunk that was read.
   */
  readonly prefixCache: Work
}

/** How far the reader has come. */
export interface Standing {
  /** Numbers of tokens: read so far (`read`), of the whole stream (`all`), in the context (`shown`). */
  readonly read: number
  readonly all: number
  readonly shown: number
  readonly folds: number
  /** The cost of all steps so far. */
  readonly total: Cost
  /** The whole stream in order, as runs of tokens in the same state. */
  readonly runs: readonly TokenRun[]
}

export interface ReaderEvents {
  /** Called often while tokens are computed. `doing`: what the running step does. */
  progress(doing: 'reading' | 'answering', standing: Standing): void
  folded(cost: Cost, standing: Standing): void
}

export interface Restore extends Cost {
  /** `tokens`: tokens of the restored text. `again`: how many of the conversation's tokens had to be computed again for it. */
  readonly tokens: number
  readonly again: number
}

export interface Reading {
  /** Tokens of the whole conversation without folds, including the answer. */
  readonly conversationTokens: number
  readonly folds: number
  readonly folding: Cost
  readonly asked: number
  readonly right: number
  /** Tokens in the context at the end of the answer. */
  readonly shown: number
  readonly answer: string
  /** The restore of the chunk that was folded last; null if no chunk was folded. */
  readonly restore: Restore | null
  /** The cost of all steps: reading, folding, answering and restoring. */
  readonly total: Cost
}

interface Part {
  readonly text: string
  readonly tokens: number
  readonly updates: readonly PiUpdate[]
}

/** The marker of a folded chunk. It is short, because a small context holds many markers. */
const MARKER = '[folded]'

const NO_WORK: Work = { tokens: 0, seconds: 0 }
const NO_COST: Cost = { ours: NO_WORK, prefixCache: NO_WORK }
const sumOf = (a: Work, b: Work): Work => ({ tokens: a.tokens + b.tokens, seconds: a.seconds + b.seconds })
const added = (a: Cost, b: Cost): Cost => ({ ours: sumOf(a.ours, b.ours), prefixCache: sumOf(a.prefixCache, b.prefixCache) })

export class Reader {
  readonly #conversation: Conversation
  readonly #framing: string
  readonly #question: string
  #parts: readonly Part[]
  /** The position of each chunk read so far: message index and character span. */
  readonly #places: { readonly message: number; readonly span: Span }[] = []
  /** Fragment ids of the folded chunks, oldest first. */
  readonly #folded: string[] = []
  #shown = 0
  /** Seconds per token, measured on the chunk that was read last. */
  #pace = 0
  #total = NO_COST
  #folding = NO_COST

  constructor(
    private readonly engine: LlamaEngine,
    private readonly plan: ReaderPlan,
    private readonly events: ReaderEvents,
    private readonly signal: AbortSignal,
  ) {
    this.#conversation = plain({ engine, id: freshConversation() }).conversation
    const [framing, opening, question] = piText(plan.keys, [])
    this.#framing = `${framing}\n\n${opening}`
    this.#question = question
    this.#parts = partsOf(engine, plan)
  }

  /** Number of tokens of the whole stream. */
  get tokens(): number {
    return tokensOf(this.#parts)
  }

  /**
   * Sends the whole stream at once, as a client without folds would. Returns the engine's refusal; null if the stream fits into the
   * context.
   * @throws KvfoldError engine/cancelled
   */
  async refusal(): Promise<KvfoldError | null> {
    const stream = this.#parts.map(({ text }) => text).join(' ')
    const content = `${this.#framing}${stream}\n\n${this.#question}`
    if (this.engine.count([{ role: 'user', content }], []) <= this.engine.info.context) return null
    try {
      const { engine, signal } = this
      await engine.respond({ conversation: freshConversation(), messages: [{ role: 'user', content }], signal }).reply
      return null
    } catch (error) {
      if (error instanceof KvfoldError && error.code !== 'engine/cancelled') return error
      throw error
    }
  }

  /** Reads the stream, answers the question, and restores the chunk that was folded last. @throws KvfoldError engine/cancelled */
  async run(): Promise<Reading> {
    for (let at = 0; at < this.#parts.length; at++) {
      await this.#makeRoom(at)
      await this.#read(at)
      if (at === 0) this.#shorten()
    }
    this.#conversation.add({ role: 'user', content: this.#question })
    const { message } = await this.#step('answering', Math.min(2048, 64 + 24 * this.plan.keys.length))
    const shown = this.#shown
    this.#conversation.add(message)
    const updates = this.#parts.flatMap((part) => part.updates)
    const score = piScore({ keys: this.plan.keys, updates }, message.content)
    const restore = await this.#restore()
    return {
      conversationTokens: this.engine.count(this.#conversation.messages, []),
      folds: this.#folded.length,
      folding: this.#folding,
      asked: this.plan.keys.length,
      right: score.correct,
      shown,
      answer: message.content,
      restore,
      total: this.#total,
    }
  }

  async #read(at: number): Promise<void> {
    const { text } = this.#parts[at]!
    const before = at === 0 ? this.#framing : ''
    const message = this.#conversation.add({ role: 'user', content: before + text })
    this.#places.push({ message, span: span(before.length, before.length + text.length) })
    const { ledger } = await this.#step('reading')
    if (ledger.submitted > 0) this.#pace = secondsOf(ledger) / ledger.submitted
  }

  /** Folds the oldest unfolded chunks until the chunk with index `at` fits beside the rest. */
  async #makeRoom(at: number): Promise<void> {
    while (this.#folded.length < at && tokensOf(this.#parts.slice(this.#folded.length, at + 1)) > this.plan.openTokens) {
      const folded = this.#conversation.replace([{ ...this.#places[this.#folded.length]!, marker: MARKER }])
      if (!folded.ok) throw new KvfoldError('internal/invariant', folded.message)
      this.#folded.push(folded.fragments[0]!.id)
      const { ledger } = await this.#step('reading')
      const cost = this.#costOf(ledger)
      this.#folding = added(this.#folding, cost)
      this.events.folded(cost, this.#standing(this.#places.length, 0))
    }
  }

  async #restore(): Promise<Restore | null> {
    const id = this.#folded.at(-1)
    if (id === undefined) return null
    const restored = this.#conversation.restore(id)
    if (!restored.ok) throw new KvfoldError('internal/invariant', restored.message)
    const { ledger } = await this.#step('reading')
    return { tokens: this.#parts[this.#folded.length - 1]!.tokens, again: ledger.recomputed, ...this.#costOf(ledger) }
  }

  /** Drops chunks from the end of the stream if, at the speed of the first chunk, reading would take longer than `plan.seconds`. */
  #shorten(): void {
    const { seconds = Infinity, leastTokens } = this.plan
    const most = Math.max(leastTokens, seconds / this.#pace)
    let tokens = 0
    this.#parts = this.#parts.filter((part) => {
      const isKept = tokens < most
      tokens += part.tokens
      return isKept
    })
  }

  async #step(doing: 'reading' | 'answering', maxTokens = 0): Promise<EngineReply> {
    const { engine, plan, signal } = this
    const { id, messages } = this.#conversation
    const read = this.#places.length
    const reply = await engine
      .respond({
        conversation: id,
        messages,
        edits: this.#conversation.edits(),
        contract: plan.contract,
        maxTokens,
        sampling: { temperature: 0 },
        signal,
      })
      .each((event) => {
        if (event.type === 'prefill')
          this.events.progress(doing, this.#standing(read, event.total === 0 ? 0 : 1 - event.done / event.total))
        else if (event.type === 'tokens') this.events.progress(doing, this.#standing(read, 0))
      })
    if (reply.finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'The demo was interrupted.')
    this.#shown = reply.ledger.shown
    this.#total = added(this.#total, this.#costOf(reply.ledger))
    return reply
  }

  #costOf(ledger: LedgerEntry): Cost {
    const plainTokens = ledger.plain ?? ledger.submitted
    return {
      ours: { tokens: ledger.submitted, seconds: secondsOf(ledger) },
      prefixCache: { tokens: plainTokens, seconds: plainTokens * this.#pace },
    }
  }

  /** `read`: number of chunks read, including the current one. `left`: the share of the current chunk that is not computed yet. */
  #standing(read: number, left: number): Standing {
    const runs = this.#parts.flatMap(({ tokens }, at): TokenRun[] => {
      if (at >= read) return [{ share: 'waiting', tokens }]
      if (at < this.#folded.length) return [{ share: 'folded', tokens }]
      if (at < read - 1 || left === 0) return [{ share: 'reused', tokens }]
      const waiting = Math.round(left * tokens)
      return [
        { share: 'new', tokens: tokens - waiting },
        { share: 'waiting', tokens: waiting },
      ]
    })
    return {
      read: tokensOf(this.#parts.slice(0, read)),
      all: this.tokens,
      shown: this.#shown,
      folds: this.#folded.length,
      total: this.#total,
      runs,
    }
  }
}

const secondsOf = ({ milliseconds: { cache, prefill, decode } }: LedgerEntry): number => (cache + prefill + decode) / 1000

const tokensOf = (parts: readonly Part[]): number => parts.reduce((sum, { tokens }) => sum + tokens, 0)

/** Divides the stream into chunks of about equal length. No update is cut. */
function partsOf({ model }: LlamaEngine, { updates, partTokens }: ReaderPlan): Part[] {
  const textOf = (some: readonly PiUpdate[]) => some.map(({ key, value }) => `${key}: ${value};`).join(' ')
  const all = model.tokenize(textOf(updates)).length
  const count = Math.max(1, Math.round(all / partTokens))
  return Array.from({ length: count }, (_, at) => {
    const some = updates.slice(Math.floor((at * updates.length) / count), Math.floor(((at + 1) * updates.length) / count))
    const text = textOf(some)
    return { text, tokens: model.tokenize(text).length, updates: some }
  })
}
