/** Owns what a good use of the context tools looks like, task by task: scripts that know the answer, for models to learn from. */
import type { ToolCall } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { EngineRequest } from '../../runtime/engine/engine.js'
import type { ScriptedReply, Teacher } from '../taught-engine.js'
import { PI_STREAM_END, PI_STREAM_START, piAnswer, type PiTruth } from '../pi-llm.js'
import type { TaskName, TaskSample } from '../task.js'
import { LONGEST_TEXT, type MrcrTruth } from '../tasks/mrcr.js'
import type { NeedlesTruth } from '../tasks/needles.js'
import type { TaughtAgent } from './trajectory.js'

/** A teacher for one sample, which it knows the answer to. @throws KvfoldError eval/bad-data for tasks that have none */
export function teacherOf(task: TaskName, agent: TaughtAgent, sample: TaskSample): Teacher {
  const lesson = task in lessons ? lessons[task as keyof typeof lessons](sample) : null
  if (lesson === null)
    throw new KvfoldError('eval/bad-data', `There is no scripted teacher for ${task}; let a model act (--teacher model).`)
  return agent === 'plain' ? () => ({ content: lesson.answer }) : lesson.teacher
}

/** What is to be said in the end, and the way there with tools. */
interface Lesson {
  readonly answer: string
  readonly teacher: Teacher
}

/** Null for a sample that is not of our making. */
const lessons = { 'pi-llm': streamLesson, needles: chainLesson, mrcr: textLesson } satisfies Partial<
  Record<TaskName, (sample: TaskSample) => Lesson | null>
>

/** Updates of a key that are left open: with fewer, keys are lost; with more, old values get in the way. */
const OPEN = 6
/** Updates of a key up to which nothing is folded. */
const SHORT = 8
/** Fragments that a message may be cut into. */
const MOST_FRAGMENTS = 20
/** Fragments from the newest of which one can go back to the first within the 20 calls of a turn: a cut, a fold of each but one, two calls a step. */
const MOST_TO_GO_BACK = 7

/**
 * Cuts the stream so that the newest fragment holds the last few updates of every key, folds all others in one step, answers. Where
 * the updates asked for stand elsewhere, it first goes back, fragment by fragment, until all of the keys asked for are shown.
 */
function streamLesson({ cell, truth }: TaskSample): Lesson {
  const updates = Number(cell['updates'])
  const elsewhere = cell['order'] !== undefined
  const { last } = truth as PiTruth
  const asked = Object.keys(last)
  const answer = piAnswer(asked, new Map(Object.entries(last)))
  const most = elsewhere ? MOST_TO_GO_BACK : MOST_FRAGMENTS
  const wanted = updates <= SHORT ? 1 : Math.min(most, Math.max(2, Math.round(updates / OPEN)))
  const teacher: Teacher = (request) => {
    const step = stepOf(request)
    if (step === 0) return cutInto(wanted)
    const fragments = fragmentsIn(request)
    if (step === 1 && fragments.length > 1) return { calls: fragments.slice(0, -1).map(fold) }
    return (elsewhere ? stepBack(request, fragments, asked) : null) ?? { content: answer }
  }
  return { answer, teacher }
}

/**
 * Shows the fragment before the oldest open one, and folds what is open where none of the keys asked for is in it. Null when all keys are
 * shown, or no fragment is left. Folds only what has nothing of these keys, so that the last update shown of each is its last.
 */
function stepBack(request: EngineRequest, fragments: readonly string[], asked: readonly string[]): ScriptedReply | null {
  const { edits = [] } = request
  const open = fragments.filter((id) => !edits.some(({ replacement }) => replacement.includes(id)))
  const before = fragments[fragments.indexOf(open[0] ?? '') - 1]
  const shown = keysShown(request)
  const missing = asked.filter((key) => !shown.has(key))
  if (missing.length === 0 || before === undefined) return null
  return { calls: [restore(before), ...(missing.length === asked.length ? open.map(fold) : [])] }
}

/** Keys with an update in what is shown of the stream. */
function keysShown({ messages, edits = [] }: EngineRequest): ReadonlySet<string> {
  const message = messages.findIndex(({ role }) => role === 'user')
  const text = messages[message]?.content ?? ''
  const open: string[] = []
  let at = text.indexOf(PI_STREAM_START) + PI_STREAM_START.length
  for (const { span } of edits.filter((edit) => edit.message === message)) {
    open.push(text.slice(at, span.start))
    at = Math.max(at, span.end)
  }
  open.push(text.slice(at, text.indexOf(PI_STREAM_END)))
  return new Set(Array.from(open.join('\n').matchAll(/(?:^|;)\s*([^:;\n]+): /gmu), ([, key = '']) => key))
}

/**
 * How often a name stands in the text at most, and characters on each side of it that show the other name of its sentence; in the order of the
 * schema, which calls that are forced keep to.
 */
const SENTENCE = { max_results: 3, context_size: 50 }

/** One search a name, from the youngest up; the eldest is searched for, too, and turns out to have nobody above. */
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

/** Characters that show that a match is the title of a text. */
const TITLE = 50
/** Matches that a search shows unless more are asked for. */
const SHOWN = 10

/** All texts by the title that they share, then the one that is asked for, then that again; null where texts have no title of their own. */
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

/** Answers and calls so far, but for one that failed before the first. */
const stepOf = ({ messages }: EngineRequest): number =>
  messages.filter(({ role, toolCalls = [] }) => role === 'assistant' && !toolCalls.some(isStumble)).length

const isStumble = ({ arguments: given }: Pick<ToolCall, 'arguments'>): boolean => Object.keys(given).length === 0

const cutInto = (fragments: number): ScriptedReply => ({
  calls: [
    {
      name: 'fragment_context',
      arguments: { start_marker: PI_STREAM_START, end_marker: PI_STREAM_END, num_fragments: fragments },
    },
  ],
})

const fold = (id: string) => ({ name: 'fold_fragment', arguments: { fragment_id: id } })
const restore = (id: string) => ({ name: 'restore_fragment', arguments: { fragment_id: id } })

/** Fragments that the text was cut into, in its order. */
const fragmentsIn = ({ messages }: EngineRequest): readonly string[] =>
  messages.find(({ name }) => name === 'fragment_context')?.content.match(/\bf[0-9a-f]{5}\b/gu) ?? []

/** Search results in the last tool result, in its order, which is that of the text. */
const foundIn = ({ messages }: EngineRequest): readonly string[] =>
  messages.findLast(({ role }) => role === 'tool')?.content.match(/(?<=\()s[0-9a-f]{5}(?=\): )/gu) ?? []
