/** Owns which commit the source is of, read from the checkout's files: git itself may not be there. */
import { readFileSync, statSync } from 'node:fs'
import { join, resolve } from 'node:path'

/** The hash that HEAD of a checkout in `folder` means; null where there is none, such as in an installed package. Changes beside it are not noticed. */
export function commitOf(folder: string): string | null {
  try {
    const git = join(folder, '.git')
    const own = statSync(git).isDirectory() ? git : resolve(folder, after(readFileSync(git, 'utf8'), 'gitdir: '))
    const head = readFileSync(join(own, 'HEAD'), 'utf8').trim()
    return head.startsWith('ref: ') ? hashOf(after(head, 'ref: '), own) : hash(head)
  } catch {
    return null
  }
}

/** Of a branch; work trees beside the first keep theirs in a common folder. */
function hashOf(branch: string, own: string): string | null {
  const common = textIn(join(own, 'commondir'))
  const folders = common === null ? [own] : [own, resolve(own, common.trim())]
  for (const folder of folders) {
    const loose = textIn(join(folder, branch))
    if (loose !== null) return hash(loose.trim())
    const packed = textIn(join(folder, 'packed-refs'))
      ?.split('\n')
      .find((line) => line.endsWith(` ${branch}`))
    if (packed !== undefined) return hash(packed.slice(0, packed.indexOf(' ')))
  }
  return null
}

function textIn(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return null
  }
}

const hash = (text: string): string | null => (/^[0-9a-f]{40,64}$/.test(text) ? text : null)

const after = (text: string, prefix: string): string => (text.startsWith(prefix) ? text.slice(prefix.length).trim() : '')
