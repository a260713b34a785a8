/** Owns FRAMES as a task: questions that need several articles, which the user supplies, and a model to judge the answers. */
import { z } from 'zod'
import { invariant } from '../../core/errors.js'
import { openRows } from '../data/rows.js'
import type { Judging, Score, Task, TaskSample, TaskSpec } from '../task.js'
import { linksIn, openArticles, type Article } from './articles.js'
import { refuseBeyond } from './grid.js'
import { middleCut } from './middle-cut.js'
import { charsPerToken, readFields, readOptions } from './options.js'

const Options = z.strictObject({
  /** The authors' table: a path, or hf:datasets/google/frames-benchmark/test.tsv. */
  data: z.string().min(1).default('hf:datasets/google/frames-benchmark/test.tsv'),
  /** A folder of text files named like the articles, or rows with `url` or `title`, and `text`. */
  articles: z.string().min(1),
  limit: z.int().min(1).optional(),
  /** Tokens of the whole question, counted as characters / charsPerToken; the middle of what is longer is left out, article by article. */
  window: z.int().min(500).default(120_000),
  charsPerToken,
})

const Fields = z.object({
  Prompt: z.string().min(1),
  Answer: z.string().min(1),
  wiki_links: z.string(),
  reasoning_types: z.string(),
})

export interface FramesTruth {
  readonly question: string
  readonly answer: string
}

/** @throws KvfoldError eval/bad-data; a sample whose articles are missing, when it is asked for */
export async function openFrames(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const [rows, articles] = await Promise.all([openRows(options.data), openArticles(options.articles)])
  const size = Math.min(rows.size, options.limit ?? rows.size)
  return {
    spec: { task: spec.task, options },
    title: 'FRAMES',
    prompt: 'general',
    maxTokens: 1024,
    temperature: 0,
    differs: [
      'Articles are what the user supplied, as plain text.',
      'The instruction and the question to the judge are in our own words; the judge is the model named in the log.',
      `What is too long is cut by characters, ${options.charsPerToken} for a token.`,
    ],
    size,
    sample: async (index) => {
      refuseBeyond(index, size)
      const row = readFields(Fields, await rows.row(index), rows.where(index))
      const found = await articles.of(linksIn(row.wiki_links), rows.where(index))
      return sampleOf(index, row, found, Math.floor(options.window * options.charsPerToken))
    },
    score: (_, __, verdict) => scoreOf(verdict),
    judging: ({ truth }, answer) => judgingOf(truth as FramesTruth, answer),
  }
}

const INTRODUCTION = 'Read these articles; a question that needs several of them follows.'

function sampleOf(index: number, row: z.output<typeof Fields>, articles: readonly Article[], characters: number): TaskSample {
  const question = `The articles end here. ${row.Prompt.trim()}\n\nAnswer in a sentence or two, from the articles.`
  const room = characters - INTRODUCTION.length - question.length - 4
  const context = fitted(articles, room)
  return {
    id: `frames-${index}`,
    cell: { articles: articles.length, reasoning: row.reasoning_types },
    messages: [{ role: 'user', content: `${INTRODUCTION}\n\n${context}\n\n${question}` }],
    context,
    question,
    truth: { question: row.Prompt, answer: row.Answer } satisfies FramesTruth,
  }
}

/** All articles; when they are too long together, each gets the same room, and what short ones leave goes to the others. */
function fitted(articles: readonly Article[], characters: number): string {
  const headed = articles.map(({ title, text }) => `# ${title}\n\n${text.trim()}`)
  let left = Math.max(0, characters - 2 * (headed.length - 1))
  const byLength = headed.map((text, at) => ({ text, at })).sort((a, b) => a.text.length - b.text.length)
  const cut: string[] = []
  for (const [done, { text, at }] of byLength.entries()) {
    const share = Math.floor(left / (byLength.length - done))
    cut[at] = middleCut(text, share)
    left -= Math.min(text.length, share)
  }
  return cut.join('\n\n')
}

function scoreOf(verdict: boolean | null | undefined): Score {
  invariant(verdict !== undefined, 'FRAMES is scored by what a judge says.')
  return { points: verdict === true ? 1 : 0, outcome: verdict === null ? 'unparsed' : verdict ? 'right' : 'wrong', details: {} }
}

function judgingOf({ question, answer: truth }: FramesTruth, answer: string): Judging {
  return {
    prompt: [
      'Decide whether an answer to a question is right. It is right when it says, in whatever words, all that the right answer says ' +
        'and nothing that contradicts it; more than that does no harm.',
      `Question: ${question.trim()}\nRight answer: ${truth.trim()}\nAnswer to be judged: ${answer.trim()}`,
      'Say in a sentence or two how you decide. Then write one last line: "Decision: TRUE" if the answer is right, else "Decision: FALSE".',
    ].join('\n\n'),
    verdict: verdictIn,
  }
}

/** The word after the last `Decision:`, else the only one of TRUE and FALSE that stands anywhere; null when there is neither. */
function verdictIn(said: string): boolean | null {
  const decision = [...said.matchAll(/decision\W{0,6}(true|false)\b/giu)].at(-1)?.[1]
  const words = new Set(decision === undefined ? said.toUpperCase().match(/\b(?:TRUE|FALSE)\b/gu) : [decision.toUpperCase()])
  return words.size === 1 ? words.has('TRUE') : null
}
