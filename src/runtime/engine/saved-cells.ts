/**
 * The places outside an engine's memory where it keeps cells: its folder on disk, and a place that engines share. Also publishes cells
 * there.
 */
import { createHash } from 'node:crypto'
import type { ConversationId } from '../core/ids.js'
import type { SharedTier } from '../kv/ports.js'
import type { NativeContext, NativeModel } from '../native/types.js'
import { DiskTierFolder, type ShelfPlace } from './disk-tier.js'
import { modelFingerprint } from './model-facts.js'

/** Identifies the cells that an engine can load. */
export interface IdentifiedCells {
  /** SHA-256 of all that must agree for a state to be loaded: model, llama.cpp release, cache types and layout, RoPE settings. */
  readonly identity: Buffer
  /** Called with a sentence about a problem of the place, once for each problem. Default: not called. */
  readonly tell?: (sentence: string) => void
}

/** A place through which engines on several machines find each other's cells. `sharedCells` makes one of a folder. */
export interface SharedCells {
  /**
   * The secret that keys the names of the place's blocks and the engine's cell hashes. It is the same for all engines that share the place.
   */
  readonly secret: Buffer
  /** @throws KvfoldError engine/bad-request when the place cannot be used, or is under another secret */
  open(identified: IdentifiedCells): Promise<SharedTier>
}

/** The engine's options that name places for cells. */
interface CellPlaces {
  readonly disk?: ShelfPlace
  readonly shared?: SharedCells
  readonly tell?: (sentence: string) => void
}

export interface OpenCellPlaces {
  readonly disk: DiskTierFolder | null
  readonly shared: SharedTier | null
}

/** Opens the places that the options name, for a loaded model. @throws KvfoldError as the opening of either place */
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

/** Publishes the cells of conversations where other engines find them, one conversation after another, while steps run. */
export class CellPublisher {
  readonly #waiting = new Set<ConversationId>()
  #running: Promise<void> | null = null

  constructor(private readonly publish: (conversation: ConversationId) => Promise<void>) {}

  /** Call it when the conversation may have new cells to publish. */
  later(conversation: ConversationId): void {
    this.#waiting.add(conversation)
    this.#running ??= this.#run().finally(() => {
      this.#running = null
    })
  }

  /** Resolves when no conversation waits to be published. */
  async settle(): Promise<void> {
    while (this.#running !== null) await this.#running
  }

  async #run(): Promise<void> {
    for (const conversation of this.#waiting) {
      this.#waiting.delete(conversation)
      // Ignore a failure (the engine's end, a lost context): the next request reports it.
      await this.publish(conversation).catch(() => undefined)
    }
  }
}
