/** Runs the command line: in a separate process, as a person does, or within this one, which is a second faster each time. */
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { Interrupt } from '../../../../src/runtime/cli/shell.js'
import { Terminal } from '../../../../src/runtime/cli/terminal.js'
import { LOADER, moduleOf } from '../../../support/program.js'

const ROOT = join(import.meta.dirname, '../../../..')

/** Arguments of node before those of a command, in the project's folder. */
export const KVFOLD: readonly string[] = [...LOADER, moduleOf('cli/main')]

export interface Outcome {
  /** The exit code, or null when a signal ended the process. */
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
  /** Milliseconds from the signal, or from the start, to the end. */
  readonly milliseconds: number
}

export interface Given {
  readonly input?: string
  readonly environment?: Readonly<Record<string, string>>
}

export interface RunOptions extends Given {
  /** Sends SIGINT after this many milliseconds. */
  readonly interruptAfter?: number
  /** Stops reading stdout after the first piece of output. */
  readonly hangUp?: boolean
}

/** Resolves when the process has ended, whatever its exit code. */
export function kvfold(
  words: readonly string[],
  { input = '', environment = {}, interruptAfter, hangUp = false }: RunOptions = {},
): Promise<Outcome> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [...KVFOLD, ...words], {
      cwd: ROOT,
      env: { ...process.env, KVFOLD_DEBUG: '', ...environment },
    })
    let begun = performance.now()
    let stdout = ''
    let stderr = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text
      if (hangUp) child.stdout.destroy()
    })
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    const timer =
      interruptAfter === undefined
        ? undefined
        : setTimeout(() => {
            begun = performance.now()
            child.kill('SIGINT')
          }, interruptAfter)
    child.on('error', reject)
    child.on('close', (code) => {
      clearTimeout(timer)
      resolve({ code, stdout, stderr, milliseconds: performance.now() - begun })
    })
    // A command that refuses its options does not read its input.
    child.stdin.on('error', () => undefined)
    child.stdin.end(input)
  })
}

/**
 * Runs a command within this process, to test what it does. Use `kvfold` to test how processes start, end and are killed.
 * @param folder the working folder of the command, if it is not this process's
 */
export async function kvfoldHere(
  words: readonly string[],
  { input = '', environment = {}, folder }: Given & { readonly folder?: string } = {},
): Promise<Outcome> {
  // A compiled program starts compiled processes, so the module must be of the same kind.
  const { kvfold } = (await import(join(ROOT, moduleOf('cli/kvfold')))) as typeof import('../../../../src/cli/kvfold.js')
  const said = { out: '', notes: '' }
  const stream = (name: keyof typeof said) => new Terminal({ write: (text) => (said[name] += text) }, {})
  const interrupt = new Interrupt()
  const before = Object.keys(environment).map((name) => [name, process.env[name]] as const)
  Object.assign(process.env, environment)
  const home = process.cwd()
  const begun = performance.now()
  try {
    if (folder !== undefined) process.chdir(folder)
    const code = await kvfold({
      out: stream('out'),
      notes: stream('notes'),
      interrupt,
      input: Readable.from([Buffer.from(input)]),
      words,
    })
    return { code, stdout: said.out, stderr: said.notes, milliseconds: performance.now() - begun }
  } finally {
    interrupt.release()
    process.chdir(home)
    for (const [name, value] of before)
      if (value === undefined) Reflect.deleteProperty(process.env, name)
      else process.env[name] = value
  }
}
