/** Owns where the machines of a fleet are: in network namespaces with a router between them, whose links can be cut, or all on this one's loopback. */
import { execFileSync } from 'node:child_process'

/** A machine that processes run on. */
export interface Host {
  readonly name: string
  readonly address: string
  /** The words that run a program there, as the same process. */
  on(words: readonly string[]): readonly string[]
}

export interface Network {
  /** One more machine, that all others reach. */
  host(name: string): Host
  /** From now on nothing passes between the two, and neither is told: packets vanish. Healed as often as it was cut. Null where links cannot be cut. */
  readonly cut: ((one: Host, other: Host) => void) | null
  heal(one: Host, other: Host): void
  close(): void
}

/** Everything on 127.0.0.1; a port apart. */
export const loopback = (): Network => ({
  host: (name) => ({ name, address: '127.0.0.1', on: (words) => words }),
  cut: null,
  heal: () => undefined,
  close: () => undefined,
})

/** Why there can be no namespaces; null: there can. */
export const noNamespaces = (): string | null => {
  if (process.platform !== 'linux') return 'network namespaces are of Linux'
  if (process.getuid?.() !== 0) return 'network namespaces are made by root'
  try {
    execFileSync('unshare', ['--net', 'ip', 'link', 'add', 'probe', 'type', 'veth'], { stdio: 'ignore' })
    return null
  } catch {
    return 'unshare or ip (iproute2) is missing, or this kernel has no veth'
  }
}

const ip = (...words: readonly string[]): void => {
  execFileSync('ip', words, { stdio: ['ignore', 'ignore', 'pipe'] })
}

/**
 * Each machine is a namespace with a link of its own to a router. This process is a machine, too, so it has to run in a namespace that is nobody's
 * else (`unshare --net`).
 */
export class Namespaces implements Network {
  readonly #mark = `kvfold-${process.pid}`
  readonly #made: string[] = []
  /** Cuts by the addresses between which nothing passes. */
  readonly #cuts = new Map<string, number>()

  constructor() {
    this.#add('router')
    ip('netns', 'exec', this.#space('router'), 'sysctl', '-qw', 'net.ipv4.ip_forward=1')
    ip('link', 'set', 'lo', 'up')
    this.#link(0, [])
  }

  host(name: string): Host {
    const number = this.#made.length
    const space = this.#add(name)
    this.#link(number, ['-n', space])
    return { name, address: addressOf(number), on: (words) => ['ip', 'netns', 'exec', space, ...words] }
  }

  cut(one: Host, other: Host): void {
    this.#count(one, other, 1)
  }

  heal(one: Host, other: Host): void {
    this.#count(one, other, -1)
  }

  close(): void {
    for (const name of this.#made.splice(0)) ip('netns', 'del', this.#space(name))
  }

  /** The machine that this process is. */
  readonly own: Host = { name: 'clients', address: addressOf(0), on: (words) => words }

  #count(one: Host, other: Host, more: 1 | -1): void {
    const key = [one.address, other.address].sort().join(' ')
    const before = this.#cuts.get(key) ?? 0
    this.#cuts.set(key, before + more)
    if (before === 0) this.#rule('add', one, other)
    if (before + more === 0) this.#rule('del', one, other)
  }

  #rule(what: 'add' | 'del', one: Host, other: Host): void {
    for (const [from, to] of [
      [one, other],
      [other, one],
    ] as const)
      ip('-n', this.#space('router'), 'rule', what, 'from', from.address, 'to', to.address, 'blackhole')
  }

  #space(name: string): string {
    return `${this.#mark}-${name}`
  }

  #add(name: string): string {
    const space = this.#space(name)
    ip('netns', 'add', space)
    ip('-n', space, 'link', 'set', 'lo', 'up')
    this.#made.push(name)
    return space
  }

  /** @param inside words that name the machine's namespace; none: this process's */
  #link(number: number, inside: readonly string[]): void {
    const router = ['-n', this.#space('router')]
    const [here, there] = [`to-router${number}`, `to-host${number}`]
    ip(...inside, 'link', 'add', here, 'type', 'veth', 'peer', 'name', there, 'netns', this.#space('router'))
    ip(...inside, 'addr', 'add', `${addressOf(number)}/24`, 'dev', here)
    ip(...router, 'addr', 'add', `${addressOf(number).replace(/\d+$/u, '1')}/24`, 'dev', there)
    ip(...inside, 'link', 'set', here, 'up')
    ip(...router, 'link', 'set', there, 'up')
    ip(...inside, 'route', 'add', 'default', 'via', addressOf(number).replace(/\d+$/u, '1'))
  }
}

const addressOf = (number: number): string => `10.77.${number}.2`
