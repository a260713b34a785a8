/** A peer is a runtime that gets prompts one after the other, keeps what it can of the last one, and reports what it computed. */

export interface PeerOptions {
  /** A GGUF file. */
  readonly model: string
  /** Tokens. */
  readonly contextSize: number
  readonly threads: number
}

export interface PeerAnswer {
  /** Prompt tokens that went through the model, as the peer itself counts them. */
  readonly evaluated: number
  /** Prompt tokens that it had kept. */
  readonly cached: number
  /** Milliseconds from the request to its one generated token. */
  readonly milliseconds: number
}

export interface Peer {
  readonly name: string
  /** Sends a whole prompt and has one token generated, greedily. One request at a time. */
  show(tokens: Int32Array): Promise<PeerAnswer>
  /** Closes the peer, which cannot be used afterwards. */
  close(): Promise<void>
}

/** A setting of all peers. Flash attention is on everywhere, too. */
export const UBATCH = 512
