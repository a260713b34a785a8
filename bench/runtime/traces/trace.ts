/**
 * Reads traces of coding agents: JSON Lines with one session per line, or a folder with one session per file (as in
 * callanjfox/kv-cache-tester). Block ids are a list, `hash_ids`, or ranges, `blocks`.
 */
import { createReadStream, readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { createGunzip } from 'node:zlib'

export interface TraceSession {
  readonly id: string
  /** Tokens of a block. */
  readonly block: number
  /** `tools`: tokens of the tool list, with which every prompt begins. `system`: tokens of the system prompt behind it. */
  readonly tools: number
  readonly system: number
  /** In order of time, including requests of subagents. */
  readonly requests: readonly TraceRequest[]
}

export interface TraceRequest {
  /** Seconds since the session began. */
  readonly at: number
  /** Tokens of the answer. */
  readonly out: number
  /**
   * Ids of the prompt's full blocks. An id hashes all text up to the block's end: equal ids mean equal prompts up to there. If two prompts
   * differ in one block, all ids from there on differ, even if the text is the same again.
   */
  readonly blocks: readonly number[]
  /** Whether the answer was a tool call, so that its result comes next. */
  readonly calls: boolean
}

/** A session in the file's format. */
export interface Line {
  readonly id: string
  readonly block_size?: number
  readonly block?: number
  readonly tool_tokens?: number
  readonly tools?: number
  readonly system_tokens?: number
  readonly system?: number
  readonly requests: readonly Asked[]
}

/** A request in the file's format, or a subagent with its own requests. */
export interface Asked {
  /** Seconds since the session, or the subagent, began. */
  readonly t: number
  readonly type?: string
  /** Tokens of the prompt. */
  readonly in?: number | null
  readonly out?: number | null
  readonly hash_ids?: readonly number[]
  readonly blocks?: readonly (readonly [first: number, last: number])[]
  readonly stop?: string | null
  readonly requests?: readonly Asked[]
  readonly sub?: readonly Asked[]
}

/**
 * Yields the sessions of a folder of `.json` files, or of a JSON Lines file (compressed if its name ends in `.gz`). @throws Error that
 * names the file and the line
 */
export async function* readTraces(path: string): AsyncGenerator<TraceSession> {
  for await (const [text, place] of textsOf(path)) yield at(place, () => sessionOf(JSON.parse(text) as Line))
}

/** Yields the sessions in the file's format. @throws Error that names the file and the line */
export async function* readLines(path: string): AsyncGenerator<Line> {
  for await (const [text, place] of textsOf(path)) yield at(place, () => JSON.parse(text) as Line)
}

async function* textsOf(path: string): AsyncGenerator<readonly [text: string, place: string]> {
  if (statSync(path).isDirectory()) {
    for (const name of readdirSync(path).sort())
      if (name.endsWith('.json')) yield [readFileSync(join(path, name), 'utf8'), join(path, name)]
    return
  }
  const bytes = createReadStream(path)
  const lines = createInterface({ input: path.endsWith('.gz') ? bytes.pipe(createGunzip()) : bytes, crlfDelay: Infinity })
  let number = 0
  for await (const line of lines) {
    number++
    if (line.trim() !== '') yield [line, `${path}, line ${number}`]
  }
}

function at<Read>(place: string, read: () => Read): Read {
  try {
    return read()
  } catch (error) {
    throw new Error(`${place} is no session of a trace: ${(error as Error).message}`, { cause: error })
  }
}

function sessionOf(line: Line): TraceSession {
  const asked = line.requests.flatMap((request) => within(request, 0))
  return {
    id: line.id,
    block: line.block_size ?? line.block ?? 64,
    tools: line.tool_tokens ?? line.tools ?? 0,
    system: line.system_tokens ?? line.system ?? 0,
    requests: asked.sort((a, b) => a.at - b.at),
  }
}

/** Returns the request, or a subagent's requests, at their times in the session. */
function within(asked: Asked, begin: number): TraceRequest[] {
  const { t, out, stop, requests, sub } = asked
  const ids = idsIn(asked)
  const own = ids.length === 0 ? [] : [{ at: begin + t, out: out ?? 0, blocks: ids, calls: stop === 'tool_use' }]
  return [...own, ...(requests ?? sub ?? []).flatMap((request) => within(request, begin + t))]
}

/** Returns the ids of a prompt's blocks, which the file has as a list or as ranges. */
export const idsIn = ({ hash_ids, blocks }: Asked): readonly number[] => hash_ids ?? (blocks ?? []).flatMap(idsOf)

const idsOf = ([first, last]: readonly [number, number]): number[] =>
  Array.from({ length: last - first + 1 }, (_, index) => first + index)
