/** Owns GSM-Infinite as a task: arithmetic over many quantities, from the authors' rows, symbolic or told as stories. */
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { finalInteger, finalVariables } from './gsm-answers.js'
import { readFields, readOptions } from './options.js'
import { openRowGrid } from './row-grid.js'

const Options = z.strictObject({
  /** Rows in the authors' form: a path, or hf:datasets/InfiniAILab/gsm_infinite_medium_8k/data/ops_{op}-00000-of-00001.parquet. */
  data: z.string().min(1),
  /** Operations, which {op} in the name stands for. Default: one file with whatever it holds. */
  ops: z.array(z.int().min(1)).nonempty().optional(),
  /** Rows of every file that are read, from the first. Default: as many as the shortest file has. */
  limit: z.int().min(1).optional(),
})

const Common = {
  messages: z.array(z.object({ role: z.enum(['system', 'user', 'assistant']), content: z.string() })).min(1),
  problem: z.string().default(''),
  question: z.string().default(''),
  op: z.coerce.number(),
  length: z.union([z.string(), z.number()]).optional(),
}
const Symbolic = z.object({ ...Common, answer_list: z.array(z.string()) })
const Story = z.object({ ...Common, solution: z.string() })
type GsmRow = z.output<typeof Symbolic> | z.output<typeof Story>

/** Names of the variables in the symbolic form, a number in the stories. */
export type GsmTruth = readonly string[] | number

/** @throws KvfoldError eval/bad-data */
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
          'Variables are read from the last sentence of the answer that names any; the original has a model of 7B parameters read them.',
        ]
      : [],
    size: rows.size,
    sample: async (index) => {
      const { number, row, where } = await rows.at(index)
      return sampleOf(number, readFields(Array.isArray(row['answer_list']) ? Symbolic : Story, row, where), where)
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

/** Solutions say it after `Answer: `, up to the full stop. */
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
