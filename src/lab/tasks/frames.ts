/** The FRAMES task: questions that need facts from several articles, which the user supplies. A model judges the answers. */
import { readdir, readFile, stat } from 'node:fs/promises'
import { extname, join } from 'node:path'
import Type, { type Static } from 'typebox'
import { strict, Text } from '../../runtime/core/schema.js'
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { isRowsFile, openRows } from '../data/rows.js'
import type { Judging, Score, Task, TaskSample, TaskSpec } from '../task.js'
import { type FramesPrompts, originalFrames } from './originals.js'
import { charsPerToken, Count, readFields, readOptions, refuseBeyond } from './samples.js'
import { middleCut } from './prose.js'

const Options = strict({
  /** The authors' table: a path, or hf:datasets/google/frames-benchmark/test.tsv. */
  data: Type.String({ minLength: 1, default: 'hf:datasets/google/frames-benchmark/test.tsv' }),
  /** Path of a folder of text files named like the articles, or of a file of rows with `text` and either `url` or `title`. */
  articles: Text,
  /** Path of a checkout of optillm, to use its published prompts. Default: our own prompts. */
  prompts: Type.Optional(Text),
  limit: Type.Optional(Count),
  /** Tokens of the user message, counted as characters / charsPerToken. If the articles are too long for it, each may lose its middle. */
  window: Type.Integer({ minimum: 500, default: 120_000 }),
  charsPerToken,
})

const Fields = Type.Object({
  Prompt: Text,
  Answer: Text,
  wiki_links: Type.String(),
  reasoning_types: Type.String(),
})

export interface FramesTruth {
  readonly question: string
  readonly answer: string
}

/** Makes the task from its options. @throws KvfoldError eval/bad-data; `sample` throws it for a question whose articles are missing */
export async function openFrames(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const [rows, articles] = await Promise.all([openRows(options.data), openArticles(options.articles)])
  const original = options.prompts === undefined ? null : await originalFrames(options.prompts)
  const size = Math.min(rows.size, options.limit ?? rows.size)
  return {
    spec: { task: spec.task, options },
    title: 'FRAMES',
    prompt: 'general',
    maxTokens: 1024,
    temperature: 0,
    differs: [
      ...(original === null
        ? [
            'The user supplies the articles as plain text.',
            'The instruction and the question to the judge are in our own words. The judge is the model named in the log. Our question is stricter than the published one.',
          ]
        : [
            'The user supplies the articles as plain text; the published program has their links.',
            'We use no system message, greedy answers and at most 1024 tokens; the program has a system message, temperature 0.7 and 1000 tokens.',
            'The judge is the model named in the log: greedy, with 512 tokens and no system message. In the program the model judges itself, at temperature 0.3, with 300 tokens and a system message.',
          ]),
      `Long texts are cut by characters, ${options.charsPerToken} for a token.`,
    ],
    size,
    sample: async (index) => {
      refuseBeyond(index, size)
      const row = readFields(Fields, await rows.row(index), rows.where(index))
      const found = await articles.of(linksIn(row.wiki_links), rows.where(index))
      return sampleOf(index, row, found, Math.floor(options.window * options.charsPerToken), original?.ask ?? ownText)
    },
    score: (_, __, verdict) => scoreOf(verdict),
    judging: ({ truth }, answer) => judgingOf(truth as FramesTruth, answer, original),
  }
}

const INTRODUCTION = 'Read these articles; a question that needs several of them follows.'

/** Writes the user message in our words. With empty `articles` it has only the question, for agents that get the articles separately. */
const ownText: FramesPrompts['ask'] = (articles, question) =>
  (articles === '' ? '' : `${INTRODUCTION}\n\n${articles}\n\n`) +
  `The articles end here. ${question.trim()}\n\nAnswer in a sentence or two, from the articles.`

function sampleOf(
  index: number,
  row: Static<typeof Fields>,
  articles: readonly Article[],
  characters: number,
  said: FramesPrompts['ask'],
): TaskSample {
  const context = fitted(articles, characters - said(' ', row.Prompt).length + 1)
  return {
    id: `frames-${index}`,
    cell: { articles: articles.length, reasoning: row.reasoning_types },
    messages: [{ role: 'user', content: said(context, row.Prompt) }],
    context,
    question: said('', row.Prompt),
    truth: { question: row.Prompt, answer: row.Answer } satisfies FramesTruth,
  }
}

/**
 * Joins the articles to a text of at most `characters` characters. If they are too long together, each gets an equal share. Longer articles
 * also get what shorter ones leave of their shares.
 */
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
  invariant(verdict !== undefined, 'A score of FRAMES needs the verdict of a judge.')
  return { points: verdict === true ? 1 : 0, outcome: verdict === null ? 'unparsed' : verdict ? 'right' : 'wrong', details: {} }
}

