/** Owns reading what the person hands in: a file or everything on stdin. */
import { KvfoldError } from '../core/errors.js'
import { readText } from './options.js'

/** The text of `file`, of stdin for `-` or where no file is named. @throws KvfoldError cli/bad-usage, engine/cancelled */
export async function readInput(file: string | undefined, signal: AbortSignal): Promise<string> {
  if (file !== undefined && file !== '-') return readText(file, 'run')
  if (file === undefined && process.stdin.isTTY)
    throw new KvfoldError(
      'cli/bad-usage',
      'There is no prompt: give --prompt <text>, a file, or text on stdin (`-` reads what you type up to Ctrl-D).',
    )
  return readStdin(signal)
}

async function readStdin(signal: AbortSignal): Promise<string> {
  const { stdin } = process
  const stop = (): void => {
    stdin.destroy()
  }
  signal.addEventListener('abort', stop, { once: true })
  try {
    const chunks: Buffer[] = []
    for await (const chunk of stdin) chunks.push(chunk as Buffer)
    return Buffer.concat(chunks).toString('utf8')
  } catch (error) {
    if (signal.aborted) throw new KvfoldError('engine/cancelled', 'Reading stdin was interrupted.')
    throw error
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
