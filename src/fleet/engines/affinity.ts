/**
 * Chooses an engine for a conversation. The choice depends only on hashes of the conversation's messages, on the engines that ran earlier
 * steps, and on the open requests of each engine.
 *
 * - A conversation stays on the engine of its last step. So does the first new conversation that continues from the end of that step.
 * - Another new conversation goes to the engine that has its beginning in the cache: the engine ran a step with the same messages, or it
 * ran the conversation that this one is forked from.
 * - If no engine has its beginning, weighted rendezvous hashing of its root decides. The root is the messages up to the first user message.
 * All servers with the same engines decide alike, and an engine that leaves moves only its own conversations.
 *
 * A new conversation skips an engine with more than its share of the open requests (bounded loads). So of many forks of one conversation,
 * the first stays, and the rest are spread over the engines.
 */
import { writeJson } from '../../runtime/core/written-json.js'
import { createHash } from 'node:crypto'
import type { ChatMessage } from '../../runtime/chat/message.js'

/** One engine, with the facts that the choice needs. */
export interface Candidate {
  /** The engine's name, which is hashed. All servers must use the same name for it, or they choose differently. */
  readonly name: string
  /** The engine's share of the conversations, relative to the weights of all engines; above 0. */
  readonly weight: number
  /** How many requests the engine is answering now. */
  readonly open: number
  /** Whether the engine takes requests at all. */
  readonly available: boolean
}

/** The hashes by which an engine with the conversation's cache is found. */
export interface Beginning {
  /**
   * Hash of the messages up to and including the first user message. It stays the same while the conversation grows, and its forks share
   * it.
   */
  readonly root: string
  /**
   * Hashes of the root and of every longer beginning, one message more each; the last is the whole prompt. Each hash includes the previous
   * one.
   */
  readonly chain: readonly string[]
}

/** Why an engine was chosen. */
export type Reason =
  /** The engine ran the last step of this conversation, or the step from whose end this conversation continues under a new id. */
  | 'stays'
  /** The engine has the conversation's beginning, or the conversation from which this one was forked. */
  | 'prefix'
  /** The hash of the conversation's root chose the engine. */
  | 'hash'
  /** The hash of the conversation's root chose the engine, after engines with too many open requests were passed over. */
  | 'spilled'

export interface Wanted {
  readonly beginning: Beginning
  /** The engine of the conversation's last step; null before the first step. */
  readonly last: string | null
  /** The engine of the parent conversation's last step, if this one is a fork. */
  readonly parent: string | null
}

/**
 * Returns the hashes of a conversation. They are computed from the original contents, so a fold does not change them. They include the
 * tenant, so a tenant's requests cannot reveal where the conversations of another tenant run.
 */
export function beginningOf(messages: readonly ChatMessage[], tenant = ''): Beginning {
  const first = Math.max(
    0,
    messages.findIndex(({ role }) => role === 'user'),
  )
  let hash = hashOf('kvfold conversation', tenant)
  const chain: string[] = []
  for (const [index, { role, content, toolCalls }] of messages.entries()) {
    hash = hashOf(
      hash,
      role,
      content,
      toolCalls === undefined ? '' : writeJson(toolCalls.map(({ name, arguments: given }) => [name, given])),
    )
    if (index >= first) chain.push(hash)
  }
  return { root: chain[0] ?? hash, chain }
}

/** Hashes a list of strings to 128 bits. Each length is hashed too, so that `['ab', 'c']` and `['a', 'bc']` differ. */
function hashOf(...parts: readonly string[]): string {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest('base64url').slice(0, 22)
}

/**
 * Sorts the candidates for a root by weighted rendezvous hashing, the best first. A candidate's score does not depend on the other
 * candidates.
 */
export const ranked = (root: string, candidates: readonly Candidate[]): readonly Candidate[] =>
  candidates
    .map((candidate) => ({ candidate, score: -candidate.weight / Math.log(unitOf(root, candidate.name)) }))
    .sort((a, b) => b.score - a.score || (a.candidate.name < b.candidate.name ? -1 : 1))
    .map(({ candidate }) => candidate)

