/** The multi-needle task: a long text hides a chain of sentences about kinship, and the question asks for the eldest relative. */
import { readFile } from 'node:fs/promises'
import Type from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { Random } from '../../runtime/core/random.js'
import { strict, Text } from '../../runtime/core/schema.js'
import { isRowsFile, openRows } from '../data/rows.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { type NeedlesPrompts, originalNeedles } from './originals.js'
import { Axis, charsPerToken, crossed, generation, gridPlace, readOptions } from './samples.js'
import { pick, prose, some } from './prose.js'

const Options = strict({
  ...generation,
  /** The number of sentences in the chain. */
  needles: Axis(1, 40, [2, 3, 4, 5]),
  /** Tokens of the whole user message (text and question), counted as characters / charsPerToken. */
  lengths: Axis(100, 10_000_000, [1_000, 2_000, 16_000, 64_000, 128_000]),
  charsPerToken,
  /** `depth`: percentage of the text before the first needle. `step`: how many percent of the text each further needle is deeper. */
  depth: Type.Number({ minimum: 0, maximum: 100, default: 40 }),
  step: Type.Number({ minimum: 0, maximum: 100, default: 10 }),
  /** Path of the text that hides the needles, or of rows with a field `text`. Default: our own sentences. */
  filler: Type.Optional(Text),
  /** Path of a checkout of opencompass, to use its prompt and its phrasings of kinship. Default: our own. */
  prompts: Type.Optional(Text),
})

/** The right answer, and all people in the chain, the eldest first. */
export interface NeedlesTruth {
  readonly eldest: string
  readonly chain: readonly string[]
}

/** Makes the task from its options. @throws KvfoldError eval/bad-data */
export async function openNeedles(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const filler = await openFiller(options.filler)
  const prompts = options.prompts === undefined ? ownPrompts : await originalNeedles(options.prompts)
  const cells = crossed(options.needles, options.lengths)
  return {
    spec: { task: spec.task, options },
    title: 'NeedleBench, multi-needle reasoning',
    prompt: 'needles',
    maxTokens: 1024,
    temperature: 0,
    differs: [
      ...(options.filler === undefined
        ? ['The text around the needles consists of our own sentences; the original uses essays.']
        : []),
      prompts === ownPrompts
        ? "Names, the seven phrasings of a kinship and all other sentences are our own; the ten words of relation are the original's."
        : 'Names are our own.',
      `Length is counted as characters / ${options.charsPerToken}, question included; the original counts tokens of one tokenizer and leaves some room for the question.`,
      'Needles are between sentences, at the place nearest to their depth.',
    ],
    size: cells.length * options.samples,
    sample: async (index) => {
      const { cell, sample } = gridPlace(cells, options.samples, index)
      const [needles, length] = cell
      const { seed, depth, step } = options
      const random = new Random(seed, sample, needles, length)
      const budget = Math.round(length * options.charsPerToken)
      return makeSample(
        { id: `needles-${needles}-${length}-${sample}`, needles, length, budget, depth, step, filler, prompts },
        random,
      )
    },
    score: ({ truth }, answer) => scoreOf(truth as NeedlesTruth, answer),
  }
}

interface Making {
  readonly id: string
  readonly needles: number
  readonly length: number
  /** The most characters of the user message. */
  readonly budget: number
  readonly depth: number
  readonly step: number
  readonly filler: Filler
  readonly prompts: NeedlesPrompts
}

async function makeSample(
  { id, needles, length, budget, depth, step, filler, prompts }: Making,
  random: Random,
): Promise<TaskSample> {
  const chain = people(random, needles + 1)
  const links = random.shuffled(
    chain
      .slice(1)
      .map((younger, at) => `\n${pick(random, prompts.kinships)(chain[at] ?? '', younger, pick(random, elderRelations))}\n`),
  )
  const youngest = chain.at(-1) ?? ''
  const room = budget - prompts.ask('', youngest).length - links.join('').length
  if (room < 0)
    throw new KvfoldError(
      'eval/bad-data',
      `${needles} needles and the question leave no room for a text in ${length} tokens; ask for a greater length or fewer needles.`,
    )
  const context = scattered(await filler.passages(random, room, chain), links, depth, step)
  return {
    id,
    cell: { needles, length },
    messages: [{ role: 'user', content: prompts.ask(context, youngest) }],
    context,
    question: prompts === ownPrompts ? questionOf(youngest) : prompts.ask('', youngest),
    truth: { eldest: chain[0] ?? '', chain } satisfies NeedlesTruth,
  }
}

