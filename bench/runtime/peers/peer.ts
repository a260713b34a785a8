/** A peer is a runtime that gets one prompt after another, keeps what it can of the last one, and reports what it computed. */

export interface PeerOptions {
  /** Path of a GGUF file. */
  readonly model: string
  /** Context size in tokens. */
  readonly contextSize: number
  readonly threads: number
}

export interface PeerAnswer {
  /** Prompt tokens that went through the model, by the peer's own count. */
  readonly evaluated: number
  /** Prompt tokens that were still in its cache. */
  readonly cached: number
  /** Milliseconds from the request to its one generated token. */
  readonly milliseconds: number
}

export interface Peer {
  readonly name: string
  /** Sends a whole prompt and generates one token greedily. Only one request may run at a time. */
  show(tokens: Int32Array): Promise<PeerAnswer>
  /** Closes the peer for good. */
  close(): Promise<void>
}

/** The ubatch of all peers. Flash attention is on for all, too. */
export const UBATCH = 512
