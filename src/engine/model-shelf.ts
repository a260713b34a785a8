/** Owns which shelf on the disk is a loaded model's: that of the same weights under the same context. */
import { createHash } from 'node:crypto'
import type { NativeContext, NativeModel } from '../native/types.js'
import { DiskTierFolder } from './disk-shelf.js'
import { modelFingerprint } from './model-fingerprint.js'

export interface ShelfPlace {
  readonly folder: string
  /** The most that it may hold. */
  readonly bytes: number
}

/** @throws KvfoldError as DiskShelf.open */
export async function openShelf(
  { info }: NativeModel,
  { identity }: NativeContext,
  { folder, bytes }: ShelfPlace,
): Promise<DiskTierFolder> {
  const whole = createHash('sha256')
    .update(identity)
    .update(await modelFingerprint(info.path))
    .digest()
  return DiskTierFolder.open({ folder, budget: bytes, identity: whole })
}
