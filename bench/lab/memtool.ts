/**
 * Tokens computed in sessions of `kvfold eval memtool`, where tools come and go. The rows: the tool list in the template (the usual way),
 * the same prompts on llama-server with `--cache-reuse 256`, deferral that only appends, and ours under `exact` and under `splice`. Each
 * row is its own session, whose prompts are really computed. A row that the record already has is kept. A record with other turns, tools or
 * shape is refused.
 * `npm run --silent bench -- memtool [--turns 100] [--tools 5000] [--shape 4x256 | 1x32 | builtin] [--rows
 * list,llama-server,append,exact,splice] [--json] [--write name]`; llama-server is left out if it was not built (`node --import tsx
 * bench/runtime/peers/main.ts` builds it).
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { World } from '../../src/lab/memtool/companies.js'
import { type MemToolRun, memToolSession } from '../../src/lab/memtool/session.js'
import { count } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { synthesizeModel } from '../../src/runtime/native/synthetic.js'
import { Catalogue } from '../../src/runtime/tools/catalogue.js'
import { LlamaServerEngine } from './memtool/llama-server-engine.js'
import { builtLlamaServer } from '../runtime/peers/llama-server.js'
import { llamaServerPeer } from '../runtime/peers/llama-server-peer.js'
import { beginRecord, type Origin, RESULTS, written } from '../record.js'

/** Token counts do not depend on the weights. The smallest shape is for sessions that would take hours on a larger model. */
const SHAPES = {
  '4x256': { layers: 4, embedding: 256, heads: 4, kvHeads: 2, feedForward: 704 },
  '1x32': { layers: 1, embedding: 32, heads: 1, kvHeads: 1, feedForward: 32 },
} as const

const ROWS = {
  list: { about: 'list in the template', way: 'hybrid', placement: 'list', contract: 'exact' },
  'llama-server': { about: 'the same on llama-server, --cache-reuse 256', way: 'hybrid', placement: 'list', contract: 'exact' },
  append: { about: 'deferred, appended, never removed', way: 'deferred', placement: 'late', contract: 'exact' },
  exact: { about: 'kvfold, exact', way: 'hybrid', placement: 'late', contract: 'exact' },
  splice: { about: 'kvfold, splice', way: 'hybrid', placement: 'late', contract: 'splice' },
} as const
type RowName = keyof typeof ROWS

interface Row {
  readonly name: RowName
  readonly shown: number
  readonly computed: number
  /** Null if the server that computed the row does not report which messages are new. */
  readonly new: number | null
  readonly approximate: number
  /** Tokens of the longest prompt. */
  readonly longest: number
  readonly seconds: number
  /** Tokens computed in each turn. */
  readonly byTurn: readonly number[]
  /** The row's origin, because the rows of a record may come from several runs. */
  readonly of?: Pick<Origin, 'command' | 'commit' | 'date' | 'machine'>
}

const SEED = 1
const THREADS = 1

export async function memtool(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      json: { type: 'boolean', default: false },
      turns: { type: 'string', default: '100' },
      tools: { type: 'string', default: '5000' },
      shape: { type: 'string', default: '4x256' },
      rows: { type: 'string', default: Object.keys(ROWS).join(',') },
      cells: { type: 'string' },
      write: { type: 'string' },
    },
  })
  const [turns, tools] = [Number(values.turns), Number(values.tools)]
  const wanted = values.rows.split(',') as RowName[]
  const model = await modelOf(values.shape)
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['memtool', ...args], model, native.backend.release, THREADS)
  const path = values.write === undefined ? null : new URL(`${values.write}.json`, RESULTS)
  const world = new World({ seed: SEED, tools, arguments: true })
  const catalogue = await Catalogue.of(world.tools)
  const about = { turns, tools, shape: values.shape }
  let rows: readonly Row[] = []
  for (const name of wanted) {
    rows = path === null ? rows : rowsOf(path, about)
    if (rows.some((row) => row.name === name) || (name === 'llama-server' && builtLlamaServer() === null)) continue
    const cells = Number(values.cells ?? cellsFor(name, turns))
    const made = await measured(name, { turns, model, native, cells, world, catalogue })
    const { command, commit, date, machine } = origin()
    const row = { ...made, of: { command, commit, date, machine } }
    // Read the file again, because another process may have added rows. Write at once, because the next row may take hours.
    const all = [...(path === null ? rows : rowsOf(path, about)), row]
    rows = Object.keys(ROWS).flatMap((each) => all.find((known) => known.name === each) ?? [])
    if (path !== null) writeFileSync(path, await written({ ...origin(), ...about, rows }))
  }
  catalogue.close()
  const fresh = (row: Row) => row.new ?? rows.find(({ name }) => name === 'list')?.new ?? null
  if (values.json) {
    console.log(
      JSON.stringify({
        turns,
        tools,
        shape: values.shape,
        rows: rows.map((row) => ({ ...row, new: fresh(row), byTurn: undefined })),
      }),
    )
    return
  }
  const lines = table(
    [left('way'), ...['computed', 'new', 'computed / new', 'approximate', 'longest prompt'].map(right)],
    rows.map((row) => {
      const own = fresh(row)
      return [
        ...[ROWS[row.name].about, count(row.computed), own === null ? '-' : count(own)],
        ...[own === null ? '-' : (row.computed / own).toFixed(2), count(row.approximate), count(row.longest)],
      ]
    }),
  )
  for (const line of terminal(lines, '─')) console.log(line)
}

