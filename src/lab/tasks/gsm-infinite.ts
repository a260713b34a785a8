/** The GSM-Infinite task: arithmetic with many quantities, given as symbols or in a story. The samples are the authors' rows. */
import Type, { type Static } from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { strict, Text } from '../../runtime/core/schema.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { Count, openRowGrid, readFields, readOptions, RowMessage } from './samples.js'

const Options = strict({
  /** Rows in the authors' format: a path, or hf:datasets/InfiniAILab/gsm_infinite_medium_8k/data/ops_{op}-00000-of-00001.parquet. */
  data: Text,
  /** Numbers of operations. For each, one file is read, in whose name it replaces `{op}`. Default: `data` is the only file. */
  ops: Type.Optional(Type.Array(Count, { minItems: 1 })),
  /** How many rows of each file to use, from the first on. Default: as many as the shortest file has. */
  limit: Type.Optional(Count),
})

const Common = {
  messages: Type.Array(RowMessage, { minItems: 1 }),
  problem: Type.String({ default: '' }),
  question: Type.String({ default: '' }),
  op: Type.Number(),
  length: Type.Optional(Type.Union([Type.String(), Type.Number()])),
}
const Symbolic = Type.Object({ ...Common, answer_list: Type.Array(Type.String()) })
const Story = Type.Object({ ...Common, solution: Type.String() })
type GsmRow = Static<typeof Symbolic> | Static<typeof Story>

/** The right answer: variable names for a problem in symbols, a number for a story. */
export type GsmTruth = readonly string[] | number

/** Makes the task from its options. @throws KvfoldError eval/bad-data */
export async function openGsmInfinite(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const cells = options.ops?.map((op) => ({ op })) ?? [{}]
  const rows = await openRowGrid<Readonly<Record<string, number>>>(options.data, cells, options.limit)
  const symbolic = rows.size > 0 && Array.isArray((await rows.at(0)).row['answer_list'])
  return {
    spec: { task: spec.task, options },
    title: 'GSM-Infinite',
    prompt: 'general',
    maxTokens: 4096,
    temperature: symbolic ? 1 : 0,
    differs: symbolic
      ? [
          'Variables are read from the last sentence of the answer that names any, or from a list at its end; the original has a model of 7B parameters read them.',
        ]
      : [],
    size: rows.size,
    sample: async (index) => {
      const { number, row, where } = await rows.at(index)
      return sampleOf(number, readFields(Array.isArray(row['answer_list']) ? Symbolic : Story, row, where, ['op']), where)
    },
    score: ({ truth }, answer) => scoreOf(truth as GsmTruth, answer),
  }
}

function sampleOf(number: number, row: GsmRow, where: string): TaskSample {
  const last = row.messages.at(-1)
  if (last?.role !== 'user') throw new KvfoldError('eval/bad-data', `${where}: the last of its messages is not the user's.`)
  return {
    id: `gsm-infinite-${row.op}-${number}`,
    cell: { operations: row.op, ...(row.length === undefined ? {} : { length: row.length }) },
    messages: row.messages,
    context: row.problem,
    question: row.question === '' ? last.content : row.question,
    truth: 'answer_list' in row ? row.answer_list : statedAnswer(row.solution, where),
  }
}

/** Returns the number behind `Answer: ` in a solution, up to the full stop. @throws KvfoldError eval/bad-data if there is none */
function statedAnswer(solution: string, where: string): number {
  const stated = /Answer: ([^.]*)/u.exec(solution)?.[1]?.trim() ?? ''
  if (!/^[+-]?\d+$/u.test(stated))
    throw new KvfoldError('eval/bad-data', `${where}: its solution does not say "Answer: <number>.".`)
  return Number(stated)
}

function scoreOf(truth: GsmTruth, answer: string): Score {
  const said = typeof truth === 'number' ? finalInteger(answer) : finalVariables(answer)
  const right =
    typeof truth === 'number' || said === null || typeof said === 'number' ? said === truth : same(said, new Set(truth))
  return { points: right ? 1 : 0, outcome: said === null ? 'unparsed' : right ? 'right' : 'wrong', details: {} }
}

