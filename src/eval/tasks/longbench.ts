/** Owns LongBench v2 as a task: questions of four choices about long texts, from the authors' file. */
import Type, { type Static } from 'typebox'
import { strict } from '../../core/schema.js'
import { openRows } from '../data/rows.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { charsPerToken, Count, readFields, readOptions, refuseBeyond } from './samples.js'
import { middleCut } from './prose.js'

const Options = strict({
  /** Rows in the authors' form: a path, or hf:datasets/THUDM/LongBench-v2/data.json. */
  data: Type.String({ minLength: 1, default: 'hf:datasets/THUDM/LongBench-v2/data.json' }),
  limit: Type.Optional(Count),
  /** Tokens of the whole question, counted as characters / charsPerToken; the middle of longer texts is left out. */
  window: Type.Integer({ minimum: 500, default: 120_000 }),
  charsPerToken,
})

const letters = ['A', 'B', 'C', 'D'] as const
type Letter = (typeof letters)[number]

const Fields = Type.Object({
  _id: Type.String(),
  difficulty: Type.String(),
  length: Type.String(),
  question: Type.String(),
  choice_A: Type.String(),
  choice_B: Type.String(),
  choice_C: Type.String(),
  choice_D: Type.String(),
  answer: Type.Enum(letters),
  context: Type.String(),
})

/** @throws KvfoldError eval/bad-data */
export async function openLongBench(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const rows = await openRows(options.data)
  const size = Math.min(rows.size, options.limit ?? rows.size)
  return {
    spec: { task: spec.task, options },
    title: 'LongBench v2',
    prompt: 'general',
    maxTokens: 128,
    temperature: 0.1,
    differs: [
      'The instruction around text, question and choices is in our own words; the pattern of the answer is the original’s.',
      `Texts are cut by characters, ${options.charsPerToken} for a token, and not by a tokenizer.`,
    ],
    size,
    sample: async (index) => {
      refuseBeyond(index, size)
      return sampleOf(readFields(Fields, await rows.row(index), rows.where(index)), options.window * options.charsPerToken)
    },
    score: ({ truth }, answer) => scoreOf(truth as Letter, answer),
  }
}

function sampleOf(row: Static<typeof Fields>, characters: number): TaskSample {
  const question = [
    `The text ends here. ${row.question.trim()}`,
    `(A) ${row.choice_A.trim()}\n(B) ${row.choice_B.trim()}\n(C) ${row.choice_C.trim()}\n(D) ${row.choice_D.trim()}`,
    'Which of these is right? Answer in this form: "The correct answer is (letter)".',
  ].join('\n\n')
  const context = middleCut(row.context.trim(), Math.max(0, Math.floor(characters) - INTRODUCTION.length - question.length - 4))
  return {
    id: `longbench-v2-${row._id}`,
    cell: { difficulty: row.difficulty, length: row.length },
    messages: [{ role: 'user', content: `${INTRODUCTION}\n\n${context}\n\n${question}` }],
    context,
    question,
    truth: row.answer,
  }
}

const INTRODUCTION = 'Read this text; a question about it with four choices follows. The text begins here.'

/** The authors' rule: `*` left out, the first letter in the pattern, in brackets before without them; nothing found is wrong. */
function scoreOf(truth: Letter, answer: string): Score {
  const text = answer.replaceAll('*', '')
  const said = /The correct answer is \(([A-D])\)/u.exec(text)?.[1] ?? /The correct answer is ([A-D])/u.exec(text)?.[1]
  const right = said === truth
  return { points: right ? 1 : 0, outcome: said === undefined ? 'unparsed' : right ? 'right' : 'wrong', details: {} }
}