/** A record's options. Rows with different options come from different sessions and must not be compared. */
interface About {
  readonly turns: number
  readonly tools: number
  readonly shape: string
}

/** Returns a record's rows; empty if there is no record. @throws Error if the record has other options */
export function rowsOf(path: URL, { turns, tools, shape }: About): readonly Row[] {
  if (!existsSync(path)) return []
  const record = JSON.parse(readFileSync(path, 'utf8')) as About & { readonly rows: readonly Row[] }
  if (record.tools !== tools || record.shape !== shape || record.turns !== turns)
    throw new Error(
      `${path.pathname} has rows of ${record.turns} turns, ${record.tools} tools and shape ${record.shape}; write to another name.`,
    )
  return record.rows
}

async function modelOf(shape: string): Promise<string> {
  if (shape === 'builtin') return builtinModel()
  if (!(shape in SHAPES)) throw new Error(`There is no shape ${shape}; there are ${Object.keys(SHAPES).join(', ')} and builtin.`)
  const path = join(tmpdir(), `kvfold-bench-memtool-${shape}.gguf`)
  const own = SHAPES[shape as keyof typeof SHAPES]
  await synthesizeModel(path, { architecture: 'llama', ...own, vocabulary: 8192, context: 1 << 20, type: 'f16', seed: 1 })
  return path
}

/**
 * Returns the cells that a session needs. A turn leaves about 1,000 tokens, or 4,000 if no tools are removed; the rest is for one complete
 * turn.
 */
const cellsFor = (name: RowName, turns: number): number => 1024 * Math.ceil((name === 'append' ? 4.5 : 1.4) * turns + 16)

interface Setting {
  readonly turns: number
  readonly model: string
  readonly native: Awaited<ReturnType<typeof openNative>>
  readonly cells: number
  readonly world: World
  readonly catalogue: Catalogue
}

async function measured(name: RowName, { turns, model, native, cells, world, catalogue }: Setting): Promise<Row> {
  const { way, placement, contract } = ROWS[name]
  const run: MemToolRun = { agent: 'taught', way, placement, contract, turns, relation: 'mixed', seed: SEED }
  const isPeer = name === 'llama-server'
  const engine = await LlamaEngine.load(native, model, {
    ...{ threads: THREADS, batchThreads: THREADS, slots: 1, cells: isPeer ? 1024 : cells },
  })
  const peer = isPeer ? await llamaServerPeer(builtLlamaServer()!, { model, contextSize: cells, threads: THREADS }) : null
  const begun = performance.now()
  try {
    const { tokens, sessions } = await memToolSession(run, {
      engine: peer === null ? engine : new LlamaServerEngine(engine, peer),
      ...{ world, catalogue },
      onTurn: ({ turn, tokens: { after }, work }) => {
        const seconds = Math.round((performance.now() - begun) / 1000)
        console.error(`${name}: turn ${turn + 1} of ${turns}, ${work.submitted} computed, ${after} shown, ${seconds} s`)
      },
    })
    return {
      name,
      shown: tokens.shown,
      computed: tokens.computed,
      new: isPeer ? null : tokens.new,
      approximate: tokens.approximate,
      longest: Math.max(...sessions.flat().map(({ tokens: { most } }) => most)),
      seconds: (performance.now() - begun) / 1000,
      byTurn: sessions.flat().map(({ work }) => work.submitted),
    }
  } finally {
    await peer?.close()
    await engine.dispose()
  }
}
