/** Owns the command line: its commands, and how the outcome of one becomes an exit code (0, 1 failed, 2 bad usage, 130 interrupted). */
import { readFileSync } from 'node:fs'
import { Command, CommanderError } from 'commander'
import { BAD_USAGE, describe, exitCode, INTERRUPTED, type Shell } from './shell.js'

const GUIDE = `
Examples:
  $ kvfold demo                               the built-in model, with and without its context tools
  $ kvfold chat --model qwen3-4b-q8_0.gguf    talk to any GGUF; /help lists what you can do to its context
  $ kvfold chat --model hf:user/repository/file.gguf
  $ kvfold run --prompt "Why is the sky blue?" --model model.gguf
  $ kvfold run --tools --json < long-log.txt
  $ kvfold serve --model model.gguf           an OpenAI-compatible server on 127.0.0.1:8080
  $ kvfold mcp                                lets an agent of that server fold its own conversation
  $ kvfold model info model.gguf              what a file is and what kvfold can do with it
  $ kvfold calibrate --model model.gguf       measure this machine once, for predictions
  $ kvfold plan transcript.json               what folds in a transcript of yours would cost and save
  $ kvfold attention pi-llm --out study       what folding does to where the model looks
  $ kvfold eval pi-llm --n 4,64              accuracy, context and cost of agents on tasks, with a log
  $ kvfold report run.jsonl                   tables, figures and a page from such logs
  $ kvfold bundle kvfold-offline --archive    all of kvfold, for machines without network or Node

kvfold <command> --help explains a command's options. Ctrl-C stops the running step, a second one ends the process.
KVFOLD_DEBUG=1 adds a stack to errors; NO_COLOR=1 takes the colours.`

type Add = (program: Command, shell: Shell, version: string) => void

/** Under their headings. A command's modules take up to a second to load, so they are loaded when it is called, or all are listed. */
const COMMANDS: Readonly<Record<string, Readonly<Record<string, () => Promise<Add>>>>> = {
  'Talk to a model': {
    demo: async () => (await import('./commands/demo.js')).addDemo,
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
    bench: async () => (await import('./commands/bench.js')).addBench,
  },
  Studies: {
    plan: async () => (await import('./commands/plan.js')).addPlan,
    attention: async () => (await import('./commands/attention.js')).addAttention,
    eval: async () => (await import('./commands/eval.js')).addEval,
    collect: async () => (await import('./commands/collect.js')).addCollect,
    report: async () => (await import('./commands/report.js')).addReport,
  },
}

async function commandLine(shell: Shell): Promise<Command> {
  const { version, description } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as Record<
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
    .addHelpText('after', GUIDE)
  const [called = ''] = shell.words
  const known = Object.values(COMMANDS).some((group) => Object.hasOwn(group, called))
  for (const [heading, group] of Object.entries(COMMANDS)) {
    program.commandsGroup(`${heading}:`)
    for (const [name, load] of Object.entries(group)) if (!known || name === called) (await load())(program, shell, version)
  }
  return program
}

/** Runs the command that the shell's words call, and resolves to the exit code; what went wrong has been said. */
export async function kvfold(shell: Shell): Promise<number> {
  const { out, notes, interrupt, words } = shell
  let failure: unknown = null
  try {
    await (await commandLine(shell)).parseAsync(words, { from: 'user' })
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
