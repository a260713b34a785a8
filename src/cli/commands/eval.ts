/** `kvfold eval`: tasks, answered by agents and scored, each record in a log that stands alone. */
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { agentKinds } from '../../eval/agent.js'
import { addEvalOptions, type EvalFlags } from '../eval/flags.js'
import { addEvalService } from './eval-service.js'
import { addMemTool } from '../eval/memtool.js'
import { askedTasks, taskHelp } from '../eval/specs.js'
import type { Shell } from '../shell.js'

/** What `kvfold eval table` stands for; options given beside it count instead. Steps are cut short so that agents that lost their way end soon. */
const TABLE = { tasks: ['pi-llm', 'needles', 'similar'], samples: 20, sizes: [2000, 4000], needles: [4], maxTokens: 512 } as const

const HELP = `
Tasks:
${taskHelp()}
  table          ${TABLE.tasks.join(', ')} by all agents, prompts of 2,000 and 4,000 tokens: --agent all
                 --samples ${TABLE.samples} --sizes 2k,4k --needles 4 --max-tokens ${TABLE.maxTokens}

Examples:
  $ kvfold eval pi-llm --n 4,16,64 --agent plain,sculptor
  $ kvfold eval needles similar --needles 4 --length 8k --model qwen3-4b-q8_0.gguf
  $ kvfold eval mrcr --data 2needle.parquet --limit 100 --engine http://127.0.0.1:8000/v1
  $ kvfold eval table                          the built-in model, all agents; stop it and go on as you like

A run that was stopped goes on with the same command. The log (JSON Lines, docs/eval-log.schema.json) has every message, call and step;
kvfold report makes tables and figures of it.

Sessions of many turns have commands of their own: kvfold eval memtool --help.`

export function addEval(program: Command, shell: Shell): void {
  const command = program
    .command('eval')
    .description('how well, from how much context and at what cost agents answer: accuracy, tokens and time, with a log')
    .argument('<task...>', 'what to ask; see below')
  // They have options of their own, some of the same names.
  addEvalService(command.enablePositionalOptions(), shell)
  addMemTool(command, shell)
  addEvalOptions(command)
    .addHelpText('after', HELP)
    .action(async (words: string[], flags: EvalFlags) => {
      const { tasks, options } = words.includes('table') ? table(words, flags) : { tasks: words, options: flags }
      const asked = askedTasks(tasks, options)
      // Other commands should not wait for the libraries of this one.
      const { evaluate } = await import('../eval/evaluate.js')
      await evaluate(asked, options, shell)
    })
}

/** @throws KvfoldError cli/bad-usage for tasks beside it */
function table(words: readonly string[], flags: EvalFlags): { readonly tasks: readonly string[]; readonly options: EvalFlags } {
  if (words.length > 1)
    throw new KvfoldError('cli/bad-usage', 'The table is a list of tasks itself; ask for it alone, or for tasks by name.')
  const { sizes, needles, samples, maxTokens, tasks } = TABLE
  const lengths = flags.n === undefined && flags.length === undefined ? { sizes } : {}
  return { tasks, options: { agent: agentKinds, samples, needles, maxTokens, ...lengths, ...flags } }
}
