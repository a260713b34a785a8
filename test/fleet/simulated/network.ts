/**
 * The network of a simulated fleet: machines are network namespaces with a router between them, whose links can be cut; or all share this
 * machine's loopback.
 */
import { execFileSync } from 'node:child_process'

/** A machine that processes run on. */
export interface Host {
  readonly name: string
  readonly address: string
  /** Returns the command that runs a program on it, as the same process. */
  on(words: readonly string[]): readonly string[]
}

export interface Network {
  /** Adds a machine that all others reach. */
  host(name: string): Host
  /**
   * Drops all packets between the two from now on, without an error for either. Each cut must be healed once. Null if links cannot be cut.
   */
  readonly cut: ((one: Host, other: Host) => void) | null
  heal(one: Host, other: Host): void
  close(): void
}

/** Puts everything on 127.0.0.1, with separate ports. */
export const loopback = (): Network => ({
  host: (name) => ({ name, address: '127.0.0.1', on: (words) => words }),
  cut: null,
  heal: () => undefined,
  close: () => undefined,
})

/** Returns why namespaces are not available, or null if they are. */
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
 * Makes each machine a namespace with its own link to a router. This process is a machine, too, so it must run in a namespace that no other
 * process uses (`unshare --net`).
 */
export class Namespaces implements Network {
  readonly #mark = `kvfold-${process.pid}`
  readonly #made: string[] = []
  /** How many cuts apply between each pair of addresses. */
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

  /** @param inside The command that enters the machine's namespace; empty for this process's. */
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
