/** Owns the ways of the MemTool study: the paper's three modes and what they are compared with, each as options of the one agent. */
import type { Placement, RemovalRule } from '../../agents/memtool.js'
import type { MemToolMode } from '../../agents/memtool-prompts.js'
import type { ToolLimits } from '../../tools/tool-memory.js'

export interface Way {
  readonly mode: MemToolMode
  readonly removal: RemovalRule
  /** What its definitions stand in where nothing else is asked for. */
  readonly placement: Placement
  readonly limits: ToolLimits
  /** `needed`: every turn begins with its tools and no others. `always`: as many as the limit takes, the session's own first, and they stay. */
  readonly given: 'nothing' | 'needed' | 'always'
  /** What people read. */
  readonly about: string
}

const byModel = { removal: { by: 'model' }, placement: 'late', limits: {}, given: 'nothing' } as const

export const ways = {
  autonomous: { ...byModel, mode: 'autonomous', about: 'MemTool: the model searches and removes by tools' },
  workflow: {
    ...byModel,
    mode: 'workflow',
    about: 'MemTool: asked aside before each turn what to remove and what to search for',
  },
  hybrid: { ...byModel, mode: 'hybrid', about: 'MemTool: asked aside what to remove, searches by a tool' },
  'search-only': { ...byModel, mode: 'hybrid', removal: { by: 'nobody' }, about: 'searches, removes nothing, within the limit' },
  deferred: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'nobody' },
    limits: { tools: Number.MAX_SAFE_INTEGER },
    about: 'searches, appends, removes nothing, no limit',
  },
  unused: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'unused', turns: 2 },
    about: 'searches; what two turns did not use is removed',
  },
  lru: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'lru', tokens: 2048 },
    about: 'searches; the least used beyond 2,048 tokens are removed',
  },
  oracle: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'nobody' },
    placement: 'list',
    given: 'needed',
    about: 'has what it needs, and nothing else',
  },
  always: {
    ...byModel,
    mode: 'hybrid',
    removal: { by: 'nobody' },
    placement: 'list',
    given: 'always',
    about: 'the same 128 tools from the first turn to the last',
  },
} as const satisfies Record<string, Way>

export type WayName = keyof typeof ways
export const wayNames = Object.keys(ways) as WayName[]
