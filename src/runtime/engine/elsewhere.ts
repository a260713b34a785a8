/** The state and the failures of engines that run elsewhere, as a server knows them. The fleet makes such engines. */
import type { ChatMessage } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import { numberAt } from '../core/json.js'

/** The kind of server that answers at an engine's address. */
export type FlavourName = 'kvfold' | 'llama-server' | 'vllm' | 'sglang' | 'akv' | 'openai'

/** An engine that passes its work to other engines. */
export interface EnginesElsewhere {
  readonly engines: readonly EngineStatus[]
  /** Why the list of engines that was written last is not in force; null if it is. */
  enginesProblem: string | null
}

/** The state of one engine, and its counts since the engine was named. */
export interface EngineStatus {
  /** The engine's address. */
  readonly name: string
  readonly state: 'up' | 'down' | 'draining'
  /** Why the engine is down, or its last failure. Null after a request that it answered. */
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
   * `prompt`: tokens of all prompts. `cached`: how many of them the engine reported as cached. `expected`: how many of them we expected it
   * to have cached.
   */
  readonly prompt: number
  readonly cached: number
  readonly expected: number
}

/**
 * An answer that broke off after a part of it was sent. It has the code of the cause, and the part that was sent. The conversation keeps
 * nothing of it.
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

/** Returns how many seconds an endpoint that refused asks us to wait; null if it does not say. */
export function waitAskedBy({ cause }: KvfoldError): number | null {
  return numberAt(cause, 'retryAfter')
}
