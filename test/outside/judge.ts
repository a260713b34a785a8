/** Owns the verdict on one step: what the shim saw and what a fresh prefill says, against what the library says. */
import { Random } from '../../src/runtime/core/random.js'
import type { LedgerEntry } from '../../src/index.js'
import { codesOf } from './history.js'
import { cellName, type ObservedCache, type Observer, type Seen } from './observer.js'
import type { StepSaid } from './protocol.js'
import { type DecodeShape, furthest, type Reference } from './reference.js'

export const PROPERTIES = [
  'exact',
  'visible',
  'counts',
  'computed',
  'restore',
  'again',
  'tenants',
  'room',
  'lost',
  'error',
] as const
export type Property = (typeof PROPERTIES)[number]

export interface Violation {
  readonly property: Property
  /** Index of the operation. */
  readonly at: number
  readonly what: string
  /** It is no more than roundings of keys and values may do: the history with numbers of 32 bits decides (`settled`). */
  readonly mayBeRounding?: boolean
}

/** Largest differences of one setting so far: between fresh prefills, and of exact steps to them. */
export interface Noise {
  floor: number
  worst: number
}

/** An exact step may be off the nearest fresh prefill by this many times what fresh prefills differ by among themselves. */
const PATIENCE = 2.5

/**
 * Where keys and values are rounded, a step's may be rounded to other numbers than any of these fresh prefills': off by up to so many times what
 * they differ by. One wrong token of 100 to 600 is off by 200 times and more, in models of all these architectures.
 */
const ROUNDINGS = 10

/**
 * Where fresh prefills differ by more among themselves, as they do with weights of 4 bits, a comparison tells nothing, and none is made. Synthetic
 * models stay below it.
 */
export const MOST_NOISE = 0.1

/** In so many ways are cells of others put between those of a fresh prefill; in half of them its own cells lie in another order, too. */
const LAYOUTS = 80

/** What is known of a talk before its step. */
export interface Before {
  /** Tokens of its prompt that the device has as exact cells of its tenant; null where a cache is no table of cells. */
  readonly exact: number | null
  /** Nothing but restores happened since the last step, and all of this prompt was shown before. */
  readonly isRestore: boolean
  /** Tokens that a restore may compute. */
  readonly least: number
  /** Tiers have room for everything. */
  readonly ample: boolean
  /** Names of all cells that the device held. */
  readonly held: ReadonlySet<string>
  /** A refresh in the background may have some of these cells for itself, and may free others before the step. */
  readonly refreshes: boolean
  /** Nothing is shared with another conversation. */
  readonly isAlone: boolean
}

export interface Tally {
  steps: number
  exactSteps: number
  restores: number
  freeRestores: number
  tokens: number
  /** Steps that showed what an earlier one had shown under the same edits, and those of them with the very same log-probabilities. */
  again: number
  identical: number
  /** Steps for which cells were copied to other positions. */
  turned: number
  /** Exact steps that equal a fresh prefill only if it is made in the decodes that theirs was made in, or with numbers of 32 bits. */
  rounded: number
  /** Of messages, by clients. */
  edits: number
}

/** Of no step. */
export const emptyTally = (): Tally => ({
  steps: 0,
  exactSteps: 0,
  restores: 0,
  freeRestores: 0,
  tokens: 0,
  again: 0,
  identical: 0,
  turned: 0,
  rounded: 0,
  edits: 0,
})

export class Judge {
  readonly violations: Violation[] = []
  /** Something was given up for room, or a step could not do what it was asked to. */
  #wasShort = false
  /** By talk, prompt and edits: the cells that showed it last, the first row of log-probabilities, and the decode of its last token. */
  readonly #showed = new Map<
    string,
    {
      readonly names: readonly string[]
      readonly made: readonly number[]
      readonly row: Float32Array | undefined
      readonly decode: string
    }
  >()

  constructor(
    private readonly observer: Observer,
    private readonly reference: Reference,
    private readonly noise: Noise,
    readonly tally: Tally,
    /** Tokens that the program computes at once, at most. */
    private readonly ubatch: number,
  ) {}

  blame(property: Property, at: number, what: string, mayBeRounding = false): void {
    this.violations.push({ property, at, what, mayBeRounding })
  }

