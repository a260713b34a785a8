/**
 * A fleet on paper: what engines reuse and compute, and how long clients wait, by who decides where a request goes, for 1 to 1,000 engines. A
 * discrete-event simulation, the same for the same seed: engines batch requests and keep beginnings of prompts; `affinity` is the code of src/fleet/engines itself; others are by their documentation. How fast
 * engines are is assumed (below). `--real`: three engines are run beside a simulation of the same sessions, at the calibrated rates of the built-in model on one core; where engines share cores, the simulated ones do.
 *
 * `--sizing`: how many engines a number of clients needs (`--engines 0`: that alone).
 *
 * `npm run --silent bench -- fleet [--json] [--seed 2026] [--engines 1,3,10,30,100,300,1000] [--policies affinity,random] [--sizing] [--real] [--calibrate] [--write] [--draw]`; `--write`
 * keeps the record in results/fleet.json and draws docs/fleet-policies.svg; what was measured before and not now stays in it; `--calibrate` measures this machine anew.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { calibrate, SEQUENCES } from '../../src/runtime/engine/calibrate.js'
import { measuredOn } from '../../src/runtime/engine/calibration.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import type { CostModel } from '../../src/runtime/kv/cost-model.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { Native } from '../../src/runtime/native/types.js'
import { WORD } from './engines/sessions.js'
import { drawn, type FleetRecord, type RealRow, type Row, type SizingRow } from './simulated/drawing.js'
import { playedFor, ROUTES } from './simulated/real.js'
import { POLICIES, type PolicyName } from './simulated/policies.js'
import { bound, type Outcome, simulate } from './simulated/simulation.js'
import { fewest } from './simulated/sizing.js'
import { agents, chats, type Count, type TrafficOptions } from './simulated/traffic.js'
import { beginRecord, SEED, written } from '../record.js'

const RESULTS = new URL('results/fleet.json', import.meta.url)
const FIGURE = new URL('../../docs/fleet-policies.svg', import.meta.url)

/** What is run for real. */
const REAL = { clients: 16, turns: 6, characters: 500 }
/** Clients for each engine; what each says is ten times as long as in `bench -- client-edits`, 20,000 tokens in the end. */
const CLIENTS = 8
const AGENTS = { scripts: 64, turns: 16, characters: 1000, scale: 10 }
/** Seconds that an agent does something else between two requests, on average. */
const PAUSE = 4

/**
 * An engine as it is assumed, not measured, with an 8B model on one large GPU: 20,000 tokens of a prompt a second, 8 ms a decode and 0.8 ms more for every
 * 10,000 tokens that its batch reads, room for 150,000 tokens.
 */
const ASSUMED: FleetRecord['assumed'] = {
  speed: {
    prefill: {
      rates: { call: 8, token: 0.05, read: 0.00008, attended: 0, scanned: 0 },
      residual: { median: 0, worst: 0 },
      samples: 0,
    },
  },
  ...{ slots: 64, cells: 150_000, chunk: 4096 },
}
/** Clients, each a request some `pause` seconds after its last answer; milliseconds within which 95 % of the first tokens are to come. */
const SIZING = { clients: [20, 50, 100, 200, 500], pause: 10, limit: 2000, policies: ['affinity', 'random'] as const }

