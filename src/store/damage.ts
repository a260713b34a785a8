/** Owns what is said of threads and responses that are not what they were: by name, and what to do. */
import { KvfoldError } from '../core/errors.js'

/** `damaged`: some of it is there. `lost`: nothing that has its name. */
export interface Damage {
  readonly of: 'thread' | 'response'
  readonly kind: 'damaged' | 'lost'
  readonly tenant: string
  readonly id: string
  /** Without a full stop. */
  readonly what: string
  /** A repair has said so and left it out: nobody needs to be told again who does not ask for it. */
  readonly settled?: true
}

/** Lines of a report that people read; the rest is a number. */
const SHOWN = 20

export const damageError = ({ of, kind, id, what }: Damage): KvfoldError =>
  new KvfoldError(
    `store/${kind}-${of}`,
    kind === 'damaged'
      ? `The ${of} ${id} is damaged in the store: ${what}. It is not shown, so that nobody takes it for what it was; \`kvfold store check\` says more, \`kvfold store export\` writes what can be read of it, \`kvfold store repair\` keeps what is whole.`
      : `The ${of} ${id} was lost from the store: ${what}. \`kvfold store check\` says more; \`kvfold store repair\` looks for what is left of it.`,
  )

/** One line for each, up to a number. */
export function damageLines(all: readonly Damage[], shown = SHOWN): readonly string[] {
  const lines = all.slice(0, shown).map(({ of, kind, tenant, id, what }) => `${of} ${id} of ${tenant} is ${kind}: ${what}`)
  return all.length <= shown ? lines : [...lines, `and ${all.length - shown} more; kvfold store check names all`]
}
