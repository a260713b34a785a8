/** The tiers below the device: keeps saved sequences in host memory and on the disk tier, and moves them to disk when memory is full. */
import { constants } from 'node:buffer'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { steady } from '../core/clock.js'
import { lowerBound } from '../core/span.js'
import type { ConversationId } from '../core/ids.js'
import { type FreshText, WORDS } from './cell-hash.js'
import type { DiskCounts, DiskItem, DiskTier, OffloadRecord } from './ports.js'
import { isMarker, sourcePlace } from './prompt.js'
import { surplus } from './tier-policy.js'
import { freshCells, type HeldSequence, type Sequence } from './sequence.js'

export interface OffloadOptions {
  /** Bytes of host memory for saved sequences. Default 0: a sequence stays in memory only until it is written to the disk tier. */
  readonly hostBytes?: number
  /** The disk tier. Default: none. */
  readonly disk?: DiskTier
}

/** Counts of the sequences in host memory and on disk. */
export interface OffloadTotals {
  readonly host: { readonly sequences: number; readonly tokens: number; readonly bytes: number; readonly budget: number }
  readonly disk: { readonly sequences: number; readonly tokens: number; readonly bytes: number }
  /** `lost`: sequences dropped for lack of room. `refused`: sequences that were damaged, or written by another model. */
  readonly lost: number
  readonly refused: number
  /** The disk tier's counts of lost items since it was opened; null without a disk tier. */
  readonly onDisk: DiskCounts | null
}

/**
 * Saved sequences in host memory and on disk. When memory is full, sequences of least benefit per byte (tier-policy.ts) are written to the
 * disk tier in the background. Without a disk tier they are lost. A sequence leaves memory only when it is on disk.
 */
export class OffloadTiers {
  readonly #host = new Set<OffloadedSequence>()
  /** Sequences in memory that are being written to the disk tier. */
  readonly #leaving = new Set<OffloadedSequence>()
  readonly #disk = new Map<string, OffloadedSequence>()
  readonly #moving = new Set<Promise<void>>()
  /** Sequences that a step is about to load. They are not dropped to make room. */
  #claimed: ReadonlySet<OffloadedSequence> = new Set()
  /** The latest write of a state in several pieces. Such writes run one after another. */
  #joining: Promise<unknown> = Promise.resolve()
  readonly #budget: number
  readonly #store: DiskTier | null
  /** The smallest ratio of bytes to tokens of any sequence saved so far (short sequences have a larger one). Infinity before the first. */
  #perToken = Infinity
  #lost = 0
  #refused = 0
  /** A counter that grows whenever a sequence enters the tiers, leaves them or moves between them. */
  revision = 0

  constructor({ hostBytes = 0, disk }: OffloadOptions) {
    this.#budget = hostBytes
    this.#store = disk ?? null
    for (const { id, record, bytes, lastUse } of disk?.items ?? []) {
      const stored = new OffloadedSequence(record, { tier: 'disk', id }, bytes)
      stored.lastUse = lastUse
      this.#disk.set(id, stored)
    }
  }

  /** Whether saved sequences can be kept at all: in host memory or on a disk tier. */
  get open(): boolean {
    return this.#budget > 0 || this.#store !== null
  }

  /** Whether any sequence is on the disk tier. */
  get hasDisk(): boolean {
    return this.#disk.size > 0
  }

