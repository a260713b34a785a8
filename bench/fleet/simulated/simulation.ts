/** Owns a simulated fleet: clients that ask, wait and ask again, fronts that route, engines that compute; event by event, the same for the same seed. */
import { Random } from '../../../src/runtime/core/random.js'
import { type Quantiles, quantiles } from '../../statistics.js'
import { type Done, type EngineOptions, type Piece, SimulatedEngine } from './engine.js'
import { type PolicyName, policyOf, type Routed } from './policies.js'
import type { Request, Script } from './traffic.js'

export interface FleetOptions extends EngineOptions {
  readonly engines: number
  /** That all engines share, each computing on one; null: nothing is shared. */
  readonly cores: number | null
  /** Of which each request comes by any. */
  readonly fronts: number
  readonly policy: PolicyName
  readonly clients: number
  /** Seconds between an answer and the next request, on average (exponentially distributed). */
  readonly pause: number
  /** Conversations that each client has, one after the other. */
  readonly conversations: number
  /** Whether each client has its own script (the first conversation of `bench -- engines`), or any. */
  readonly drawn: boolean
  readonly seed: number
}

export interface Outcome {
  readonly requests: number
  /** Tokens of all prompts; those of them that engines had; and all that they computed, answers too. */
  readonly prompt: number
  readonly cached: number
  readonly computed: number
  /** Requests that went to another engine than their conversation's last one. */
  readonly moved: number
  /** Milliseconds to the first token and to the end, by share of requests. */
  readonly firstToken: Quantiles
  readonly total: Quantiles
  /** Seconds that it took, and the share of them that the busiest engine computed, and all on average. */
  readonly seconds: number
  readonly busiest: number
  readonly busy: number
}

/** Work by its time; among equals, what was asked for first. */
class Clock {
  #now = 0
  #count = 0
  readonly #heap: { readonly at: number; readonly number: number; readonly work: () => void }[] = []

  get now(): number {
    return this.#now
  }

