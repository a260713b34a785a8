/**
 * Owns the choice of an engine for a conversation: pure, by hashes of how it begins and by what each engine has to do.
 *
 * A conversation stays where its last step was; so does one that goes on, under whatever name, from where a step ended that nobody has gone on from.
 * One that was nowhere yet goes where its beginning is: where a step of the same messages, or the
 * conversation that it was forked from, went. Where nobody has its beginning, rendezvous hashing of its root (the messages up to the
 * first of a user) decides, so that every front which has the same engines decides alike, and an engine that leaves moves its own conversations
 * only. An engine that has more than its share of the open requests is passed over (bounded loads) for those who come, never for those who stay:
 * of many forks of one conversation, the first stays, and the others are spread.
 */
import { writeJson } from '../../runtime/core/written-json.js'
import { createHash } from 'node:crypto'
import type { ChatMessage } from '../../runtime/chat/message.js'

/** An engine as the choice sees it. */
export interface Candidate {
  /** What is hashed: the same in every front. */
  readonly name: string
  /** Share of the conversations that it is to have, in proportion to the others'; above 0. */
  readonly weight: number
  /** Requests under way there. */
  readonly open: number
  /** Whether it takes requests at all. */
  readonly available: boolean
}

/** What a conversation is looked up by. */
export interface Beginning {
  /** Hash of the messages up to the first of a user: it stays the same as long as the conversation lives, and in forks. */
  readonly root: string
  /** Hashes of the root and of every longer beginning, the whole prompt last. Each hash depends on the one before. */
  readonly chain: readonly string[]
}

/** Why an engine was chosen. */
export type Reason =
  /** The last step was there, of this conversation or of the one that it is a copy of. */
  | 'stays'
  /** The beginning, or the conversation that this is a fork of, is there. */
  | 'prefix'
  /** By its root. */
  | 'hash'
  /** By its root, after others that have too much to do. */
  | 'spilled'

export interface Wanted {
  readonly beginning: Beginning
  /** Where its last step was; null: nowhere. */
  readonly last: string | null
  /** Where that of the conversation was that it is a fork of. */
  readonly parent: string | null
}

/**
 * The hashes of a conversation, from its original contents, so that folds do not move it. Tenants have different ones: nobody's requests say where
 * another's conversations are.
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

/** 128 bits; the parts cannot run into one another. */
function hashOf(...parts: readonly string[]): string {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest('base64url').slice(0, 22)
}

/** All of them, the likeliest first: by weighted rendezvous hashing, which asks nothing of the others. */
export const ranked = (root: string, candidates: readonly Candidate[]): readonly Candidate[] =>
  candidates
    .map((candidate) => ({ candidate, score: -candidate.weight / Math.log(unitOf(root, candidate.name)) }))
    .sort((a, b) => b.score - a.score || (a.candidate.name < b.candidate.name ? -1 : 1))
    .map(({ candidate }) => candidate)

/** A number between 0 and 1, both excluded. */
function unitOf(root: string, name: string): number {
  const bits = createHash('sha256').update(`${root} ${name}`).digest().readUIntBE(0, 6)
  return (bits + 0.5) / 2 ** 48
}

/** Open requests that an engine may have, this one included, before others are preferred: its share of all by weight, times `slack`, rounded up. */
export function roomOf({ weight }: Candidate, candidates: readonly Candidate[], slack: number): number {
  const open = candidates.reduce((sum, each) => sum + each.open, 0)
  const weights = candidates.reduce((sum, each) => sum + each.weight, 0)
  return Math.ceil((slack * (open + 1) * weight) / weights)
}

/** Beginnings that are remembered; some 100 bytes each. */
const MOST = 50_000
/** Times its share that an engine may have of the open requests. */
const SLACK = 1.25

export class Affinity {
  /** Engines by the beginnings that they were sent, oldest use first. `end`: the whole prompt of a step that nobody has gone on from yet. */
  readonly #held = new Map<string, { readonly name: string; readonly end: boolean }>()

  /** @param slack at least 1: how much more than its share of the open requests an engine may have before newcomers go elsewhere */
  constructor(
    private readonly slack = SLACK,
    private readonly most = MOST,
  ) {}

  /** Null when none takes requests. */
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

  /** A step with this prompt ran there. */
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

  /** Nothing is there any more. */
  lost(name: string): void {
    for (const [hash, holder] of this.#held) if (holder.name === name) this.#held.delete(hash)
  }

  /** The engine that the conversation's step before ended on, which it is the first to go on from; null: there is none, or it takes no requests. */
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
