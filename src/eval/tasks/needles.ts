/** Owns multi-needle reasoning as a task: a chain of kinship sentences scattered over a long text, and the question who is the eldest. */
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import { Random } from '../../core/random.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { boxed } from './boxed.js'
import { pick } from './draw.js'
import { openFiller, type Filler } from './filler.js'
import { crossed, gridPlace } from './grid.js'
import { Axis, charsPerToken, generation, readOptions } from './options.js'
import { elderRelations, kinships, people } from './people.js'

const Options = z.strictObject({
  ...generation,
  /** Sentences of the chain. */
  needles: Axis(1, 40, [2, 3, 4, 5]),
  /** Tokens of the whole question, text included; counted as characters / charsPerToken. */
  lengths: Axis(100, 10_000_000, [1_000, 2_000, 16_000, 64_000, 128_000]),
  charsPerToken,
  /** Percent of the text before the first needle; each of the others stands `step` percent further on. */
  depth: z.number().min(0).max(100).default(40),
  step: z.number().min(0).max(100).default(10),
  /** Path of a text, or of rows with a field `text`, to hide the needles in. Default: sentences of our own. */
  filler: z.string().min(1).optional(),
})

/** What the answer is compared with, and who else is in the chain, eldest first. */
export interface NeedlesTruth {
  readonly eldest: string
  readonly chain: readonly string[]
}

/** @throws KvfoldError eval/bad-data */
export async function openNeedles(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const filler = await openFiller(options.filler)
  const cells = crossed(options.needles, options.lengths)
  return {
    spec: { task: spec.task, options },
    title: 'NeedleBench, multi-needle reasoning',
    prompt: 'needles',
    maxTokens: 1024,
    temperature: 0,
    differs: [
      ...(options.filler === undefined
        ? ['The text around the needles is made of our own sentences; the original takes essays.']
        : []),
      "Names, the seven phrasings of a kinship and all other sentences are our own; the ten words of relation are the original's.",
      `Length is counted as characters / ${options.charsPerToken}, question included; the original counts tokens of one tokenizer and leaves some room for the question.`,
      'Needles stand between sentences, at the nearest place to their depth.',
    ],
    size: cells.length * options.samples,
    sample: async (index) => {
      const { cell, sample } = gridPlace(cells, options.samples, index)
      const [needles, length] = cell
      const { seed, depth, step } = options
      const random = new Random(seed, sample, needles, length)
      const budget = Math.round(length * options.charsPerToken)
      return makeSample({ id: `needles-${needles}-${length}-${sample}`, needles, length, budget, depth, step, filler }, random)
    },
    score: ({ truth }, answer) => scoreOf(truth as NeedlesTruth, answer),
  }
}

interface Making {
  readonly id: string
  readonly needles: number
  readonly length: number
  /** Characters of the user message. */
  readonly budget: number
  readonly depth: number
  readonly step: number
  readonly filler: Filler
}

async function makeSample({ id, needles, length, budget, depth, step, filler }: Making, random: Random): Promise<TaskSample> {
  const chain = people(random, needles + 1)
  const links = random.shuffled(
    chain.slice(1).map((younger, at) => `\n${pick(random, kinships)(chain[at] ?? '', younger, pick(random, elderRelations))}\n`),
  )
  const youngest = chain.at(-1) ?? ''
  const question = questionOf(youngest)
  const room = budget - INTRODUCTION.length - question.length - 4 - links.join('').length
  if (room < 0)
    throw new KvfoldError(
      'eval/bad-data',
      `${needles} needles and the question leave no room for a text in ${length} tokens; ask for a greater length or fewer needles.`,
    )
  const context = scattered(await filler.passages(random, room, chain), links, depth, step)
  return {
    id,
    cell: { needles, length },
    messages: [{ role: 'user', content: `${INTRODUCTION}\n\n${context}\n\n${question}` }],
    context,
    question,
    truth: { eldest: chain[0] ?? '', chain } satisfies NeedlesTruth,
  }
}

/** The needles in their order, each at the border of passages that is nearest to its depth. */
function scattered(passages: readonly string[], needles: readonly string[], depth: number, step: number): string {
  const borders = [0]
  for (const passage of passages) borders.push((borders.at(-1) ?? 0) + passage.length)
  const total = borders.at(-1) ?? 0
  const places = needles.map((_, index) => nearest(borders, total * Math.min(1, (depth + index * step) / 100)))
  return borders
    .map((_, border) => needles.filter((__, index) => places[index] === border).join('') + (passages[border] ?? ''))
    .join('')
}

/** Index of the number nearest to `wanted` among ascending ones. */
function nearest(ascending: readonly number[], wanted: number): number {
  const after = ascending.findIndex((number) => number >= wanted)
  if (after <= 0) return Math.max(after, 0)
  return wanted - (ascending[after - 1] ?? 0) <= (ascending[after] ?? 0) - wanted ? after - 1 : after
}

const INTRODUCTION = 'Read the text below to its end; a question about some of the people in it follows. The text begins here.'

function questionOf(person: string): string {
  return [
    `The text ends here. Going up from relative to relative, who is the eldest relative of '${person}' that the text leads to?`,
    "An example: if a text says that Rosa Lund is Pietro Amsel's grandmother, that Kurt Brandt is the dad of Rosa Lund, and nothing " +
      'more about their family, then the eldest relative of Pietro Amsel is \\boxed{Kurt Brandt}.',
    'What counts is who comes from an earlier generation: whether a name suits a mother or a father does not matter, nor do family ' +
      `names that differ. End your answer like this: the eldest relative of '${person}' is \\boxed{name}.`,
  ].join('\n')
}

/** The authors' rule: the name in the last box, without LaTeX and quotes, is the eldest's to the letter. */
function scoreOf({ eldest, chain }: NeedlesTruth, answer: string): Score {
  const name = boxed(answer)
  const reached = name === null ? -1 : chain.indexOf(name)
  return {
    points: name === eldest ? 1 : 0,
    outcome: name === null ? 'unparsed' : name === eldest ? 'right' : 'wrong',
    // Links followed from the youngest; an answer from outside the chain has followed none.
    details: { links: reached < 0 ? 0 : chain.length - 1 - reached, outOf: chain.length - 1 },
  }
}
