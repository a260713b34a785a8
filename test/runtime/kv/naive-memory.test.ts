/**
 * Tests that the naive memory of the cache's tests keeps llama.cpp's rules. test/runtime/native/memory.test.ts runs the same suite over
 * llama.cpp's own memory.
 */
import { describe, expect } from 'vitest'
import { seqId } from '../../../src/runtime/core/ids.js'
import { keepsKvMemoryContract, SIZE, type MemoryOnTrial } from './kv-memory.contract.js'
import { NaiveMemory } from './support/naive-memory.js'

function onTrial(): MemoryOnTrial {
  const memory = new NaiveMemory(SIZE.cells, SIZE.sequences)
  const decode: MemoryOnTrial['decode'] = (seq, start, tokens) => {
    const fits = memory.readback().length + tokens.length <= SIZE.cells
    if (fits) memory.decode(seq, start, tokens)
    return Promise.resolve(fits)
  }
  return {
    memory,
    strict: true,
    decode,
    look: async (seq, position, token) => {
      await decode(seq, position, Int32Array.of(token))
      return Float32Array.of(memory.sequence(seqId(seq)).at(-1)!.trace)
    },
    refused: async (call) => {
      expect(call).toThrow()
      return Promise.resolve()
    },
  }
}

describe('the naive memory', () => {
  keepsKvMemoryContract(onTrial)
})
