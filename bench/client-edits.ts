/**
 * Tokens that a server computes for clients that change what they sent before: prune, remove, insert, restore, compact, two branches in turn. 24 turns of
 * about 450 tokens, the built-in model, one client at a time; kvfold by contract of client edits, and llama-server with `--cache-reuse 256`
 * where it was built (`node --import tsx bench/peers/main.ts` builds it). Counts are the servers' own.
 *
 * `npm run --silent bench -- client-edits [--json]`; with `--json` only what the last line says is measured.
 */
import { cpus } from 'node:os'
import { builtinModel } from '../src/cli/builtin.js'
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
import { HERE, startKvfold, startLlamaServer } from './serve/servers.js'

/** Of a turn's long message: about 430 tokens of the built-in model's. */
const CHARACTERS = 950
const SERVING = { model: builtinModel(), slots: 1, threads: Math.max(1, cpus().length - 1), cells: 16_384 }
const USUAL: SessionOptions = { turns: TURNS, characters: CHARACTERS, tools: false }
/** Folding begins early enough to matter in a session that fits. */
const POLICY = { acm: 'auto-policy', contract: 'splice', policy: { threshold: 0.25 } }

const SCENARIOS: readonly {
  readonly name: string
  readonly clients: readonly Client[]
  readonly options?: Partial<SessionOptions>
}[] = [
  { name: 'nothing changed', clients: [plain] },
  { name: 'prunes every turn', clients: [prunes] },
  { name: 'prunes every turn, tool results', clients: [prunes], options: { tools: true } },
  { name: 'prunes every tenth turn', clients: [prunesEveryTenth] },
  { name: 'removes', clients: [removes] },
  { name: 'inserts', clients: [inserts] },
  { name: 'prunes and restores', clients: [restores] },
  { name: 'compacts', clients: [compacts] },
  { name: 'two branches in turn', clients: [plain, prunes], options: { turns: TURNS / 2 } },
]

/** A fresh server for each session: nothing is left of the one before. */
async function measured(
  name: string,
  clients: readonly Client[],
  options: Partial<SessionOptions> = {},
): Promise<Session | null> {
  const served = await start(name)
  if (served === null) return null
  try {
    return await talk(served, clients, { ...USUAL, ...options })
  } finally {
    await served.server.close()
  }
}

async function start(name: string): Promise<Served | null> {
  if (name === 'llama-server') {
    if (builtLlamaServer() === null) return null
    const server = await startLlamaServer(SERVING, ['--cache-reuse', '256', '--jinja', '--metrics', '--alias', 'bench'])
    return {
      name,
      server,
      computed: () => counters({ server }, ['llamacpp:prompt_tokens_total', 'llamacpp:tokens_predicted_total']),
    }
  }
  const server = await startKvfold(name, HERE, SERVING, ['--client-edits', name])
  return { name, server, computed: () => counters({ server }, ['kvfold_tokens_submitted']) }
}

const LEDGER = { fields: { kvfold: { ledger: true } } }

export async function clientEdits(json: boolean): Promise<void> {
  const columns = ['llama-server', 'exact', 'splice'] as const
  if (!json) {
    console.log(`${TURNS} turns; tokens computed (seconds)`)
    console.log(''.padEnd(34) + columns.map((column) => column.padStart(18)).join(''))
    for (const { name, clients, options = {} } of SCENARIOS) {
      const row: (Session | null)[] = []
      for (const column of columns)
        row.push(await measured(column, clients, { ...options, ...(column === 'llama-server' ? {} : LEDGER) }))
      const cells = row.map((session) =>
        (session === null ? '-' : `${session.computed} (${session.seconds.toFixed(1)})`).padStart(18),
      )
      console.log(name.padEnd(34) + cells.join('') + `   approximate ${row[2]?.approximate ?? '-'}`)
    }
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
