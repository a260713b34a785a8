/** Owns what the shim saw: the cells of every cache, rebuilt from llama.cpp's calls alone, and who may see which. Knows nothing of kvfold. */
import { closeSync, existsSync, openSync, readSync } from 'node:fs'

/** A cell as its decode made it. */
interface Cell {
  position: number
  readonly token: number
  /** Which exact beginning of a text it ends, a number of Beginnings; null when a fresh prefill would make it otherwise. */
  chain: number | null
  /** Which computation made it: equal numbers say the same token at the same position behind the same cells. */
  made: number
  /** Number of the decode that computed its values, its row there, and how many rows that had. */
  readonly born: number
  readonly row: number
  readonly rows: number
  /** Whose text it was computed for, once that is known. */
  readonly owner: { name: string | null }
}

/** Of two cells with one name the values are the same computation at the same position. */
export const cellName = ({ born, row, position }: Cell): string => `${born} ${row} ${position}`

/** What one decode did for one sequence. */
export interface Seen {
  readonly decode: number
  readonly sequence: number
  /** Tokens it had in this decode. */
  readonly rows: number
  /** Logits were asked for. */
  readonly output: boolean
  /** All that the last of its tokens could see, itself included, in the order of positions. */
  readonly cells: readonly Cell[]
}

/** Numbers for beginnings of texts: equal ones are the same tokens at the same positions. */
class Beginnings {
  readonly #next = new Map<number, Map<number, number>>()
  #count = 0

  /** The beginning that has one token more; 0 is the empty one. */
  longer(beginning: number, token: number): number {
    const known = this.#next.get(beginning)
    const map = known ?? new Map<number, number>()
    if (known === undefined) this.#next.set(beginning, map)
    const there = map.get(token)
    if (there !== undefined) return there
    map.set(token, ++this.#count)
    return this.#count
  }
}

/** Exact beginnings by owner. */
export type Snapshot = ReadonlyMap<string, ReadonlySet<number>>

const END = 2 ** 31

export class ObservedCache {
  readonly sequences = new Map<number, Cell[]>()
  /** Tokens that entered by decodes. */
  decoded = 0
  /** Since it was last emptied. */
  seen: Seen[] = []

  constructor(
    readonly cells: number,
    private readonly beginnings: Beginnings,
    private readonly computations: Beginnings,
  ) {}

  of(sequence: number): Cell[] {
    return this.sequences.get(sequence) ?? []
  }

  /** What exact beginnings it has cells of, by owner: for questions asked later. */
  snapshot(): Snapshot {
    const there = new Map<string, Set<number>>()
    for (const cells of this.sequences.values())
      for (const { chain, owner } of cells) {
        if (chain === null || owner.name === null) continue
        const known = there.get(owner.name)
        if (known === undefined) there.set(owner.name, new Set([chain]))
        else known.add(chain)
      }
    return there
  }

  /** All cells that some sequence sees, as `cellName` names them. */
  get names(): ReadonlySet<string> {
    return new Set([...this.sequences.values()].flatMap((cells) => cells.map(cellName)))
  }

  copy(from: number, to: number, p0: number, p1: number): void {
    if (from === to) return
    const [start, end] = range(p0, p1)
    const own = new Set(this.of(to))
    for (const cell of this.of(from)) if (cell.position >= start && cell.position < end) own.add(cell)
    this.#set(to, [...own])
  }

  remove(sequence: number, p0: number, p1: number): void {
    const [start, end] = range(p0, p1)
    for (const each of sequence < 0 ? [...this.sequences.keys()] : [sequence])
      this.#set(
        each,
        this.of(each).filter(({ position }) => position < start || position >= end),
      )
  }

  shift(sequence: number, p0: number, p1: number, by: number): void {
    const [start, end] = range(p0, p1)
    for (const cell of this.of(sequence))
      if (cell.position >= start && cell.position < end) {
        cell.position += by
        cell.chain = null
        cell.made = this.computations.longer(cell.made, by)
      }
    for (const [each, cells] of this.sequences) this.#set(each, cells)
  }