export async function fleet(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...SEED,
      json: { type: 'boolean', default: false },
      engines: { type: 'string', default: '1,3,10,30,100,300,1000' },
      policies: { type: 'string', default: POLICIES.join() },
      real: { type: 'boolean', default: false },
      sizing: { type: 'boolean', default: false },
      calibrate: { type: 'boolean', default: false },
      write: { type: 'boolean', default: false },
      draw: { type: 'boolean', default: false },
    },
  })
  const kept = existsSync(RESULTS) ? (JSON.parse(readFileSync(RESULTS, 'utf8')) as FleetRecord) : null
  if (values.draw) {
    writeFileSync(FIGURE, drawn(kept!))
    return
  }
  const seed = Number(values.seed)
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['fleet', ...args], builtinModel(), native.backend.release, 1)
  const speed = values.calibrate || kept === null ? await speedHere(native) : kept.speed
  const count = await counting(native)
  const say = (line: string) => {
    if (!values.json) console.log(line)
  }

  const scripts = agents({ ...AGENTS, seed }, count)
  const sizes = values.engines
    .split(',')
    .map(Number)
    .filter((size) => size > 0)
  if (sizes.length > 0) {
    say('| engines | who decides | reused | of what could be | computed | first token p50 / p99 | moved |')
    say('| ---: | --- | ---: | ---: | ---: | ---: | ---: |')
  }
  const rows: Row[] = (kept?.seed === seed ? kept.rows : []).filter(({ engines }) => !sizes.includes(engines))
  for (const engines of sizes) {
    const options = {
      ...{ ...ASSUMED, engines, cores: null, clients: CLIENTS * engines, fronts: 1, seed },
      ...{ pause: PAUSE, conversations: 1, drawn: true, policy: 'affinity' as PolicyName },
    }
    const most = bound(options, scripts)
    const ways =
      engines === 1
        ? [{ policy: 'affinity' as const, fronts: 1 }]
        : [...POLICIES.map((policy) => ({ policy, fronts: 1 })), { policy: 'affinity' as const, fronts: 4 }]
    for (const way of ways) {
      if (!values.policies.split(',').includes(way.policy)) continue
      const outcome = simulate({ ...options, ...way }, scripts)
      rows.push({ engines, clients: options.clients, ...way, bound: most, ...outcome })
      say(lineOf(rows.at(-1)!))
    }
  }

  const sizing = values.sizing ? sized(seed, count, say) : (kept?.sizing ?? [])
  const real = values.real ? await compared(seed, speed, count, say) : (kept?.real ?? [])
  // Rows of the simulation are the same on every machine; those that were run are of the one that they were run on.
  const here = origin()
  const { command, commit, date, machine, model } = values.real || kept === null ? here : kept
  const record: FleetRecord = {
    ...{ command, commit, date, machine, model },
    simulated: { command: here.command, commit: here.commit, date: here.date },
    seed,
    speed,
    agents: { ...AGENTS, pause: PAUSE },
    rows,
    sizing,
    assumed: ASSUMED,
    chats: REAL,
    real,
  }
  if (values.json) console.log(JSON.stringify(record))
  if (!values.write) return
  writeFileSync(RESULTS, await written(record))
  writeFileSync(FIGURE, drawn(record))
}

const nameOf = ({ policy, fronts }: Pick<Row, 'policy' | 'fronts'>): string =>
  fronts === 1 ? policy : `${policy}, ${fronts} fronts`

function lineOf(row: Row): string {
  const share = row.cached / row.prompt
  const seconds = (milliseconds: number) => (milliseconds / 1000).toFixed(2)
  return `| ${row.engines} | ${nameOf(row)} | ${share.toFixed(3)} | ${(share / row.bound).toFixed(3)} | ${row.computed.toLocaleString('en')} | ${seconds(row.firstToken.p50)} / ${seconds(row.firstToken.p99)} s | ${row.moved} |`
}

