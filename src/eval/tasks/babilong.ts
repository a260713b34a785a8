/** Owns BABILong as a task: bAbI's small worlds hidden in long texts, from the authors' files. */
import { z } from 'zod'
import type { Cell, Score, Task, TaskSample, TaskSpec } from '../task.js'
import { babilongQuestions, babilongTasks, type BabilongTask } from './babilong-questions.js'
import { crossed } from './grid.js'
import { readFields, readOptions } from './options.js'
import { openRowGrid } from './row-grid.js'

const Options = z.strictObject({
  /** Rows `input, question, target`: a path or a name on the hub, in which {task} and {length} stand for one of `tasks` and of `lengths`. */
  data: z.string().min(1),
  tasks: z.array(z.enum(babilongTasks)).nonempty().default(['qa1', 'qa2', 'qa3', 'qa4', 'qa5']),
  /** As they are called in the names of the files, `4k` and so on. */
  lengths: z.array(z.string().min(1)).nonempty().default(['4k']),
  /** Rows of every file that are read, from the first. Default: as many as the shortest file has. */
  limit: z.int().min(1).optional(),
})

const Fields = z.object({ input: z.string(), question: z.string(), target: z.string().min(1) })

export interface BabilongTruth {
  readonly task: BabilongTask
  /** Words of the question are no answers. */
  readonly question: string
  readonly target: string
}

/** @throws KvfoldError eval/bad-data */
export async function openBabilong(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const cells = crossed(options.tasks, options.lengths).map(([task, length]) => ({ task, length }))
  const rows = await openRowGrid(options.data, cells, options.limit)
  return {
    spec: { task: spec.task, options },
    title: 'BABILong',
    prompt: 'general',
    maxTokens: 128,
    temperature: 0,
    differs: [
      'Instructions, examples and the form of the answer are in our own words, task by task; labels and scoring are the original’s.',
    ],
    size: rows.size,
    sample: async (index) => {
      const { cell, number, row, where } = await rows.at(index)
      return sampleOf(`babilong-${cell.task}-${cell.length}-${number}`, cell, cell.task, readFields(Fields, row, where))
    },
    score: ({ truth }, answer) => scoreOf(truth as BabilongTruth, answer),
  }
}

function sampleOf(id: string, cell: Cell, task: BabilongTask, row: z.output<typeof Fields>): TaskSample {
  const { facts, form, example } = babilongQuestions[task]
  const context = row.input.trim()
  const question = `Question: ${row.question.trim()}\n${form} Write nothing else.`
  const introduction = `Somewhere in a long text there are facts: ${facts} Answer the question that follows it from these facts alone.\nAn example: ${example}`
  return {
    id,
    cell,
    messages: [{ role: 'user', content: `${introduction}\n\n<context>\n${context}\n</context>\n\n${question}` }],
    context,
    question: `${introduction}\n\n${question}`,
    truth: { task, question: row.question, target: row.target } satisfies BabilongTruth,
  }
}

/**
 * The authors' rule: of the labels of the task that stand anywhere in the first sentence of the lower-cased answer and not in the
 * question, the target must be the only one; a list of targets must be all of them. Source: babilong/metrics.py.
 */
function scoreOf({ task, question, target }: BabilongTruth, answer: string): Score {
  const [sentence = ''] = answer.toLowerCase().split(/\.|<context>|<example>/u)
  const labels = babilongQuestions[task].labels.map((label) => label.toLowerCase())
  const named = labels.filter((label) => sentence.includes(label) && !question.toLowerCase().includes(label))
  const wanted = target.toLowerCase()
  const parts = wanted.includes(',') && wanted.length > 3 ? wanted.split(',') : [wanted]
  const right = named.length === parts.length && parts.every((part) => named.includes(part))
  return {
    points: right ? 1 : 0,
    outcome: named.length === 0 ? 'unparsed' : right ? 'right' : 'wrong',
    details: { named: named.length },
  }
}
