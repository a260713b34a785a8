/** The scripts that act as teachers, one for each task. A script knows the answer and uses the context tools well; models learn from it. */
import type { ToolCall } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { EngineRequest } from '../../runtime/engine/engine.js'
import type { ScriptedReply, Teacher } from '../taught-engine.js'
import { PI_STREAM_END, PI_STREAM_START, piAnswer, type PiTruth } from '../pi-llm.js'
import { filled } from '../pi-wordings.js'
import type { TaskName, TaskSample } from '../task.js'
import { LONGEST_TEXT, type MrcrTruth } from '../tasks/mrcr.js'
import type { NeedlesTruth } from '../tasks/needles.js'
import type { TaughtAgent } from './trajectory.js'

/**
 * Returns a teacher that knows the answer of this sample.
 * @throws KvfoldError eval/bad-data when the task or the sample has no scripted teacher
 */
export function teacherOf(task: TaskName, agent: TaughtAgent, sample: TaskSample): Teacher {
  const lesson = task in lessons ? lessons[task as keyof typeof lessons](sample) : null
  if (lesson === null) throw new KvfoldError('eval/bad-data', `No script can act for ${task}; let a model act (--teacher model).`)
  return agent === 'plain' ? () => ({ content: lesson.answer }) : lesson.teacher
}

/** The right answer of a sample, and the teacher that reaches it with tools. */
interface Lesson {
  readonly answer: string
  readonly teacher: Teacher
}

/** The functions that make lessons, by task. They return null when the script cannot solve the sample, for example a published one. */
const lessons = { 'pi-llm': streamLesson, needles: chainLesson, mrcr: textLesson } satisfies Partial<
  Record<TaskName, (sample: TaskSample) => Lesson | null>
>

/** About how many updates of each key the script leaves open. With fewer, some keys would not be shown; with more, old values interfere. */
const OPEN = 6
/** In a stream with up to this many updates of each key, the script folds nothing. */
const SHORT = 8
/** The most fragments that a message may be cut into. */
const MOST_FRAGMENTS = 20
/**
 * The most fragments that the script makes when it may have to go back to the first one. A turn allows 20 calls. The
 * script needs one call to make fragments, one to fold each except the last, and two for each fragment that it goes back.
 */
const MOST_TO_GO_BACK = 7

/**
 * The lesson for PI-LLM. The script divides the stream so that the newest fragment holds the last few updates of every key. It folds all
 * other fragments in one step and answers. When the requested updates are elsewhere, it first restores earlier fragments one by one, until
 * all requested keys are shown.
 */
function streamLesson({ cell, truth }: TaskSample): Lesson {
  const updates = Number(cell['updates'])
  const elsewhere = cell['order'] !== undefined
  const { last, earlier, worded } = truth as PiTruth
  const asked = Object.keys(last)
  const { start, end, update, answer } = worded ?? {
    ...{ start: PI_STREAM_START, end: PI_STREAM_END, update: '{key}: {value};' },
    answer: piAnswer(asked, new Map(Object.entries(last))),
  }
  const updatesOf = (key: string) => [last[key]!, ...earlier[key]!].map((value) => filled(update, { key, value }))
  const missingIn = (text: string) => asked.filter((key) => !updatesOf(key).some((one) => text.includes(one)))
  const most = elsewhere ? MOST_TO_GO_BACK : MOST_FRAGMENTS
  const wanted = updates <= SHORT ? 1 : Math.min(most, Math.max(2, Math.round(updates / OPEN)))
  const teacher: Teacher = (request) => {
    const step = stepOf(request)
    if (step === 0) return cutInto(wanted, start, end)
    const fragments = fragmentsIn(request)
    if (step === 1 && fragments.length > 1) return { calls: fragments.slice(0, -1).map(fold) }
    return (elsewhere ? stepBack(request, fragments, missingIn, asked.length) : null) ?? { content: answer }
  }
  return { answer, teacher }
}

/**
 * Returns the calls that restore the fragment before the oldest open one. They also fold the open fragments if these show none of the
 * requested keys. Returns null when all requested keys are shown, or no earlier fragment exists.
 * So the last shown update of a requested key is always its last update in the stream.
 * @param missingIn returns the requested keys that have no update in this text
 * @param count the number of requested keys
 */
function stepBack(
  request: EngineRequest,
  fragments: readonly string[],
  missingIn: (text: string) => readonly string[],
  count: number,
): ScriptedReply | null {
  const { edits = [] } = request
  const open = fragments.filter((id) => !edits.some(({ replacement }) => replacement.includes(id)))
  const before = fragments[fragments.indexOf(open[0] ?? '') - 1]
  const missing = missingIn(shownText(request))
  if (missing.length === 0 || before === undefined) return null
  return { calls: [restore(before), ...(missing.length === count ? open.map(fold) : [])] }
}

