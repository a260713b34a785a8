/** Owns what happens in a random history over HTTP: flags of a server and what its clients do, all told by one seed. */
import { Random } from '../../src/runtime/core/random.js'
import type { Contract, ContractChoice } from '../../src/index.js'
import type { CacheType } from './protocol.js'
import { type HistoryModel, modelFor, pick, text } from './history.js'

/** `talk`: a client's conversation; its number says which of two keys it has. */
export type ServeOp =
  | {
      readonly op: 'ask'
      readonly talk: number
      readonly text: string
      readonly contract: ContractChoice
      readonly maxTokens: number
      /** The six tools of ours are there, too. */
      readonly tools: boolean
    }
  /** A stream that the client leaves. */
  | { readonly op: 'leave'; readonly talk: number; readonly text: string; readonly milliseconds: number }
  | { readonly op: 'both'; readonly texts: readonly [string, string]; readonly contract: ContractChoice }
  | { readonly op: 'fragment'; readonly talk: number; readonly from: number; readonly to: number; readonly pieces: number }
  | { readonly op: 'fold'; readonly talk: number; readonly pick: number; readonly contract?: Contract }
  | { readonly op: 'restore' | 'summarize'; readonly talk: number; readonly pick: number }
  | { readonly op: 'refresh' | 'search' | 'stranger'; readonly talk: number }
  /** Killed, in the midst of an answer or beside it, and started again on the same store and disk cache. */
  | { readonly op: 'kill'; readonly talk: number; readonly milliseconds: number }
  /** Stopped as a person does, and started again. */
  | { readonly op: 'restart' }

export interface ServeHistory extends HistoryModel {
  readonly seed: number
  readonly cells: number
  readonly flashAttention: 'on' | 'off'
  readonly cacheType: CacheType
  readonly disk: boolean
  /** MiB. */
  readonly hostCache: number
  readonly ops: readonly ServeOp[]
}

/** @param model see `modelFor` */
export function serveHistoryOf(seed: number, model?: string): ServeHistory {
  const random = new Random(seed, 20)
  const { architecture } = modelFor(seed, model)
  const flashAttention = pick(random, ['on', 'off'] as const)
  const quantised = random.below(2) === 0 && flashAttention === 'on' && ['llama', 'qwen2'].includes(architecture)
  const contracts = pick(random, [['exact'], ['splice'], ['blend'], ['exact', 'splice', 'blend']] as const)
  const ask = (talk: number, words: number): ServeOp => ({
    op: 'ask',
    talk,
    text: text(random, words),
    contract: pick(random, contracts),
    maxTokens: 1 + random.below(12),
    tools: random.below(6) === 0,
  })
  const ops: ServeOp[] = []
  for (const talk of [0, 1])
    ops.push(ask(talk, 60 + random.below(60)), {
      op: 'fragment',
      talk,
      from: random.below(4),
      to: 4 + random.below(4),
      pieces: 1 + random.below(3),
    })
  const moves = 8 + random.below(8)
  for (let move = 0; move < moves; move++) {
    const talk = random.below(2)
    const kind = random.below(20)
    const words = 8 + random.below(20)
    if (kind < 4) ops.push(ask(talk, words))
    else if (kind < 8)
      ops.push(
        { op: 'fold', talk, pick: random.below(20), ...(random.below(4) === 0 ? { contract: pick(random, contracts) } : {}) },
        ask(talk, words),
      )
    else if (kind < 11) ops.push({ op: 'restore', talk, pick: random.below(20) }, ask(talk, words))
    else if (kind === 11) ops.push({ op: 'summarize', talk, pick: random.below(20) }, ask(talk, words))
    else if (kind === 12) ops.push({ op: pick(random, ['refresh', 'search', 'stranger'] as const), talk }, ask(talk, words))
    else if (kind === 13) ops.push({ op: 'fragment', talk, from: random.below(10), to: 10 + random.below(5), pieces: 2 })
    else if (kind < 16) ops.push({ op: 'leave', talk, text: text(random, 60), milliseconds: random.below(120) }, ask(talk, words))
    else if (kind < 18) ops.push({ op: 'both', texts: [text(random, 30), text(random, 30)], contract: pick(random, contracts) })
  }
  const at = 6 + random.below(ops.length - 6)
  if (random.below(2) === 0)
    ops.splice(at, 0, { op: 'kill', talk: random.below(2), milliseconds: random.below(150) }, ask(0, 10), ask(1, 10))
  if (random.below(3) === 0) ops.splice(at, 0, { op: 'restart' }, ask(0, 10))
  return {
    ...{ seed, ...modelFor(seed, model), flashAttention, cacheType: quantised ? 'q8_0' : 'f16', ops },
    cells: pick(random, [1024, 1536, 2048, 4096]),
    disk: random.below(2) === 0,
    hostCache: pick(random, [0, 1, 256]),
  }
}