/** Inserts the needles into the text in order, each between the two passages whose border is nearest to its depth. */
function scattered(passages: readonly string[], needles: readonly string[], depth: number, step: number): string {
  const borders = [0]
  for (const passage of passages) borders.push((borders.at(-1) ?? 0) + passage.length)
  const total = borders.at(-1) ?? 0
  const places = needles.map((_, index) => nearest(borders, total * Math.min(1, (depth + index * step) / 100)))
  return borders
    .map((_, border) => needles.filter((__, index) => places[index] === border).join('') + (passages[border] ?? ''))
    .join('')
}

/** Returns the index of the number nearest to `wanted` in an ascending list. */
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

/** Scores as the authors do: the name in the last `\boxed{...}`, without LaTeX and quotes, must equal the eldest's name exactly. */
function scoreOf({ eldest, chain }: NeedlesTruth, answer: string): Score {
  const name = boxed(answer)
  const reached = name === null ? -1 : chain.indexOf(name)
  return {
    points: name === eldest ? 1 : 0,
    outcome: name === null ? 'unparsed' : name === eldest ? 'right' : 'wrong',
    // Number of links that the answer followed from the youngest person up; 0 if its name is not in the chain.
    details: { links: reached < 0 ? 0 : chain.length - 1 - reached, outOf: chain.length - 1 },
  }
}

// Below: the text around the needles: our own sentences, or passages of a file.

export interface Filler {
  /**
   * Returns a text of that many characters, in pieces between which needles may be put. No piece names a person in `absent`.
   * @throws KvfoldError eval/bad-data
   */
  passages(random: Random, characters: number, absent: readonly string[]): Promise<string[]>
}

/** Opens the text of the file at `path`; without a path, our own sentences. @throws KvfoldError eval/bad-data for an unreadable file */
export async function openFiller(path: string | undefined): Promise<Filler> {
  if (path === undefined) return { passages: (random, characters) => Promise.resolve(taken(prose(random), characters)) }
  const texts = isRowsFile(path) ? await textsOf(path) : [await textOf(path)]
  return {
    passages(random, characters, absent) {
      const passages = taken(shuffledTexts(texts, random), characters)
      const named = absent.find((name) => passages.some((passage) => passage.includes(name)))
      if (named !== undefined)
        return Promise.reject(
          new KvfoldError('eval/bad-data', `${path} names ${named}, a name that we give to a needle; use another text or seed.`),
        )
      const length = passages.join('').length
      if (length < characters)
        return Promise.reject(
          new KvfoldError(
            'eval/bad-data',
            `${path} has ${length} characters, but this length needs ${characters}; use a longer text or ask for smaller lengths.`,
          ),
        )
      return Promise.resolve(passages)
    },
  }
}

/** Takes pieces from the start until they have `characters` characters together. The last piece is cut to fit. */
function taken(pieces: Iterable<string>, characters: number): string[] {
  const list: string[] = []
  let left = characters
  for (const piece of pieces) {
    if (left <= 0) break
    list.push(piece.length <= left ? piece : piece.slice(0, left))
    left -= piece.length
  }
  return list
}

/** Yields the sentences of all texts: the texts in random order, each text's sentences in their own order. */
function* shuffledTexts(texts: readonly string[], random: Random): Generator<string> {
  const segmenter = new Intl.Segmenter('en', { granularity: 'sentence' })
  for (const text of random.shuffled(texts)) for (const { segment } of segmenter.segment(text)) yield segment
}

async function textOf(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (cause) {
    throw new KvfoldError(
      'eval/bad-data',
      `The text ${path} cannot be read: ${cause instanceof Error ? cause.message : String(cause)}`,
      {
        cause,
      },
    )
  }
}

async function textsOf(path: string): Promise<string[]> {
  const rows = await openRows(path)
  const texts: string[] = []
  for (let index = 0; index < rows.size; index++) {
    const { text } = await rows.row(index)
    if (typeof text !== 'string')
      throw new KvfoldError('eval/bad-data', `${rows.where(index)} has no field "text"; every row of --filler needs one.`)
    texts.push(`${text}\n`)
  }
  return texts
}

// Below: names of invented people, and phrasings of how two of them are related.

