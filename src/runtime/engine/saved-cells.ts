/** Owns where an engine keeps cells beside its own memory: its folder on disk, a place that engines share, and what is put there when. */
import { createHash } from 'node:crypto'
import type { ConversationId } from '../core/ids.js'
import type { SharedTier } from '../kv/ports.js'
import type { NativeContext, NativeModel } from '../native/types.js'
import { DiskTierFolder, type ShelfPlace } from './disk-tier.js'
import { modelFingerprint } from './model-facts.js'

/** Which cells an engine can load. */
export interface IdentifiedCells {
  /** SHA-256 of all that must agree for a state to be loaded: model, llama.cpp release, cache types and layout, RoPE settings. */
  readonly identity: Buffer
  /** Takes a sentence about what is wrong with the place, each once. Default: nothing takes it. */
  readonly tell?: (sentence: string) => void
}

/** A place through which engines on several machines find each other's cells. `sharedCells` makes one of a folder. */
export interface SharedCells {
  /** The same for all engines that share the place: the names of its blocks and of the engine's cells depend on it. */
  readonly secret: Buffer
  /** @throws KvfoldError engine/bad-request when the place cannot be used, or is under another secret */
  open(identified: IdentifiedCells): Promise<SharedTier>
}

/** Where an engine's options have cells kept. */
interface CellPlaces {
  readonly disk?: ShelfPlace
  readonly shared?: SharedCells
  readonly tell?: (sentence: string) => void
}

export interface OpenCellPlaces {
  readonly disk: DiskTierFolder | null
  readonly shared: SharedTier | null
}

/** The places that a loaded model's options name. @throws KvfoldError as those of both */
export async function openSavedCells(
  { info }: NativeModel,
  context: NativeContext,
  { disk, shared, tell }: CellPlaces,
): Promise<OpenCellPlaces> {
  if (disk === undefined && shared === undefined) return { disk: null, shared: null }
  // Engines load each other's cells only if they agree in all of this: the same weights under the same context.
  const weights = await modelFingerprint(info.path)
  const identity = createHash('sha256').update(context.identity).update(weights).digest()
  const told = { identity, ...(tell === undefined ? {} : { tell }) }
  const keyed = shared === undefined ? {} : { secret: shared.secret }
  return {
    disk: disk === undefined ? null : await DiskTierFolder.open({ folder: disk.folder, budget: disk.bytes, ...keyed, ...told }),
    shared: shared === undefined ? null : await shared.open(told),
  }
}

/** Puts what conversations computed where others find it, one conversation after the other, while steps go on. */
export class CellPublisher {
  readonly #waiting = new Set<ConversationId>()
  #running: Promise<void> | null = null

  constructor(private readonly publish: (conversation: ConversationId) => Promise<void>) {}

  /** The conversation may have cells that others lack. */
  later(conversation: ConversationId): void {
    this.#waiting.add(conversation)
    this.#running ??= this.#run().finally(() => {
      this.#running = null
    })
  }

  /** Resolves when nothing is left to be done. */
  async settle(): Promise<void> {
    while (this.#running !== null) await this.#running
  }

  async #run(): Promise<void> {
    for (const conversation of this.#waiting) {
      this.#waiting.delete(conversation)
      // What ends it (the engine's end, a lost context) is told to whoever asks for something.
      await this.publish(conversation).catch(() => undefined)
    }
  }
}
