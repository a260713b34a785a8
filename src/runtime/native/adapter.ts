/** Handles of loaded LoRA adapters. */
import { KvfoldError } from '../core/errors.js'
import type { AdapterHandle } from './addon.js'

/** A loaded LoRA adapter. */
export class NativeAdapter {
  #handle: AdapterHandle | null

  /** @internal */
  constructor(
    handle: AdapterHandle,
    readonly path: string,
    /** Number of tensors in its file that llama.cpp ignores: changed norms. */
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

  /** Frees the adapter earlier than its model. Further calls do nothing. @throws KvfoldError native/busy while the model has contexts */
  dispose(): void {
    if (this.#handle === null) return
    this.free()
    this.#handle = null
  }
}

/** An adapter, and the factor on its change of the model's weights. */
export interface AppliedAdapter {
  readonly adapter: NativeAdapter
  readonly scale: number
}
