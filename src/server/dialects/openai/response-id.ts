/** Owns ids of responses: they say which thread a response stands in and where, so that nothing else has to be kept to go on from one. */
import { randomUUID } from 'node:crypto'
import type { ResponsePlace } from '../../responses/responses.js'

export interface InstructedPlace extends ResponsePlace {
  /** Whether the first of them came from `instructions`, which hold for one response only. */
  readonly instructed: boolean
}

export const responseId = ({ thread, messages, instructed }: InstructedPlace): string =>
  `resp_${thread}_${messages}${instructed ? 'i' : ''}`

/** The id of a response that is not to be gone on from. */
export const unstoredId = (): string => `resp_${randomUUID().replaceAll('-', '')}`

/** Null: no id of ours, or one of a response that was not stored. */
export function placeOf(id: string): InstructedPlace | null {
  const [, thread, messages, instructed] = /^resp_(.+)_(\d{1,9})(i?)$/.exec(id) ?? []
  return thread === undefined ? null : { thread, messages: Number(messages), instructed: instructed === 'i' }
}
