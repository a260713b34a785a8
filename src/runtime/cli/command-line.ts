/** The command line: the runtime's commands, and exit codes (0 success, 1 failed, 2 bad usage, 130 interrupted). */
import { Command, CommanderError } from 'commander'
import { packageFacts } from '../core/package.js'
import { withoutPeerFlags } from './peer-flags.js'
import { BAD_USAGE, describe, exitCode, INTERRUPTED, type Shell } from './shell.js'

type Add = (program: Command, shell: Shell, version: string) => void

/**
 * Commands by name, under the headings of the help. A command's modules may take a second to load. So they are loaded only when it is
 * called, or when the help lists all commands.
 */
export type Commands = Readonly<Record<string, Readonly<Record<string, () => Promise<Add>>>>>

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
  'Models by name': {
    pull: async () => (await import('./commands/models.js')).addPull,
    list: async () => (await import('./commands/models.js')).addList,
    rm: async () => (await import('./commands/models.js')).addRm,
    ps: async () => (await import('./commands/models.js')).addPs,
  },
  'This machine': {
    doctor: async () => (await import('./commands/doctor.js')).addDoctor,
    model: async () => (await import('./commands/model.js')).addModel,
    calibrate: async () => (await import('./commands/calibrate.js')).addCalibrate,
    compile: async () => (await import('./commands/compile-bundle.js')).addCompile,
    bundle: async () => (await import('./commands/compile-bundle.js')).addBundle,
  },
  Studies: {
    plan: async () => (await import('./commands/plan.js')).addPlan,
  },
}

/**
 * A program's commands and texts. Commands under the same heading are listed together. `guide` stands below the list in the help; `opening`
 * is printed when no command is given.
 */
export interface CommandLine {
  readonly commands: readonly Commands[]
  readonly opening: string
  readonly guide: string
}

async function programOf({ commands: all, guide }: CommandLine, shell: Shell): Promise<Command> {
  const { version, description } = packageFacts()
  const [called = ''] = shell.words
  const program: Command = new Command('kvfold')
    .description(description)
    .version(version, '-V, --version')
    .exitOverride()
    // An option after a command's name belongs to the command, even if the program has one of the same name.
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
  const headings = new Set(all.flatMap((part) => Object.keys(part)))
  const known = all.flatMap((part) => Object.values(part)).some((group) => Object.hasOwn(group, called))
  for (const heading of headings) {
    program.commandsGroup(`${heading}:`)
    for (const [name, load] of all.flatMap((part) => Object.entries(part[heading] ?? {})))
      if (!known || name === called) (await load())(program, shell, version)
  }
  return program
}

/** Runs the command that the shell's words name, and prints its errors. Resolves to the exit code. */
export async function run(line: CommandLine, shell: Shell): Promise<number> {
  const { out, notes, interrupt, words } = shell
  if (words.length === 0) {
    out.print(line.opening)
    return 0
  }
  let failure: unknown = null
  try {
    const program = await programOf(line, shell)
    const called = program.commands.find((command) => command.name() === words[0])
    await program.parseAsync(withoutPeerFlags(words, called), { from: 'user' })
  } catch (error) {
    failure = error
  }
  out.close()
  notes.close()
  // Ctrl-C may end a step with a cut answer or with an error. Both count as interrupted.
  if (interrupt.interrupted) {
    notes.print('kvfold: interrupted [engine/cancelled]')
    return INTERRUPTED
  }
  if (failure === null) return 0
  // Commander has already printed this error.
  if (failure instanceof CommanderError) return failure.exitCode === 0 ? 0 : BAD_USAGE
  notes.print(describe(failure))
  return exitCode(failure)
}
