/**
 * Captures the attention of one step. Checks the request, says which tokens of each batch are captured, and joins the results of the
 * decodes into one pattern. A place is an index among the shown tokens.
 */
import { KvfoldError } from '../core/errors.js'
import { seqId } from '../core/ids.js'
import { length, type Span } from '../core/span.js'
import type { HeldSequence } from '../kv/sequence.js'
import type { WritePosition } from '../kv/step.js'
import { availableMemory, refuseTooMuch } from '../native/context-options.js'
import type { Captured, ModelInfo, NativeCapture, NativeContext, Watched } from '../native/types.js'
import { type AttentionPattern, attentionPlan, type AttentionRequest, type KeySet, type NamedArray } from './attention.js'

const MOST_ROW_BYTES = 64 * 2 ** 20
const MOST_TOP = 1024
/** While the pattern is joined from its parts, two copies of it are in memory. */
const COPIES = 2

export interface WatchedStep {
  /** Number of tokens of the prompt. */
  readonly shown: number
  /** The most tokens that are generated. */
  readonly maxTokens: number
}

/** The tokens of one share in a batch: `count` tokens from batch index `at` on. */
export interface WatchedShare {
  readonly at: number
  readonly count: number
  readonly what: 'prompt' | 'generated'
  readonly seat: WritePosition
}

type CapturedPart = Omit<Captured, 'mass'> & { readonly places: Int32Array; readonly mass: Float32Array; readonly width: number }

export class AttentionWatch {
  /**
   * The first prompt place whose attention is captured. The prompt is computed from there on, even if the cache has its cells. Null: only
   * generated tokens are captured.
   */
  readonly recomputeFrom: number | null
  readonly #request: AttentionRequest
  readonly #layers: readonly number[]
  readonly #skipped: AttentionPattern['skipped']
  readonly #heads: readonly number[]
  readonly #queries: Int32Array
  readonly #atoms: Atoms
  readonly #top: number
  readonly #capture: NativeCapture
  readonly #parts: CapturedPart[] = []
  /** The positions of shown tokens, by place. The first `#known` are final. */
  #positions = new Int32Array(256)
  #known = 0
  #looking: Int32Array = new Int32Array()
  #width = 0