  /** Every text a decode could see must be a beginning of what one of these steps shows, of its tenant's cells. */
  visible(at: number, seen: readonly Seen[], shows: readonly Shows[]): void {
    for (const each of seen) {
      const tokens = each.cells.map(({ token }) => token)
      const fitting = shows.filter(
        ({ tokens: all }) => tokens.length <= all.length && tokens.every((token, place) => token === all[place]),
      )
      const mayBe = fitting.filter(({ tenant }) => each.cells.every(({ owner }) => owner.name === null || owner.name === tenant))
      if (fitting.length === 0) this.blame('visible', at, `decode ${each.decode} sees ${tokens.length} tokens that no step shows`)
      else if (mayBe.length === 0) this.blame('tenants', at, `decode ${each.decode} sees cells of another tenant`)
      // Of two tenants whose texts begin alike it is not known yet whose this is.
      else if (new Set(mayBe.map(({ tenant }) => tenant)).size === 1)
        for (const { owner } of each.cells) owner.name ??= mayBe[0]!.tenant
    }
  }

  /** One finished step. `alone`: nothing else was decoded meanwhile. */
  async step(
    at: number,
    said: StepSaid,
    cache: ObservedCache,
    firstDecode: number,
    before: Before,
    alone: boolean,
  ): Promise<void> {
    this.tally.steps++
    const [entry, ...more] = said.ledger.filter(({ kind }) => kind !== 'refresh')
    if (said.outcome === 'context/full') {
      if (alone && said.prompt.length + 40 < cache.cells)
        this.blame('room', at, `${said.prompt.length} tokens are refused in ${cache.cells} cells`)
      return
    }
    if (said.outcome === 'engine/cancelled' || said.outcome === 'cancelled') return
    if (!['stop', 'length', 'tool-calls'].includes(said.outcome) || entry === undefined || more.length > 0) {
      this.blame('error', at, `${said.outcome}, ${said.ledger.length} entries on the ledger`)
      return
    }
    const full = [...said.prompt, ...said.generated]
    const fitting = cache.seen.filter(({ cells, output }) => output && cells.length === entry.shown && matches(cells, full))
    // Under `auto` a refresh may have shown the same text since, by other cells. The ledger tells which ones the step showed.
    const last = fitting.findLast(({ cells }) => this.#approximateOf(cells) === entry.approximate) ?? fitting.at(-1)
    if (last === undefined) {
      this.blame('visible', at, `no decode of the step saw the ${entry.shown} tokens that the ledger calls shown`)
      return
    }
    if ((entry.turned ?? 0) > 0) this.tally.turned++
    await this.#text(at, said)
    this.#sums(at, entry, said)
    // Elsewhere decodes of others, or of a refresh in the background, lie between.
    if (alone) this.#cells(at, entry, last, firstDecode)
    await this.#exact(at, entry, said, last)
    this.#computed(at, entry, said, before)
    this.#again(at, entry, said, last, before)
  }

  /**
   * What was shown before under the same edits is shown by the same cells wherever the device holds them, else by exact ones; the ledger counts the
   * others. The last token of the prompt is computed in every step. A cell that was computed again behind the same cells is the same one.
   */
  #again(at: number, { replaced = 0 }: LedgerEntry, said: StepSaid, { cells }: Seen, { held, refreshes }: Before): void {
    const key = JSON.stringify([said.talk, said.prompt, said.fragments.filter(({ kind }) => kind !== 'open')])
    const shown = cells.slice(0, said.prompt.length - 1)
    const names = shown.map(cellName)
    const made = shown.map((cell) => cell.made)
    const [first] = said.rows
    const row = first === undefined ? undefined : new Float32Array(new Uint8Array(Buffer.from(first, 'base64')).buffer)
    const { row: place, rows } = cells[said.prompt.length - 1]!
    const decode = `${place} of ${rows}`
    const known = this.#showed.get(key)
    this.#showed.set(key, { names, made, row, decode })
    if (known === undefined) return
    this.tally.again++
    const exact = this.observer.exactOf(cells)
    const others = made.flatMap((each, place) => (place >= exact && each !== known.made[place] ? [place] : []))
    const had = others.filter((place) => held.has(known.names[place]!))
    if (had.length > 0 && !refreshes)
      this.blame('again', at, `${had.length} tokens are shown by other cells than before, which are held`)
    const reused = others.filter((place) => held.has(names[place]!))
    if (reused.length > replaced)
      this.blame('again', at, `${reused.length} tokens are shown by other cells than before, the ledger says ${replaced}`)
    if (row === undefined || known.row === undefined || names.some((name, place) => name !== known.names[place])) return
    // In a decode of another shape the last token's sums differ in their last bits, which a quantised cache may round to other numbers.
    if (this.reference.quantised && decode !== known.decode) return
    const off = furthest(row, known.row)
    if (off === 0) this.tally.identical++
    if (off > PATIENCE * this.noise.floor)
      this.blame(
        'again',
        at,
        `the same cells, and log-probabilities are off by ${off.toExponential(1)}`,
        this.reference.rounds && off <= ROUNDINGS * this.noise.floor,
      )
  }

