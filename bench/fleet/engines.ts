/**
 * Measures how many tokens of many clients' conversations are reused by one engine, and by three engines: with kvfold's affinity (`kvfold
 * serve --engine` three times), and with a router in between (random, SGLang's gateway, vLLM's router, nginx; see routers.ts). The engines
 * are processes that serve the built-in model: kvfold, or llama-server if it was built. All clients talk at the same time, and each sends
 * its whole conversation every turn. Reused tokens are what the engines report in their answers; computed tokens come from the engines' own
 * counters.
 * Reused tokens are reported for first and later turns, each beside the largest possible number. A later turn can reuse what the client's
 * previous turn left: all of it if the conversation stays on its engine. A first turn can reuse the beginning that all conversations share.
 * Each engine computes that beginning once, so no router can reuse it more than (clients - engines) times.
 * `npm run --silent bench -- engines [--json] [--clients 16] [--turns 6] [--seeds 2026,2027,2028] [--kind kvfold | llama-server] [--routers
 * all | none | nginx,...] [--write engines]`
 */
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { count } from '../../src/runtime/figures/numbers.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { counters } from '../runtime/client-edits/session.js'
import { ENGINES } from './engines/kinds.js'
import { type Kind as Between, ROUTERS } from './engines/routers.js'
import { common, oneWord, play, type SessionsOptions, sumOf } from './engines/sessions.js'
import { builtLlamaServer } from '../runtime/peers/llama-server.js'
import { beginRecord, keep, OPTIONS } from '../record.js'
import { HERE, type Serving, startFront, startKvfold, startLlamaServer } from '../runtime/serve/servers.js'
import type { ServerProcess } from '../server-process.js'
import { bootstrap, mean } from '../statistics.js'

/** Characters of each client message. The first message of a conversation has three times as many. */
const CHARACTERS = 500
/** Number of engines in the rows with several. */
const SEVERAL = 3

type Kind = 'kvfold' | 'llama-server'

interface Run {
  readonly seed: number
  readonly prompt: number
  /** Reused prompt tokens, as the engines report them: `first` in first turns, `later` in later turns. */
  readonly first: number
  readonly later: number
  /**
   * The largest possible `first` and `later`. First turns: the shared beginning of every conversation, minus one beginning per engine in
   * use. Later turns: what the previous turns left.
   */
  readonly mostFirst: number
  readonly mostLater: number
  /** Number of later turns that did not reuse everything that the turn before left. */
  readonly strayed: number
  /** Tokens that all engines computed, including generated ones, by their own counters. */
  readonly computed: number
  /** `moved`: conversations that moved to another engine. `failures`: requests that failed on an engine. The front reports both. */
  readonly moved: number
  readonly failures: number
  /** Reused tokens as a share of those that one engine reuses for the same conversations. */
  readonly share: number
  readonly seconds: number
}

interface Row {
  readonly engines: Kind
  readonly route: string
  readonly runs: readonly Run[]
  /** The mean of the shares, and its 95 % interval over the seeds. */
  readonly share: number
  readonly interval: readonly [number, number]
}

interface Route {
  readonly name: string
  readonly count: number
  readonly between: Between | null
}

const countersOf = (kind: Kind): readonly string[] => ENGINES.find(({ name }) => name === kind)!.counters!.plus

function start(kind: Kind, serving: Serving): Promise<ServerProcess> {
  if (kind === 'kvfold') return startKvfold('kvfold', HERE, serving)
  return startLlamaServer(serving, ['--jinja', '--metrics', '--alias', 'bench'])
}

