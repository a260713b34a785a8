/** Owns the process that makes fresh prefills (reference.cc), and the noise floor that "equal" is judged by. */
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { programs } from './programs.js'
import type { CacheType } from './protocol.js'

/** What the reference must have in common with what is judged. */
export interface ReferenceSetting {
  readonly model: string
  readonly cells: number
  readonly flashAttention: boolean
  readonly keyType: CacheType
  readonly valueType: CacheType
}

/** Numbers of ggml_type. */
const TYPES = { f32: 0, f16: 1, q8_0: 8 } as const

export interface Prefilled {
  /** By fresh prefill, by place from the first that was asked for: natural-log probabilities of all tokens. */
  readonly variants: readonly (readonly Float32Array[])[]
  /** The largest difference between the fresh prefills. */
  readonly noise: number
}

/** Rows of one decode: of others before, of the tokens, of others behind. */
export interface DecodeShape {
  readonly before: number
  readonly own: number
  readonly behind: number
  /** Of all decodes, how many have their cells before this one's. Default: those before it. */
  readonly rank?: number
}

/** A shown token of a splice. */
export interface SplicedRow {
  readonly token: number
  /** The place in the text before the edits whose cell is kept; absent for a token that is decoded. */
  readonly kept?: number
}

export class Reference {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>
  readonly #waiting: { resolve: (reply: Buffer) => void; reject: (error: Error) => void }[] = []
  #read: Buffer = Buffer.alloc(0)
  #vocabulary = 0

  /** Whether keys or values are rounded to blocks of whole numbers. */
  readonly quantised: boolean
  /** Whether they are kept with fewer bits than they are computed with. */
  readonly rounds: boolean

  private constructor({ model, cells, flashAttention, keyType, valueType }: ReferenceSetting) {
    const { reference, libraries } = programs()
    this.quantised = keyType === 'q8_0' || valueType === 'q8_0'
    this.rounds = keyType !== 'f32' || valueType !== 'f32'
    const facts = [libraries, model, cells, flashAttention ? 1 : 0, TYPES[keyType], TYPES[valueType]]
    this.#child = spawn(reference, facts.map(String), { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#child.stdout.on('data', (bytes: Buffer) => {
      this.#read = Buffer.concat([this.#read, bytes])
      while (this.#read.length >= 4 && this.#read.length >= 4 + this.#read.readUInt32LE(0)) {
        const end = 4 + this.#read.readUInt32LE(0)
        this.#waiting.shift()?.resolve(this.#read.subarray(4, end))
        this.#read = this.#read.subarray(end)
      }
    })
    this.#child.once('close', (code, signal) => {
      for (const { reject } of this.#waiting) reject(new Error(`The reference ended (${signal ?? code ?? ''}).`))
    })
  }

  static async start(setting: ReferenceSetting): Promise<Reference> {
    const reference = new Reference(setting)
    reference.#vocabulary = (await reference.#next()).readInt32LE(0)
    return reference
  }

  /** Log-probabilities behind place `from` and behind each later one, `tokens` being all that is seen. */
  async prefill(tokens: readonly number[], from: number): Promise<Prefilled> {
    const [whole, chunked, after] = await this.#prefill(tokens, from)
    const noise = Math.max(...whole.map((row, at) => Math.max(furthest(row, chunked[at]!), furthest(row, after[at]!))))
    return { variants: [whole, chunked, after], noise }
  }

  /** The same in one more fresh prefill, in these decodes, 512 rows at most. */
  async prefillAs(tokens: readonly number[], from: number, decodes: readonly DecodeShape[]): Promise<Float32Array[]> {
    const shapes = decodes.flatMap(({ before, own, behind, rank }, at) => [before, own, behind, rank ?? at])
    return this.#rows(await this.#ask([3, tokens.length, ...tokens, from, decodes.length, ...shapes]), tokens.length - from)
  }

  /**
   * A splice by llama.cpp alone: reads `base`, then puts the shown rows together from left to right. Log-probabilities behind the last row,
   * which must be decoded. `ends`: places behind which a decode ends, so that the same splice is made of other batches.
   */
  async splice(
    base: readonly number[],
    rows: readonly SplicedRow[],
    ends: ReadonlySet<number> = new Set(),
  ): Promise<Float32Array> {
    const numbers = rows.flatMap(({ token, kept }, at) => [token, kept ?? -1, ends.has(at) ? 1 : 0])
    return this.#rows(await this.#ask([4, base.length, ...base, rows.length, ...numbers]), 1)[0]!
  }

  /** As bytes of UTF-8, control tokens written out. */
  async text(tokens: readonly number[]): Promise<string> {
    return (await this.#ask([2, tokens.length, ...tokens])).toString('utf8')
  }

  end(): void {
    this.#child.stdin.end()
  }

  async #prefill(tokens: readonly number[], from: number): Promise<[Float32Array[], Float32Array[], Float32Array[]]> {
    const count = tokens.length - from
    const rows = this.#rows(await this.#ask([1, tokens.length, from, ...tokens]), 3 * count)
    return [rows.slice(0, count), rows.slice(count, 2 * count), rows.slice(2 * count)]
  }

  #rows(reply: Buffer, count: number): Float32Array[] {
    const all = new Float32Array(reply.length / 4)
    for (let at = 0; at < all.length; at++) all[at] = reply.readFloatLE(4 * at)
    return Array.from({ length: count }, (_, at) => all.subarray(at * this.#vocabulary, (at + 1) * this.#vocabulary))
  }

  #ask(numbers: readonly number[]): Promise<Buffer> {
    this.#child.stdin.write(Buffer.from(Int32Array.from(numbers).buffer))
    return this.#next()
  }

  #next(): Promise<Buffer> {
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }))
  }
}

/** The largest difference of two rows, as far as the first goes. */
export function furthest(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let worst = 0
  for (let at = 0; at < a.length; at++) worst = Math.max(worst, Math.abs(a[at]! - b[at]!))
  return Number.isFinite(worst) ? worst : Infinity
}