/** The fewest engines with which 95 % of first tokens come within the limit; where not even one for each client is enough, that is said. */
function sized(seed: number, count: Count, say: (line: string) => void): SizingRow[] {
  const scripts = agents({ ...AGENTS, seed }, count)
  const rows: SizingRow[] = []
  say('')
  say(`| clients | requests a second | ${SIZING.policies.join(' | ')} |`)
  say(`| ---: | ---: |${' ---: |'.repeat(SIZING.policies.length)}`)
  for (const clients of SIZING.clients) {
    const tried = (policy: PolicyName) => (engines: number) => {
      const { firstToken, cached, prompt, busy, requests, seconds } = simulate(
        {
          ...{ ...ASSUMED, engines, cores: null, clients, fronts: 1, policy, seed },
          ...{ pause: SIZING.pause, conversations: 2, drawn: true },
        },
        scripts,
      )
      return { engines, p95: firstToken.p95, reused: cached / prompt, busy, rate: requests / seconds }
    }
    // As many for each client as fewer clients needed.
    const before = rows.at(-1)
    const guess = (policy: keyof SizingRow['by']) =>
      before === undefined ? Math.ceil(clients / CLIENTS) : Math.round((before.by[policy].engines * clients) / before.clients)
    const found = (policy: keyof SizingRow['by']) =>
      fewest(tried(policy), ({ p95 }) => p95 <= SIZING.limit, { guess: guess(policy), most: clients })
    const row: SizingRow = { clients, limit: SIZING.limit, by: { affinity: found('affinity'), random: found('random') } }
    rows.push(row)
    const said = ({ engines, p95, reused, busy, enough }: SizingRow['by']['affinity']) =>
      `${enough ? engines : `none, ${engines} neither`} (${(p95 / 1000).toFixed(2)} s, reused ${reused.toFixed(2)}, busy ${busy.toFixed(2)})`
    const rates = SIZING.policies.map((policy) => row.by[policy].rate.toFixed(1)).join(' / ')
    say(`| ${clients} | ${rates} | ${SIZING.policies.map((policy) => said(row.by[policy])).join(' | ')} |`)
  }
  return rows
}

/** The same sessions, simulated and run. */
async function compared(
  seed: number,
  speed: FleetRecord['speed'],
  count: Count,
  say: (line: string) => void,
): Promise<RealRow[]> {
  const traffic: TrafficOptions = { scripts: REAL.clients, turns: REAL.turns, characters: REAL.characters, seed, scale: 1 }
  const scripts = chats(traffic, count, WORD)
  const rows: RealRow[] = []
  say('')
  say('| three engines | prompts | reused | computed | median seconds a request |')
  say('| --- | ---: | ---: | ---: | ---: |')
  for (const route of ROUTES) {
    const played = await playedFor(route, { ...REAL, seed })
    const simulated = simulate(
      {
        ...{ speed, seed, fronts: 1, clients: REAL.clients, conversations: 1, drawn: false, pause: 0 },
        ...{ slots: REAL.clients, cells: REAL.clients * 4096, chunk: 512, engines: route === 'one engine' ? 1 : 3 },
        cores: cpus().length,
        policy: route === 'random' ? 'random' : 'affinity',
      },
      scripts,
    )
    rows.push({ route, played, simulated })
    const line = (name: string, { prompt, cached, computed }: RealRow['played'] | Outcome, seconds: number) =>
      `| ${route}, ${name} | ${prompt} | ${cached} (${(cached / prompt).toFixed(3)}) | ${computed} | ${seconds.toFixed(2)} |`
    say(line('run', played, played.seconds.p50))
    say(line('simulated', simulated, simulated.total.p50 / 1000))
  }
  return rows
}

/** On one core, as every engine of the fleet has one. */
async function speedHere(native: Native): Promise<Pick<CostModel, 'prefill' | 'on'>> {
  const settings = { threads: 1, batchThreads: 1, ubatch: 512, flashAttention: 'on' as const }
  const model = await native.loadModel(builtinModel())
  try {
    const context = await model.createContext({ ...settings, cells: 18_432, sequences: SEQUENCES })
    const on = measuredOn({ info: model.info, settings, backend: native.backend }, context)
    const { prefill } = await calibrate(context, model.info.vocabulary, on, { budget: 10_000 })
    return { prefill, on }
  } finally {
    await model.dispose()
  }
}

/** By the built-in model's own template: what is not a message's is shared evenly. */
async function counting(native: Native): Promise<Count> {
  const engine = await LlamaEngine.load(native, builtinModel(), { threads: 1, batchThreads: 1, cells: 2048 })
  const lengthOf = (content: string) => engine.model.tokenize(content).length
  const three = (['user', 'assistant', 'user'] as const).map((role) => ({ role, content: WORD }))
  const markup = (engine.count(three, []) - 3 * lengthOf(WORD)) / 3
  const known = new Map<string, number>()
  return ({ content }) => {
    const tokens = known.get(content) ?? lengthOf(content)
    known.set(content, tokens)
    return tokens + markup
  }
}
