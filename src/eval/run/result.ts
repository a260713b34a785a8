/** Owns what is remembered of a sample that is done: its record without the long texts. */
import type { ErrorRecord, LogRecord, SampleRecord } from '../log.js'

export type Answer = Omit<SampleRecord, 'talks' | 'truth' | 'answer' | 'judgement'>
export type Result = Answer | ErrorRecord

export function resultOf(record: LogRecord): Result {
  if (record.kind === 'error') return record
  const rest: Partial<SampleRecord> & Answer = { ...record }
  delete rest.talks
  delete rest.truth
  delete rest.answer
  delete rest.judgement
  return rest
}