/** Returns the parts of the first user message that no edit hides, each on a line of its own. */
function shownText({ messages, edits = [] }: EngineRequest): string {
  const message = messages.findIndex(({ role }) => role === 'user')
  const text = messages[message]?.content ?? ''
  const open: string[] = []
  let at = 0
  for (const { span } of edits.filter((edit) => edit.message === message)) {
    open.push(text.slice(at, span.start))
    at = Math.max(at, span.end)
  }
  return [...open, text.slice(at)].join('\n')
}

/**
 * The arguments of a search for a person's name. A name occurs at most 3 times in the text, and 50 characters on each side
 * show the other name in its sentence. The arguments come in the schema's order, because engines force calls into that order.
 */
const SENTENCE = { max_results: 3, context_size: 50 }

/** The lesson for the needles. The script searches for each name of the chain, from the youngest up, until a name has no elder relative. */
function chainLesson({ truth }: TaskSample): Lesson {
  const { chain } = truth as NeedlesTruth
  const [eldest = '', youngest = ''] = [chain[0], chain.at(-1)]
  const answer = `The eldest relative of '${youngest}' is \\boxed{${eldest}}.`
  const teacher: Teacher = (request) => {
    const name = chain[chain.length - 1 - stepOf(request)]
    return name === undefined
      ? { content: answer }
      : { calls: [{ name: 'search_context', arguments: { query: name, ...SENTENCE } }] }
  }
  return { answer, teacher }
}

/** Number of characters around a match that suffice to see whether it is the title of a text. */
const TITLE = 50
/** Number of matches that a search shows by default. */
const SHOWN = 10

/**
 * The lesson for MRCR. The script searches for the title that several texts share, opens the requested text, and repeats it as the answer.
 * Returns null when one of the texts with this title does not begin with it, or contains it twice.
 */
function textLesson({ messages, truth }: TaskSample): Lesson | null {
  const { prefix, answer } = truth as MrcrTruth
  const text = answer.slice(prefix.length)
  const title = text.slice(0, text.indexOf('\n\n'))
  const written = messages.filter(({ role }) => role === 'assistant')
  // "Poem about wind" also begins a poem about windows: the search finds both.
  const alike = written.filter(({ content }) => content.includes(title))
  if (title === '' || alike.some(({ content }) => !content.startsWith(title) || content.includes(title, 1))) return null
  const which = alike.findIndex(({ content }) => content === text)
  const more = alike.length > SHOWN ? { max_results: alike.length } : {}
  const teacher: Teacher = (request) => {
    const step = stepOf(request) - written.length
    if (step === 0)
      return { calls: [{ name: 'search_context', arguments: { query: title, role: 'assistant', context_size: TITLE, ...more } }] }
    const id = foundIn(request)[which]
    return step === 1 && id !== undefined
      ? { calls: [{ name: 'get_search_detail', arguments: { search_id: id, extended_context: LONGEST_TEXT } }] }
      : { content: answer }
  }
  return { answer, teacher }
}

/** Returns the number of the script's step: the assistant messages so far, without a failed call put before the script's first step. */
const stepOf = ({ messages }: EngineRequest): number =>
  messages.filter(({ role, toolCalls = [] }) => role === 'assistant' && !toolCalls.some(isStumble)).length

const isStumble = ({ arguments: given }: Pick<ToolCall, 'arguments'>): boolean => Object.keys(given).length === 0

const cutInto = (fragments: number, start: string, end: string): ScriptedReply => ({
  calls: [{ name: 'fragment_context', arguments: { start_marker: start, end_marker: end, num_fragments: fragments } }],
})

const fold = (id: string) => ({ name: 'fold_fragment', arguments: { fragment_id: id } })
const restore = (id: string) => ({ name: 'restore_fragment', arguments: { fragment_id: id } })

/** Returns the ids of the fragments, in the order of the text. */
const fragmentsIn = ({ messages }: EngineRequest): readonly string[] =>
  messages.find(({ name }) => name === 'fragment_context')?.content.match(/\bf[0-9a-f]{5}\b/gu) ?? []

/** Returns the ids of the search results in the last tool result, in the order of the text. */
const foundIn = ({ messages }: EngineRequest): readonly string[] =>
  messages.findLast(({ role }) => role === 'tool')?.content.match(/(?<=\()s[0-9a-f]{5}(?=\): )/gu) ?? []
