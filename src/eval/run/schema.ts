/** Owns the JSON Schema of a line of a log, for readers in other languages; docs/eval-log.schema.json is what it says. */
import { z } from 'zod'
import { LOG_VERSION, LogLine } from '../log.js'

/** Fields that are not named may be there: later versions that an older reader would not misread add some. */
export const logSchema = (): object => ({
  title: `A line of a kvfold run log, version ${LOG_VERSION}`,
  description:
    'JSON Lines. The first line is of kind header, and no other. Of one sample (task, agent, contract, index) the last record counts.',
  ...z.toJSONSchema(LogLine, { io: 'input' }),
})
