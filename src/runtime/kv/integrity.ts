/** Checks that kvfold's records of cells and sequences are consistent, and that they agree with the cells that llama.cpp reports. */
import { KvfoldError, invariant } from '../core/errors.js'
import { seqId } from '../core/ids.js'
import { span } from '../core/span.js'
import type { SequenceTable } from './sequence-table.js'

/**
 * Checks that kvfold's records are consistent:
 *
 * - Cells in use and free cells add up to the total. Every cell is free, or tagged by as many sequences as the cell table says.
 * - The positions of every sequence ascend.
 * - The sequence ids in use are those of existing sequences, and each conversation has at most one live sequence.
 *
 * @throws KvfoldError internal/invariant
 */
export function checkBooks({ cells, sequences, all: holdings }: SequenceTable): void {
  const { positions, references } = cells
  const counted = new Int32Array(cells.total)
  for (const sequence of holdings) {
    const held = sequence.cells
    let last = -1
    for (const [entry, cell] of held.entries()) {
      const position = positions[cell] ?? -1
      if (position <= last) fail(`sequence ${sequence.seq} holds position ${position} at entry ${entry}, after position ${last}`)
      last = position
      counted[cell]!++
    }
  }
  for (const cell of cells.freeHandles()) {
    if (counted[cell] !== 0) fail(`cell ${cell} is on the free list ${counted[cell] === -1 ? 'twice' : 'and held by a sequence'}`)
    counted[cell] = -1
  }
  let used = 0
  for (let cell = 0; cell < cells.total; cell++) {
    const count = counted[cell] ?? 0
    if (count === -1) continue
    used++
    if (count === 0 || count !== references[cell])
      fail(`cell ${cell} has ${references[cell] ?? 0} references in the cell table, but ${count} sequences hold it`)
  }
  invariant(
    used === cells.used && used + cells.free === cells.total,
    `${used} used cells and ${cells.free} free ones do not add up to ${cells.total}`,
  )

  const lent = new Set(holdings.map(({ seq }) => seq))
  invariant(lent.size === holdings.length, 'two sequences share one id')
  invariant(lent.size === sequences.used, `there are ${lent.size} sequences, but ${sequences.used} ids are in use`)
  for (const id of lent) invariant(!sequences.isFree(id), `sequence ${id} exists, but its id is free`)
  const live = holdings.filter(({ state }) => state === 'running' || state === 'idle').map(({ conversation }) => conversation)
  invariant(new Set(live).size === live.length, 'a conversation has two live sequences')
}

/** Checks that every sequence id spans the same positions in llama.cpp as in kvfold's records. Makes one cheap call per id. */
export function checkPositions({ memory, all: holdings }: SequenceTable): void {
  const held = new Map(holdings.map((sequence) => [sequence.seq, sequence.span]))
  for (let id = 0; id < memory.sequences; id++) {
    const { start, end } = held.get(seqId(id)) ?? span(0, 0)
    const expected = start === end ? 'nothing' : `positions ${start} to ${end - 1}`
    const found = memory.positions(seqId(id))
    const actual = found === null ? 'nothing' : `positions ${found.min} to ${found.max}`
    invariant(expected === actual, `sequence ${id} should hold ${expected}, but holds ${actual}`)
  }
}

/** Checks that llama.cpp and kvfold's records have the same occupied cells, by position and tags. Copies the whole cache. */
export function checkReadback({ memory, cells, all: holdings }: SequenceTable): void {
  const tags = new Map<number, number[]>()
  for (const { seq, cells: held } of holdings)
    for (const cell of held) {
      const of = tags.get(cell)
      if (of === undefined) tags.set(cell, [seq])
      else of.push(seq)
    }
  /** For each description of a cell: the number of such cells in kvfold's records, minus the number in llama.cpp. */
  const surplus = new Map<string, number>()
  const count = (position: number, sequences: readonly number[], by: 1 | -1) => {
    const name = `position ${position} of sequences ${[...sequences].sort((a, b) => a - b).join(',')}`
    surplus.set(name, (surplus.get(name) ?? 0) + by)
  }
  for (const [cell, sequences] of tags) count(cells.positions[cell] ?? -1, sequences, 1)
  for (const { position, sequences } of memory.readback()) count(position, sequences, -1)

  const differing = [...surplus].filter(([, by]) => by !== 0)
  const listed = differing
    .slice(0, 5)
    .map(([name, by]) => `${name} (${by > 0 ? `${by} missing` : `${-by} too many`} in llama.cpp)`)
  invariant(
    differing.length === 0,
    `llama.cpp's cache differs from the cell table in ${differing.length} kinds of cell: ${listed.join('; ')}`,
  )
}

// Unlike `invariant`, it is called only after a check failed. Composing a message for every cell would be slow.
function fail(message: string): never {
  throw new KvfoldError('internal/invariant', message)
}
