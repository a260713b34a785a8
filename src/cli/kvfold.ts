/** The program `kvfold`, with the commands of the runtime and of the laboratory. */
import { commands as lab } from '../lab/cli/commands.js'
import { commands as runtime, run } from '../runtime/cli/command-line.js'
import type { Shell } from '../runtime/cli/shell.js'

/** The text that `kvfold` prints without a command. It names the five most common uses. */
const OPENING = `kvfold runs language models whose cache follows the conversation: old text folds away, and comes back for nothing.

  kvfold demo                            see in a minute what that is good for
  kvfold chat --model model.gguf         talk to a model; /help lists what you can do to its context
  kvfold serve --model model.gguf        serve it to agents and programs, with a dashboard for your browser
  kvfold plan conversation.json          see what folds in a conversation of yours would cost and save
  kvfold doctor                          see what this machine has, and what is missing

A model is a GGUF file, or hf:user/repository/file.gguf. Without --model the small built-in one answers.
kvfold --help lists all commands, and kvfold <command> --help its options.`

const GUIDE = `
Examples:
  $ kvfold demo                               a conversation longer than the context, on the built-in model
  $ kvfold chat --model qwen3-4b-q8_0.gguf    talk to any GGUF; /help lists what you can do to its context
  $ kvfold pull hf:owner/repository:Q4_K_M    a model of the hub; kvfold list names it, kvfold chat NAME talks to it
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

/** Runs the command that the user typed. Resolves to the exit code. Errors are already printed on the shell's streams by then. */
export const kvfold = (shell: Shell): Promise<number> => run({ commands: [runtime, lab], opening: OPENING, guide: GUIDE }, shell)
