/**
 * The logbook task. In the conversation an agent has read a logbook part by part with a tool. Later parts change values of earlier ones.
 * The user then asks for one entry's current value.
 */
import Type from 'typebox'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { Random } from '../../runtime/core/random.js'
import { strict } from '../../runtime/core/schema.js'
import { ENGLISH } from '../../runtime/fidelity/cases.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { pick, sentence } from './prose.js'
import { Axis, charsPerToken, crossed, generation, gridPlace, readOptions } from './samples.js'

/**
 * The kinds of samples. `stale`: the first half of the log has older values of the asked entry. `unrelated`: only one part mentions that
 * entry. `rules`: like `unrelated`, but the user's first message sets a rule for answers, and the points depend only on this rule.
 */
export const logKinds = ['stale', 'unrelated', 'rules'] as const
export type LogKind = (typeof logKinds)[number]

/**
 * Which part of the log has the current value. `late`: the last part. `middle`: the first part of the second half. `early`: the last part
 * of the first half, which a policy that folds the older half hides.
 */
export const logPlaces = ['late', 'middle', 'early'] as const
export type LogPlace = (typeof logPlaces)[number]

const distinct = <Name extends string>(names: readonly Name[]) =>
  Type.Array(Type.Enum([...names]), { minItems: 1, uniqueItems: true, default: [...names] })

/** Entries in each part of the log. */
const GROUP = 4
/** The most parts of a log. With more, there would not be a different word for every value. */
const MOST_PARTS = Math.floor(ENGLISH.words.length / GROUP)

const Options = strict({
  ...generation,
  kinds: distinct(logKinds),
  places: distinct(logPlaces),
  /** Tokens of all messages' contents together, counted as characters / charsPerToken. The tool calls take further tokens. */
  lengths: Axis(100, 10_000_000, [600]),
  charsPerToken,
  /** Number of parts of the log. Each is the result of one tool call. */
  parts: Type.Integer({ minimum: 3, maximum: MOST_PARTS, default: 6 }),
})

/** What the scorer needs, as plain JSON. Each value is one word of the log, in lower case. */
export interface LogTruth {
  readonly current: string
  /** Earlier values of the asked entry. */
  readonly outdated: readonly string[]
  /** Values of other entries. */
  readonly others: readonly string[]
  /** The code word with which the answer must begin; null without a rule. */
  readonly rule: string | null
}

/** Makes the task from its options. @throws KvfoldError eval/bad-data */
export function openLogbook(spec: TaskSpec): Task {
  const options = readOptions(Options, spec)
  // For `rules` the place of the value does not matter, so only the first place is used.
  const asked = options.kinds.flatMap((kind) =>
    (kind === 'rules' ? options.places.slice(0, 1) : options.places).map((place) => [kind, place] as const),
  )
  const cells = crossed(asked, options.lengths)
  const sampleOf = (index: number): TaskSample => {
    const { cell, sample } = gridPlace(cells, options.samples, index)
    const [[kind, place], length] = cell
    const { seed, parts } = options
    const random = new Random(seed, sample, logKinds.indexOf(kind), logPlaces.indexOf(place), length, parts)
    const budget = Math.round(length * options.charsPerToken)
    return makeSample({ id: `logbook-${kind}-${place}-${length}-${sample}`, kind, place, length, parts, budget }, random)
  }
  sampleOf(options.lengths.indexOf(Math.min(...options.lengths)))
  return {
    spec: { task: spec.task, options },
    title: 'Logbook',
    prompt: 'general',
    maxTokens: 256,
    temperature: 0,
    differs: [],
    size: cells.length * options.samples,
    // eslint-disable-next-line @typescript-eslint/require-await -- what it throws is a rejection
    sample: async (index) => sampleOf(index),
    score: ({ truth }, answer) => scoreOf(truth as LogTruth, answer),
  }
}

interface Making {
  readonly id: string
  readonly kind: LogKind
  readonly place: LogPlace
  readonly length: number
  readonly parts: number
  /** The most characters of all messages' contents together. */
  readonly budget: number
}

const CODES = ['ALTAIR', 'CASTOR', 'DENEB', 'RIGEL', 'SIRIUS', 'VEGA']

