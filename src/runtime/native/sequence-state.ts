/**
 * Puts a header in front of saved sequences. llama.cpp trusts the bytes of a state. So it may only get bytes that llama.cpp itself wrote,
 * for an equal model and cache.
 */
import { createHash } from 'node:crypto'
import type { ContextPlan } from './context-options.js'
import type { ModelInfo } from './values.js'

/** Length of the header in bytes: 8 for name and version, 32 for the identity, 8 unused. */
export const STATE_HEADER = 48
const NAME = 'kvfold 1'
const IDENTITY_AT = 8

/**
 * Returns a hash (SHA-256) of everything that must be equal before a state is loaded: llama.cpp's release, the model's metadata and size,
 * cache types, and flash attention, which changes the layout of values.
 */
export function identityOf(release: string, info: ModelInfo, plan: ContextPlan, flashAttention: boolean): Buffer {
  const { metadata, size, parameters } = info
  const { keyType, valueType, fullSlidingWindow } = plan
  const facts = [release, metadata, size, parameters, keyType, valueType, fullSlidingWindow, flashAttention]
  return createHash('sha256').update(JSON.stringify(facts)).digest()
}

/** Writes the header into the first STATE_HEADER bytes of a state. */
export function sealState(state: Uint8Array, identity: Buffer): void {
  const header = Buffer.from(state.buffer, state.byteOffset, STATE_HEADER)
  // The memory may have held another state before, so clear all bytes of the header.
  header.fill(0)
  header.write(NAME, 'latin1')
  identity.copy(header, IDENTITY_AT)
}

/** Whether the state has a header with this identity. */
export function isSealed(state: Uint8Array, identity: Buffer): boolean {
  if (state.length <= STATE_HEADER) return false
  const header = Buffer.from(state.buffer, state.byteOffset, STATE_HEADER)
  return (
    header.toString('latin1', 0, IDENTITY_AT) === NAME &&
    identity.equals(header.subarray(IDENTITY_AT, IDENTITY_AT + identity.length))
  )
}
