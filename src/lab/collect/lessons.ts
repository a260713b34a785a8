/** The scripted teachers, one per task. A script knows the right answer and uses the context tools well; models are trained on it. */
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
 * Returns a teacher that knows the sample's right answer.
 * @throws KvfoldError eval/bad-data when the task or the sample has no scripted teacher
 */
export function teacherOf(task: TaskName, agent: TaughtAgent, sample: TaskSample): Teacher {
  const lesson = task in lessons ? lessons[task as keyof typeof lessons](sample) : null
  if (lesson === null) throw new KvfoldError('eval/bad-data', `No script can act for ${task}; let a model act (--teacher model).`)
  return agent === 'plain' ? () => ({ content: lesson.answer }) : lesson.teacher
}

/** A sample's right answer, and the teacher that reaches it with tools. */
interface Lesson {
  readonly answer: string
  readonly teacher: Teacher
}

/** Makes the lesson for a sample, by task. Returns null if the script cannot solve the sample, e.g. some of the published ones. */
const lessons = { 'pi-llm': streamLesson, needles: chainLesson, mrcr: textLesson } satisfies Partial<
  Record<TaskName, (sample: TaskSample) => Lesson | null>
>

/** About how many updates per key the script leaves unfolded. With fewer, some keys would be hidden; with more, old values interfere. */
const OPEN = 6
/** The script folds nothing in a stream with up to this many updates per key. */
const SHORT = 8
/** The most fragments that a message may be cut into. */
const MOST_FRAGMENTS = 20
/**
 * The most fragments the script makes if it may have to go back to the first one. A turn allows 20 calls: one makes the fragments, one
 * folds each fragment but the last, and going back takes two per fragment.
 */
const MOST_TO_GO_BACK = 7

/**
 * The lesson for PI-LLM. The script cuts the stream so that the last fragment has the last few updates of every key. It folds all earlier
 * fragments in one step, and answers. If some requested updates are elsewhere, it first restores earlier fragments one by one, until every
 * requested key is shown.
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
 * Returns the calls that restore the fragment before the first open one, and that fold the open fragments if they show no requested key.
 * Returns null if all requested keys are shown, or if there is no earlier fragment. So the last shown update of a requested key is always
 * its last update in the stream.
 * @param missingIn returns the requested keys without an update in this text
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

/** Returns the text of the first user message that no edit hides, with a line break in place of each edit. */
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
 * The arguments of a search for a person's name. A name occurs at most 3 times in the text, and 50 characters on each side show the second
 * name in the sentence. The arguments are in the schema's order, because engines force calls into that order.
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

/** Characters of context around a match that show whether it is the title of a text. */
const TITLE = 50
/** Matches that a search shows by default. */
const SHOWN = 10

/**
 * The lesson for MRCR. The script searches for the title that several texts share, opens the requested text, and repeats it as the answer.
 * Returns null if a text with this title does not begin with it, or contains it twice.
 */
function textLesson({ messages, truth }: TaskSample): Lesson | null {
  const { prefix, answer } = truth as MrcrTruth
  const text = answer.slice(prefix.length)
  const title = text.slice(0, text.indexOf('\n\n'))
  const written = messages.filter(({ role }) => role === 'assistant')
  // The search for "Poem about wind" also finds "Poem about windows", so such texts count too.
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

/**
 * Returns the index of the script's step: the number of assistant messages so far, without the stumble (a failed call before the script's
 * first step).
 */
const stepOf = ({ messages }: EngineRequest): number =>
  messages.filter(({ role, toolCalls = [] }) => role === 'assistant' && !toolCalls.some(isStumble)).length

const isStumble = ({ arguments: given }: Pick<ToolCall, 'arguments'>): boolean => Object.keys(given).length === 0

const cutInto = (fragments: number, start: string, end: string): ScriptedReply => ({
  calls: [{ name: 'fragment_context', arguments: { start_marker: start, end_marker: end, num_fragments: fragments } }],
})

const fold = (id: string) => ({ name: 'fold_fragment', arguments: { fragment_id: id } })
const restore = (id: string) => ({ name: 'restore_fragment', arguments: { fragment_id: id } })

/** Returns the fragments' ids, in the order of the text. */
const fragmentsIn = ({ messages }: EngineRequest): readonly string[] =>
  messages.find(({ name }) => name === 'fragment_context')?.content.match(/\bf[0-9a-f]{5}\b/gu) ?? []

/** Returns the ids of the search results in the last tool result, in the order of the text. */
const foundIn = ({ messages }: EngineRequest): readonly string[] =>
  messages.findLast(({ role }) => role === 'tool')?.content.match(/(?<=\()s[0-9a-f]{5}(?=\): )/gu) ?? []
