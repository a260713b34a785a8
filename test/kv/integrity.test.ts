/** Books that are wrong in one way each: the check must say which. */
import { beforeEach, describe, expect, it } from 'vitest'
import { conversationId, seqId } from '../../src/core/ids.js'
import { span } from '../../src/core/span.js'
import type { Holding } from '../../src/kv/holding.js'
import { Holdings } from '../../src/kv/holdings.js'
import { checkBooks, checkPositions, checkReadback } from '../../src/kv/integrity.js'
import { baseKey } from '../../src/kv/shown.js'
import { NaiveMemory } from './naive-memory.js'

const tokens = Int32Array.of(5, 6, 7, 8)
const keys = (count: number) => Int32Array.from({ length: count }, (_, place) => baseKey(place))
let memory: NaiveMemory
let holdings: Holdings
let lane: Holding
let version: Holding

beforeEach(() => {
  memory = new NaiveMemory(16, 4)
  holdings = new Holdings(memory)
  const [first, second] = [holdings.add(conversationId('a'), 'idle'), holdings.add(conversationId('a'), 'parked')]
  if (first === null || second === null) return expect.fail('no sequence ids')
  lane = first
  version = second
  memory.decode(lane.seq, 0, tokens)
  lane.append(tokens, keys(4))
  holdings.lend(lane, span(0, 3), version)
})

describe('right books', () => {
  it('pass', () => {
    checkBooks(holdings)
    checkPositions(holdings)
    checkReadback(holdings)
    expect([holdings.cells.used, holdings.cells.free]).toEqual([4, 12])
  })

  it('pass when all is dropped', () => {
    expect(holdings.drop(lane)).toBe(1)
    expect(holdings.drop(version)).toBe(3)
    checkBooks(holdings)
    checkReadback(holdings)
    expect([holdings.cells.free, holdings.sequences.used, memory.readback()]).toEqual([16, 0, []])
  })
})

describe('wrong books are named:', () => {
  it('a tag too many, and a tag too few', () => {
    holdings.cells.tag(lane.cells.slice(0, 1))
    expect(() => {
      checkBooks(holdings)
    }).toThrow(/cell 0 is booked with 3 tags and held by 2 sequences/)
    holdings.cells.untag(lane.cells.slice(0, 1))
    holdings.cells.untag(lane.cells.slice(0, 1))
    expect(() => {
      checkBooks(holdings)
    }).toThrow(/cell 0 is booked with 1 tags and held by 2 sequences/)
  })

  it('a cell that is free and held', () => {
    holdings.cells.untag(lane.cells.slice(3))
    expect(() => {
      checkBooks(holdings)
    }).toThrow(/cell 3 is on the free list and held/)
  })

  it('a cell that is free twice', () => {
    holdings.cells.untag(Int32Array.of(9))
    expect(() => {
      checkBooks(holdings)
    }).toThrow(/cell 9 is on the free list twice/)
  })

  it('a cell in use that nobody holds', () => {
    holdings.cells.take(0)
    expect(() => {
      checkBooks(holdings)
    }).toThrow(/cell 4 is booked with 1 tags and held by 0 sequences/)
  })

  it('a cell at another position', () => {
    holdings.cells.positions[2] = 9
    expect(() => {
      checkBooks(holdings)
    }).toThrow('sequence 0 holds position 3 at entry 3, after position 9')
    holdings.cells.positions[2] = 1
    expect(() => {
      checkBooks(holdings)
    }).toThrow('sequence 0 holds position 1 at entry 2, after position 1')
    holdings.cells.positions[2] = 2
    holdings.cells.positions[3] = 9
    checkBooks(holdings)
    expect(() => {
      checkPositions(holdings)
    }).toThrow('sequence 0 should hold positions 0 to 9 and holds positions 0 to 3')
    expect(() => {
      checkReadback(holdings)
    }).toThrow(/position 9 of sequences 0 \(1 missing in llama.cpp\); position 3 of sequences 0 \(1 too many in llama.cpp\)/)
  })

  it('an id lent to nobody, and two lanes of one conversation', () => {
    holdings.sequences.take()
    expect(() => {
      checkBooks(holdings)
    }).toThrow(/2 sequences are held and 3 ids are lent/)
    holdings.sequences.give(seqId(2))
    version.state = 'idle'
    expect(() => {
      checkBooks(holdings)
    }).toThrow(/two lanes/)
    version.state = 'scratch'
    checkBooks(holdings)
  })

  it('positions that llama.cpp has and we do not, and the other way round', () => {
    memory.decode(lane.seq, 4, Int32Array.of(9))
    expect(() => {
      checkPositions(holdings)
    }).toThrow('sequence 0 should hold positions 0 to 3 and holds positions 0 to 4')
    memory.untag(lane.seq, span(4, 5))
    memory.untag(version.seq, span(0, 3))
    expect(() => {
      checkPositions(holdings)
    }).toThrow('sequence 1 should hold positions 0 to 2 and holds nothing')
    memory.tag(lane.seq, seqId(3), span(0, 2))
    memory.tag(lane.seq, version.seq, span(0, 3))
    expect(() => {
      checkPositions(holdings)
    }).toThrow('sequence 3 should hold nothing and holds positions 0 to 1')
  })

  it('tags that only a readback shows', () => {
    memory.untag(version.seq, span(1, 2))
    checkPositions(holdings)
    expect(() => {
      checkReadback(holdings)
    }).toThrow(/position 1 of sequences 0,1 \(1 missing in llama.cpp\); position 1 of sequences 0 \(1 too many in llama.cpp\)/)
  })

  it('a drop of what runs or is gone already', () => {
    lane.state = 'running'
    expect(() => holdings.drop(lane)).toThrow(/cannot be dropped/)
    holdings.drop(version)
    expect(() => holdings.drop(version)).toThrow(/cannot be dropped/)
    expect(() => {
      holdings.sequences.give(seqId(1))
    }).toThrow(/given back twice/)
  })

  it('more tokens than cells', () => {
    expect(() => {
      lane.append(new Int32Array(13), keys(13))
    }).toThrow(/all 16 cells are in use/)
  })
})
