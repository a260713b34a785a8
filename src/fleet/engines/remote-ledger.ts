/**
 * The ledger of one conversation on a remote engine. It divides the endpoint's totals among the messages.
 *
 * The endpoint's counts of prompt, cached and generated tokens are kept unchanged. It reports nothing about single messages, so their
 * shares are estimates. A message whose text did not change keeps its tokens from the step before. The rest of the prompt is divided by the
 * texts' counts: by the endpoint's tokenizer if it has one, else by characters. The endpoint has a prefix cache, so the cached tokens are
 * the first ones of the prompt. The message in which they end depends on the estimates; their number does not.
 */
import { span, type Span } from '../../runtime/core/span.js'
import type { LedgerEntry, MessageCost, StepKind } from '../../runtime/kv/ledger.js'
import type { EndpointUsage } from './reply-reader.js'

/** A message as one step's prompt showed it. */
export interface ShownRow {
  readonly role: string
  /** The text that the ledger compares and counts: the message's content under the edits, and its tool calls. */
  readonly text: string
  /** Estimated tokens of the message. */
  readonly weight: number
}

/** What the endpoint's cache holds after the last step, as far as we can know. */
export interface Held {
  readonly rows: readonly ShownRow[]
  /** The token span of each row in the prompt. The header of the answer, if there is one, follows the last row's span. */
  readonly spans: readonly Span[]
  /** Number of tokens in the cache: the prompt and the generated tokens, without a last sampled token that was not computed. */
  readonly tokens: number
  /** Number of tokens of the answer, including its header. */
  readonly answer: number
}

export interface Outcome {
  readonly rows: readonly ShownRow[]
  /** The index of each row's message in the conversation, then that of the answer. Default: no message is left out. */
  readonly indexes?: readonly number[]
  /** The answer's text, as the next prompt will show it. */
  readonly answer: string
  readonly usage: EndpointUsage
  /** Index of the first row behind a message that the engine dropped; null when it dropped none. */
  readonly behindDrop?: number | null
  /** 1 if the count of generated tokens includes the last sampled token, which no engine computes; else 0. */
  readonly pending: 0 | 1
  readonly kind: StepKind | 'cancelled'
  readonly fallback: string | null
  /** Milliseconds from the request to the answer's first and last token, measured by this server. */
  readonly firstToken: number
  readonly total: number
  /** The engine on which the step ran. */
  readonly engine: string
}

/** Estimated tokens of the header that a chat template writes before an answer. */
const HEADER = 3

export class RemoteLedger {
  #held: Held | null = null
  #header: number | null = null
  #steps = 0
  #engine: string | null = null

  /** The name of the engine that ran the last step; null before the first step. */
  get engine(): string | null {
    return this.#engine
  }

  /** What the endpoint's cache holds after the last step; null before the first step. */
  get held(): Held | null {
    return this.#held
  }

  /** Records a step, and returns its ledger entry. */
  enter(outcome: Outcome): LedgerEntry {
    const { rows, indexes, answer, usage, pending, kind, fallback, firstToken, total, engine, behindDrop = null } = outcome
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
    const { skipped, moved } = usage.dropped ?? { skipped: 0, moved: 0 }
    // The cells behind a dropped message still carry traces of it. The engine does not say which of them it reused, so all reused cells
    // there count as approximate.
    if (behindDrop !== null && skipped > 0)
      for (const [index, cost] of messages.entries())
        if (index >= behindDrop) messages[index] = { ...cost, approximate: cost.reused }
    const sum = (part: 'reused' | 'recomputed' | 'fresh' | 'approximate') => messages.reduce((all, cost) => all + cost[part], 0)
    const [reused, recomputed, fresh] = [sum('reused'), sum('recomputed'), sum('fresh')]
    // If the whole prompt is cached, the endpoint still computes its last token again to get the logits.
    const side = prompt > 0 && cached === prompt ? 1 : 0
    // A conversation that moved to another engine is expected to find no cells there.
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
      contract: skipped > 0 ? 'splice' : 'exact',
      fallback,
      messages: messages.map((cost, row) => ({ ...cost, index: indexes?.[row] ?? row })),
      shown: prompt + said,
      reused,
      recomputed,
      fresh,
      approximate: sum('approximate'),
      positions: prompt + said + (moved > 0 ? 0 : skipped),
      side,
      submitted: recomputed + fresh + side,
      pending,
      engine: { name: engine, expected, reported: usage.cached },
      // The endpoint does not say whose cells it reused. On a conversation's first step on an engine, they can only come from other
      // conversations.
      sources: { own: first ? 0 : reused, parked: 0, shared: first ? reused : 0 },
      tiers: { host: 0, disk: 0 },
      parked: 0,
      evicted: 0,
      moved: 0,
      milliseconds: { cache: 0, ...(usage.milliseconds ?? { prefill: firstToken, decode: total - firstToken }) },
      predicted: null,
    }
  }

  /** Divides the prompt's tokens among the rows, from token 0 on. The tokens behind the last row are the answer's header. */
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

/**
 * Divides `total` tokens among the rows. A row with a size in `kept` keeps it; the remaining rows share the rest by weight. Returns null if
 * too few tokens remain for them, or if all sizes are kept and their sum is not `total`.
 */
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

/**
 * How much of a message's text the previous step already showed. `head`, `tail`: the equal first and last characters, as a share of the
 * message's characters. `most`: the most tokens of the message that can be in the cache.
 */
interface Change {
  readonly head: number
  readonly tail: number
  readonly most: number
}

function changeOf(before: Held | null, rows: readonly ShownRow[], index: number): Change {
  const now = rows[index]?.text
  const old = before?.rows[index]?.text
  if (before === null || now === undefined || now === '' || old === undefined) return { head: 0, tail: 0, most: 0 }
  // The cache ends with the answer's last computed token. The template's end-of-turn tokens behind the answer were never in it.
  const most = index === before.rows.length - 1 ? before.answer : Number.MAX_SAFE_INTEGER
  if (now === old) return { head: 1, tail: 0, most }
  const shorter = Math.min(now.length, old.length)
  let head = 0
  while (head < shorter && now[head] === old[head]) head++
  let tail = 0
  while (tail < shorter - head && now[now.length - 1 - tail] === old[old.length - 1 - tail]) tail++
  return { head: head / now.length, tail: tail / now.length, most }
}

/**
 * Estimates how many tokens of the prompt are in the engine's cache if it kept the whole last step. Counts the beginning that the prompt
 * shares with the last step's prompt and answer. In the first message that differs, the equal first characters count as their share of its
 * tokens.
 */
function expectedOf(before: Held | null, rows: readonly ShownRow[], spans: readonly Span[]): number {
  let tokens = 0
  for (const [index, { start, end }] of spans.entries()) {
    const isSame = before !== null && index < before.rows.length && before.rows[index]?.text === rows[index]?.text
    const { head, most } = changeOf(before, rows, index)
    // A message without text can still have tokens, so `isSame` and not `head` decides here.
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