  /** What is open is in the text that was seen; what is hidden is not. */
  async #text(at: number, { prompt, contents, fragments }: StepSaid): Promise<void> {
    const text = await this.reference.text(prompt)
    contents.forEach((content, message) => {
      const hidden = fragments.filter((fragment) => fragment.message === message && fragment.kind !== 'open')
      for (const { code, start, end } of codesOf(content)) {
        const inside = hidden.some(({ span }) => span.start <= start && end <= span.end)
        const touched = hidden.some(({ span }) => span.start < end && start < span.end)
        const elsewhere =
          contents.some((other, index) => (index !== message || content.indexOf(code) !== start) && other.includes(code)) ||
          fragments.some(({ summary }) => summary?.includes(code))
        if (inside && !elsewhere && text.includes(code)) this.blame('visible', at, `hidden ${code} of message ${message} is seen`)
        if (!touched && !text.includes(code)) this.blame('visible', at, `open ${code} of message ${message} is not seen`)
      }
    })
  }

  /** Which of the cells at the end were there before, and which are exact. */
  #cells(at: number, { shown, reused, side, approximate }: LedgerEntry, last: Seen, firstDecode: number): void {
    const old = last.cells.filter(({ born }) => born <= firstDecode).length
    const seen = { 'held before': [old, reused - side], approximate: [this.#approximateOf(last.cells), approximate] }
    for (const [what, [is, says]] of Object.entries(seen))
      if (is !== says) this.blame('counts', at, `${what}: ${is} of ${shown} by the shim, ${says} by the ledger`)
  }

  #approximateOf(cells: Seen['cells']): number {
    return cells.length - this.observer.exactOf(cells)
  }

  #sums(at: number, entry: LedgerEntry, said: StepSaid): void {
    const { shown, reused, recomputed, fresh, side, submitted } = entry
    if (reused + recomputed + fresh !== shown)
      this.blame('counts', at, `${reused} + ${recomputed} + ${fresh} is not ${shown} shown`)
    if (recomputed + fresh + side !== submitted)
      this.blame('counts', at, `${recomputed} + ${fresh} + ${side} is not ${submitted}`)
    for (const key of ['shown', 'reused', 'recomputed', 'fresh', 'approximate'] as const) {
      const sum = entry.messages.reduce((total, message) => total + message[key], 0)
      if (sum !== entry[key]) this.blame('counts', at, `${key}: ${sum} by message, ${entry[key]} in all`)
    }
    if (shown !== said.prompt.length + said.generated.length - entry.pending && said.outcome === 'length')
      this.blame('counts', at, `shown ${shown} of ${said.prompt.length} + ${said.generated.length}, ${entry.pending} pending`)
  }

  async #exact(at: number, entry: LedgerEntry, said: StepSaid, last: Seen): Promise<void> {
    if (entry.approximate > 0) {
      if (entry.contract === 'exact') this.blame('exact', at, `${entry.approximate} approximate tokens under exact`)
      return
    }
    const rows = said.tops ?? said.rows.map((row) => new Float32Array(new Uint8Array(Buffer.from(row, 'base64')).buffer))
    if (rows.length === 0 || this.noise.floor > MOST_NOISE) return
    const tokens = [...said.prompt, ...said.generated.slice(0, rows.length - 1)]
    const fresh = await this.reference.prefill(tokens, said.prompt.length - 1)
    this.noise.floor = Math.max(this.noise.floor, fresh.noise)
    // Where only the likeliest are told, those are compared by rank: no rank moves by more than the largest difference.
    const sorted = (row: Float32Array) => (said.tops === undefined ? row : row.toSorted((a, b) => b - a))
    const away = (all: readonly Float32Array[]) => Math.max(...rows.map((row, place) => furthest(row, sorted(all[place]!))))
    let difference = Math.min(...fresh.variants.map(away))
    // The same token differs in its last bits by what was decoded with it and by where in the cache the cells lie that it sees, and q8_0 may round
    // them to another number, which is as far off as the quantisation itself. Fresh prefills in decodes of the same shape, with others between the
    // cells, with the cells in another order, and of token after token show how far that goes: what none of them equals, and what is further off
    // than they are from each other, is no rounding.
    let spread = this.noise.floor
    for (const decodes of shapesOf(last.cells.slice(0, tokens.length), this.ubatch)) {
      if (difference <= PATIENCE * spread) break
      const other = await this.reference.prefillAs(tokens, said.prompt.length - 1, decodes)
      difference = Math.min(difference, away(other))
      if (this.reference.quantised) spread = Math.max(spread, ...fresh.variants[0]!.map((row, at) => furthest(row, other[at]!)))
      if (difference <= PATIENCE * spread) this.tally.rounded++
    }
    this.noise.worst = Math.max(this.noise.worst, difference)
    this.tally.exactSteps++
    if (difference > PATIENCE * spread)
      this.blame(
        'exact',
        at,
        `off by ${difference.toExponential(1)} where fresh prefills differ by ${spread.toExponential(1)}`,
        this.reference.rounds && difference <= ROUNDINGS * spread,
      )
  }

  #computed(at: number, entry: LedgerEntry, said: StepSaid, before: Before): void {
    const {
      fallback,
      evicted,
      contract,
      recomputeReason = null,
    }: LedgerEntry & { readonly recomputeReason?: string | null } = entry
    const computed = entry.submitted - (entry.shown - said.prompt.length)
    const explained = fallback !== null || evicted > 0 || recomputeReason !== null
    const told = `${computed} of ${said.prompt.length} under ${contract}${fallback === null ? '' : ` (${fallback})`}`
    if (before.exact !== null) {
      const least = Math.max(1, said.prompt.length - before.exact)
      if (computed > least && evicted === 0) this.blame('computed', at, `computed ${told}, exact needs ${least}: ${brief(entry)}`)
      if (computed === least && entry.approximate > 0 && contract !== 'exact' && before.exact >= said.prompt.length - 1)
        this.blame('computed', at, `${entry.approximate} approximate, though all was there exactly: ${brief(entry)}`)
    }
    this.#wasShort ||= evicted > 0 || fallback !== null || !before.ample
    if (said.twin !== null && before.isAlone && !this.#wasShort) {
      const twins = said.twin.submitted - (said.twin.shown - said.prompt.length)
      if (computed > twins) this.blame('computed', at, `the same history under exact computed ${twins}; ${told}: ${brief(entry)}`)
    }
    if (!before.isRestore) return
    this.tally.restores++
    if (computed <= before.least) this.tally.freeRestores++
    else if (!explained && before.ample) this.blame('restore', at, `a restore computed ${told}: ${brief(entry)}`)
  }
}

