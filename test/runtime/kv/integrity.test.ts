/** Tests the integrity check: each cell table here has one fault, and the check must name it. */
import { beforeEach, describe, expect, it } from 'vitest'
import { conversationId, seqId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import type { Sequence } from '../../../src/runtime/kv/sequence.js'
import { SequenceTable } from '../../../src/runtime/kv/sequence-table.js'
import { checkBooks, checkPositions, checkReadback } from '../../../src/runtime/kv/integrity.js'
import { tokenSource } from '../../../src/runtime/kv/prompt.js'
import { NaiveMemory } from './support/naive-memory.js'

const tokens = Int32Array.of(5, 6, 7, 8)
const keys = (count: number) => Int32Array.from({ length: count }, (_, place) => tokenSource(place))
let memory: NaiveMemory
let table: SequenceTable
let sequence: Sequence
let version: Sequence

beforeEach(() => {
  memory = new NaiveMemory(16, 4)
  table = new SequenceTable(memory)
  const [first, second] = [table.add(conversationId('a'), 'idle'), table.add(conversationId('a'), 'parked')]
  if (first === null || second === null) return expect.fail('no sequence ids')
  sequence = first
  version = second
  memory.decode(sequence.seq, 0, tokens)
  sequence.append(tokens, keys(4))
  table.lend(sequence, span(0, 3), version)
})

describe('a correct cell table', () => {
  it('passes', () => {
    checkBooks(table)
    checkPositions(table)
    checkReadback(table)
    expect([table.cells.used, table.cells.free]).toEqual([4, 12])
  })

  it('passes when all cells are dropped', () => {
    expect(table.drop(sequence)).toBe(1)
    expect(table.drop(version)).toBe(3)
    checkBooks(table)
    checkReadback(table)
    expect([table.cells.free, table.sequences.used, memory.readback()]).toEqual([16, 0, []])
  })
})

describe('the check names', () => {
  it('a tag too many, and a tag too few', () => {
    table.cells.tag(sequence.cells.slice(0, 1))
    expect(() => {
      checkBooks(table)
    }).toThrow(/cell 0 has 3 references in the cell table, but 2 sequences hold it/)
    table.cells.untag(sequence.cells.slice(0, 1))
    table.cells.untag(sequence.cells.slice(0, 1))
    expect(() => {
      checkBooks(table)
    }).toThrow(/cell 0 has 1 references in the cell table, but 2 sequences hold it/)
  })

  it('a cell that is free and held', () => {
    table.cells.untag(sequence.cells.slice(3))
    expect(() => {
      checkBooks(table)
    }).toThrow(/cell 3 is on the free list and held/)
  })

  it('a cell that is free twice', () => {
    table.cells.untag(Int32Array.of(9))
    expect(() => {
      checkBooks(table)
    }).toThrow(/cell 9 is on the free list twice/)
  })

  it('a cell in use that no sequence holds', () => {
    table.cells.take(0)
    expect(() => {
      checkBooks(table)
    }).toThrow(/cell 4 has 1 references in the cell table, but 0 sequences hold it/)
  })

  it('a cell at another position', () => {
    table.cells.positions[2] = 9
    expect(() => {
      checkBooks(table)
    }).toThrow('sequence 0 holds position 3 at entry 3, after position 9')
    table.cells.positions[2] = 1
    expect(() => {
      checkBooks(table)
    }).toThrow('sequence 0 holds position 1 at entry 2, after position 1')
    table.cells.positions[2] = 2
    table.cells.positions[3] = 9
    checkBooks(table)
    expect(() => {
      checkPositions(table)
    }).toThrow('sequence 0 should hold positions 0 to 9, but holds positions 0 to 3')
    expect(() => {
      checkReadback(table)
    }).toThrow(/position 9 of sequences 0 \(1 missing in llama.cpp\); position 3 of sequences 0 \(1 too many in llama.cpp\)/)
  })

  it('an id lent to no sequence, and two live sequences of one conversation', () => {
    table.sequences.take()
    expect(() => {
      checkBooks(table)
    }).toThrow(/there are 2 sequences, but 3 ids are in use/)
    table.sequences.give(seqId(2))
    version.state = 'idle'
    expect(() => {
      checkBooks(table)
    }).toThrow(/two live sequences/)
    version.state = 'scratch'
    checkBooks(table)
  })

  it('positions that llama.cpp has and the cell table does not, and the reverse', () => {
    memory.decode(sequence.seq, 4, Int32Array.of(9))
    expect(() => {
      checkPositions(table)
    }).toThrow('sequence 0 should hold positions 0 to 3, but holds positions 0 to 4')
    memory.untag(sequence.seq, span(4, 5))
    memory.untag(version.seq, span(0, 3))
    expect(() => {
      checkPositions(table)
    }).toThrow('sequence 1 should hold positions 0 to 2, but holds nothing')
    memory.tag(sequence.seq, seqId(3), span(0, 2))
    memory.tag(sequence.seq, version.seq, span(0, 3))
    expect(() => {
      checkPositions(table)
    }).toThrow('sequence 3 should hold nothing, but holds positions 0 to 1')
  })

  it('tags that only a readback shows', () => {
    memory.untag(version.seq, span(1, 2))
    checkPositions(table)
    expect(() => {
      checkReadback(table)
    }).toThrow(/position 1 of sequences 0,1 \(1 missing in llama.cpp\); position 1 of sequences 0 \(1 too many in llama.cpp\)/)
  })

  it('a drop of a sequence that runs or is already gone', () => {
    sequence.state = 'running'
    expect(() => table.drop(sequence)).toThrow(/cannot be dropped/)
    table.drop(version)
    expect(() => table.drop(version)).toThrow(/cannot be dropped/)
    expect(() => {
      table.sequences.give(seqId(1))
    }).toThrow(/given back twice/)
  })

  it('more tokens than cells', () => {
    expect(() => {
      sequence.append(new Int32Array(13), keys(13))
    }).toThrow(/counts all 16 cells as used/)
  })
})
