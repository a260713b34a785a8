/**
 * The file format of saved cells, in the disk tier and in a folder that engines share. Verifies checksums before a file is used. Also
 * deletes the files of deleted conversations.
 */
import { createHash, createHmac } from 'node:crypto'
import { constants } from 'node:fs'
import { type FileHandle, open, readdir, rm } from 'node:fs/promises'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { crc32 } from 'node:zlib'
import { conversationId } from '../core/ids.js'
import { WORDS } from '../kv/cell-hash.js'
import type { OffloadRecord } from '../kv/ports.js'
import { join } from 'node:path'

/*
 * A file is a head and the state. In the head lengths are little-endian, and arrays of 32-bit numbers have the machine's byte order:
 *
 * | bytes | content |
 * | --- | --- |
 * | [0, 8) | name and version of the format |
 * | [8, 40) | identity |
 * | [40, 48) | bytes of the state |
 * | [48, 60) | entries held, tokens of the unedited prompt, bytes of the conversation's id |
 * | [60, 64) | zero |
 * | [64, 96) | SHA-256 of the head without these and the next bytes |
 * | [96, 128) | HMAC-SHA-256 of those 32 bytes, under the folder's secret |
 * | [128, ...) | CRC-32 of every section of the state; tokens, source ids, positions, cell hashes, unedited prompt; the id in UTF-8 |
 *
 * The state is nearly all of the file. It has the weaker checksum because a restore waits for it: of 14 MB, 3 ms instead of 11 ms
 * (one core with SHA instructions). It always finds damage within 32 bits, and misses other damage once in 2^32.
 *
 * Cell hashes have a meaning only under the secret that they were made with. So an engine cannot use a head of another secret.
 * It can still be read: a deleted conversation's file must be found without the secret.
 */
const FORMAT = 'kvshelf2'
/** Flags for opening a saved file. If its name is now a link or a pipe, opening fails or does not block. */
export const READING = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
const IDENTITY_AT = 8
export const IDENTITY_BYTES = 32
const STATE_AT = 40
const LENGTHS_AT = 48
const SUM_AT = 64
const KEYED_AT = 96
const FIXED = 128
/** Bytes of state with one checksum. The event loop gets a turn after each section is written. */
const SECTION = 2 ** 20
/**
 * Larger heads are refused: only millions of tokens would need one. So a wrong length, from damage or a hole in the file, allocates
 * nothing.
 */
const MOST_HEAD = 2 ** 28

/** Reads the head. Refuses a file of the wrong length or with a damaged head. */
export async function readHead(file: FileHandle): Promise<Buffer | 'refused'> {
  const { size } = await file.stat()
  const fixed = Buffer.allocUnsafeSlow(FIXED)
  if (!(await fill(file, fixed, 0)) || fixed.toString('latin1', 0, IDENTITY_AT) !== FORMAT) return 'refused'
  const length = headLength(fixed)
  if (length > MOST_HEAD || length + stateBytes(fixed) !== size) return 'refused'
  const head = Buffer.allocUnsafeSlow(length)
  return (await fill(file, head, 0)) && sumOf(head).equals(head.subarray(SUM_AT, KEYED_AT)) ? head : 'refused'
}

/** Reads the state. Refuses a damaged file, and one whose head has other checksums than `sum`. */
export async function readState(file: FileHandle, sum: Buffer): Promise<Uint8Array | 'refused'> {
  const head = await readHead(file)
  if (head === 'refused' || !sum.equals(sumIn(head))) return 'refused'
  const state = Buffer.allocUnsafeSlow(stateBytes(head))
  const sums = sumsOf(head)
  for (let at = 0; at < state.length; at += SECTION) {
    const section = state.subarray(at, at + SECTION)
    if (!(await fill(file, section, head.length + at)) || crc32(section) !== sums[at / SECTION]) return 'refused'
  }
  return state
}

/** Fills the buffer from byte `from` of the file. Returns false if the file ends first. */
async function fill(file: FileHandle, buffer: Buffer, from: number): Promise<boolean> {
  for (let at = 0; at < buffer.length;) {
    const { bytesRead } = await file.read(buffer, at, buffer.length - at, from + at)
    if (bytesRead === 0) return false
    at += bytesRead
  }
  return true
}

/**
 * Writes a new file with head and state, and syncs it, so that errors of a full disk or a remote server are thrown here. `time` becomes its
 * time of modification, in milliseconds.
 */
export async function writeCells(path: string, head: Buffer, state: Uint8Array, time: number): Promise<void> {
  const file = await open(path, 'wx', 0o600)
  try {
    await file.writeFile(head)
    await file.writeFile(state)
    await file.utimes(time / 1000, time / 1000)
    await file.sync()
  } finally {
    await file.close()
  }
}

/** Whether an error comes from a system call, and not from a bug of kvfold. */
export const isOfSystem = (error: unknown): error is NodeJS.ErrnoException => error instanceof Error && 'syscall' in error

/** Makes a head; `checksum` fills in its checksums. `state`: bytes of the state. */
export function headOf(record: OffloadRecord, identity: Buffer, state: number): Buffer {
  const conversation = Buffer.from(record.conversation)
  const fixed = Buffer.alloc(FIXED)
  fixed.write(FORMAT, 'latin1')
  fixed.set(identity, IDENTITY_AT)
  fixed.writeBigUInt64LE(BigInt(state), STATE_AT)
  for (const [index, length] of [record.tokens.length, record.unedited.length, conversation.length].entries())
    fixed.writeUInt32LE(length, LENGTHS_AT + 4 * index)
  const head = Buffer.from(new ArrayBuffer(headLength(fixed)))
  head.set(fixed)
  const { tokens, sourceIds: keys, positions, hashes, unedited: base } = record
  let at = FIXED + 4 * sections(state)
  for (const { buffer, byteOffset, byteLength } of [tokens, keys, positions, hashes, base]) {
    head.set(new Uint8Array(buffer, byteOffset, byteLength), at)
    at += byteLength
  }
  head.set(conversation, at)
  return head
}