function judgingOf({ question, answer: truth }: FramesTruth, answer: string, original: FramesPrompts | null): Judging {
  if (original !== null) return { prompt: original.judge(question, answer.trim(), truth), verdict: publishedVerdict }
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

/** Returns the judge's verdict: the word behind the last `Decision:`. Without that, TRUE or FALSE if only one of them occurs; else null. */
function verdictIn(said: string): boolean | null {
  const decision = [...said.matchAll(/decision\W{0,6}(true|false)\b/giu)].at(-1)?.[1]
  const words = new Set(decision === undefined ? said.toUpperCase().match(/\b(?:TRUE|FALSE)\b/gu) : [decision.toUpperCase()])
  return words.size === 1 ? words.has('TRUE') : null
}

/**
 * Returns the judge's verdict as the published program reads it. The last line that begins with `Decision:` decides. TRUE means right, in
 * any case; everything else scores 0. The verdict is null, not false, if the word is not FALSE either.
 */
function publishedVerdict(said: string): boolean | null {
  const line = said
    .trim()
    .split('\n')
    .findLast((each) => each.startsWith('Decision:'))
  const decision = line?.split(':')[1]?.trim().toUpperCase()
  return decision === 'TRUE' ? true : decision === 'FALSE' ? false : null
}

// Below: finds the articles for a question of FRAMES among those that the user supplied.

export interface Article {
  readonly title: string
  readonly text: string
}

export interface Articles {
  /**
   * Returns the articles in the order of the links.
   * @throws KvfoldError eval/bad-data that names the missing articles and says where to put them
   */
  of(links: readonly string[], where: string): Promise<Article[]>
}

/**
 * Opens the user's articles. `source`: a folder of .txt and .md files, or a file of rows with `text` and either `url` or `title`.
 * @throws KvfoldError eval/bad-data
 */
export async function openArticles(source: string): Promise<Articles> {
  const found = await stat(source).catch(() => null)
  if (found === null && !isRowsFile(source))
    throw new KvfoldError(
      'eval/bad-data',
      `The folder ${source} does not exist; give a folder of .txt and .md files, or a file of rows.`,
    )
  const folder = found?.isDirectory() === true
  const readers = folder ? await inFolder(source) : await inRows(source)
  return {
    of(links, where) {
      const missing = links.filter((link) => !readers.has(nameOf(link)))
      if (missing.length > 0)
        throw new KvfoldError(
          'eval/bad-data',
          `${where} needs ${missing.join(', ')}, which ${source} does not have; ` +
            (folder
              ? `put the article there as ${nameOf(missing[0] ?? '').replaceAll('/', '%2F')}.txt.`
              : 'add a row with its url and text.'),
        )
      return Promise.all(
        links.map(async (link) => ({
          title: nameOf(link).replaceAll('_', ' '),
          text: (await readers.get(nameOf(link))?.()) ?? '',
        })),
      )
    },
  }
}

const LINK = /(["'])(https?:\/\/\S+?)\1(?=\s*[,\]])|https?:\/\/[^\s'"\],]+(?:,(?!\s)[^\s'"\],]+)*/gu

/** Returns the distinct links in a row of the table, which has them as a Python list or one after another. */
const linksIn = (text: string): string[] => [...new Set([...text.matchAll(LINK)].map(([all, , quoted]) => quoted ?? all))]

/** Returns an article's name, which is the same for all forms of its link: the path behind /wiki/, unescaped, with _ for spaces. */
function nameOf(link: string): string {
  const path = /^https?:\/\/[^/]+\/(?:wiki\/)?([^#?]*)/u.exec(link)?.[1] ?? link
  return unescaped(path).trim().replace(/\s+/gu, '_')
}

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

type Reading = ReadonlyMap<string, () => Promise<string>>

async function inFolder(folder: string): Promise<Reading> {
  const files = (await readdir(folder)).filter((file) => ['.txt', '.md'].includes(extname(file)))
  return new Map(files.map((file) => [nameOf(file.slice(0, -extname(file).length)), () => readFile(join(folder, file), 'utf8')]))
}

async function inRows(source: string): Promise<Reading> {
  const rows = await openRows(source)
  const found = new Map<string, () => Promise<string>>()
  for (let index = 0; index < rows.size; index++) {
    const { url, title, text } = await rows.row(index)
    const name = typeof url === 'string' ? url : title
    if (typeof name !== 'string' || typeof text !== 'string')
      throw new KvfoldError('eval/bad-data', `${rows.where(index)} has no url or title, or no text.`)
    // The row is read again when its article is needed: all articles together may not fit into memory.
    found.set(nameOf(name), async () => String((await rows.row(index))['text']))
  }
  return found
}