/** Hashes a root and an engine's name to a number between 0 and 1, both excluded. */
function unitOf(root: string, name: string): number {
  const bits = createHash('sha256').update(`${root} ${name}`).digest().readUIntBE(0, 6)
  return (bits + 0.5) / 2 ** 48
}

/**
 * Returns the number of open requests from which on other engines are preferred. It is the engine's share by weight of all open requests
 * plus one, times `slack`, rounded up.
 */
export function roomOf({ weight }: Candidate, candidates: readonly Candidate[], slack: number): number {
  const open = candidates.reduce((sum, each) => sum + each.open, 0)
  const weights = candidates.reduce((sum, each) => sum + each.weight, 0)
  return Math.ceil((slack * (open + 1) * weight) / weights)
}

/** How many beginnings are remembered (LRU). Each takes about 100 bytes. */
const MOST = 50_000
/** The default of `slack`: how many times its share of the open requests an engine may have. */
const SLACK = 1.25

export class Affinity {
  /**
   * The engine that ran each beginning, by the beginning's hash, least recently used first. `end`: the beginning is the whole prompt of a
   * step, and no conversation has continued from it yet.
   */
  readonly #held = new Map<string, { readonly name: string; readonly end: boolean }>()

  /** @param slack at least 1: how many times its share of the open requests an engine may have before new conversations go elsewhere */
  constructor(
    private readonly slack = SLACK,
    private readonly most = MOST,
  ) {}

  /** Chooses the engine for a step, and gives the reason. Returns null if no engine takes requests. */
  choose(
    { beginning, last, parent }: Wanted,
    candidates: readonly Candidate[],
  ): { readonly name: string; readonly why: Reason } | null {
    const open = candidates.filter(({ available }) => available)
    if (open.some(({ name }) => name === last)) return { name: last!, why: 'stays' }
    const goesOn = last === null ? this.#goOn(beginning, open) : null
    if (goesOn !== null) return { name: goesOn, why: 'stays' }
    const order = ranked(beginning.root, open)
    const home = this.#homeOf(beginning, parent, open)
    const hasRoom = (candidate: Candidate) => candidate.open < roomOf(candidate, open, this.slack)
    if (home !== undefined && hasRoom(home)) return { name: home.name, why: 'prefix' }
    const chosen = order.find(hasRoom) ?? order[0]
    if (chosen === undefined) return null
    return { name: chosen.name, why: chosen === order[0] && home === undefined ? 'hash' : 'spilled' }
  }

  /** Records that a step with this prompt ran on the engine. */
  ran({ chain }: Beginning, name: string): void {
    for (const [at, hash] of chain.entries()) {
      this.#held.delete(hash)
      this.#held.set(hash, { name, end: at === chain.length - 1 })
    }
    for (const oldest of this.#held.keys()) {
      if (this.#held.size <= this.most) break
      this.#held.delete(oldest)
    }
  }

  /** Forgets the beginnings of an engine that has left. */
  lost(name: string): void {
    for (const [hash, holder] of this.#held) if (holder.name === name) this.#held.delete(hash)
  }

  /**
   * Returns the engine of the step that this conversation continues from, if it is the first to do so. Returns null if there is no such
   * step, or if its engine takes no requests.
   */
  #goOn({ chain }: Beginning, open: readonly Candidate[]): string | null {
    const end = chain.slice(0, -1).findLast((hash) => this.#held.has(hash))
    const held = end === undefined ? undefined : this.#held.get(end)
    if (end === undefined || held?.end !== true || !open.some(({ name }) => name === held.name)) return null
    this.#held.set(end, { ...held, end: false })
    return held.name
  }

  #homeOf({ chain }: Beginning, parent: string | null, open: readonly Candidate[]): Candidate | undefined {
    const called = (name: string | undefined) => open.find((candidate) => candidate.name === name)
    const original = called(parent ?? undefined)
    if (original !== undefined) return original
    for (let at = chain.length - 1; at >= 0; at--) {
      const holder = called(this.#held.get(chain[at]!)?.name)
      if (holder !== undefined) return holder
    }
    return undefined
  }
}
