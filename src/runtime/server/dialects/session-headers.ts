/** Reads the headers by which agents and routers name their session and its branches. */
import type { IncomingHttpHeaders } from 'node:http'
import { KvfoldError } from '../../core/errors.js'
import type { Ask } from '../ask.js'

/** The headers of one program, in lower case. */
interface Naming {
  readonly session: string
  /** Names a branch of the session, such as a subagent. */
  readonly branch?: string
  /** Names the session from which this one was started. */
  readonly parent?: string
  /** Names the branch from which this one was started. Default: the parent session's main branch. */
  readonly parentBranch?: string
  /** Says that this is the session's last request. */
  readonly final?: string
}

const NAMINGS: readonly Naming[] = [
  // Claude Code
  {
    session: 'x-claude-code-session-id',
    branch: 'x-claude-code-agent-id',
    parentBranch: 'x-claude-code-parent-agent-id',
  },
  // NVIDIA Dynamo
  {
    session: 'x-dynamo-session-id',
    parent: 'x-dynamo-parent-session-id',
    final: 'x-dynamo-session-final',
  },
  // Codex
  { session: 'thread-id', parent: 'x-codex-parent-thread-id' },
  // opencode
  { session: 'x-session-id', parent: 'x-parent-session-id' },
]

const LONGEST = 256

/**
 * Returns the session that the headers name; nothing when they name none. For a session's last request `expectedReuse` is 0. With headers
 * of several programs, the first in `NAMINGS` counts.
 * @throws KvfoldError engine/bad-request for a name that is too long
 */
export function sessionOf(headers: IncomingHttpHeaders): Pick<Ask, 'session' | 'expectedReuse'> {
  const naming = NAMINGS.find(({ session }) => named(headers, session) !== undefined)
  if (naming === undefined) return {}
  const session = named(headers, naming.session)!
  const branch = named(headers, naming.branch)
  const parent = named(headers, naming.parent) ?? (branch === undefined ? undefined : session)
  const parentBranch = named(headers, naming.parentBranch)
  const forwarded = Object.values<string>({ ...naming }).flatMap((name) => {
    const value = named(headers, name)
    return value === undefined ? [] : [[name, value] as const]
  })
  return {
    session: {
      name: keyOf(session, branch),
      ...(parent === undefined ? {} : { parent: keyOf(parent, parentBranch) }),
      headers: Object.fromEntries(forwarded),
    },
    ...(/^(?:true|1)$/i.test(named(headers, naming.final) ?? '') ? { expectedReuse: 0 } : {}),
  }
}

const keyOf = (session: string, branch: string | undefined): string => JSON.stringify([session, branch ?? null])

function named(headers: IncomingHttpHeaders, name: string | undefined): string | undefined {
  const value = name === undefined ? undefined : headers[name]
  if (typeof value !== 'string' || value === '') return undefined
  if (value.length > LONGEST)
    throw new KvfoldError(
      'engine/bad-request',
      `The header ${name} has ${value.length} characters; the longest name has ${LONGEST}.`,
    )
  return value
}

/** Returns the conversation name from llama-server's page, by which the page can read on after a reload. */
export function pageOf(headers: IncomingHttpHeaders): string | undefined {
  const name = headers['x-conversation-id']
  return typeof name === 'string' && name !== '' && name.length <= LONGEST_PAGE ? name : undefined
}

/** The most characters of that name, to which the page may append the model's name. */
const LONGEST_PAGE = 2048
