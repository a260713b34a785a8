/** Owns what a good use of the context tools looks like, task by task, for models to learn from. */
import { KvfoldError } from '../../core/errors.js'
import type { EngineRequest } from '../../engine/engine.js'
import type { Teacher } from '../../engine/taught.js'
import type { ScriptedReply } from '../../engine/scripted.js'
import { PI_STREAM_END, PI_STREAM_START, piAnswer } from '../pi-llm.js'
import type { PiTruth } from '../pi-score.js'
import type { TaskName, TaskSample } from '../task.js'

/** A teacher for one sample, which it knows the answer to. @throws KvfoldError eval/bad-data for tasks that have none */
export function teacherOf(task: TaskName, sample: TaskSample): Teacher {
  if (task === 'pi-llm') return streamTeacher(sample)
  throw new KvfoldError('eval/bad-data', `There is no scripted teacher for ${task}; let a model act (--teacher model).`)
}

/** Updates of a key that are left open: with fewer, keys are lost; with more, old values get in the way. */
const OPEN = 6
/** Updates of a key up to which nothing is folded. */
const SHORT = 8
/** Fragments that a message may be cut into. */
const MOST_FRAGMENTS = 20

/** Cuts the stream so that the newest fragment holds the last few updates of every key, folds all others in one step, answers. */
function streamTeacher({ cell, truth }: TaskSample): Teacher {
  const updates = Number(cell['updates'])
  const { last } = truth as PiTruth
  const answer = piAnswer(Object.keys(last), new Map(Object.entries(last)))
  const wanted = updates <= SHORT ? 1 : Math.min(MOST_FRAGMENTS, Math.max(2, Math.round(updates / OPEN)))
  return (request) => {
    const answered = request.messages.filter(({ role }) => role === 'assistant').length
    if (answered === 0) return cutInto(wanted)
    const [, ...older] = fragmentIds(request).reverse()
    return answered === 1 && older.length > 0 ? foldAll(older.reverse()) : { content: answer }
  }
}

const cutInto = (fragments: number): ScriptedReply => ({
  calls: [
    {
      name: 'fragment_context',
      arguments: { start_marker: PI_STREAM_START, end_marker: PI_STREAM_END, num_fragments: fragments },
    },
  ],
})

const foldAll = (ids: readonly string[]): ScriptedReply => ({
  calls: ids.map((id) => ({ name: 'fold_fragment', arguments: { fragment_id: id } })),
})

/** In the order of the last result that names some, which is that of the text. */
function fragmentIds({ messages }: EngineRequest): string[] {
  const results = messages.filter(({ role }) => role === 'tool')
  return results.at(-1)?.content.match(/\bf[0-9a-f]{5}\b/gu) ?? []
}
