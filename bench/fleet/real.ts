/** Owns the row of the fleet that is run: three kvfold engines behind a kvfold front, each a process, and the sessions of `bench -- engines`. */
import { join } from 'node:path'
import { builtinModel } from '../../src/cli/builtin.js'
import { openNative } from '../../src/native/binding.js'
import { counters } from '../client-edits/session.js'
import { ROUTERS } from '../engines/routers.js'
import { play, type SessionsOptions } from '../engines/sessions.js'
import { HERE, startKvfold } from '../serve/servers.js'
import { type ServerProcess, startServer } from '../server-process.js'

/** One engine as a control, three by affinity, three by a router that draws for every request. */
export const ROUTES = ['one engine', 'affinity', 'random'] as const
export type Route = (typeof ROUTES)[number]

export interface Run {
  /** Tokens of prompts, those that engines had, and all that engines computed, by their own counters. */
  readonly prompt: number
  readonly cached: number
  readonly computed: number
  readonly moved: number
  /** A request's, from its sending to its whole answer. */
  readonly seconds: { readonly p50: number; readonly p95: number; readonly p99: number }
}

/** Of every answer's tokens the only one, so that all prompts are those that are simulated. */
const WORD = ' the'

export async function playedFor(route: Route, options: Omit<SessionsOptions, 'fields'>): Promise<Run> {
  const vocabulary = await (await openNative({ gpu: 'cpu' })).loadModel(builtinModel(), { vocabOnly: true })
  const [token] = vocabulary.tokenize(WORD)
  await vocabulary.dispose()
  const serving = { model: builtinModel(), slots: options.clients, threads: 1, cells: options.clients * 4096 }
  const open: { close(): Promise<unknown> }[] = []
  const opened = <T extends { close(): Promise<unknown> }>(each: T): T => {
    open.unshift(each)
    return each
  }
  try {
    const servers: ServerProcess[] = []
    for (let count = route === 'one engine' ? 1 : 3; count > 0; count--)
      servers.push(opened(await startKvfold('kvfold', HERE, serving)))
    const urls = servers.map(({ url }) => url)
    const router = route === 'random' ? opened(await ROUTERS[0]!.start(urls, options.seed)) : null
    const front = opened(
      await startServer('the front', process.execPath, (port) => [
        ...[join(HERE, 'dist/cli/main.js'), 'serve', '--port', String(port), '--slots', String(options.clients)],
        ...[
          '--store',
          'none',
          '--log-level',
          'error',
          ...(router === null ? urls : [router.url]).flatMap((url) => ['--engine', url]),
        ],
      ]),
    )
    const { prompt, cached, steps } = await play(front.url, { ...options, fields: { logit_bias: { [token!]: 100 } } })
    let computed = 0
    for (const server of servers) computed += await counters({ server }, ['kvfold_tokens_submitted'])
    const moved = route === 'random' ? 0 : await counters({ server: front }, ['kvfold_engine_moved_total'])
    const sorted = steps.map(({ seconds }) => seconds).sort((a, b) => a - b)
    const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!
    return { prompt, cached, computed, moved, seconds: { p50: at(0.5), p95: at(0.95), p99: at(0.99) } }
  } finally {
    for (const each of open) await each.close()
  }
}
