/** The agent that manages its own context: six tools, told what they are for, made to use them at first. */
import { systemPrompts, type SystemPrompt } from './prompts.js'
import { Session, type SessionOptions } from './session.js'

/** `system`: text of the caller's own; `prompt`: one of ours (default `general`). */
export type SculptorOptions = Omit<SessionOptions, 'contextTools'> & { readonly prompt?: SystemPrompt }

/** A session with the context tools (Sculptor, sections 2 and 4). */
export function sculptor({ prompt = 'general', ...options }: SculptorOptions): Session {
  return new Session({ system: systemPrompts[prompt], ...options, contextTools: true })
}
