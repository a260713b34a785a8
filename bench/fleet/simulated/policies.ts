/** Owns who decides where a request of a simulated fleet goes: kvfold's own code, and what other routers do by their documentation. */
import { Affinity, type Beginning, beginningOf, type Candidate, ranked } from '../../../src/fleet/engines/affinity.js'
import { Random } from '../../../src/runtime/core/random.js'
import type { Said } from './traffic.js'

export interface Routed {
  /** Of whom it is. */
  readonly client: number
  /** The same for the requests of a conversation, as a front knows it; another one where nothing of the last prompt is left. */
  readonly conversation: number
  readonly messages: readonly Said[]
  /** Names of its beginnings, message by message. */
  readonly keys: readonly number[]
}

/** `engine`: a number. `open`: requests that this policy's router has there. */
export interface Policy {
  choose(request: Routed, open: readonly number[]): number
  /** The answer is there. */
  ended?(request: Routed, engine: number): void
}

export type PolicyName = 'affinity' | 'cache-aware' | 'session hash' | 'least loaded' | 'round robin' | 'random'
export const POLICIES: readonly PolicyName[] = [
  'affinity',
  'cache-aware',
  'session hash',
  'least loaded',
  'round robin',
  'random',
]

/** One router's. */
export function policyOf(name: PolicyName, engines: number, seed: number): Policy {
  const random = new Random(seed, engines)
  switch (name) {
    case 'affinity':
      return new ByAffinity(engines)
    case 'cache-aware':
      return new CacheAware(engines, random)
    case 'session hash':
      return new BySession(engines)
    case 'least loaded':
      return { choose: (_, open) => least(open, random) }
    case 'round robin': {
      let next = 0
      return { choose: () => next++ % engines }
    }
    case 'random':
      return { choose: () => random.below(engines) }
  }
}

/** One with the fewest, by chance among equals. */
function least(open: readonly number[], random: Random): number {
  const fewest = Math.min(...open)
  const best = open.flatMap((count, engine) => (count === fewest ? [engine] : []))
  return best[random.below(best.length)]!
}

const nameOf = (engine: number): string => `http://engine-${engine}:8000`

/** What a front hashes of a prompt: its texts are its client's, but for what is the same in all of them. */
const beginningIn = ({ client, messages }: Routed): Beginning =>
  beginningOf(messages.map(({ role, text }) => ({ role, content: role === 'system' ? `system ${text}` : `${client} ${text}` })))

/** As `RemoteEngine` uses it: src/fleet/engines decides. */
class ByAffinity implements Policy {
  readonly #affinity = new Affinity()
  readonly #last = new Map<number, string>()
  readonly #beginnings = new Map<Routed, Beginning>()
  readonly #names: readonly string[]
  /** One for each engine, as it is now. */
  readonly #candidates: (Candidate & { open: number })[]
  readonly #numbers: ReadonlyMap<string, number>

  constructor(engines: number) {
    this.#names = Array.from({ length: engines }, (_, engine) => nameOf(engine))
    this.#candidates = this.#names.map((name) => ({ name, weight: 1, open: 0, available: true }))
    this.#numbers = new Map(this.#names.map((name, engine) => [name, engine]))
  }

  choose(request: Routed, open: readonly number[]): number {
    const beginning = beginningIn(request)
    this.#beginnings.set(request, beginning)
    for (const [engine, candidate] of this.#candidates.entries()) candidate.open = open[engine]!
    const last = this.#last.get(request.conversation) ?? null
    return this.#numbers.get(this.#affinity.choose({ beginning, last, parent: null }, this.#candidates)!.name)!
  }

  ended(request: Routed, engine: number): void {
    this.#affinity.ran(this.#beginnings.get(request)!, this.#names[engine]!)
    this.#beginnings.delete(request)
    this.#last.set(request.conversation, this.#names[engine]!)
  }
}

/** A router that hashes a header which names the session (`--engine-session-header`), consistently and whatever the load. */
class BySession implements Policy {
  readonly #candidates: readonly Candidate[]
  readonly #engines = new Map<string, number>()

  constructor(engines: number) {
    this.#candidates = Array.from({ length: engines }, (_, engine) => ({
      name: String(engine),
      weight: 1,
      open: 0,
      available: true,
    }))
  }

  choose(request: Routed): number {
    const { root } = beginningIn(request)
    const known = this.#engines.get(root)
    if (known !== undefined) return known
    const engine = Number(ranked(root, this.#candidates)[0]!.name)
    this.#engines.set(root, engine)
    return engine
  }
}

/** Share of a prompt's characters that has to be known of an engine; where engines are out of balance; all as SGLang's gateway has them by default. */
const MATCHED = 0.3
const APART = { absolute: 64, relative: 1.5 }

/**
 * SGLang's model gateway by its documentation: a tree of the texts that each engine was sent. Where one was sent enough of a prompt's beginning, it
 * gets the prompt; else the one with the smallest tree does; and the one with the fewest requests, whatever was sent, where engines are out of balance.
 * Here trees are of whole messages and forget nothing.
 */
class CacheAware implements Policy {
  /** Engines by the beginnings that they were sent, the last one last. */
  readonly #sent = new Map<number, Set<number>>()
  readonly #sizes: number[]

  constructor(
    engines: number,
    private readonly random: Random,
  ) {
    this.#sizes = Array.from({ length: engines }, () => 0)
  }

  choose({ messages, keys }: Routed, open: readonly number[]): number {
    const [most, fewest] = [Math.max(...open), Math.min(...open)]
    const isApart = most - fewest > APART.absolute && most > APART.relative * fewest
    const engine = isApart ? least(open, this.random) : (this.#matched(messages, keys) ?? least(this.#sizes, this.random))
    for (const [at, key] of keys.entries()) {
      const engines = this.#sent.get(key) ?? new Set()
      this.#sent.set(key, engines)
      if (!engines.has(engine)) this.#sizes[engine]! += messages[at]!.characters
      engines.delete(engine)
      engines.add(engine)
    }
    return engine
  }

  #matched(messages: readonly Said[], keys: readonly number[]): number | null {
    const all = messages.reduce((sum, { characters }) => sum + characters, 0)
    let known = all
    for (let at = keys.length - 1; at >= 0; at--) {
      const engines = this.#sent.get(keys[at]!)
      if (engines !== undefined && engines.size > 0) return known / all > MATCHED ? [...engines].at(-1)! : null
      known -= messages[at]!.characters
    }
    return null
  }
}
