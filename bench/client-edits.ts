/**
 * Tokens that a server computes for clients that change what they sent before: prune, remove, insert, restore, compact, branch, four at once, as agents in use do. 24 turns of about 450 tokens, 12 of about 200 in
 * the table, the built-in model; kvfold by contract of client edits, and llama-server with `--cache-reuse 256` where it was built
 * (`node --import tsx bench/peers/main.ts` builds it). Counts are the servers' own.
 *
 * `npm run --silent bench -- client-edits [--json | --table]`; `--json`: one line about the pruning and the forking client, `--table`: all of them, kept in
 * `bench/results/client-edits.json`.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { fileURLToPath } from 'node:url'
import { builtinModel } from '../src/cli/builtin.js'
import { aiSdk, claudeCode, opencode, pi } from './client-edits/agents.js'
import {
  type Client,
  compacts,
  forks,
  inserts,
  plain,
  prunes,
  prunesEveryTenth,
  removes,
  restores,
  TURNS,
} from './client-edits/clients.js'
import { counters, type Served, type Session, type SessionOptions, talk } from './client-edits/session.js'
import { builtLlamaServer } from './peers/llama-server.js'
import { HERE, type Serving, startKvfold, startLlamaServer } from './serve/servers.js'

/** Of a turn's long message: about 430 tokens of the built-in model's. */
const CHARACTERS = 950
const SERVING = { model: builtinModel(), slots: 1, threads: Math.max(1, cpus().length - 1), cells: 16_384 }
const USUAL: SessionOptions = { turns: TURNS, characters: CHARACTERS, tools: false }
/** Folding begins early enough to matter in a session that fits. */
const POLICY = { acm: 'auto-policy', contract: 'splice', policy: { threshold: 0.25 } }

interface Scenario {
  readonly name: string
  readonly clients: readonly Client[]
  readonly options?: Partial<SessionOptions>
}

/** Sessions of the table are smaller. */
const SMALL = { turns: 12, characters: 400 }
const tools = { tools: true }
const SCENARIOS = (): readonly Scenario[] => [
  { name: 'nothing changed', clients: [plain] },
  { name: 'prunes every turn', clients: [prunes] },
  { name: 'prunes every turn, tool results', clients: [prunes], options: tools },
  { name: 'prunes every tenth turn', clients: [prunesEveryTenth], options: tools },
  { name: 'removes', clients: [removes], options: tools },
  { name: 'inserts', clients: [inserts], options: tools },
  { name: 'prunes and restores', clients: [restores], options: tools },
  { name: 'compacts', clients: [compacts], options: tools },
  { name: 'two branches in turn, one prunes', clients: [plain, prunes], options: { turns: 8, common: 4, ...tools } },
  {
    name: 'four at once, all prune',
    clients: [prunes, prunes, prunes, prunes],
    options: { turns: 6, together: true, ...tools },
  },
  { name: 'as opencode prunes', clients: [opencode()], options: tools },
  { name: 'as Claude Code compacts', clients: [claudeCode()], options: tools },
  { name: 'as pi compacts', clients: [pi()], options: tools },
  { name: "AI SDK's pruneMessages", clients: [aiSdk], options: tools },
]

/** A fresh server for each session: nothing is left of the one before. */
async function measured(
  name: string,
  clients: readonly Client[],
  options: Partial<SessionOptions> = {},
): Promise<Session | null> {
  const served = await start(name, { ...SERVING, slots: options.together === true ? clients.length : 1 })
  if (served === null) return null
  try {
    return await talk(served, clients, { ...USUAL, ...options })
  } finally {
    await served.server.close()
  }
}

async function start(name: string, serving: Serving): Promise<Served | null> {
  if (name === 'llama-server') {
    if (builtLlamaServer() === null) return null
    const server = await startLlamaServer(serving, ['--cache-reuse', '256', '--jinja', '--metrics', '--alias', 'bench'])
    return {
      name,
      server,
      computed: () => counters({ server }, ['llamacpp:prompt_tokens_total', 'llamacpp:tokens_predicted_total']),
    }
  }
  const server = await startKvfold(name, HERE, serving, ['--client-edits', name])
  return { name, server, computed: () => counters({ server }, ['kvfold_tokens_submitted']) }
}

