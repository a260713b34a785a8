/** Where an engine keeps cells outside its memory: its folder on disk, and a tier that engines share. Also publishes cells to that tier. */
import { createHash } from 'node:crypto'
import type { ConversationId } from '../core/ids.js'
import type { SharedTier } from '../kv/ports.js'
import type { NativeContext, NativeModel } from '../native/types.js'
import { DiskTierFolder, type ShelfPlace } from './disk-tier.js'
import { modelFingerprint } from './model-facts.js'

/** Which cells an engine can load, for the code that opens a tier. */
export interface IdentifiedCells {
  /** SHA-256 of everything on which a state depends: model, llama.cpp release, cache types and layout, RoPE settings. */
  readonly identity: Buffer
  /** Called with a sentence for the user about a problem of the tier, once per problem. Default: not called. */
  readonly tell?: (sentence: string) => void
}

/** A tier through which engines on several machines find each other's cells. `sharedCells` makes one from a folder. */
export interface SharedCells {
  /** The secret that keys the names of shared blocks and the engine's cell hashes. All engines that share the tier have the same. */
  readonly secret: Buffer
  /** @throws KvfoldError engine/bad-request when the tier cannot be used, or is under another secret */
  open(identified: IdentifiedCells): Promise<SharedTier>
}

/** The engine options that say where cells are kept. */
interface CellPlaces {
  readonly disk?: ShelfPlace
  readonly shared?: SharedCells
  readonly tell?: (sentence: string) => void
}

export interface OpenCellPlaces {
  readonly disk: DiskTierFolder | null
  readonly shared: SharedTier | null
}

/** Opens the tiers that the options name, for a loaded model. @throws KvfoldError as the opening of either tier */
export async function openSavedCells(
  { info }: NativeModel,
  context: NativeContext,
  { disk, shared, tell }: CellPlaces,
): Promise<OpenCellPlaces> {
  if (disk === undefined && shared === undefined) return { disk: null, shared: null }
  // Engines can load each other's cells only if both are equal: the weights, and the context's identity.
  const weights = await modelFingerprint(info.path)
  const identity = createHash('sha256').update(context.identity).update(weights).digest()
  const told = { identity, ...(tell === undefined ? {} : { tell }) }
  const keyed = shared === undefined ? {} : { secret: shared.secret }
  return {
    disk: disk === undefined ? null : await DiskTierFolder.open({ folder: disk.folder, budget: disk.bytes, ...keyed, ...told }),
    shared: shared === undefined ? null : await shared.open(told),
  }
}

/** Publishes cells of conversations to the shared tier, one conversation after another, while steps run. */
export class CellPublisher {
  readonly #waiting = new Set<ConversationId>()
  #running: Promise<void> | null = null

  constructor(private readonly publish: (conversation: ConversationId) => Promise<void>) {}

  /** Queues the conversation to be published. Call it when it may have new exact cells. */
  later(conversation: ConversationId): void {
    this.#waiting.add(conversation)
    this.#running ??= this.#run().finally(() => {
      this.#running = null
    })
  }

  /** Resolves when no conversation is queued. */
  async settle(): Promise<void> {
    while (this.#running !== null) await this.#running
  }

  async #run(): Promise<void> {
    for (const conversation of this.#waiting) {
      this.#waiting.delete(conversation)
      // Ignore failures (the engine's end, a lost context): the next request reports them.
      await this.publish(conversation).catch(() => undefined)
    }
  }
}