  put(sequence: number, cells: readonly Cell[]): void {
    this.#set(
      sequence,
      cells.map((cell) => ({ ...cell })),
    )
  }

  /** `rows`: those that entered, of `size`. */
  enter(decode: number, rows: readonly Row[], size: number): void {
    this.decoded += rows.length
    for (const sequence of new Set(rows.map((row) => row.sequence))) {
      const mine = rows.filter((row) => row.sequence === sequence)
      const owner = { name: null }
      const fresh = mine.map(({ token, position, row }): Cell => ({
        ...{ token, position, chain: null, made: 0, owner },
        ...{ born: decode, row, rows: size },
      }))
      this.#set(sequence, [...this.of(sequence), ...fresh])
      const last = Math.max(...mine.map(({ position }) => position))
      const cells = this.of(sequence).filter(({ position }) => position <= last)
      const news = new Set(fresh)
      // Exact are those that saw nothing but an exact beginning without gaps.
      let beginning: number | null = 0
      let behind = 0
      cells.forEach((cell, at) => {
        const { computations } = this
        if (news.has(cell)) cell.made = computations.longer(computations.longer(behind, -1 - cell.token), cell.position)
        behind = computations.longer(behind, cell.made)
        if (beginning === null) return
        const expected: number = this.beginnings.longer(beginning, cell.token)
        const isExact = cell.position === at && (news.has(cell) || cell.chain === expected)
        if (news.has(cell) && isExact) cell.chain = expected
        beginning = isExact ? expected : null
      })
      this.seen.push({ decode, sequence, rows: mine.length, output: mine.some(({ output }) => output), cells })
    }
  }

  #set(sequence: number, cells: Cell[]): void {
    if (cells.length === 0) this.sequences.delete(sequence)
    else
      this.sequences.set(
        sequence,
        cells.sort((a, b) => a.position - b.position),
      )
  }
}

interface Row {
  /** Its place in the decode. */
  readonly row: number
  readonly token: number
  readonly position: number
  readonly sequence: number
  readonly output: boolean
}

/** Reads the shim's file as it grows. One for all processes that share saved states. */
export class Observer {
  readonly #beginnings = new Beginnings()
  readonly #computations = new Beginnings()
  readonly #states = new Map<string, { readonly cells: readonly Cell[]; readonly doubtful: boolean }>()
  readonly #byContext = new Map<string, ObservedCache>()
  readonly #byMemory = new Map<string, ObservedCache>()
  #pending: { readonly context: string; readonly rows: readonly Row[] } | null = null
  #decodes = 0
  #offset = 0
  #rest = ''
  /** In the order they were made, since `restarted`. */
  caches: ObservedCache[] = []
  /** What should never be seen: loads of unknown states, calls that nobody expects. */
  readonly complaints: string[] = []

  constructor(private readonly path: string) {}

  /** The program ended and another one is to write to the file: what it saved at its end counts, too. */
  restarted(): void {
    this.read()
    this.#byContext.clear()
    this.#byMemory.clear()
    this.#pending = null
    this.caches = []
  }

  get decodes(): number {
    return this.#decodes
  }

  /** How many of these tokens, from the first one on, are there as exact cells that belong to `owner`. */
  exactBeginning(there: Snapshot, tokens: readonly number[], owner: string): number {
    const own = there.get(owner)
    let beginning = 0
    for (const [at, token] of tokens.entries()) {
      beginning = this.#beginnings.longer(beginning, token)
      if (own?.has(beginning) !== true) return at
    }
    return tokens.length
  }

  /** How many of these cells are an exact beginning. */
  exactOf(cells: readonly Cell[]): number {
    let beginning = 0
    for (const [at, { token, position, chain }] of cells.entries()) {
      beginning = this.#beginnings.longer(beginning, token)
      if (chain !== beginning || position !== at) return at
    }
    return cells.length
  }

