/** Owns what `kvfold serve` says of itself when it is up: who reaches it, who may ask, under which names, and what requests get that do not say. */
import { networkInterfaces } from 'node:os'

export interface Served {
  readonly host: string
  readonly unixSocket?: string
  /** The address that it says itself. */
  readonly where: string
  /** Names of the keys that requests may carry; none: no key is asked for. */
  readonly keys: readonly string[]
  readonly models: readonly { readonly name: string; readonly aliases?: readonly string[] }[]
  readonly contract: string
  readonly acm: string
  readonly overflow: string
  readonly clientEdits: string
}

/** One paragraph. */
export function serveNotice(served: Served): string {
  const { contract, acm, overflow, clientEdits } = served
  const usual = `Requests that do not say get contract ${contract}, acm ${acm}, overflow ${overflow}, client edits ${clientEdits}.`
  return [reached(served), asked(served), ...called(served), usual].join(' ')
}

function reached({ host, unixSocket, where }: Served): string {
  if (unixSocket !== undefined) return 'It is reached by its socket alone.'
  const others = host === '0.0.0.0' || host === '::' ? addresses(where) : []
  return others.length === 0
    ? `It is reached at ${where}.`
    : `It is reached at ${where} here, and from other machines at ${others.join(', ')}.`
}

/** This machine's addresses, as other machines write them. */
function addresses(where: string): readonly string[] {
  const { protocol, port } = new URL(where)
  return Object.values(networkInterfaces())
    .flatMap((each) => each ?? [])
    .filter(({ internal, family }) => !internal && family === 'IPv4')
    .map(({ address }) => `${protocol}//${address}${port === '' ? '' : `:${port}`}`)
}

const asked = ({ keys }: Served): string =>
  keys.length === 0
    ? 'It asks for no key, and all clients share their threads.'
    : `It asks for a key, and each of the ${keys.length} sees its own threads.`

function called({ models }: Served): readonly string[] {
  return models.flatMap(({ name, aliases = [] }) => {
    const others = aliases.filter((alias) => alias !== '*')
    return [
      ...(others.length === 0 ? [] : [`${name} is called ${others.join(', ')}, too.`]),
      ...(aliases.includes('*') ? [`Every other model name means ${name}.`] : []),
    ]
  })
}
