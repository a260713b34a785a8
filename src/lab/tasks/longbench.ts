/** The LongBench v2 task: questions about long texts, with four choices each. The samples come from the authors' file. */
import Type, { type Static } from 'typebox'
import { strict, Text } from '../../runtime/core/schema.js'
import { openRows } from '../data/rows.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { originalLongBench } from './originals.js'
import { charsPerToken, Count, readFields, readOptions, refuseBeyond } from './samples.js'
import { middleCut } from './prose.js'

const Options = strict({
  /** The file with rows in the authors' format: a path, or hf:datasets/THUDM/LongBench-v2/data.json. */
  data: Type.String({ minLength: 1, default: 'hf:datasets/THUDM/LongBench-v2/data.json' }),
  limit: Type.Optional(Count),
  /** Path of a checkout of the authors' repository, to use its prompt. Default: our own prompt. */
  prompts: Type.Optional(Text),
  /** The most tokens of the user message, counted as characters / charsPerToken. A longer text loses its middle. */
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

/** Makes the task from its options. @throws KvfoldError eval/bad-data */
export async function openLongBench(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const rows = await openRows(options.data)
  const original = options.prompts === undefined ? null : await originalLongBench(options.prompts)
  const size = Math.min(rows.size, options.limit ?? rows.size)
  return {
    spec: { task: spec.task, options },
    title: 'LongBench v2',
    prompt: 'general',
    maxTokens: 128,
    temperature: 0.1,
    differs: [
      ...(original === null
        ? ['The instruction around text, question and choices is in our own words. The pattern of the answer is the original’s.']
        : ['A text that is too long loses its middle; in the original the whole prompt loses its middle.']),
      `Texts are cut by characters, ${options.charsPerToken} for a token, not by a tokenizer.`,
    ],
    size,
    sample: async (index) => {
      refuseBeyond(index, size)
      const fields = readFields(Fields, await rows.row(index), rows.where(index))
      return sampleOf(fields, options.window * options.charsPerToken, original)
    },
    score: ({ truth }, answer) => scoreOf(truth as Letter, answer),
  }
}

function sampleOf(row: Static<typeof Fields>, characters: number, original: string | null): TaskSample {
  const said = original === null ? ownText : originalText(original)
  const room = Math.floor(characters) - said('', row).length
  const context = middleCut(row.context.trim(), Math.max(0, room))
  return {
    id: `longbench-v2-${row._id}`,
    cell: { difficulty: row.difficulty, length: row.length },
    messages: [{ role: 'user', content: said(context, row) }],
    context,
    question: original === null ? questionOf(row) : said('', row),
    truth: row.answer,
  }
}

const choices = (row: Static<typeof Fields>) =>
  [row.choice_A, row.choice_B, row.choice_C, row.choice_D].map((choice) => choice.trim())

const questionOf = (row: Static<typeof Fields>): string =>
  [
    `The text ends here. ${row.question.trim()}`,
    choices(row)
      .map((choice, at) => `(${letters[at]}) ${choice}`)
      .join('\n'),
    'Which of these is right? Answer in this form: "The correct answer is (letter)".',
  ].join('\n\n')

const ownText = (context: string, row: Static<typeof Fields>): string => `${INTRODUCTION}\n\n${context}\n\n${questionOf(row)}`

const originalText =
  (template: string) =>
  (context: string, row: Static<typeof Fields>): string => {
    const asked = Object.fromEntries(choices(row).map((choice, at) => [`$C_${letters[at]}$`, choice]))
    const values: Readonly<Record<string, string>> = { $DOC$: context, $Q$: row.question.trim(), ...asked }
    return template.replace(/\$(?:DOC|Q|C_[A-D])\$/gu, (name) => values[name] ?? name)
  }

const INTRODUCTION = 'Read this text; a question about it with four choices follows. The text begins here.'

/**
 * Scores an answer as the authors do: removes every `*`, and takes the letter behind "The correct answer is", in brackets or, failing that,
 * without. An answer without such a letter is wrong.
 */
function scoreOf(truth: Letter, answer: string): Score {
  const text = answer.replaceAll('*', '')
  const said = /The correct answer is \(([A-D])\)/u.exec(text)?.[1] ?? /The correct answer is ([A-D])/u.exec(text)?.[1]
  const right = said === truth
  return { points: right ? 1 : 0, outcome: said === undefined ? 'unparsed' : right ? 'right' : 'wrong', details: {} }
}
