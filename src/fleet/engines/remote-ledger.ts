/**
 * Owns the ledger of one conversation on a remote engine: the endpoint's totals, divided among the messages.
 *
 * What the endpoint counts is taken as it is: prompt, cached and generated tokens. It says nothing of single messages, so these are apportioned:
 * messages whose text did not change keep the tokens they were given before, and the rest of the prompt is divided by what the texts count
 * (the endpoint's tokenizer where it has one, else their characters). As only a beginning of the prompt can be cached, the cached tokens are
 * the first ones; the message in which they end is a matter of the apportioning, their sum is not.
 */
import { span, type Span } from '../../runtime/core/span.js'
import type { LedgerEntry, MessageCost, StepKind } from '../../runtime/kv/ledger.js'
import type { EndpointUsage } from './reply-reader.js'

/** A message as a step showed it. */
export interface ShownRow {
  readonly role: string
  /** All of it that is counted: content under the edits, calls. */
  readonly text: string
  /** What it weighs in the prompt, about: tokens. */
  readonly weight: number
}

/** What the last step left in the endpoint's cache, as far as can be known. */
export interface Held {
  readonly rows: readonly ShownRow[]
  /** Tokens of the prompt, one span a row; the answer's header, if any, lies behind the last. */
  readonly spans: readonly Span[]
  /** Tokens that were computed or cached: prompt and generated, but for the last one. */
  readonly tokens: number
  /** Those of the answer, its header included. */
  readonly answer: number
}

export interface Outcome {
  readonly rows: readonly ShownRow[]
  /** The answer, as the next step will show it. */
  readonly answer: string
  readonly usage: EndpointUsage
  /** Generated tokens that were not computed: the last one sampled, which no engine computes, if it counts. */
  readonly pending: 0 | 1
  readonly kind: StepKind | 'cancelled'
  readonly fallback: string | null
  /** Milliseconds to the first token and to the last, as seen from here. */
  readonly firstToken: number
  readonly total: number
  /** Where the step ran. */
  readonly engine: string
}

/** Tokens of the header that a template puts in front of an answer, about. */
const HEADER = 3

export class RemoteLedger {
  #held: Held | null = null
  #header: number | null = null
  #steps = 0
  #engine: string | null = null

  /** Where the last step ran; null before the first. */
  get engine(): string | null {
    return this.#engine
  }

  /** Null before the first step. */
  get held(): Held | null {
    return this.#held
  }

  /** Enters a step. */
  enter({ rows, answer, usage, pending, kind, fallback, firstToken, total, engine }: Outcome): LedgerEntry {
    const before = this.#held
    const { prompt, generated } = usage
    const spans = this.#spans(rows, prompt)
    const header = span(spans.at(-1)?.end ?? 0, prompt)
    const cached = usage.cached ?? 0
    const messages = spans.map((of, index) => costOf(index, rows[index]?.role ?? '', of, cached, changeOf(before, rows, index)))
    const said = generated - pending
    const reusedHeader = overlap(header, span(0, cached))
    messages.push({
      index: rows.length,
      role: 'assistant',
      shown: header.end - header.start + said,
      reused: reusedHeader,
      recomputed: 0,
      fresh: header.end - header.start - reusedHeader + said,
      approximate: 0,
    })
    const sum = (part: 'reused' | 'recomputed' | 'fresh') => messages.reduce((all, cost) => all + cost[part], 0)
    const [reused, recomputed, fresh] = [sum('reused'), sum('recomputed'), sum('fresh')]
    // A prompt that is cached to its last token has that one computed again, for its logits.
    const side = prompt > 0 && cached === prompt ? 1 : 0
    // Another engine has of this conversation what others left there.
    const first = this.#steps === 0 || this.#engine !== engine
    const expected = first ? 0 : expectedOf(before, rows, spans)
    this.#engine = engine
    this.#header = header.end - header.start
    this.#held = {
      rows: [...rows, { role: 'assistant', text: answer, weight: 0 }],
      spans,
      tokens: prompt + said,
      answer: header.end - header.start + said,
    }
    return {
      step: this.#steps++,
      kind,
      contract: 'exact',
      fallback,
      messages,
      shown: prompt + said,
      reused,
      recomputed,
      fresh,
      approximate: 0,
      positions: prompt + said,
      side,
      submitted: recomputed + fresh + side,
      pending,
      engine: { name: engine, expected, reported: usage.cached },
      // The endpoint does not say whose they were: a conversation's first step there can only have found others'.
      sources: { own: first ? 0 : reused, parked: 0, shared: first ? reused : 0 },
      tiers: { host: 0, disk: 0 },
      parked: 0,
      evicted: 0,
      moved: 0,
      milliseconds: { cache: 0, ...(usage.milliseconds ?? { prefill: firstToken, decode: total - firstToken }) },
      predicted: null,
    }
  }

  /** One span a row, in order from 0; what they leave of the prompt is the answer's header. */
  #spans(rows: readonly ShownRow[], prompt: number): Span[] {
    const before = this.#held
    const kept = rows.map(({ text, role }, index): number | null => {
      const old = before?.rows[index]
      const tokens = before?.spans[index]
      return old?.text === text && old.role === role && tokens !== undefined ? tokens.end - tokens.start : null
    })
    const weights = [...rows.map(({ weight }) => Math.max(1, weight)), HEADER]
    const sizes =
      shares(prompt, weights, [...kept, this.#header]) ??
      shares(
        prompt,
        weights,
        weights.map(() => null),
      ) ??
      []
    const spans: Span[] = []
    let at = 0
    for (const size of sizes.slice(0, rows.length)) spans.push(span(at, (at += size)))
    return spans
  }
}