const opening = (parts: number, rule: string | null): string =>
  [
    `I keep a logbook in ${parts} parts, the oldest first. Read all of them with read_log; then I ask you about it.`,
    ...(rule === null ? [] : [`A rule: whenever you tell me a password, begin your answer with the code word ${rule}.`]),
  ].join(' ')

function makeSample({ id, kind, place, length, parts, budget }: Making, random: Random): TaskSample {
  const rooms = random.shuffled(ENGLISH.rooms)
  const words = random.shuffled(ENGLISH.words).slice(0, parts * GROUP)
  const groupOf = (group: number) => rooms.slice(group * GROUP, (group + 1) * GROUP)
  const asked = groupOf(0)
  const room = pick(random, asked)
  const rule = kind === 'rules' ? pick(random, CODES) : null

  const half = Math.ceil(parts / 2)
  const current = { late: parts - 1, middle: half, early: half - 1 }[place]
  const outdated = kind === 'stale' ? Array.from({ length: Math.min(current, half) }, (_, part) => part) : []
  const known = new Set<string>()
  const entries = Array.from({ length: parts }, (_, part) => {
    const group = part === current || outdated.includes(part) ? asked : groupOf(1 + (part % 2))
    return group.map((one, at) => {
      const say = known.has(one) ? ENGLISH.changed : ENGLISH.first
      known.add(one)
      return say(one, words[part * GROUP + at]!)
    })
  })

  const first = opening(parts, rule)
  const question = ENGLISH.ask(room)
  const titleOf = (part: number) => `Logbook, part ${part + 1} of ${parts}.\n`
  const fixed = first.length + ENGLISH.seen.length + question.length + entries.flat().join(' ').length + parts * titleOf(0).length
  if (fixed > budget)
    throw new KvfoldError(
      'eval/bad-data',
      `${parts} parts and the question do not fit into ${length} tokens; ask for a greater length or fewer parts.`,
    )
  const texts = entries.map((own, part) => {
    const filler: string[] = []
    let left = (budget - fixed) / parts
    for (let next = sentence(random); next.length < left; next = sentence(random)) {
      filler.push(next)
      left -= next.length + 1
    }
    return titleOf(part) + random.shuffled([...own, ...filler]).join(' ')
  })
  const valueIn = (part: number) => words[part * GROUP + asked.indexOf(room)]!
  const truth: LogTruth = {
    current: valueIn(current),
    outdated: outdated.map(valueIn),
    others: words.filter((word) => ![current, ...outdated].map(valueIn).includes(word)),
    rule,
  }
  return {
    id,
    cell: { kind, place, length },
    messages: [
      { role: 'user', content: first },
      ...texts.flatMap((content, part) => readOf(part, content)),
      { role: 'assistant', content: ENGLISH.seen },
      { role: 'user', content: question },
    ],
    context: texts.join('\n\n'),
    question: rule === null ? question : `${question} Begin your answer with the code word ${rule}.`,
    truth,
  }
}

/** Returns the messages in which the agent reads one part: the tool call and its result. A server's `auto-policy` folds such results. */
const readOf = (part: number, content: string): ChatMessage[] => {
  const id = `read-${part + 1}`
  return [
    { role: 'assistant', content: '', toolCalls: [{ id, name: 'read_log', arguments: { part: part + 1 } }] },
    { role: 'tool', content, toolCallId: id, name: 'read_log' },
  ]
}

/** Scores an answer. It must name the current value and no other value of the log. With a rule, the points depend on the rule alone. */
function scoreOf({ current, outdated, others, rule }: LogTruth, answer: string): Score {
  const said = new Set(answer.toLowerCase().match(/\p{L}+/gu) ?? [])
  const names = (values: readonly string[]) => values.some((value) => said.has(value))
  const isCorrect = said.has(current) && !names([...outdated, ...others])
  const details = { correct: Number(isCorrect), outdated: Number(names(outdated)), foreign: Number(names(others)) }
  const isRead = names([current, ...outdated, ...others])
  if (rule === null) return { points: details.correct, outcome: isCorrect ? 'right' : isRead ? 'wrong' : 'unparsed', details }
  const [begins] = said
  const kept = begins === rule.toLowerCase()
  return {
    points: Number(kept),
    outcome: kept ? 'right' : said.size > 0 ? 'wrong' : 'unparsed',
    details: { ...details, kept: Number(kept) },
  }
}
