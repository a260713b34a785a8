/** Owns finding the articles that a question of FRAMES is about among those that the user supplied. */
import { readdir, readFile, stat } from 'node:fs/promises'
import { extname, join } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import { isRowsFile, openRows } from '../data/rows.js'

export interface Article {
  readonly title: string
  readonly text: string
}

export interface Articles {
  /** In the order of the links. @throws KvfoldError eval/bad-data that names those that are missing and says where they would be looked for */
  of(links: readonly string[], where: string): Promise<Article[]>
}

/** `source`: a folder of .txt and .md files, or a file of rows with `url` or `title`, and `text`. @throws KvfoldError eval/bad-data */
export async function openArticles(source: string): Promise<Articles> {
  const found = await stat(source).catch(() => null)
  if (found === null && !isRowsFile(source))
    throw new KvfoldError(
      'eval/bad-data',
      `There is no folder ${source}; articles are a folder of .txt and .md files, or a file of rows.`,
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

/** The links of a row, which are written as a list in Python or one after the other. */
export const linksIn = (text: string): string[] => [
  ...new Set(text.match(/https?:\/\/[^\s'"\],]+(?:,(?!\s)[^\s'"\],]+)*/gu) ?? []),
]

/** What an article is called, whichever way it is linked: the last part of the address, unescaped, with _ for spaces. */
function nameOf(link: string): string {
  const path = link.replace(/^https?:\/\/[^/]+\/(?:wiki\/)?/u, '').replace(/[#?].*$/u, '')
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
    // Read again when it is needed: all articles together may be large.
    found.set(nameOf(name), async () => String((await rows.row(index))['text']))
  }
  return found
}
