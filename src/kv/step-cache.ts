/** The interface through which the engine leads steps through a cache, whatever kind of memory the model has. */
import type { KvCache } from './cache.js'

/**
 * KvCache takes tokens out and puts them back; LinearCache can only extend a text, and go back to checkpoints. The contracts of the calls are
 * those of KvCache. What does not apply to a memory says so by its result: 0 cells rewritten, nothing tidied.
 */
export interface StepCache extends Pick<KvCache, keyof KvCache> {
  /**
   * Called after a decode of several sequences failed, with every running step. Present where that may have spoilt sequences that were not in
   * the batch: all running steps can then only be cancelled.
   */
  distrust?(): void
}
