/** Owns the row of the fleet that is run: three kvfold engines behind a kvfold front, each a process, and the sessions of `bench -- engines`. */
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { counters } from '../../runtime/client-edits/session.js'
import { ROUTERS } from '../engines/routers.js'
import { oneWord, play, type SessionsOptions } from '../engines/sessions.js'
import { HERE, startFront, startKvfold } from '../../runtime/serve/servers.js'
import type { ServerProcess } from '../../server-process.js'
import { type Quantiles, quantiles } from '../../statistics.js'

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
  readonly seconds: Quantiles
}

export async function playedFor(route: Route, options: Omit<SessionsOptions, 'fields'>): Promise<Run> {
  const fields = await oneWord(builtinModel())
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
    const front = opened(await startFront(router === null ? urls : [router.url], options.clients))
    const { prompt, cached, steps } = await play(front.url, { ...options, fields })
    let computed = 0
    for (const server of servers) computed += await counters({ server }, ['kvfold_tokens_submitted'])
    const moved = route === 'random' ? 0 : await counters({ server: front }, ['kvfold_engine_moved_total'])
    return { prompt, cached, computed, moved, seconds: quantiles(steps.map(({ seconds }) => seconds)) }
  } finally {
    for (const each of open) await each.close()
  }
}