/** `total` divided: what is kept stays, the rest goes by weight. Null when what is kept leaves too little, or all of it and not enough. */
function shares(total: number, weights: readonly number[], kept: readonly (number | null)[]): number[] | null {
  const taken = kept.reduce<number>((sum, size) => sum + (size ?? 0), 0)
  const open = weights.reduce((sum, weight, at) => (kept[at] == null ? sum + weight : sum), 0)
  const openOnes = kept.filter((size) => size === null).length
  const rest = total - taken
  if (openOnes === 0 ? rest !== 0 : rest < openOnes && taken > 0) return null
  let weighed = 0
  let given = 0
  return weights.map((weight, at) => {
    const size = kept[at] ?? null
    if (size !== null) return size
    weighed += weight
    const share = Math.round((rest * weighed) / open) - given
    given += share
    return share
  })
}

/** What the step before showed of a message, too: shares of its characters at its beginning and its end, and how many tokens at most. */
interface Change {
  readonly head: number
  readonly tail: number
  readonly most: number
}

function changeOf(before: Held | null, rows: readonly ShownRow[], index: number): Change {
  const now = rows[index]?.text
  const old = before?.rows[index]?.text
  if (before === null || now === undefined || now === '' || old === undefined) return { head: 0, tail: 0, most: 0 }
  // What follows the answer's last token but one, its end of turn first of all, was not there yet.
  const most = index === before.rows.length - 1 ? before.answer : Number.MAX_SAFE_INTEGER
  if (now === old) return { head: 1, tail: 0, most }
  const shorter = Math.min(now.length, old.length)
  let head = 0
  while (head < shorter && now[head] === old[head]) head++
  let tail = 0
  while (tail < shorter - head && now[now.length - 1 - tail] === old[old.length - 1 - tail]) tail++
  return { head: head / now.length, tail: tail / now.length, most }
}

/** Tokens of a prompt that stand in the engine's cache if it kept all of the last step: the beginning that both have. */
function expectedOf(before: Held | null, rows: readonly ShownRow[], spans: readonly Span[]): number {
  let tokens = 0
  for (const [index, { start, end }] of spans.entries()) {
    const isSame = before !== null && index < before.rows.length && before.rows[index]?.text === rows[index]?.text
    const { head, most } = changeOf(before, rows, index)
    // An answer without words still has its tokens.
    tokens += isSame
      ? Math.min(index === before.rows.length - 1 ? before.answer : end - start, end - start)
      : Math.min(most, Math.round((end - start) * head))
    if (!isSame) break
  }
  return tokens
}

function costOf(index: number, role: string, of: Span, cached: number, { head, tail, most }: Change): MessageCost {
  const shown = of.end - of.start
  const computed = span(Math.min(of.end, Math.max(of.start, cached)), of.end)
  const first = Math.min(most, Math.round(shown * head))
  const last = Math.min(most, Math.round(shown * tail))
  const again =
    overlap(computed, span(of.start, of.start + first)) +
    overlap(computed, span(Math.max(of.start + first, of.end - last), of.end))
  const reused = shown - (computed.end - computed.start)
  return { index, role, shown, reused, recomputed: again, fresh: shown - reused - again, approximate: 0 }
}

const overlap = (a: Span, b: Span): number => Math.max(0, Math.min(a.end, b.end) - Math.max(a.start, b.start))