  /** All stored sequences, latest used first. */
  get all(): readonly StoredSequence[] {
    return [...this.#host, ...this.#disk.values()].sort((a, b) => b.lastUse - a.lastUse) as StoredSequence[]
  }

  get totals(): OffloadTotals {
    const of = (stored: Iterable<OffloadedSequence>) => {
      const all = [...stored]
      const sum = (key: 'held' | 'bytes') => all.reduce((total, each) => total + each[key], 0)
      return { sequences: all.length, tokens: sum('held'), bytes: sum('bytes') }
    }
    const refused = this.#refused + (this.#store?.counts.refused ?? 0)
    const host = { ...of(this.#host), budget: this.#budget }
    return { host, disk: of(this.#disk.values()), lost: this.#lost, refused, onDisk: this.#store?.counts ?? null }
  }

  /**
   * Names the sequences that a step is about to load, in place of those of the last call. They are not dropped, and do not count against
   * the budget. So there is room for sequences that are evicted for the step.
   */
  claim(wanted: Iterable<OffloadedSequence>): void {
    this.#claimed = new Set(wanted)
    if (this.#claimed.size === 0) this.#makeRoom()
  }

  /**
   * Whether the tiers can take this many more tokens without losing a sequence, estimated from the smallest bytes per token so far. True
   * before anything was saved. `offer` decides by the real size.
   */
  hasRoom(tokens: number): boolean {
    return this.open && (this.#perToken === Infinity || this.#fits(tokens * this.#perToken))
  }

  /** Keeps a saved sequence in host memory like `put`, but only if no other one is lost for it. Returns false when it is not kept. */
  offer(record: OffloadRecord, state: SavedState): boolean {
    this.#weigh(record, state)
    return this.#fits(bytesOf(state)) && this.put(record, state)
  }

  /**
   * Keeps a saved sequence in host memory. If that is full, the sequences of least benefit move to the disk tier, or are lost without one.
   * Returns false for a sequence that is larger than host memory may be, if there is no disk tier: it is lost, and the others stay.
   */
  put(record: OffloadRecord, state: SavedState): boolean {
    this.revision++
    this.#weigh(record, state)
    if (this.#store === null && bytesOf(state) > this.#budget) {
      this.#lost++
      return false
    }
    this.#host.add(new OffloadedSequence(record, { tier: 'host', state }, bytesOf(state)))
    this.#makeRoom()
    return true
  }

  /** Returns the cell values of a stored sequence: at once from host memory, as a promise from disk. Null: they are gone or damaged. */
  read(stored: OffloadedSequence): SavedState | Promise<SavedState | null> {
    stored.lastUse = steady.now()
    const { place } = stored
    if (place.tier === 'host') return place.state
    if (place.tier === 'shared') return Promise.resolve(null)
    return (
      this.#store?.take(place.id).then((state) => {
        if (state === null && this.#disk.delete(place.id)) this.revision++
        return state === null ? null : piecesOf(state)
      }) ?? Promise.resolve(null)
    )
  }

  /** Reads the cell values of those `wanted` sequences that are on disk. Returns null if none is. */
  fetch(wanted: Iterable<OffloadedSequence>): Promise<ReadStates> | null {
    const below = [...wanted].filter(({ tier }) => tier === 'disk')
    if (below.length === 0) return null
    const reading = below.map(async (stored) => [stored, await this.read(stored)] as const)
    return Promise.all(reading).then((read) => new Map(read))
  }

  /**
   * Drops a stored sequence.
   * @param damaged whether llama.cpp refused its state; such sequences are counted
   */
  drop(stored: OffloadedSequence, damaged = false): void {
    if (damaged) this.#refused++
    this.revision++
    this.#host.delete(stored)
    if (stored.place.tier !== 'disk' || !this.#disk.delete(stored.place.id)) return
    this.#follow(this.#store?.drop(stored.place.id))
  }

  forget(conversation: ConversationId): void {
    for (const stored of this.all) if (stored.conversation === conversation) this.drop(stored)
  }

  /** Whether a sequence of the conversation is being written to the disk tier, even if it was dropped meanwhile. */
  isWriting(conversation: ConversationId): boolean {
    return [...this.#leaving].some((stored) => stored.conversation === conversation)
  }

  /** Resolves when all current moves to the disk tier are done. */
  async settle(): Promise<void> {
    while (this.#moving.size > 0) await Promise.all(this.#moving)
  }

  /** Moves all sequences from memory to the disk tier, and closes it. */
  async close(): Promise<void> {
    if (this.#store !== null) for (const stored of this.#host) this.#demote(stored)
    await this.settle()
    await this.#store?.close()
  }

  #weigh({ tokens }: OffloadRecord, state: SavedState): void {
    if (tokens.length > 0) this.#perToken = Math.min(this.#perToken, bytesOf(state) / tokens.length)
  }

  /** Whether this many more bytes fit into host memory. With a disk tier, other sequences may move to disk for them. */
  #fits(bytes: number): boolean {
    const held = this.#kept().reduce((sum, kept) => sum + kept.bytes, 0)
    return bytes <= this.#budget && (this.#store !== null || held + bytes <= this.#budget)
  }

  #makeRoom(): void {
    for (const given of surplus(this.#kept(), this.#budget, steady.now())) this.#demote(given.stored)
  }

  #kept() {
    const staying = [...this.#host].filter((stored) => !this.#leaving.has(stored) && !this.#claimed.has(stored))
    return staying.map((stored) => ({ stored, tokens: stored.held, bytes: stored.bytes, lastUse: stored.lastUse }))
  }

  /** Moves a sequence to the disk tier and out of memory. Without a disk tier it is lost. */
  #demote(stored: OffloadedSequence): void {
    const { place, record } = stored
    if (place.tier !== 'host' || this.#leaving.has(stored)) return
    if (this.#store === null) {
      this.revision++
      this.#host.delete(stored)
      this.#lost++
      return
    }
    this.#leaving.add(stored)
    this.#follow(
      this.#write(record, place.state)
        .catch(nullIfShort)
        .then((item) => {
          this.revision++
          this.#leaving.delete(stored)
          const wanted = this.#host.delete(stored)
          if (item === null) this.#lost++
          else if (wanted) this.#disk.set(item.id, new OffloadedSequence(record, { tier: 'disk', id: item.id }, item.bytes))
          else this.#follow(this.#store?.drop(item.id))
          this.#dropEvicted()
        }),
    )
  }

  /** Drops the records of sequences that the disk tier evicted to make room. */
  #dropEvicted(): void {
    const there = new Set(this.#store?.items.map(({ id }) => id))
    for (const id of this.#disk.keys()) if (!there.has(id)) this.#disk.delete(id)
  }

  /** Writes a state to the disk tier. A state in pieces is joined first. That needs its memory twice, so only one is joined at a time. */
  async #write(record: OffloadRecord, state: SavedState): Promise<DiskItem | null> {
    const store = this.#store!
    if (state instanceof Uint8Array) return store.put(record, state)
    const writing = this.#joining.then(async () => {
      const whole = await joined(state)
      return whole === null ? null : store.put(record, whole)
    })
    this.#joining = writing.catch(() => undefined)
    return writing
  }

  #follow(work: Promise<void> | undefined): void {
    if (work === undefined) return
    const done = work.finally(() => this.#moving.delete(done))
    this.#moving.add(done)
  }
}

// A sequence that was moved off the device.

/**
 * Where a saved sequence's cell values are: in memory, or on the disk tier under an id. For the shared tier, the code that read the values
 * keeps them.
 */
export type OffloadPlace =
  | { readonly tier: 'host'; readonly state: SavedState }
  | { readonly tier: 'disk'; readonly id: string }
  | { readonly tier: 'shared' }

/** A sequence in host memory or on disk. */
export type StoredSequence = OffloadedSequence & { readonly tier: 'host' | 'disk' }

export class OffloadedSequence implements HeldSequence {
  /** When it was last used, in milliseconds since 1970. */
  lastUse = steady.now()

  constructor(
    readonly record: OffloadRecord,
    readonly place: OffloadPlace,
    /** Bytes that it takes in its tier. */
    readonly bytes: number,
  ) {}

  get tier(): OffloadPlace['tier'] {
    return this.place.tier
  }

  get conversation(): ConversationId {
    return this.record.conversation
  }

  get held(): number {
    return this.record.tokens.length
  }

  get tokens(): Int32Array {
    return this.record.tokens
  }

  get sourceIds(): Int32Array {
    return this.record.sourceIds
  }

  get unedited(): Int32Array {
    return this.record.unedited
  }

  position(entry: number): number {
    return this.record.positions[entry]!
  }

  atPosition(position: number): number {
    return lowerBound(this.held, (entry) => this.record.positions[entry]! < position)
  }

  atKey(key: number): number {
    return lowerBound(this.held, (entry) => this.record.sourceIds[entry]! < key)
  }

  isFresh(entry: number, place: number, text: FreshText): boolean {
    const { record } = this
    return (
      entry < this.held &&
      record.tokens[entry] === text.tokens[place] &&
      record.positions[entry] === place &&
      text.isAt(place, record.hashes, entry)
    )
  }

  cellWord(entry: number): number {
    return this.record.hashes[WORDS * entry]!
  }

  freshRun(entry: number, place: number, end: number, text: FreshText): number {
    return freshCells(this, entry, place, end, text)
  }
}

/**
 * Returns the whole sequence except its cells' values. The unedited prompt is cut behind the token of the last entry: text after it may be
 * forgotten later, and the record must not keep it.
 */
export function offloadRecordOf(sequence: Sequence): OffloadRecord {
  const { conversation, sourceIds, unedited: base } = sequence
  const last = sourceIds.at(-1) ?? 0
  return {
    conversation,
    unedited: base.subarray(0, sourcePlace(last) + (isMarker(last) ? 0 : 1)),
    tokens: sequence.tokens.slice(),
    sourceIds: sourceIds.slice(),
    ...sequence.readCells(),
  }
}

/** The cell values of a saved sequence: one piece, or several pieces in order, each for consecutive entries. */
export type SavedState = Uint8Array | readonly Uint8Array[]

const bytesOf = (state: SavedState): number =>
  state instanceof Uint8Array ? state.byteLength : state.reduce((sum, { byteLength }) => sum + byteLength, 0)

/** Returns null for the error of an array that is too large for the memory. @throws every other error */
function nullIfShort(error: unknown): null {
  if (error instanceof RangeError) return null
  throw error
}

// On disk, a state in pieces becomes one array of bytes: first JOINED, then the number of pieces, the length of each piece, and the pieces.
// The number and the lengths take 8 bytes each.

const JOINED = Buffer.from('kvfold in pieces')

/** Joins the pieces into one array, with a turn of the event loop after each. Returns null if Node allows no array of that length. */
async function joined(pieces: readonly Uint8Array[]): Promise<Uint8Array | null> {
  const head = JOINED.length + 8 * (1 + pieces.length)
  if (head + bytesOf(pieces) > constants.MAX_LENGTH) return null
  const whole = Buffer.allocUnsafeSlow(head + bytesOf(pieces))
  whole.set(JOINED)
  for (const [at, number] of [pieces.length, ...pieces.map(({ byteLength }) => byteLength)].entries())
    whole.writeBigUInt64LE(BigInt(number), JOINED.length + 8 * at)
  let at = head
  for (const piece of pieces) {
    whole.set(piece, at)
    at += piece.byteLength
    await nextTurn()
  }
  return whole
}

/**
 * Returns the pieces of a joined state without copying them, and any other state unchanged. The disk tier has checked the bytes already.
 */
function piecesOf(state: Uint8Array): SavedState {
  const whole = Buffer.from(state.buffer, state.byteOffset, state.byteLength)
  if (!whole.subarray(0, JOINED.length).equals(JOINED)) return state
  const number = (at: number) => Number(whole.readBigUInt64LE(JOINED.length + 8 * at))
  const pieces: Uint8Array[] = []
  let at = JOINED.length + 8 * (1 + number(0))
  for (let piece = 1; piece <= number(0); at += number(piece++))
    pieces.push(new Uint8Array(state.buffer, state.byteOffset + at, number(piece)))
  return pieces
}

/** Cell values that were read from lower tiers ahead of a step, by sequence. Null: they are damaged or gone. */
export type ReadStates = ReadonlyMap<OffloadedSequence, SavedState | null>