const LEDGER = { fields: { kvfold: { ledger: true } } }

interface TableRow {
  readonly name: string
  /** Tokens computed where the same clients change nothing, by `exact`. */
  readonly new: number
  readonly llamaServer: number | null
  readonly exact: number
  readonly splice: number
  /** Of the last step under `splice`. */
  readonly approximate: number | null
  readonly shown: number
}

const RESULTS = fileURLToPath(new URL('results/client-edits.json', import.meta.url))

interface Table {
  readonly rows: TableRow[]
}

/** Rows that are in the file already are not measured again: without it, all are. */
async function writeTable(): Promise<void> {
  const kept = existsSync(RESULTS) ? (JSON.parse(readFileSync(RESULTS, 'utf8')) as Table).rows : []
  const rows: TableRow[] = []
  const news = new Map<string, number>()
  console.log('| client | new | llama-server | kvfold `exact` | kvfold `splice` | approximate at the end |')
  console.log('| --- | ---: | ---: | ---: | ---: | ---: |')
  const count = (tokens: number | null) => tokens?.toLocaleString('en') ?? '-'
  for (const scenario of SCENARIOS()) {
    const row = kept.find(({ name }) => name === scenario.name) ?? (await tableRow(scenario, news))
    rows.push(row)
    const cells = [row.new, row.llamaServer, row.exact, row.splice].map(count)
    console.log(`| ${[row.name, ...cells, `${count(row.approximate)} of ${count(row.shown)}`].join(' | ')} |`)
    const about = {
      command: 'npm run --silent bench -- client-edits --table',
      date: new Date().toISOString().slice(0, 10),
      ...SMALL,
    }
    writeFileSync(RESULTS, `${JSON.stringify({ ...about, rows }, null, 2)}\n`)
  }
}

async function tableRow(scenario: Scenario, news: Map<string, number>): Promise<TableRow> {
  const { name } = scenario
  const options = { ...SMALL, ...scenario.options }
  /** Clients may remember what they did, so each session has its own. */
  const run = (server: string) =>
    measured(server, SCENARIOS().find((each) => each.name === name)!.clients, {
      ...options,
      ...(server === 'llama-server' ? {} : LEDGER),
    })
  const unchanged = scenario.clients.map(() => plain)
  const same = JSON.stringify([unchanged.length, options])
  if (!news.has(same)) news.set(same, (await measured('exact', unchanged, options))!.computed)
  const [llamaServer, exact, splice] = [await run('llama-server'), (await run('exact'))!, (await run('splice'))!]
  return {
    name,
    new: news.get(same)!,
    llamaServer: llamaServer?.computed ?? null,
    exact: exact.computed,
    splice: splice.computed,
    approximate: splice.approximate,
    shown: splice.shown,
  }
}

export async function clientEdits(): Promise<void> {
  if (process.argv.includes('--table')) {
    await writeTable()
    return
  }
  const text = await measured('exact', [plain])
  const llamaServer = await measured('llama-server', [prunes])
  const exact = await measured('exact', [prunes])
  const splice = await measured('splice', [prunes])
  const forking = { tools: true, fields: { kvfold: { acm: 'off' } } }
  const doingNothing = await measured('exact', [forks], forking)
  const policyForks = await measured('exact', [forks], { ...forking, fields: { kvfold: POLICY } })
  console.log(
    JSON.stringify({
      turns: TURNS,
      new: text!.shown,
      computed: {
        llamaServer: llamaServer?.computed ?? null,
        exact: exact!.computed,
        splice: splice!.computed,
        policyForks: policyForks!.computed,
        forks: doingNothing!.computed,
      },
      seconds: {
        llamaServer: llamaServer?.seconds ?? null,
        exact: exact!.seconds,
        splice: splice!.seconds,
        policyForks: policyForks!.seconds,
        forks: doingNothing!.seconds,
      },
    }),
  )
}
