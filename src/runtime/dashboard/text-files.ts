/** Writes text files into a message, and finds them there again. Pure. */
import { bytes } from '../figures/numbers.js'

export interface TextFile {
  readonly name: string
  readonly text: string
}

/** A file in a message, and its span there. */
export interface FilePlace {
  readonly name: string
  readonly text: string
  readonly start: number
  readonly end: number
}

/** The largest file, in bytes. */
const MOST = 4 * 2 ** 20

/** Reads a file's bytes as text, with `\n` as line ends. @throws Error with a sentence for people */
export function textFile(name: string, content: ArrayBuffer): TextFile {
  if (content.byteLength > MOST) throw new Error(`${name} has ${bytes(content.byteLength)}; a file may have ${bytes(MOST)}.`)
  const refusal = `${name} is not a text in UTF-8. Only text files can be attached.`
  let text: string
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(content)
  } catch {
    throw new Error(refusal)
  }
  if (text.includes('\0')) throw new Error(refusal)
  return { name: name.replace(/[\r\n]+/g, ' '), text: text.replace(/\r\n?/g, '\n').trimEnd() }
}

/** Makes a message from text and files. The files come first, so that threads that begin with the same files share their cells. */
export const withFiles = (text: string, files: readonly TextFile[]): string =>
  [...files.map(written), ...(text.trim() === '' ? [] : [text])].join('\n\n')

/** Writes a file as a code block. The fence is longer than any in the file. */
function written({ name, text }: TextFile): string {
  const runs = text.match(/`{3,}/g) ?? []
  const mark = '`'.repeat(Math.max(3, ...runs.map((run) => run.length + 1)))
  const [, language = ''] = /\.(\w+)$/.exec(name) ?? []
  return `File ${name}:\n${mark}${language}\n${text}\n${mark}`
}

/** Returns the files in a message, in order. */
export const filesIn = (text: string): readonly FilePlace[] =>
  [...text.matchAll(/^File ([^\n]+):\n(`{3,})\w*\n([^]*?)\n\2$/gm)].map((found) => ({
    name: found[1]!,
    text: found[3]!,
    start: found.index,
    end: found.index + found[0].length,
  }))