/** What a step or a refresh shows, prompt and answer. */
export interface Shows {
  readonly tenant: string
  readonly tokens: readonly number[]
}

const matches = (cells: Seen['cells'], tokens: readonly number[]): boolean =>
  cells.length <= tokens.length && cells.every(({ token }, at) => token === tokens[at])

/**
 * Fresh prefills that may round as these cells were rounded: in their decodes, cut as llama.cpp cuts them, with others between; the same in another order
 * of cells, because attention sums them in that order; in single ones.
 */
function* shapesOf(cells: Seen['cells'], ubatch: number): Generator<readonly DecodeShape[]> {
  const shapes: DecodeShape[] = []
  cells.forEach(({ born, row, rows }, at) => {
    const before = row % ubatch
    const last = cells[at - 1]
    const goesOn = last?.born === born && last.row === row - 1 && before > 0
    const { before: first, own } = goesOn ? shapes.pop()! : { before, own: 0 }
    const size = Math.min(ubatch, rows - (row - before))
    shapes.push({ before: first, own: own + 1, behind: size - first - own - 1 })
  })
  // Nothing of these tokens, cells of others alone.
  const others = (count: number): DecodeShape => ({ before: 0, own: 0, behind: 1 + (count % 300) })
  yield shapes
  const random = new Random(cells.length, 22)
  for (let turn = 1; turn <= LAYOUTS; turn++) {
    const all = shapes.flatMap((shape, at) => (at < 10 ? [others(7 * turn + 31 * at * turn), shape] : [shape]))
    const order = random.shuffled(all.map((_, at) => at))
    yield turn % 2 === 0 ? all : all.map((shape, at) => ({ ...shape, rank: order[at]! }))
  }
  yield cells.map(() => ({ before: 0, own: 1, behind: 0 }))
}

const brief = ({
  shown,
  reused,
  recomputed,
  fresh,
  approximate,
  side,
  evicted,
  moved,
  parked,
  tiers,
  sources,
}: LedgerEntry): string =>
  JSON.stringify({ shown, reused, recomputed, fresh, approximate, side, evicted, moved, parked, tiers, sources })
