/** The agent that does nothing but answer: no tools, no system message unless one is given, the prompt of a bare run. */
import { Session, type SessionOptions } from './session.js'

export type PlainOptions = Omit<SessionOptions, 'contextTools' | 'firstStep' | 'maxCalls' | 'clientTools'>

export function plain(options: PlainOptions): Session {
  return new Session({ ...options, contextTools: false })
}
