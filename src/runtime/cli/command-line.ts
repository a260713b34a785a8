/** Owns the command line: the runtime's commands, and how the outcome of one becomes an exit code (0, 1 failed, 2 bad usage, 130 interrupted). */
import { readFileSync } from 'node:fs'
import { Command, CommanderError } from 'commander'
import { BAD_USAGE, describe, exitCode, INTERRUPTED, type Shell } from './shell.js'

type Add = (program: Command, shell: Shell, version: string) => void

/**
 * Commands by their name, under the headings of the list. A command's modules take up to a second to load, so they are loaded when it is called, or when
 * all commands are listed.
 */
export type Commands = Readonly<Record<string, Readonly<Record<string, () => Promise<Add>>>>>

/** Those of the runtime. */
export const commands: Commands = {
  'Talk to a model': {
    chat: async () => (await import('./commands/chat.js')).addChat,
    run: async () => (await import('./commands/run.js')).addRun,
  },
  'Serve it': {
    serve: async () => (await import('./commands/serve.js')).addServe,
    mcp: async () => (await import('./commands/mcp.js')).addMcp,
    store: async () => (await import('./commands/store.js')).addStore,
  },
  'This machine': {
    model: async () => (await import('./commands/model.js')).addModel,
    calibrate: async () => (await import('./commands/calibrate.js')).addCalibrate,
    compile: async () => (await import('./commands/compile-bundle.js')).addCompile,
    bundle: async () => (await import('./commands/compile-bundle.js')).addBundle,
  },
  Studies: {
    plan: async () => (await import('./commands/plan.js')).addPlan,
  },
}

/** A program of these commands; those of the same heading stand together. `guide` stands below the list. */
export interface CommandLine {
  readonly commands: readonly Commands[]
  readonly guide: string
}

async function programOf({ commands: all, guide }: CommandLine, shell: Shell): Promise<Command> {
  const { version, description } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as Record<
    'version' | 'description',
    string
  >
  const program = new Command('kvfold')
    .description(description)
    .version(version, '-V, --version')
    .exitOverride()
    // Options behind the name of a command are that command's, whatever they are called.
    .enablePositionalOptions()
    .configureOutput({
      writeOut: shell.out.write.bind(shell.out),
      writeErr: shell.notes.write.bind(shell.notes),
      outputError: (text, write) => {
        write(text.replace(/^error: /, 'kvfold: '))
      },
    })
    .showHelpAfterError('(kvfold --help lists commands, kvfold <command> --help its options)')
    .addHelpText('after', guide)
  const [called = ''] = shell.words
  const headings = new Set(all.flatMap((part) => Object.keys(part)))
  const known = all.flatMap((part) => Object.values(part)).some((group) => Object.hasOwn(group, called))
  for (const heading of headings) {
    program.commandsGroup(`${heading}:`)
    for (const [name, load] of all.flatMap((part) => Object.entries(part[heading] ?? {})))
      if (!known || name === called) (await load())(program, shell, version)
  }
  return program
}

/** Runs the command that the shell's words call, and resolves to the exit code; what went wrong has been said. */
export async function run(line: CommandLine, shell: Shell): Promise<number> {
  const { out, notes, interrupt, words } = shell
  let failure: unknown = null
  try {
    await (await programOf(line, shell)).parseAsync(words, { from: 'user' })
  } catch (error) {
    failure = error
  }
  out.close()
  notes.close()
  // A step that was told to stop may end in an answer cut short or in an error; both mean the same.
  if (interrupt.interrupted) {
    notes.print('kvfold: interrupted [engine/cancelled]')
    return INTERRUPTED
  }
  if (failure === null) return 0
  // Commander has said what was wrong already.
  if (failure instanceof CommanderError) return failure.exitCode === 0 ? 0 : BAD_USAGE
  notes.print(describe(failure))
  return exitCode(failure)
}
