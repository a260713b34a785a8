/** A LoRA adapter of a loaded model. */
import { KvfoldError } from '../core/errors.js'
import type { AdapterHandle } from './addon.js'

/** A loaded LoRA adapter. */
export class NativeAdapter {
  #handle: AdapterHandle | null

  /** @internal */
  constructor(
    handle: AdapterHandle,
    readonly path: string,
    /** How many tensors of its file llama.cpp ignores. It does not apply changed norms. */
    readonly ignored: number,
    private readonly free: () => void,
  ) {
    this.#handle = handle
  }

  /** @throws KvfoldError native/disposed @internal */
  get handle(): AdapterHandle {
    if (this.#handle === null) throw new KvfoldError('native/disposed', 'The adapter was disposed; load it again.')
    return this.#handle
  }

  /** Frees the adapter before its model is freed. Further calls do nothing. @throws KvfoldError native/busy while the model has contexts */
  dispose(): void {
    if (this.#handle === null) return
    this.free()
    this.#handle = null
  }
}

/** An adapter, and the factor by which its change of the model's weights is multiplied. */
export interface AppliedAdapter {
  readonly adapter: NativeAdapter
  readonly scale: number
}