/** Fills in the checksums of the head and the state. */
export async function checksum(head: Buffer, state: Uint8Array, secret: Buffer): Promise<void> {
  const sums = sumsOf(head)
  for (let index = 0; index < sums.length; index++) {
    sums[index] = crc32(state.subarray(SECTION * index, SECTION * (index + 1)))
    await nextTurn()
  }
  head.set(sumOf(head), SUM_AT)
  head.set(keyedOf(head, secret), KEYED_AT)
}

/** Returns the record in the head; its arrays are views into the head. */
export function recordOf(head: Buffer): OffloadRecord {
  const [held, inBase] = lengthsOf(head)
  let at = FIXED + 4 * sections(stateBytes(head))
  const next = (length: number) => {
    const array = new Int32Array(head.buffer, head.byteOffset + at, length)
    at += array.byteLength
    return array
  }
  const [tokens, keys, positions, hashes, base] = [next(held), next(held), next(held), next(WORDS * held), next(inBase)]
  return { conversation: conversationId(head.toString('utf8', at)), unedited: base, tokens, sourceIds: keys, positions, hashes }
}

const sections = (state: number): number => Math.ceil(state / SECTION)

/** Returns the three lengths in the head: entries held, tokens of the unedited prompt, bytes of the conversation's id. */
function lengthsOf(head: Buffer): [number, number, number] {
  return [head.readUInt32LE(LENGTHS_AT), head.readUInt32LE(LENGTHS_AT + 4), head.readUInt32LE(LENGTHS_AT + 8)]
}

/** Returns the length in bytes of the state that belongs to the head. */
export const stateBytes = (head: Buffer): number => Number(head.readBigUInt64LE(STATE_AT))

function headLength(head: Buffer): number {
  const [held, inBase, conversation] = lengthsOf(head)
  return FIXED + 4 * (sections(stateBytes(head)) + (3 + WORDS) * held + inBase) + conversation
}

/** The checksums of the state's sections, read from the head. */
const sumsOf = (head: Buffer): Uint32Array => new Uint32Array(head.buffer, head.byteOffset + FIXED, sections(stateBytes(head)))

const sumOf = (head: Buffer): Buffer =>
  createHash('sha256').update(head.subarray(0, SUM_AT)).update(head.subarray(FIXED)).digest()

export const tokensIn = (head: Buffer): number => lengthsOf(head)[0]

export const identityIn = (head: Buffer): Buffer => head.subarray(IDENTITY_AT, IDENTITY_AT + IDENTITY_BYTES)

/** Whether the head was written under this secret. */
export const isUnder = (secret: Buffer, head: Buffer): boolean => keyedOf(head, secret).equals(head.subarray(KEYED_AT, FIXED))

const keyedOf = (head: Buffer, secret: Buffer): Buffer =>
  createHmac('sha256', secret).update('kvfold shelf head:').update(head.subarray(SUM_AT, KEYED_AT)).digest()

/**
 * Whether cells that were saved under the name `conversation` belong to conversation `id`. They do if the names are equal, or if
 * `conversation` begins with `id` and a slash or a space.
 */
export const isOf = (id: string, conversation: string): boolean =>
  conversation === id || (conversation.startsWith(id) && /[/ ]/u.test(conversation[id.length]!))

/** Returns the two checksums in the head: SHA-256 and HMAC. */
export const sumIn = (head: Buffer): Buffer => head.subarray(SUM_AT, FIXED)

/** The ending of file names of shared blocks. File names of the disk tier end with `.kvshelf`. */
export const BLOCK_FILE = '.kvcells'

/**
 * Deletes files that deleted conversations left in folders of saved cells. It is needed for engines that are not loaded, which cannot do it
 * themselves. A loaded engine finds its files gone, which costs a recompute. Files of the disk tier never change, so each is read once.
 */
export class SavedCells {
  readonly #conversations: readonly Map<string, string>[]

  constructor(private readonly folders: readonly string[]) {
    this.#conversations = folders.map(() => new Map<string, string>())
  }

  /** Deletes the cells of these conversations, of all models. Returns how many files it deleted. A file that cannot be read stays. */
  async drop(conversations: readonly string[]): Promise<number> {
    let dropped = 0
    for (const [at, folder] of this.folders.entries()) {
      if (conversations.length === 0) break
      const known = this.#conversations[at]!
      const names = new Set(await readdir(folder).catch(() => []))
      for (const name of known.keys()) if (!names.has(name)) known.delete(name)
      for (const name of names) {
        const isItem = name.endsWith('.kvshelf')
        if (!isItem && !name.endsWith(BLOCK_FILE)) continue
        const path = join(folder, name)
        const saved = known.get(name) ?? (await conversationAt(path))
        if (saved === null) continue
        if (isItem) known.set(name, saved)
        if (!conversations.some((id) => isOf(id, saved))) continue
        await rm(path, { force: true })
        known.delete(name)
        dropped++
      }
    }
    return dropped
  }
}

async function conversationAt(path: string): Promise<string | null> {
  const head = await headAt(path).catch(() => null)
  return head === null ? null : recordOf(head).conversation
}

/** Reads the head of the file at this path. Returns null if the head is damaged. @throws an error of the system when it cannot be read */
export async function headAt(path: string): Promise<Buffer | null> {
  const file = await open(path, READING)
  try {
    const head = await readHead(file)
    return head === 'refused' ? null : head
  } finally {
    await file.close()
  }
}