  after(milliseconds: number, work: () => void): void {
    this.#heap.push({ at: this.#now + milliseconds, number: this.#count++, work })
    let at = this.#heap.length - 1
    while (at > 0 && this.#isBefore(at, (at - 1) >> 1)) at = this.#swap(at, (at - 1) >> 1)
  }

  run(): void {
    for (;;) {
      const [first] = this.#heap
      if (first === undefined) return
      const last = this.#heap.pop()!
      if (last !== first) {
        this.#heap[0] = last
        let at = 0
        for (;;) {
          let next = 2 * at + 1
          if (next >= this.#heap.length) break
          if (next + 1 < this.#heap.length && this.#isBefore(next + 1, next)) next++
          if (!this.#isBefore(next, at)) break
          at = this.#swap(at, next)
        }
      }
      this.#now = first.at
      first.work()
    }
  }

  #isBefore(a: number, b: number): boolean {
    const [one, other] = [this.#heap[a]!, this.#heap[b]!]
    return one.at < other.at || (one.at === other.at && one.number < other.number)
  }

  #swap(a: number, b: number): number {
    ;[this.#heap[a], this.#heap[b]] = [this.#heap[b]!, this.#heap[a]!]
    return b
  }
}

/** Names of beginnings: a number for every message after every other. What is no system message is its conversation's alone. */
class Beginnings {
  /** By the name before and the message's text: of all conversations, and of each. */
  readonly #shared = new Map<number, number>()
  readonly #own = new Map<number, Map<number, number>>()
  #count = 0

  after(before: number, conversation: number, { role, text }: Request['messages'][number]): number {
    const known = role === 'system' ? this.#shared : this.#of(conversation)
    const key = before * TEXTS + text
    const name = known.get(key) ?? ++this.#count
    known.set(key, name)
    return name
  }

  of(conversation: number, messages: Request['messages']): number[] {
    let key = 0
    return messages.map((message) => (key = this.after(key, conversation, message)))
  }

  /** Nobody goes on with it. */
  over(conversation: number): void {
    this.#own.delete(conversation)
  }

  #of(conversation: number): Map<number, number> {
    const known = this.#own.get(conversation) ?? new Map<number, number>()
    this.#own.set(conversation, known)
    return known
  }
}

/** More than there are. */
const TEXTS = 2 ** 22

export function simulate(options: FleetOptions, scripts: readonly Script[]): Outcome {
  const { seed, policy } = options
  const clock = new Clock()
  const beginnings = new Beginnings()
  const slowed = () => (options.cores === null ? 1 : Math.max(1, engines.filter(({ active }) => active).length / options.cores))
  const engines: SimulatedEngine[] = Array.from(
    { length: options.engines },
    () =>
      new SimulatedEngine(
        options,
        (milliseconds, work) => {
          clock.after(milliseconds, work)
        },
        () => clock.now,
        slowed,
      ),
  )
  const fronts = Array.from({ length: options.fronts }, (_, front) => ({
    policy: policyOf(policy, options.engines, seed + front),
    open: engines.map(() => 0),
  }))
  const sums = { requests: 0, prompt: 0, cached: 0, moved: 0 }
  const [firsts, totals]: [number[], number[]] = [[], []]
  let conversations = 0

  const talk = (client: number) => {
    const [random, choosing] = [new Random(seed, client, 1), new Random(seed, client)]
    const pause = () => -1000 * options.pause * Math.log((random.word() + 1) / 2 ** 32)
    const begin = (nth: number) => {
      if (nth === options.conversations) return
      const script = scripts[options.drawn ? choosing.below(scripts.length) : client % scripts.length]!
      const own = conversations++
      ask({ nth, script, turn: 0, own, known: own, last: null })
    }
    const ask = (state: Conversation) => {
      const { nth, script, turn, own } = state
      const request = script[turn]
      if (request === undefined) {
        beginnings.over(own)
        clock.after(pause(), () => {
          begin(nth + 1)
        })
        return
      }
      // As a front sees it: where hardly anything of the last prompt is left, this is another conversation.
      const known = turn > 0 && !isRelated(script[turn - 1]!, request) ? conversations++ : state.known
      const keys = beginnings.of(own, request.messages)
      const routed: Routed = { client: own, conversation: known, messages: request.messages, keys }
      const { policy: router, open } = fronts[random.below(fronts.length)]!
      const chosen = router.choose(routed, open)
      open[chosen]!++
      const prompt = request.messages.map(({ tokens }, at): Piece => ({ key: keys[at]!, tokens }))
      const after = { key: beginnings.after(keys.at(-1)!, own, request.answer), tokens: request.answer.tokens }
      const onEnd = ({ cached, computed, firstToken, total }: Done) => {
        open[chosen]!--
        router.ended?.(routed, chosen)
        sums.requests++
        sums.prompt += cached + computed
        sums.cached += cached
        if (state.last !== null && state.last !== chosen) sums.moved++
        firsts.push(firstToken)
        totals.push(total)
        clock.after(pause(), () => {
          ask({ ...state, turn: turn + 1, known, last: chosen })
        })
      }
      engines[chosen]!.take({ prompt, after, since: clock.now, onEnd })
    }
    // Nobody begins at the same time, where there are pauses.
    clock.after(options.pause === 0 ? 0 : pause(), () => {
      begin(0)
    })
  }
  for (let client = 0; client < options.clients; client++) talk(client)
  clock.run()
  const busy = engines.map((engine) => engine.busy / clock.now)
  return {
    ...sums,
    computed: engines.reduce((sum, { computed }) => sum + computed, 0),
    firstToken: quantiles(firsts, 0),
    total: quantiles(totals, 0),
    seconds: clock.now / 1000,
    busiest: Math.max(...busy),
    busy: busy.reduce((sum, share) => sum + share, 0) / engines.length,
  }
}

interface Conversation {
  readonly nth: number
  readonly script: Script
  readonly turn: number
  /** Whose texts they are. */
  readonly own: number
  /** What the front takes it for. */
  readonly known: number
  readonly last: number | null
}

function isRelated(before: Request, now: Request): boolean {
  const there = new Set(now.messages.map(({ text }) => text))
  return before.messages.some(({ role, text }) => role !== 'system' && there.has(text))
}

/** All prompts one after the other on one machine that forgets nothing: no router can have more reused. */
export function bound({ clients, conversations, drawn, seed }: FleetOptions, scripts: readonly Script[]): number {
  let [prompt, cached, count] = [0, 0, 0]
  const [known, beginnings] = [new Set<number>(), new Beginnings()]
  for (let client = 0; client < clients; client++) {
    const random = new Random(seed, client)
    for (let nth = 0; nth < conversations; nth++) {
      const own = count++
      for (const { messages, answer } of scripts[drawn ? random.below(scripts.length) : client % scripts.length]!) {
        const keys = beginnings.of(own, messages)
        let isKnown = true
        for (const [at, { tokens }] of messages.entries()) {
          isKnown &&= known.has(keys[at]!)
          prompt += tokens
          if (isKnown) cached += tokens
          known.add(keys[at]!)
        }
        known.add(beginnings.after(keys.at(-1)!, own, answer))
      }
    }
  }
  return cached / prompt
}