export async function engines(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      clients: { type: 'string', default: '16' },
      turns: { type: 'string', default: '6' },
      seeds: { type: 'string', default: '2026,2027,2028' },
      kind: { type: 'string' },
      routers: { type: 'string', default: 'all' },
    },
  })
  const [clients, turns] = [Number(values.clients), Number(values.turns)]
  const seeds = values.seeds.split(',').map(Number)
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['engines', ...args], values.model, native.backend.release, 1)
  const fields = await oneWord(values.model)
  const serving: Serving = { model: values.model, slots: clients, threads: Math.max(1, cpus().length - 1), cells: clients * 4096 }
  const there: readonly Kind[] = builtLlamaServer() === null ? ['kvfold'] : ['kvfold', 'llama-server']
  const kinds = there.filter((kind) => values.kind === undefined || kind === values.kind)
  const wanted = values.routers.split(',')
  const routers = ROUTERS.filter(({ name }) => values.routers === 'all' || wanted.some((each) => name.includes(each)))
  for (const { name, missing } of routers) if (missing !== null) console.error(`${name} is left out: ${missing}`)
  const routes: readonly Route[] = [
    { name: 'one engine', count: 1, between: null },
    { name: 'three, kvfold’s affinity', count: SEVERAL, between: null },
    ...routers
      .filter(({ missing }) => missing === null)
      .map((between) => ({ name: `three, ${between.name}`, count: SEVERAL, between })),
  ]
  const rows: Row[] = []
  if (!values.json) {
    console.log('| engines | route | reused of one engine | later turns | of | first turns | at most | computed | strayed |')
    console.log('| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |')
  }
  for (const kind of kinds)
    for (const route of routes) {
      const runs = await measured(kind, route, rows.find((row) => row.engines === kind)?.runs)
      const shares = runs.map(({ share }) => share)
      const row = { engines: kind, route: route.name, runs, share: mean(shares), interval: bootstrap(shares) }
      rows.push(row)
      await keep(values.write, record())
      const of = (part: 'later' | 'mostLater' | 'first' | 'mostFirst' | 'computed' | 'strayed') =>
        count(mean(runs.map((run) => run[part])))
      const [low, high] = row.interval.map((share) => share.toFixed(3))
      // A router may strip the counts of cached tokens from the answers. Then only the computed tokens are known.
      const told = runs.some(({ first, later }) => first + later > 0)
      const share = told ? `${row.share.toFixed(3)} (${low} to ${high})` : 'not told'
      const later = told ? `${of('later')} | ${of('mostLater')}` : ' | '
      if (!values.json)
        console.log(
          `| ${kind} | ${route.name} | ${share} | ${later} | ${told ? of('first') : ''} | ${of('mostFirst')} | ${of('computed')} | ${told ? of('strayed') : ''} |`,
        )
    }
  if (values.json) console.log(JSON.stringify(record()))

  function record() {
    return { ...origin(), clients, turns, characters: CHARACTERS, seeds, rows }
  }

  /** @param one the runs with one engine, by seed */
  async function measured(kind: Kind, { name, count, between }: Route, one: readonly Run[] | undefined): Promise<readonly Run[]> {
    const open: { close(): Promise<unknown> }[] = []
    const opened = <T extends { close(): Promise<unknown> }>(each: T): T => {
      open.unshift(each)
      return each
    }
    try {
      const servers = (await Promise.all(Array.from({ length: count }, () => start(kind, serving)))).map(opened)
      const urls = servers.map(({ url }) => url)
      const router = between === null ? null : opened(await between.start(urls, seeds[0]!))
      // The router routes by this header, and may not list the model.
      const header = between?.header == null ? [] : ['--engine-session-header', between.header]
      const served = opened(
        await startFront(router === null ? urls : [router.url], clients, ['--engine-model', 'bench', ...header]),
      )
      const computedBy = () => Promise.all(servers.map((server) => counters({ server }, countersOf(kind))))
      const told = (which: string) => counters({ server: served }, [`kvfold_engine_${which}_total`])
      const runs: Run[] = []
      for (const [at, seed] of seeds.entries()) {
        const options: SessionsOptions = {
          clients,
          turns,
          characters: CHARACTERS,
          seed,
          fields,
        }
        const [before, moved, failures] = [await computedBy(), await told('moved'), await told('failures')]
        const begun = performance.now()
        const { prompt, cached, steps } = await play(served.url, options)
        const seconds = (performance.now() - begun) / 1000
        const computed = (await computedBy()).map((tokens, of) => tokens - before[of]!)
        const alone = one?.[at]
        const shared = alone === undefined ? await common(served.url, options) : alone.mostFirst / (clients - 1)
        const later = steps.filter(({ turn }) => turn > 0)
        runs.push({
          ...{ seed, prompt, seconds },
          first: cached - sumOf(later, 'cached'),
          later: sumOf(later, 'cached'),
          mostFirst: shared * (clients - computed.filter((tokens) => tokens > 0).length),
          mostLater: sumOf(later, 'left'),
          strayed: later.filter((step) => step.cached < step.left).length,
          computed: computed.reduce((sum, tokens) => sum + tokens, 0),
          moved: (await told('moved')) - moved,
          failures: (await told('failures')) - failures,
          share: alone === undefined ? 1 : cached / (alone.first + alone.later),
        })
      }
      return runs
    } catch (error) {
      throw new Error(`${kind}, ${name}: ${error instanceof Error ? error.message : String(error)}`, {
        cause: error,
      })
    } finally {
      for (const each of open) await each.close()
    }
  }
}
