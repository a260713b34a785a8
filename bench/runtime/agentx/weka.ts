/** Writes sessions as the AgentX harness reads them: in kv-cache-tester's format, one JSON object per session, with scaled lengths. */
import { type Asked, idsIn, type Line } from '../traces/trace.js'

export interface WekaTrace {
  readonly id: string
  readonly models: readonly string[]
  readonly block_size: number
  readonly hash_id_scope: 'local'
  readonly tool_tokens: number
  readonly system_tokens: number
  readonly requests: readonly (WekaRequest | WekaSubagent)[]
}

export interface WekaRequest {
  /** Seconds since the session began. */
  readonly t: number
  readonly type: 'n' | 's'
  readonly model: string
  readonly in: number
  readonly out: number
  readonly hash_ids: readonly number[]
  readonly stop: string
}

export interface WekaSubagent {
  readonly t: number
  readonly type: 'subagent'
  readonly agent_id: string
  readonly subagent_type: string
  readonly status: string
  readonly models: readonly string[]
  readonly requests: readonly WekaRequest[]
}

/** Returns the session with scaled lengths and unchanged times. @throws Error if the scale leaves less than a token of a block */
export function wekaOf(session: Line, scale: number, model: string): WekaTrace {
  const scaled = (tokens: number) => Math.round(tokens * scale)
  const block = scaled(session.block_size ?? session.block ?? 64)
  if (block < 1) throw new Error(`A scale of ${scale} leaves no token of a block.`)
  const request = (asked: Asked, begin: number): WekaRequest => ({
    t: begin + asked.t,
    type: asked.type === 's' ? 's' : 'n',
    model,
    in: Math.max(1, scaled(asked.in ?? 0)),
    out: Math.max(1, scaled(asked.out ?? 0)),
    hash_ids: idsIn(asked),
    stop: asked.stop ?? '',
  })
  return {
    id: session.id,
    models: [model],
    block_size: block,
    hash_id_scope: 'local',
    tool_tokens: scaled(session.tool_tokens ?? session.tools ?? 0),
    system_tokens: scaled(session.system_tokens ?? session.system ?? 0),
    requests: session.requests.map((asked, index) => {
      const inner = asked.requests ?? asked.sub
      if (inner === undefined) return request(asked, 0)
      return {
        t: asked.t,
        type: 'subagent',
        agent_id: `agent_${index}`,
        subagent_type: 'unknown',
        status: 'completed',
        models: [model],
        requests: inner.map((each) => request(each, asked.t)),
      }
    }),
  }
}

/** Returns the most tokens of a prompt and its answer. */
export function longestOf({ requests }: WekaTrace): number {
  const all = requests.flatMap((each) => (each.type === 'subagent' ? each.requests : [each]))
  return Math.max(0, ...all.map((each) => each.in + each.out))
}
