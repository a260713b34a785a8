/** What a server knows of engines on other servers: their state and their failures. The fleet makes such engines. */
import type { ChatMessage } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import { numberAt } from '../core/json.js'

/** The server software behind an engine's address. */
export type FlavourName = 'kvfold' | 'llama-server' | 'vllm' | 'sglang' | 'akv' | 'openai'

/** An engine that forwards requests to other engines. */
export interface EnginesElsewhere {
  readonly engines: readonly EngineStatus[]
  /** Why the latest version of the list of engines is not used; null if it is. */
  enginesProblem: string | null
}

/** The state of one engine, and its counts since it was added to the list. */
export interface EngineStatus {
  /** The engine's address. */
  readonly name: string
  readonly state: 'up' | 'down' | 'draining'
  /** Why the engine is down, or its last failure; null after a request that it answered. */
  readonly problem: string | null
  readonly weight: number
  /** The name of the engine's model; null until the engine was reached. */
  readonly model: string | null
  readonly flavour: FlavourName | null
  /** Number of requests that are running. */
  readonly open: number
  readonly requests: number
  /** Number of requests that failed because of the engine. */
  readonly failures: number
  /** Number of conversations that moved to this engine from another one. */
  readonly moved: number
  /**
   * Tokens of all prompts (`prompt`), how many of them the engine reported as cached (`cached`), and how many we had expected (`expected`).
   */
  readonly prompt: number
  readonly cached: number
  readonly expected: number
}

/**
 * The failure of an answer of which a part was sent already. It has the code of its cause. The conversation keeps nothing of the answer.
 */
export class BrokenAnswer extends KvfoldError {
  constructor(
    cause: KvfoldError,
    /** The content, reasoning and calls that were sent. */
    readonly said: Pick<ChatMessage, 'content' | 'reasoning' | 'toolCalls'>,
  ) {
    super(cause.code, `${cause.message} The conversation keeps nothing of the answer; ask again.`, { cause })
  }
}

/** Returns how many seconds the refusing endpoint asks us to wait (Retry-After); null if it does not say. */
export function waitAskedBy({ cause }: KvfoldError): number | null {
  return numberAt(cause, 'retryAfter')
}