/** The first names of invented people. */
export const given = [
  'Ada', 'Albin', 'Amira', 'Anders', 'Anouk', 'Bela', 'Bruno', 'Carla', 'Cosimo', 'Dalia', 'Darko', 'Edith', 'Elias', 'Emre',
  'Farah', 'Felix', 'Greta', 'Hanna', 'Hugo', 'Ilse', 'Imran', 'Ines', 'Ivo', 'Jana', 'Jonas', 'Kaja', 'Kenji', 'Laila',
  'Leon', 'Lucia', 'Magda', 'Malik', 'Marta', 'Milan', 'Nadia', 'Nils', 'Nora', 'Oskar', 'Paula', 'Petra', 'Rafael', 'Renata',
  'Samir', 'Selma', 'Sofia', 'Stefan', 'Tamar', 'Tilda', 'Tomas', 'Viktor', 'Vera', 'Wanda', 'Yusuf', 'Zara',
] // prettier-ignore
const family = [
  'Abel', 'Almeida', 'Arslan', 'Bakker', 'Berg', 'Castell', 'Cerny', 'Dahl', 'Dumont', 'Eklund', 'Falk', 'Ferrer', 'Fontana',
  'Grieg', 'Haddad', 'Halloran', 'Holm', 'Ibarra', 'Jansen', 'Kaminski', 'Keller', 'Kovac', 'Lang', 'Lindqvist', 'Lorca',
  'Marek', 'Mori', 'Nagy', 'Novak', 'Okafor', 'Olsen', 'Pereira', 'Petrov', 'Quist', 'Ramos', 'Rossi', 'Sandoval', 'Sato',
  'Simic', 'Sorel', 'Tanaka', 'Toth', 'Urban', 'Vidal', 'Vogt', 'Weiss', 'Winter', 'Yilmaz', 'Zeman', 'Zoric',
] // prettier-ignore

/** Returns full names of up to 50 different people. No two share a given name or a family name, so either name identifies a person. */
export function people(random: Random, count: number): string[] {
  const last = some(random, family, count)
  return some(random, given, count).map((name, index) => `${name} ${last[index] ?? ''}`)
}

/** The ten words of NeedleBench for a relative of an earlier generation. */
export const elderRelations = [
  'father', 'mother', 'dad', 'mom', 'grandfather', 'grandmother', 'maternal grandfather', 'maternal grandmother',
  'paternal grandfather', 'paternal grandmother',
] as const // prettier-ignore

/** Seven ways to say in a sentence how the elder is related to the younger. */
export const kinships: readonly ((elder: string, younger: string, relation: string) => string)[] = [
  (elder, younger, relation) => `The ${relation} of ${younger} is ${elder}.`,
  (elder, younger, relation) => `${elder} is the ${relation} of ${younger}.`,
  (elder, younger, relation) => `As the ${relation} of ${younger}, ${elder} taught ${younger} a great deal.`,
  (elder, younger, relation) => `${younger} grew up with ${elder}, who is ${younger}'s ${relation}.`,
  (elder, younger, relation) => `${younger} calls ${elder} not only ${relation}, but a friend as well.`,
  (elder, younger, relation) => `What ${younger} admires in ${elder}, ${younger}'s ${relation}, is patience.`,
  (elder, younger, relation) => `${elder} is ${younger}'s ${relation}, and an example to ${younger} in everything.`,
]

const ownPrompts: NeedlesPrompts = {
  ask: (text, person) => `${INTRODUCTION}\n\n${text}\n\n${questionOf(person)}`,
  kinships,
}

// Below: reads an answer in a LaTeX box (`\boxed{...}`), as NeedleBench's authors do.

/**
 * Returns the content of the answer's last `\boxed{...}`, without LaTeX, quotes and escapes. Returns null if there is no box, or if the box
 * is not closed or is empty. Source: extract_boxed_answer and clean_atc_answer of opencompass.
 */
export function boxed(answer: string): string | null {
  const start = answer.lastIndexOf('\\boxed')
  const open = '\\boxed{'
  if (start < 0 || !answer.startsWith(open, start)) return null
  const end = closing(answer, start)
  if (end === null) return null
  const content = answer.slice(start + open.length, end)
  const inner = /^\{(.*)\}\n?$/u.exec(content)?.[1] ?? content
  return inner === '' ? null : clean(inner).trim()
}

/** Returns the index of the brace that closes the first open brace from index `from` on; null if none does. */
function closing(text: string, from: number): number | null {
  let depth = 0
  for (let at = from; at < text.length; at++) {
    if (text[at] === '{') depth++
    if (text[at] === '}' && --depth === 0) return at
  }
  return null
}

const clean = (text: string): string =>
  text
    .replace(/\\text\{([^}]+)\}/gu, '$1')
    .replace(/\\boxed\{([^}]+)\}/gu, '$1')
    .replace(/\\[[\]]/gu, '')
    .replaceAll('\\', '')
    .replace(/\s+/gu, ' ')
    .trim()
    .replace(/["']/gu, '')
    .replaceAll('~', ' ')
