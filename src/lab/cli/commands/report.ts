/** The command `kvfold report`: makes tables, figures and a page from logs of `kvfold eval`. */
import { realpathSync } from 'node:fs'
import { InvalidArgumentError, type Command } from 'commander'
import { KvfoldError } from '../../../runtime/core/errors.js'
import { agentKinds, type AgentKind } from '../../agent.js'
import type { Baseline, Measures } from '../../report/estimates.js'
import type { ConditionResult, Summary } from '../../report/summary.js'
import { count } from '../../../runtime/figures/numbers.js'
import { Labels, points, probability, withInterval } from '../../report/tables/labels.js'
import { kvfoldVersion } from '../../run/plan.js'
import { commandOf, type Shell } from '../../../runtime/cli/shell.js'
import { type Column, number, table, terminal } from '../../../runtime/figures/table.js'

interface ReportFlags {
  readonly out: string
  readonly baseline?: Baseline
  readonly json?: true
}

const FOLDER = 'kvfold-report'
/** The words for logs of episodes, which this report leaves out. */
const SESSIONS =
  'These are logs of sessions, of which `kvfold eval memtool --report FILE` and `kvfold eval service --report FOLDER` make reports'
const DEFAULT_BASELINE: Baseline = { agent: 'plain', contract: null }

const HELP = `
The folder gets report.html, which needs no network and can be printed. It also gets every table as Markdown and CSV, every figure as
SVG, and summary.json with all numbers. The report joins logs of the same model, engine, sampling, seed and version, and shows others side
by side. If logs have several answers to a sample under the same condition, the latest one counts. Logs of \`eval memtool\` and
\`eval service\` are left out; --report of these commands makes their reports.

Examples:
  $ kvfold report kvfold-eval.jsonl
  $ kvfold report monday.jsonl tuesday.jsonl --out week
  $ kvfold report contracts.jsonl --baseline sculptor:exact    compare contracts with each other`

export function addReport(program: Command, shell: Shell): void {
  program
    .command('report')
    .description('make tables, figures and a page from logs of `kvfold eval`')
    .argument('<log...>', 'JSON Lines files that `kvfold eval` wrote')
    .option('-o, --out <folder>', 'folder for the report', FOLDER)
    .option(
      '--baseline <agent[:contract]>',
      'agent with which the others are compared on the same samples (default: plain)',
      baseline,
    )
    .option('--json', 'end with a line of JSON')
    .addHelpText('after', HELP)
    .action((logs: readonly string[], flags: ReportFlags) => report(logs, flags, shell))
}

async function report(logs: readonly string[], flags: ReportFlags, shell: Shell): Promise<void> {
  refuseTwice(logs)
  const { out, notes } = shell
  const made = { date: new Date().toISOString(), kvfold: kvfoldVersion(), command: commandOf(shell) }
  const { isEpisodeLog } = await import('../../run/log-file.js')
  const sessions: string[] = []
  for (const log of logs) if (await isEpisodeLog(log)) sessions.push(log)
  const samples = logs.filter((log) => !sessions.includes(log))
  if (samples.length === 0) throw new KvfoldError('eval/bad-log', `${SESSIONS}; name logs of other tasks.`)
  if (sessions.length > 0) notes.prose(`The report leaves out ${sessions.join(', ')}. ${SESSIONS}.`, notes.colours.dim)
  // The drawing code takes long to load, so it is imported only here.
  const { publish, summaryOf } = await import('../../report/publish.js')
  const summary = await summaryOf(samples, flags.baseline ?? DEFAULT_BASELINE, made)
  if (flags.baseline !== undefined) refuseAbsent(flags.baseline, summary)
  const page = publish(summary, flags.out)
  if (flags.json === true) out.print(JSON.stringify(machineView(summary, page)))
  else {
    for (const line of lines(summary, out.rule)) out.print(line)
    out.print()
    out.print(`Report: ${page}`)
  }
}

function baseline(text: string): Baseline {
  const [name = '', contract, ...more] = text.split(':')
  const agent = agentKinds.find((kind: AgentKind) => kind === name)
  if (agent === undefined || more.length > 0 || contract === '')
    throw new InvalidArgumentError(
      `It must be one of ${agentKinds.join(', ')}, and may have a contract after it, as in sculptor:exact.`,
    )
  return { agent, contract: contract ?? null }
}

function refuseTwice(logs: readonly string[]): void {
  const real = logs.map((log) => {
    try {
      return realpathSync(log)
    } catch {
      // The error is reported when the log is read.
      return log
    }
  })
  const twice = logs.find((_, index) => real.indexOf(real[index]!) < index)
  if (twice !== undefined) throw new KvfoldError('cli/bad-usage', `You named the log ${twice} twice; name every log once.`)
}

/** Refuses a `--baseline` that the logs do not contain. The default baseline may be missing. */
function refuseAbsent({ agent, contract }: Baseline, { agents, conditions }: Summary): void {
  const there = conditions.filter((condition) => agents[condition.agent]!.agent === agent)
  if (there.some((condition) => contract === null || condition.contract === contract)) return
  const known = [...new Set(conditions.map((condition) => `${agents[condition.agent]!.agent}:${condition.contract}`))]
  throw new KvfoldError(
    'cli/bad-usage',
    `These logs have no sample of --baseline ${agent}${contract === null ? '' : `:${contract}`}; they have ${known.join(', ')}.`,
  )
}

function lines(summary: Summary, rule: string): string[] {
  const labels = new Labels(summary)
  const tokens = (title: string, of: (measures: Measures) => number | null) =>
    number<ConditionResult>(title, ({ measures }) => {
      const found = measures === null ? null : of(measures)
      return found === null ? '' : count(found)
    })
  const columns: Column<ConditionResult>[] = [
    { title: 'task', text: ({ task }) => labels.task(task) },
    { title: 'agent', text: (condition) => labels.condition(condition) },
    number('accuracy, %', ({ measures }) => (measures === null ? '' : withInterval(measures.accuracy))),
    number('difference', ({ against }) => (against === null ? '' : points(against.difference.value))),
    number('p, Holm', ({ against }) => (against === null ? '' : probability(against.holm))),
    tokens('before', ({ context }) => context.before),
    tokens('after', ({ context }) => context.after),
    tokens('computed', ({ work }) => work.submitted),
    number('answered', ({ measures, planned }) => `${measures?.answered ?? 0} of ${planned}`),
    number('errors', ({ errors }) => String(errors)),
  ]
  return terminal(table(columns, summary.conditions, { opens: (row, before) => row.task !== before.task }), rule)
}

/** Returns the object that `--json` prints: the main numbers. summary.json has all numbers. */
function machineView(summary: Summary, page: string): object {
  const labels = new Labels(summary)
  const { agents, conditions, tasks, variants } = summary
  return {
    report: page,
    baseline: summary.baseline,
    conditions: conditions.map((condition) => {
      const { measures, against, errors, planned, contract, trained } = condition
      return {
        task: tasks[condition.task]!.task,
        title: labels.task(condition.task),
        logs: variants[condition.variant]!.name,
        agent: agents[condition.agent]!.agent,
        ...{ contract, trained, planned, errors },
        answered: measures?.answered ?? 0,
        accuracy: measures?.accuracy.value ?? null,
        interval: measures?.accuracy.interval ?? null,
        tokensBefore: measures?.context.before ?? null,
        tokensAfter: measures?.context.after ?? null,
        computed: measures?.work.submitted ?? null,
        difference: against?.difference.value ?? null,
        pairs: against?.test.pairs ?? null,
        p: against?.test.p ?? null,
        pHolm: against?.holm ?? null,
      }
    }),
  }
}
