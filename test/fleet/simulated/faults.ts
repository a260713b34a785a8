/** The faults of a simulated fleet: a seeded series of kills, freezes and cuts, each with an end, and the code that causes them. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Random } from '../../../src/runtime/core/random.js'
import { type Machine, Served } from './machines.js'
import type { Host, Network } from './network.js'

export type Kind =
  /** The process ends at once, and is started again after a while. */
  | 'kill'
  /** The process stands still; its connections stay open. */
  | 'freeze'
  /** No packet passes between two machines. */
  | 'cut'
  /** A machine loses its network, then its processes, so their connections end without a packet. */
  | 'loss'

export interface Fault {
  readonly kind: Kind
  /** Seconds since the beginning, and its duration. */
  readonly at: number
  readonly lasts: number
  /** The machine; a cut has a second one. */
  readonly of: string
  readonly from: string | null
}

export interface Struck {
  readonly machines: readonly Machine[]
  readonly clients: Host | null
  readonly network: Network
}

/** Returns a series of faults over these seconds. Cuts and losses need a network that can be cut. */
export function faultsOf(
  seed: number,
  count: number,
  { begin, end }: { begin: number; end: number },
  { machines, network, clients }: Struck,
): Fault[] {
  const random = new Random(seed, 7)
  const pick = <T>(items: readonly T[]): T => items[random.below(items.length)]!
  const kinds: readonly Kind[] =
    network.cut === null ? ['kill', 'kill', 'freeze'] : ['kill', 'kill', 'kill', 'kill', 'freeze', 'cut', 'cut', 'cut', 'loss']
  const named = (kind: Machine['kind']) => machines.filter((each) => each.kind === kind)
  return Array.from({ length: count }, (_, index): Fault => {
    const kind = pick(kinds)
    const of = pick(named(pick(kind === 'freeze' ? ['front', 'engine'] : ['front', 'front', 'engine', 'engine', 'database'])))
    const others =
      of.kind === 'front' ? [...named('engine'), ...named('database'), ...(clients === null ? [] : [clients])] : named('front')
    // One in six outlasts the database's timeout for a silent connection.
    const lasts = kind === 'cut' && random.below(6) === 0 ? 25 + random.below(10) : 1 + random.below(60) / 10
    const step = (end - begin) / count
    return {
      kind,
      at: begin + index * step + (random.below(1000) / 1000) * step * 0.8,
      lasts,
      of: of.name,
      from: kind === 'cut' ? pick(others).name : null,
    }
  })
}

/** Causes the faults. Overlapping faults of one machine come one after the other. */
export class Fate {
  readonly #lines = new Map<string, Promise<void>>()

  constructor(private readonly struck: Struck) {}

  /** Resolves when the fault is over and the machine serves again. */
  strike(fault: Fault): Promise<void> {
    const { of, kind } = fault
    if (kind === 'cut') return this.#strike(fault)
    const line = (this.#lines.get(of) ?? Promise.resolve()).then(() => this.#strike(fault))
    this.#lines.set(of, line)
    return line
  }

  async #strike({ kind, lasts, of, from }: Fault): Promise<void> {
    const { machines, clients, network } = this.struck
    const machine = machines.find(({ name }) => name === of)!
    const hosts = [...machines.map(({ host }) => host), ...(clients === null ? [] : [clients])]
    const cut = kind === 'loss' ? hosts.filter(({ name }) => name !== of) : hosts.filter(({ name }) => name === from)
    for (const other of cut) network.cut?.(machine.host, other)
    if (kind === 'kill' || kind === 'loss') await machine.kill()
    if (machine instanceof Served && kind === 'freeze') machine.freeze()
    await sleep(lasts * 1000)
    for (const other of cut) network.heal(machine.host, other)
    if (kind === 'kill' || kind === 'loss') await machine.start()
    if (machine instanceof Served && kind === 'freeze') machine.thaw()
  }
}
