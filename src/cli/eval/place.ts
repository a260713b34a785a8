/** Owns where a run's log lies when nobody says: the same command finds a log that is not finished, and begins another after one that is. */
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { LogHeader } from '../../eval/log.js'
import { logLines, nameOf } from '../../eval/run/log-file.js'
import { essence, isTaken } from '../../eval/run/log-writer.js'

export const FOLDER = 'kvfold-eval'

/** @param total samples of the whole run @throws KvfoldError eval/bad-log for a log of that name that is none */
export async function placeOf(header: LogHeader, total: number, folder = FOLDER): Promise<string> {
  const print = createHash('sha256')
    .update(JSON.stringify(essence(header)))
    .digest('hex')
    .slice(0, 8)
  const tasks = [...new Set(header.tasks.map(({ task }) => task))].join('+')
  for (let number = 1; ; number++) {
    const path = join(folder, `${tasks}-${print}${number === 1 ? '' : `-${number}`}.jsonl`)
    if (!existsSync(path)) return path
    if (isTaken(path)) continue
    if ((await answeredIn(path)) < total) return path
  }
}

async function answeredIn(path: string): Promise<number> {
  const names = new Set<string>()
  for await (const { line } of logLines(path)) if (line.kind === 'sample') names.add(nameOf(line))
  return names.size
}
