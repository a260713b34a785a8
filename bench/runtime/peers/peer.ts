/** Owns what a peer is: a runtime that is shown prompts one after the other, keeps what it can of the last one, and says what it computed. */

export interface PeerOptions {
  /** GGUF. */
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
  /** From the request to its one generated token. */
  readonly milliseconds: number
}

export interface Peer {
  readonly name: string
  /** Shows a whole prompt and has one token generated, greedily. One request at a time. */
  show(tokens: Int32Array): Promise<PeerAnswer>
  /** Ends it; it is of no use afterwards. */
  close(): Promise<void>
}

/** What all of them are given; flash attention is on everywhere. */
export const UBATCH = 512
