#!/usr/bin/env node
/** The bin: knows all commands, turns their outcome into an exit code (0, 1 failed, 2 bad usage, 130 interrupted). */
import { readFileSync } from 'node:fs'
import { Command, CommanderError } from 'commander'
import { addAttention } from './commands/attention.js'
import { addBench } from './commands/bench.js'
import { addCalibrate } from './commands/calibrate.js'
import { addChat } from './commands/chat.js'
import { addBundle, addCompile } from './commands/compile-bundle.js'
import { addDemo } from './commands/demo.js'
import { addCollect } from './commands/collect.js'
import { addEval } from './commands/eval.js'
import { addMcp } from './commands/mcp.js'
import { addModel } from './commands/model.js'
import { addPlan } from './commands/plan.js'
import { addReport } from './commands/report.js'
import { addRun } from './commands/run.js'
import { addServe } from './commands/serve.js'
import { addStore } from './commands/store.js'
import { BAD_USAGE, describe, exitCode, INTERRUPTED, openShell, type Shell } from './shell.js'
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

function commandLine(shell: Shell): Command {
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
      outputError: (text, write) => {
        write(text.replace(/^error: /, 'kvfold: '))
      },
    })
    .showHelpAfterError('(kvfold --help lists commands, kvfold <command> --help its options)')
    .addHelpText('after', GUIDE)
  const group = (heading: string) => program.commandsGroup(`${heading}:`)
  group('Talk to a model')
  addDemo(program, shell)
  addChat(program, shell)
  addRun(program, shell)
  group('Serve it')
  addServe(program, shell, version)
  addMcp(program, shell, version)
  addStore(program, shell)
  group('This machine')
  addModel(program, shell)
  addCalibrate(program, shell)
  addCompile(program, shell)
  addBundle(program, shell)
  addBench(program, shell)
  group('Studies')
  addPlan(program, shell)
  addAttention(program, shell)
  addEval(program, shell)
  addCollect(program, shell)
  addReport(program, shell)
  return program
}

async function main(): Promise<number> {
  // Whoever reads our output may stop reading (`kvfold ... | head`).
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0)
    throw error
  })
  const shell = openShell()
  const { out, notes, interrupt } = shell
  let failure: unknown = null
  try {
    await commandLine(shell).parseAsync()
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

process.exit(await main())