  /** Takes in what was written since. */
  read(): void {
    if (!existsSync(this.path)) return
    const file = openSync(this.path, 'r')
    const buffer = Buffer.alloc(1 << 20)
    try {
      for (;;) {
        const size = readSync(file, buffer, 0, buffer.length, this.#offset)
        if (size === 0) return
        this.#offset += size
        const lines = (this.#rest + buffer.toString('latin1', 0, size)).split('\n')
        this.#rest = lines.pop() ?? ''
        for (const line of lines) this.#take(line)
      }
    } finally {
      closeSync(file)
    }
  }

  #take(line: string): void {
    const [what = '', whose = '', ...rest] = line.split(' ')
    const numbers = rest.map(Number)
    const [a = 0, b = 0, c = 0, d = 0] = numbers
    const context = this.#byContext.get(whose)
    const memory = this.#byMemory.get(whose)
    if (what === 'N') {
      const cache = new ObservedCache(b, this.#beginnings, this.#computations)
      this.#byContext.set(whose, cache)
      this.#byMemory.set(rest[0] ?? '', cache)
      this.caches.push(cache)
    } else if (what === 'F') this.#byContext.delete(whose)
    else if (what === 'D')
      this.#pending = {
        context: whose,
        rows: rest.slice(1).map((text, row) => {
          const [token = '', position = '', sequence = '', output = ''] = text.split(',')
          if (sequence.includes('+')) this.complaints.push(`a token of several sequences was decoded: ${text}`)
          return {
            row,
            token: Number(token),
            position: Number(position),
            sequence: Number.parseInt(sequence),
            output: output === '1',
          }
        }),
      }
    else if (what === 'E') this.#ended(whose, a, rest.slice(1))
    else if (what === 'C') memory?.copy(a, b, c, d)
    else if (what === 'R') {
      if (d !== 0) memory?.remove(a, b, c)
    } else if (what === 'A') memory?.shift(a, b, c, d)
    else if (what === 'K') memory?.sequences.clear()
    else if (what === 'S') {
      if (context !== undefined) this.#save(`${rest[1]} ${rest[2]}`, context.of(a))
    } else if (what === 'L') {
      // Contexts of an earlier history, which are being given up.
      if (context === undefined) return
      const state = this.#states.get(`${rest[1]} ${rest[2]}`)
      if (b > 0 && state === undefined) this.complaints.push(`a state was loaded that was never saved: ${line}`)
      context.put(a, b > 0 && state !== undefined ? loaded(state) : [])
    } else this.complaints.push(`unexpected: ${line.slice(0, 200)}`)
  }

  /** The same text in the hands of two owners gives the same bytes; whose they are when they are loaded cannot be told then. */
  #save(key: string, cells: readonly Cell[]): void {
    const before = this.#states.get(key)
    const differs = ({ owner }: Cell, at: number) =>
      owner !== cells[at]?.owner && (owner.name === null || owner.name !== cells[at]?.owner.name)
    this.#states.set(key, {
      cells: [...cells],
      doubtful: before !== undefined && (before.doubtful || before.cells.some(differs)),
    })
  }

  #ended(whose: string, status: number, ends: readonly string[]): void {
    const cache = this.#byContext.get(whose)
    const pending = this.#pending
    this.#pending = null
    if (cache === undefined || pending?.context !== whose) return
    const last = new Map(ends.map((each) => each.split(':').map(Number) as [number, number]))
    const entered =
      status === 0 ? pending.rows : pending.rows.filter(({ sequence, position }) => position <= (last.get(sequence) ?? -1))
    this.#decodes++
    if (status !== 1) cache.enter(this.#decodes, entered, pending.rows.length)
  }
}

function loaded({ cells, doubtful }: { readonly cells: readonly Cell[]; readonly doubtful: boolean }): readonly Cell[] {
  if (!doubtful) return cells
  const nobody = { name: null }
  return cells.map((cell) => ({ ...cell, owner: nobody }))
}

function range(p0: number, p1: number): readonly [start: number, end: number] {
  return [Math.max(0, p0), p1 < 0 ? END : p1]
}
