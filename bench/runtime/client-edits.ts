/**
 * Tokens that a server computes for clients that change earlier messages: they prune, remove, insert, restore, compact, branch, run four at
 * a time, or behave as agents in use do. Sessions have 24 turns of about 450 tokens (in the table, 12 of about 200), on the built-in model.
 * Runs kvfold with each contract of client edits, and llama-server if it was built (`node --import tsx bench/runtime/peers/main.ts` builds
 * it). llama-server runs with `--cache-reuse 256`, which shifts text that it finds again after a change and is approximate, and without it,
 * which is exact. All servers are made to give the same answers, so that the prompts are the same too. Counts are the servers' own.
 * `npm run --silent bench -- client-edits [--json | --table] [--rounds 3] [--beside folder] [--write name]`; `--json`: one line about the
 * pruning and the branching client, with seconds and the servers' CPU seconds as medians of alternating rounds; `--beside`: another kvfold
 * package, for example this one over a CPU library that was compiled for the processor; `--table`: all clients, kept in
 * `bench/results/client-edits.json`.
 */
import { existsSync, readFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
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
import { openNative } from '../../src/runtime/native/binding.js'
import { builtLlamaServer } from './peers/llama-server.js'
import { median } from '../random-tokens.js'
import { beginRecord, keep, RESULTS } from '../record.js'
import { HERE, type Serving, startKvfold, startLlamaServer } from './serve/servers.js'

/** Characters of a turn's long message: about 430 tokens of the built-in model. */
const CHARACTERS = 950
const SERVING = { model: builtinModel(), slots: 1, threads: Math.max(1, cpus().length - 1), cells: 16_384 }
const USUAL: SessionOptions = { turns: TURNS, characters: CHARACTERS, tools: false }
/** `REUSING`: llama-server as an approximate server, which reuses text that it finds again after a change. `PLAIN`: without that. */
const REUSING = 'llama-server --cache-reuse 256'
const PLAIN = 'llama-server'
/** The kvfold package of another folder (`--beside`). */
const BESIDE = 'beside'
/** The only token of every answer. Tokenized again, its text is the same token. */
const WORD = ' the'
/** Folding begins early enough to matter in a session that fits into the context. */
const POLICY = { acm: 'auto-policy', contract: 'splice', policy: { threshold: 0.25 } }

interface Scenario {
  readonly name: string
  readonly clients: readonly Client[]
  readonly options?: Partial<SessionOptions>
}

/** The options of the table's sessions, which are smaller. */
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

/** Starts a fresh server for each session, so that no state of an earlier one is left. */
async function measured(
  name: string,
  clients: readonly Client[],
  options: Partial<SessionOptions> = {},
): Promise<Session | null> {
  const served = await start(name, { ...SERVING, slots: options.together === true ? clients.length : 1 })
  if (served === null) return null
  try {
    return await talk(served, clients, { ...USUAL, ...options, fields: { ...options.fields, logit_bias: await answering() } })
  } finally {
    await served.server.close()
  }
}

async function answering(): Promise<Record<string, number>> {
  const vocabulary = await (await openNative({ gpu: 'cpu' })).loadModel(SERVING.model, { vocabOnly: true })
  const [token, ...more] = vocabulary.tokenize(WORD)
  await vocabulary.dispose()
  if (token === undefined || more.length > 0) throw new Error(`'${WORD}' is not one token of ${SERVING.model}`)
  return { [token]: 100 }
}

async function start(name: string, serving: Serving): Promise<Served | null> {
  if (name === PLAIN || name === REUSING) {
    if (builtLlamaServer() === null) return null
    const reuse = name === REUSING ? ['--cache-reuse', '256'] : []
    const server = await startLlamaServer(serving, [...reuse, '--jinja', '--metrics', '--alias', 'bench'])
    return {
      name,
      server,
      computed: () => counters({ server }, ['llamacpp:prompt_tokens_total', 'llamacpp:tokens_predicted_total']),
    }
  }
  const { beside } = flags()
  if (name === BESIDE && beside === undefined) return null
  const [folder, edits] = name === BESIDE ? [beside!, 'exact'] : [HERE, name]
  const server = await startKvfold(name, folder, serving, ['--client-edits', edits])
  return { name, server, computed: () => counters({ server }, ['kvfold_tokens_submitted']) }
}

const LEDGER = { fields: { kvfold: { ledger: true } } }

interface TableRow {
  readonly name: string
  /** Tokens that `exact` computes if the same clients change nothing. */
  readonly new: number
  readonly llamaServer: number | null
  /** Without `--cache-reuse`. */
  readonly llamaServerExact: number | null
  readonly exact: number
  readonly splice: number
  /** Approximate tokens of the last step under `splice`. */
  readonly approximate: number | null
  readonly shown: number
}

const RECORD = new URL('client-edits.json', RESULTS)

const begin = async () =>
  beginRecord(process.argv.slice(2), SERVING.model, (await openNative({ gpu: 'cpu' })).backend.release, SERVING.threads)

/** Measures all clients, and continues a record of the same commit. @throws Error if llama-server is not built */
async function writeTable(): Promise<void> {
  // Without llama-server, its column would be overwritten with nothing.
  if (builtLlamaServer() === null)
    throw new Error(
      'The table has llama-server beside: `node --import tsx bench/runtime/peers/main.ts` builds it; without it leave --table out.',
    )
  const origin = await begin()
  const before = existsSync(RECORD) ? (JSON.parse(readFileSync(RECORD, 'utf8')) as { commit?: string; rows: TableRow[] }) : null
  const kept = before?.commit === origin().commit ? before.rows : []
  const rows: TableRow[] = []
  const news = new Map<string, number>()
  console.log(`| client | new | ${REUSING} | ${PLAIN} | kvfold \`exact\` | kvfold \`splice\` | approximate at the end |`)
  console.log('| --- | ---: | ---: | ---: | ---: | ---: | ---: |')
  const count = (tokens: number | null) => tokens?.toLocaleString('en') ?? '-'
  for (const scenario of SCENARIOS()) {
    const row = kept.find(({ name }) => name === scenario.name) ?? (await tableRow(scenario, news))
    rows.push(row)
    const cells = [row.new, row.llamaServer, row.llamaServerExact, row.exact, row.splice].map(count)
    console.log(`| ${[row.name, ...cells, `${count(row.approximate)} of ${count(row.shown)}`].join(' | ')} |`)
    await keep('client-edits', { ...origin(), ...SMALL, rows })
  }
  const above = rows.filter(({ exact, llamaServerExact }) => llamaServerExact !== null && exact > llamaServerExact)
  const told = above.map(({ name, exact, llamaServerExact }) => `${name} (${exact} against ${llamaServerExact})`).join(', ')
  console.log(`\n\`exact\` computes more than llama-server without --cache-reuse: ${told || 'nowhere'}`)
}

async function tableRow(scenario: Scenario, news: Map<string, number>): Promise<TableRow> {
  const { name } = scenario
  const options = { ...SMALL, ...scenario.options }
  /** Clients may remember what they did, so each session gets new ones. */
  const run = (server: string) =>
    measured(server, SCENARIOS().find((each) => each.name === name)!.clients, {
      ...options,
      ...(server === PLAIN || server === REUSING ? {} : LEDGER),
    })
  const unchanged = scenario.clients.map(() => plain)
  const same = JSON.stringify([unchanged.length, options])
  if (!news.has(same)) news.set(same, (await measured('exact', unchanged, options))!.computed)
  const [reusing, plainly] = [await run(REUSING), await run(PLAIN)]
  const [exact, splice] = [(await run('exact'))!, (await run('splice'))!]
  return {
    name,
    new: news.get(same)!,
    llamaServer: reusing?.computed ?? null,
    llamaServerExact: plainly?.computed ?? null,
    exact: exact.computed,
    splice: splice.computed,
    approximate: splice.approximate,
    shown: splice.shown,
  }
}

/** The servers in the order of every round. */
const PRUNING = { llamaServer: REUSING, llamaServerExact: PLAIN, exact: 'exact', [BESIDE]: BESIDE, splice: 'splice' }

const flags = () =>
  parseArgs({
    args: process.argv.slice(3),
    options: {
      json: { type: 'boolean' },
      table: { type: 'boolean' },
      rounds: { type: 'string', default: '1' },
      beside: { type: 'string' },
      write: { type: 'string' },
    },
  }).values

export async function clientEdits(): Promise<void> {
  if (flags().table === true) {
    await writeTable()
    return
  }
  const origin = await begin()
  const text = await measured('exact', [plain])
  const sessions: [string, Session | null][] = []
  for (let round = 0; round < Number(flags().rounds); round++)
    for (const [key, server] of Object.entries(PRUNING)) sessions.push([key, await measured(server, [prunes], { warm: true })])
  const forking = { tools: true, fields: { kvfold: { acm: 'off' } } }
  sessions.push(['forks', await measured('exact', [forks], forking)])
  sessions.push(['policyForks', await measured('exact', [forks], { ...forking, fields: { kvfold: POLICY } })])
  const told = (of: (session: Session) => number | null) => {
    const all = new Map<string, number[]>()
    for (const [key, session] of sessions)
      all.set(key, [...(all.get(key) ?? []), ...(session === null ? [] : [of(session) ?? []].flat())])
    return Object.fromEntries([...all].map(([key, values]) => [key, values.length === 0 ? null : median(values)]))
  }
  const [computed, seconds] = [told((session) => session.computed), told((session) => session.seconds)]
  const cpuSeconds = told((session) => session.cpuSeconds)
  const result = { turns: TURNS, rounds: Number(flags().rounds), new: text!.shown, computed, seconds, cpuSeconds }
  await keep(flags().write, { ...origin(), ...result })
  console.log(JSON.stringify(result))
}
