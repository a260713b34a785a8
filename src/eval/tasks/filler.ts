/** Owns the text that needles are hidden in: our own sentences, or passages of a file. */
import { readFile } from 'node:fs/promises'
import { KvfoldError } from '../../core/errors.js'
import type { Random } from '../../core/random.js'
import { isRowsFile, openRows } from '../data/rows.js'
import { prose } from './prose.js'

export interface Filler {
  /** Text of so many characters in pieces between which something may be put; none of them names one of `absent`. @throws KvfoldError eval/bad-data */
  passages(random: Random, characters: number, absent: readonly string[]): Promise<string[]>
}

/** @throws KvfoldError eval/bad-data when the file cannot be read */
export async function openFiller(path: string | undefined): Promise<Filler> {
  if (path === undefined) return { passages: (random, characters) => Promise.resolve(taken(prose(random), characters)) }
  const texts = isRowsFile(path) ? await textsOf(path) : [await textOf(path)]
  return {
    passages(random, characters, absent) {
      const passages = taken(shuffledTexts(texts, random), characters)
      const named = absent.find((name) => passages.some((passage) => passage.includes(name)))
      if (named !== undefined)
        return Promise.reject(
          new KvfoldError('eval/bad-data', `${path} names ${named}, who is one of ours; take another text or seed.`),
        )
      const length = passages.join('').length
      if (length < characters)
        return Promise.reject(
          new KvfoldError(
            'eval/bad-data',
            `${path} has ${length} characters, and this length needs ${characters}; take a longer text or ask for smaller lengths.`,
          ),
        )
      return Promise.resolve(passages)
    },
  }
}

/** Pieces until there are so many characters; the last one is cut at the last word that fits. */
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

/** The sentences of all texts, texts in random order. */
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
      `Cannot read the text ${path}: ${cause instanceof Error ? cause.message : String(cause)}`,
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
      throw new KvfoldError('eval/bad-data', `${rows.where(index)} has no field text; filler rows need one.`)
    texts.push(`${text}\n`)
  }
  return texts
}
