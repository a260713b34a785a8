/** Owns the scripted agents of the order desk: one that is right as far as it can see, one that does not look, one that does not remember; and what they write as helpers. */
import { isDeepStrictEqual } from 'node:util'
import { extractionSchema, memorySchema } from '../../agents/u-fold/helper-output.js'
import { linesOf, textOf } from '../../agents/u-fold/lines.js'
import { REPORT } from '../../agents/rounds.js'
import type { EngineRequest } from '../../engine/engine.js'
import type { ScriptedReply, Teacher } from '../../engine/taught.js'
import type { Goal } from './customer.js'
import type { ServiceEnvironment } from './environment.js'

/** `taught`: looks things up until it sees them. `careless`: does what it is told. `forgetful`: has the last words of the customer alone. */
export const manners = ['taught', 'careless', 'forgetful'] as const
export type Manner = (typeof manners)[number]

/** Calls of a turn after which it says what it sees. */
const ENOUGH = 8

/** Decides by what the request shows, folds included, and by nothing else of the desk: what was lost has to be looked up again. */
export const serviceTeacher =
  (environment: ServiceEnvironment, manner: Manner): Teacher =>
  (request) => {
    if (request.kind === 'summary') return { content: helper(request, environment) }
    const reply = decision(request, environment, manner)
    const last = request.messages.findLast(({ role }) => role === 'user')
    return last?.content.includes(REPORT) === true && reply.calls !== undefined
      ? { ...reply, content: `<report>${notes(environment)} ${found(request, environment.goal)}</report>` }
      : reply
  }

function decision(request: EngineRequest, { goal, done, calls }: ServiceEnvironment, manner: Manner): ScriptedReply {
  const slip = manner === 'taught' ? undefined : goal[manner]
  const [acts, told, lookups] = slip === undefined ? [goal.acts, goal.told, goal.lookups] : [slip.acts, slip.says, []]
  const shown = shownText(request)
  const missing = lookups.find(({ yields }) => yields.some((words) => !shown.includes(words)))
  if (missing !== undefined && calls < ENOUGH) return { calls: [missing.call] }
  const act = acts.find((one) => !done.some((call) => isDeepStrictEqual(call, one)))
  if (act !== undefined && calls < ENOUGH + acts.length) return { calls: [act] }
  const said = told.filter((words) => slip !== undefined || shown.includes(words) || !known(goal, words))
  return { content: said.length === told.length ? `Here you are: ${said.join(', ')}.` : 'I cannot see that any more.' }
}

/** Whether the words come from a tool and not from the customer or the rules. */
const known = ({ lookups }: Goal, words: string): boolean => lookups.some(({ yields }) => yields.includes(words))

/** What a request shows: every message under its edits, and the calls. */
function shownText({ messages, edits = [] }: EngineRequest): string {
  return messages
    .map(({ content, toolCalls = [] }, index) => {
      let [text, at] = ['', 0]
      for (const { span, replacement } of edits.filter(({ message }) => message === index)) {
        text += content.slice(at, span.start) + replacement
        at = span.end
      }
      return [text + content.slice(at), ...toolCalls.map(({ arguments: args }) => JSON.stringify(args))].join('\n')
    })
    .join('\n')
}

/** The words of a helper: what it is asked for is told by the form that is wanted. */
function helper(request: EngineRequest, environment: ServiceEnvironment): string {
  const { goal } = environment
  if (request.schema === memorySchema) return JSON.stringify({ summary: notes(environment), todo: [goal.todo] })
  if (request.schema === extractionSchema) return chosen(request, environment)
  return `${notes(environment)} Still to do: ${goal.todo} ${found(request, goal)}`
}

const notes = ({ past }: ServiceEnvironment): string => past.map(({ note }) => note).join(' ')

/** What the turn has found out so far, for frameworks that go on within it from notes alone. */
function found(request: EngineRequest, { lookups }: Goal): string {
  const shown = shownText(request)
  const seen = lookups.flatMap(({ call, yields }) =>
    yields.every((words) => shown.includes(words)) ? [`${call.name} gave ${yields.join(', ')}.`] : [],
  )
  return seen.join(' ')
}

/** Lines with the words that the matter in hand needs. */
function chosen(request: EngineRequest, { goal }: ServiceEnvironment): string {
  const wanted = goal.lookups.flatMap(({ yields }) => yields)
  const last = request.messages.at(-1)?.content ?? ''
  const listed = Array.from(last.matchAll(/^(\d+)\| (.*)$/gm), ([, number, text = '']) => ({ number: Number(number), text }))
  const lines =
    listed.length > 0
      ? listed
      : linesOf(request.messages).map((line) => ({ number: line.number, text: textOf(request.messages, line) }))
  const hits = lines.filter(({ text }) => wanted.some((words) => text.includes(words))).map(({ number }) => number)
  const ranges: [number, number][] = []
  for (const number of hits) {
    const range = ranges.at(-1)
    if (range !== undefined && number <= range[1] + 1) range[1] = number
    else ranges.push([number, number])
  }
  const constraints = goal.constraint === undefined ? [] : [goal.constraint]
  const blocks = ranges.map(([from, to]) => ({
    lines: `${from}-${to}`,
    summary: 'Needed for the first step.',
    constraints,
    hint: '',
  }))
  return JSON.stringify({ blocks })
}