const same = (some: ReadonlySet<string>, others: ReadonlySet<string>): boolean =>
  some.size === others.size && [...some].every((one) => others.has(one))

// Below: reads answers. A number is found as the authors' program does it; for symbols, the variables named at the end of the answer count.

/**
 * What is before and behind the number in an answer, tried in this order. `after: null`: the number is the digits directly behind `before`.
 * `last`: the last occurrence of `before` counts, not the first.
 */
const frames: readonly { readonly before: string; readonly after: string | null; readonly last?: true }[] = [
  { before: 'answer: ', after: '.' },
  { before: 'solution: ', after: '.' },
  { before: 'oxed{', after: '}', last: true },
  { before: '**answer:** ', after: '.' },
  { before: '**answer: ', after: '**' },
  { before: 'final answer: answer: ', after: '.' },
  { before: '\nanswer: ', after: '.' },
  { before: '\\text{answer: } ', after: null },
  { before: 'is ', after: '.', last: true },
  { before: 'answer: ', after: '\n' },
]

/**
 * Returns the integer that the first matching entry of `frames` finds in the answer; null if none matches. Source: criteriaoutput in
 * gsm-infinite/pred/eval_realistic.py.
 */
export function finalInteger(answer: string): number | null {
  // If `\boxed` was not escaped, the text has a backspace character. It and the character before it are replaced by `b`.
  const text = answer.replace(/[^\n]\x08/gu, 'b').toLowerCase() // eslint-disable-line no-control-regex
  for (const { before, after, last } of frames) {
    const at = last === true ? text.lastIndexOf(before) : text.indexOf(before)
    if (at < 0) continue
    const start = at + before.length
    const stop = after === null ? start + (/^\p{Nd}*/u.exec(text.slice(start))?.[0].length ?? 0) : text.indexOf(after, start)
    const number = integer(text.slice(start, stop < 0 ? text.length : stop))
    if (number !== null) return number
  }
  return null
}

/** Parses an integer as Python's int() does: digits of any script, with single underscores between them. */
function integer(text: string): number | null {
  const digits = /^\s*([+-]?\p{Nd}+(?:_\p{Nd}+)*)\s*$/u.exec(text)?.[1]
  return digits === undefined ? null : Number(digits.replaceAll('_', '').replace(/\p{Nd}/gu, (digit) => String(valueOf(digit))))
}

/**
 * Returns the value of a digit of any script. In Unicode, the ten digits of a script are consecutive, beginning with its zero. The digits
 * of another script may come directly before.
 */
function valueOf(digit: string): number {
  const code = digit.codePointAt(0) ?? 0
  let first = code
  while (/\p{Nd}/u.test(String.fromCodePoint(first - 1))) first--
  return (code - first) % 10
}

/** What else a list line of variables may contain: its bullet or number, commas, brackets, and `and`. */
const BESIDE = /^\s*\d+[.)]|\bV\d+\b|\band\b|[\s,;.:•()[\]{}-]/gu

/**
 * Returns the variables (V and a number) in the last sentence that names any, or in the lines at the end that consist of variables. Returns
 * the empty set if a later sentence says that no variable fits; null if the answer has no such sentences. Text before `</think>` is
 * ignored.
 */
export function finalVariables(answer: string): ReadonlySet<string> | null {
  const said = (answer.split('</think>').at(-1) ?? '').replace(/[*$\\`]/gu, '').replace(/_\{?(\d+)\}?/gu, '$1')
  const sentences = said.split(/(?<=[.!?])\s+|\n+/u).reverse()
  const listed = new Set<string>()
  for (const sentence of sentences) {
    const names = sentence.match(/\bV\d+\b/gu)
    const isOfList = sentence.replace(BESIDE, '') === ''
    if (isOfList) for (const name of names ?? []) listed.add(name)
    else if (listed.size > 0) break
    else if (names !== null) return new Set(names)
    else if (/\b(?:none|no variables?|nothing)\b/iu.test(sentence)) return new Set()
  }
  return listed.size > 0 ? listed : null
}
