/** A wrapper between a cache and its naive memory; for tests of src/runtime/kv. */
import type { SeqId } from '../../../../src/runtime/core/ids.js'
import type { Span } from '../../../../src/runtime/core/span.js'
import type { KvMemory } from '../../../../src/runtime/kv/ports.js'
import type { NaiveMemory } from './naive-memory.js'

/** Passes all calls on. Subclasses override the calls that they spoil or refuse. */
export class Through implements KvMemory {
  constructor(protected readonly inner: NaiveMemory) {
    inner.lenient = true
  }
  get cells() {
    return this.inner.cells
  }
  get sequences() {
    return this.inner.sequences
  }
  tag(from: SeqId, to: SeqId, of: Span): void {
    this.inner.tag(from, to, of)
  }
  untag(seq: SeqId, of: Span): void {
    this.inner.untag(seq, of)
  }
  get canShift() {
    return this.inner.canShift
  }
  shift(seq: SeqId, of: Span, delta: number): void {
    this.inner.shift(seq, of, delta)
  }
  saveSequence(seq: SeqId) {
    return this.inner.saveSequence(seq)
  }
  loadSequence(seq: SeqId, state: Uint8Array) {
    return this.inner.loadSequence(seq, state)
  }
  async copyOut(seq: SeqId) {
    await Promise.resolve()
    return this.saveSequence(seq)
  }
  async copyIn(seq: SeqId, state: Uint8Array) {
    await Promise.resolve()
    return this.loadSequence(seq, state)
  }
  positions(seq: SeqId) {
    return this.inner.positions(seq)
  }
  readback() {
    return this.inner.readback()
  }
}
