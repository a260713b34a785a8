/**
 * Puts a header in front of saved sequences. llama.cpp trusts the bytes of a state, so it may only get bytes that it wrote itself, for an
 * equal cache.
 */
import { createHash } from 'node:crypto'
import type { ContextPlan } from './context-options.js'
import type { ModelInfo } from './values.js'

/** The header's bytes in front of llama.cpp's state: 8 of name and version, 32 of identity, 8 unused. */
export const STATE_HEADER = 48
const NAME = 'kvfold 1'
const IDENTITY_AT = 8

/**
 * Returns a hash of everything that must agree before a sequence is loaded: library, model, cache types, and flash attention's layout of
 * values.
 */
export function identityOf(release: string, info: ModelInfo, plan: ContextPlan, flashAttention: boolean): Buffer {
  const { metadata, size, parameters } = info
  const { keyType, valueType, fullSlidingWindow } = plan
  const facts = [release, metadata, size, parameters, keyType, valueType, fullSlidingWindow, flashAttention]
  return createHash('sha256').update(JSON.stringify(facts)).digest()
}

/** Fills in the header in front of a state. */
export function sealState(state: Uint8Array, identity: Buffer): void {
  const header = Buffer.from(state.buffer, state.byteOffset, STATE_HEADER)
  // Clear the header, because the memory may have held another state before.
  header.fill(0)
  header.write(NAME, 'latin1')
  identity.copy(header, IDENTITY_AT)
}

/** Returns whether the state was sealed with this identity. */
export function isSealed(state: Uint8Array, identity: Buffer): boolean {
  if (state.length <= STATE_HEADER) return false
  const header = Buffer.from(state.buffer, state.byteOffset, STATE_HEADER)
  return (
    header.toString('latin1', 0, IDENTITY_AT) === NAME &&
    identity.equals(header.subarray(IDENTITY_AT, IDENTITY_AT + identity.length))
  )
}