  /** @throws KvfoldError attention/unavailable, attention/bad-request, memory/insufficient */
  constructor(context: NativeContext, info: ModelInfo, request: AttentionRequest, { shown, maxTokens }: WatchedStep) {
    const { attention } = context
    if (attention === null)
      throw new KvfoldError(
        'attention/unavailable',
        'This engine captures no attention. Load it with `attention: true`, which turns flash attention off.',
      )
    this.#request = request
    const layers = layersOf(attention, request.layers)
    this.#layers = layers.filter((layer) => attention[layer]! > 0)
    this.#skipped = layers.filter((layer) => attention[layer] === 0).map((layer) => ({ layer, reason: reasonFor(info) }))
    if (this.#layers.length === 0) refuse(`layers ${layers.join(', ')} compute no attention: ${reasonFor(info)}`)
    this.#heads = headsOf(
      this.#layers.map((layer) => attention[layer]!),
      request.heads,
    )
    this.#queries = queriesOf(request, shown, maxTokens)
    this.recomputeFrom = this.#queries[0] ?? null
    const places = Math.max(shown, Math.min(context.cells, shown + maxTokens))
    checkKeys(request, places)
    this.#top = request.top ?? 0
    if (!Number.isInteger(this.#top) || this.#top < 0 || this.#top > MOST_TOP)
      refuse(`top is ${this.#top}; give a whole number from 0 to ${MOST_TOP}`)
    const queries = this.#queries.length + (request.queries.generated === true ? places - shown : 0)
    const { rows, pattern } = attentionPlan(
      { layers: this.#layers.length, heads: this.#heads.length, cells: context.cells, ubatch: context.ubatch },
      { queries, sets: request.keys.length, top: this.#top, ...(request.rows === true ? { places } : {}) },
    )
    const { maxRowBytes = MOST_ROW_BYTES } = request
    if (rows > maxRowBytes)
      refuse(
        `whole rows of ${queries} tokens, ${this.#layers.length} layers and ${this.#heads.length} heads take ${rows} bytes, but maxRowBytes is ${maxRowBytes}; ask for fewer tokens (maxTokens), layers or heads`,
      )
    refuseTooMuch(
      'The attention of this step',
      COPIES * pattern,
      availableMemory(),
      'memory',
      'ask for fewer tokens (maxTokens), layers or sets',
    )
    this.#atoms = new Atoms(request.keys)
    this.#capture = context.createCapture({
      layers: this.#layers,
      heads: this.#heads,
      atoms: this.#atoms.count,
      top: this.#top,
      rows: request.rows === true,
    })
  }

  /** Returns which tokens of the share are captured; null if none are. After a successful decode the caller must call `take`. */
  watched({ at, count, what, seat }: WatchedShare, sequence: Pick<HeldSequence, 'position'>): Watched | null {
    const { place } = seat
    const looking =
      what === 'prompt'
        ? this.#queries.filter((query) => query >= place && query < place + count)
        : Int32Array.from({ length: this.#request.queries.generated === true ? count : 0 }, (_, offset) => place + offset)
    if (looking.length === 0) return null
    this.#looking = looking
    this.#width = place + count
    return {
      capture: this.#capture,
      sequence: seqId(seat.seq),
      queries: looking.map((query) => at + query - place),
      positions: this.#positionsTo(seat, count, sequence),
      atoms: this.#atoms.byPlace.subarray(0, this.#width),
    }
  }

  /** Takes over the attention that the last decode captured. @throws KvfoldError attention/unavailable */
  take(): void {
    const captured = this.#capture.take()
    this.#parts.push({
      ...captured,
      mass: this.#atoms.added(captured.mass, captured.total.length),
      places: this.#looking,
      width: this.#width,
    })
  }

  /** Joins the attention of all decodes into one pattern. */
  pattern(): AttentionPattern {
    const parts = this.#parts
    const queries = Int32Array.from(parts.flatMap(({ places }) => [...places]))
    const width = parts.reduce((most, part) => Math.max(most, part.width), 0)
    const axes = ['layer', 'head', 'query']
    const shape = [this.#layers.length, this.#heads.length, queries.length]
    const joined = <Data extends Float32Array | Int32Array>(
      empty: (size: number) => Data,
      of: (part: CapturedPart) => Data,
      last?: { readonly axis: string; readonly size: number },
    ): NamedArray<Data> => {
      const size = last?.size ?? 1
      const data = empty(shape.reduce((product, extent) => product * extent, size))
      this.#join(data, of, size, queries.length)
      return {
        data,
        shape: last === undefined ? shape : [...shape, size],
        axes: last === undefined ? axes : [...axes, last.axis],
      }
    }
    const floats = (size: number) => new Float32Array(size)
    const top = { axis: 'rank', size: this.#top }
    return {
      layers: this.#layers,
      heads: this.#heads,
      queries,
      keys: this.#request.keys.map(({ name }) => name),
      mass: joined(floats, ({ mass }) => mass, { axis: 'key set', size: this.#request.keys.length }),
      total: joined(floats, ({ total }) => total),
      entropy: joined(floats, ({ entropy }) => entropy),
      sink: joined(floats, ({ sink }) => sink),
      top:
        this.#top === 0
          ? null
          : {
              places: joined(
                (size) => new Int32Array(size),
                ({ topPlaces }) => topPlaces,
                top,
              ),
              weights: joined(floats, ({ topWeights }) => topWeights, top),
            },
      rows: this.#request.rows === true ? joined(floats, ({ rows }) => rows, { axis: 'place', size: width }) : null,
      skipped: this.#skipped,
    }
  }

  /**
   * Joins the rows of all parts into `data`, in order of queries. Part arrays are [layer, head, query, ...]. Shorter rows end with zeros.
   */
  #join(
    data: Float32Array | Int32Array,
    of: (part: CapturedPart) => Float32Array | Int32Array,
    size: number,
    queries: number,
  ): void {
    const pairs = this.#layers.length * this.#heads.length
    let before = 0
    for (const part of this.#parts) {
      const from = of(part)
      const count = part.places.length
      const own = count === 0 ? 0 : from.length / (pairs * count)
      for (let pair = 0; pair < pairs; pair++)
        for (let query = 0; query < count; query++)
          data.set(
            from.subarray((pair * count + query) * own, (pair * count + query + 1) * own),
            (pair * queries + before + query) * size,
          )
      before += count
    }
  }

  /**
   * Returns the positions of all places up to the end of the share. The live sequence holds all tokens before the share, and their
   * positions do not change during the step.
   */
  #positionsTo({ place, position }: WritePosition, count: number, sequence: Pick<HeldSequence, 'position'>): Int32Array {
    const end = place + count
    if (end > this.#positions.length) {
      const grown = new Int32Array(Math.max(end, 2 * this.#positions.length))
      grown.set(this.#positions)
      this.#positions = grown
    }
    for (; this.#known < place; this.#known++) this.#positions[this.#known] = sequence.position(this.#known)
    for (let offset = 0; offset < count; offset++) this.#positions[place + offset] = position + offset
    return this.#positions.subarray(0, end)
  }
}

function refuse(what: string): never {
  throw new KvfoldError('attention/bad-request', `The engine cannot capture this attention: ${what}.`)
}

const ascending = (values: Iterable<number>): number[] => [...new Set(values)].sort((a, b) => a - b)

function layersOf(attention: readonly number[], asked: readonly number[] | undefined): readonly number[] {
  if (asked === undefined) return attention.map((_, layer) => layer)
  if (asked.length === 0) refuse('the request names no layers; leave them out for all layers')
  const bad = asked.find((layer) => attention[layer] === undefined)
  if (bad !== undefined) refuse(`layer ${bad} does not exist; the model has layers 0 to ${attention.length - 1}`)
  return ascending(asked)
}

function headsOf(counts: readonly number[], asked: readonly number[] | undefined): readonly number[] {
  const [least, most] = [Math.min(...counts), Math.max(...counts)]
  if (asked === undefined) {
    if (least !== most) refuse(`the layers have ${least} to ${most} heads; name the heads, or layers with equally many`)
    return Array.from({ length: most }, (_, head) => head)
  }
  if (asked.length === 0) refuse('the request names no heads; leave them out for all heads')
  const bad = asked.find((head) => !Number.isInteger(head) || head < 0 || head >= least)
  if (bad !== undefined) refuse(`head ${bad} does not exist; these layers have heads 0 to ${least - 1}`)
  return ascending(asked)
}

/** Returns the prompt places whose attention is captured, ascending. */
function queriesOf({ queries }: AttentionRequest, shown: number, maxTokens: number): Int32Array {
  const { prompt = [], generated = false } = queries
  for (const of of prompt) checkSpan(of, shown, 'queries')
  const places = ascending(prompt.flatMap(({ start, end }) => Array.from({ length: end - start }, (_, offset) => start + offset)))
  if (places.length === 0 && (!generated || maxTokens === 0))
    refuse(
      generated
        ? 'generated tokens look, but maxTokens is 0'
        : 'no token looks; name places of the prompt, or ask for generated tokens',
    )
  return Int32Array.from(places)
}

function checkKeys({ keys }: AttentionRequest, places: number): void {
  for (const { name, tokens } of keys) {
    for (const of of tokens) checkSpan(of, places, `key set '${name}'`)
    const sorted = tokens.filter((of) => length(of) > 0).sort((a, b) => a.start - b.start)
    if (sorted.some(({ end }, at) => end > (sorted[at + 1]?.start ?? Infinity))) refuse(`the spans of key set '${name}' overlap`)
  }
}

function checkSpan({ start, end }: Span, most: number, what: string): void {
  if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || end < start || end > most)
    refuse(`[${start}, ${end}) of ${what} is not among the ${most} shown tokens`)
}

const reasonFor = ({ hybrid, architecture }: ModelInfo): string =>
  hybrid ? `${architecture} keeps a recurrent state there` : `${architecture} computes no softmax there`

// Cuts overlapping key sets into disjoint atoms, so that each token's weight is summed once. Then adds the atoms up to sets.

export class Atoms {
  /** The atom of each place, up to the last place in any set; -1 for places in no set. */
  readonly byPlace: Int32Array
  readonly count: number
  /** The atoms of each set. */
  readonly #of: readonly (readonly number[])[]

  constructor(sets: readonly KeySet[]) {
    const ends = sets.flatMap(({ tokens }) => tokens.map(({ end }) => end))
    this.byPlace = new Int32Array(ends.reduce((most, end) => Math.max(most, end), 0)).fill(-1)
    const borders = new Map<number, Set<number>>()
    const change = (place: number, set: number) => {
      const changed = borders.get(place) ?? new Set()
      borders.set(place, changed)
      // Where two spans of a set touch, the set ends and begins at the same place, so nothing changes there.
      if (!changed.delete(set)) changed.add(set)
    }
    sets.forEach(({ tokens }, set) => {
      for (const { start, end } of tokens) {
        if (start === end) continue
        change(start, set)
        change(end, set)
      }
    })
    const known = new Map<string, number>()
    const of = sets.map((): number[] => [])
    const inside = new Set<number>()
    const places = [...borders.keys()].sort((a, b) => a - b)
    places.forEach((place, index) => {
      for (const set of borders.get(place)!) if (!inside.delete(set)) inside.add(set)
      if (inside.size === 0) return
      const name = [...inside].sort((a, b) => a - b).join()
      let atom = known.get(name)
      if (atom === undefined) {
        known.set(name, (atom = known.size))
        for (const set of inside) of[set]!.push(atom)
      }
      this.byPlace.fill(atom, place, places[index + 1])
    })
    this.count = known.size
    this.#of = of
  }

  /** Returns, for each of `rows` rows, the weight on every set, summed from the weights on its atoms (`mass`). */
  added(mass: Float32Array, rows: number): Float32Array {
    const { count } = this
    const sums = new Float32Array(rows * this.#of.length)
    for (let row = 0, at = 0; row < rows; row++)
      for (const atoms of this.#of) {
        let sum = 0
        for (const atom of atoms) sum += mass[row * count + atom]!
        sums[at++] = sum
      }
    return sums
  }
}
