/** Owns what a server knows of engines that run elsewhere: how they are, and how their failures look. The fleet has such engines. */
import type { ChatMessage } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import { numberAt } from '../core/json.js'

/** What an engine elsewhere speaks. */
export type FlavourName = 'kvfold' | 'llama-server' | 'vllm' | 'sglang' | 'openai'

/** An engine that works through others. */
export interface EnginesElsewhere {
  readonly engines: readonly EngineStatus[]
  /** Why the engines are not those of the list that was written last; null: they are. */
  enginesProblem: string | null
}

/** What is known of an engine, and what it did since it was named. */
export interface EngineStatus {
  /** Its address. */
  readonly name: string
  readonly state: 'up' | 'down' | 'draining'
  /** Why it is down, or what went wrong there last. */
  readonly problem: string | null
  readonly weight: number
  /** Null until it was reached. */
  readonly model: string | null
  readonly flavour: FlavourName | null
  /** Requests under way. */
  readonly open: number
  readonly requests: number
  /** Requests that it failed. */
  readonly failures: number
  /** Conversations that came from another engine. */
  readonly moved: number
  /** Tokens of prompts; those of them that it says it did not compute; and those that we expected it not to. */
  readonly prompt: number
  readonly cached: number
  readonly expected: number
}

/** An answer that broke off after some of it was told: the code of what happened, and what there was. Nothing of it is kept. */
export class BrokenAnswer extends KvfoldError {
  constructor(
    cause: KvfoldError,
    /** All that was told, content and calls. */
    readonly said: Pick<ChatMessage, 'content' | 'reasoning' | 'toolCalls'>,
  ) {
    super(cause.code, `${cause.message} Nothing of the answer is kept; ask again.`, { cause })
  }
}

/** Seconds for which an endpoint that refused asks to be left alone; null where it does not say. */
export function waitAskedBy({ cause }: KvfoldError): number | null {
  return numberAt(cause, 'retryAfter')
}
