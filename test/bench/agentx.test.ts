/** Tests that sessions reach the AgentX harness in its form, with scaled lengths. */
import { describe, expect, it } from 'vitest'
import { longestOf, wekaOf } from '../../bench/runtime/agentx/weka.js'

const inner = { t: 1, in: 640, out: 3, blocks: [[20, 29]], stop: 'tool_use', type: 'n' } as const
const session = {
  ...{ id: 'trace_7', block: 64, tools: 448, system: 192 },
  requests: [
    {
      t: 0,
      in: 6400,
      out: 320,
      blocks: [
        [1, 98],
        [100, 101],
      ],
      stop: 'tool_use',
      type: 'n',
    },
    { t: 10, in: null, out: null, blocks: [], stop: null, type: 'subagent', sub: [inner] },
    { t: 20, in: 6464, out: 1, hash_ids: [1, 2, 3], stop: 'end_turn', type: 's' },
  ],
} as const

describe('a session for the AgentX harness', () => {
  it('has scaled lengths, its block ids and its times', () => {
    const { requests, ...head } = wekaOf(session, 1 / 32, 'bench')
    expect(head).toEqual({
      ...{ id: 'trace_7', models: ['bench'], block_size: 2, hash_id_scope: 'local', tool_tokens: 14, system_tokens: 6 },
    })
    expect(requests[0]).toMatchObject({ t: 0, type: 'n', model: 'bench', in: 200, out: 10, stop: 'tool_use' })
    expect(requests[0]).toHaveProperty('hash_ids', [...Array.from({ length: 98 }, (_, index) => index + 1), 100, 101])
    expect(requests[2]).toMatchObject({ t: 20, type: 's', in: 202, out: 1, hash_ids: [1, 2, 3] })
  })

  it('has the requests of a subagent at their times in the session', () => {
    const { requests } = wekaOf(session, 1 / 32, 'bench')
    expect(requests[1]).toMatchObject({ t: 10, type: 'subagent', requests: [{ t: 11, in: 20, out: 1 }] })
  })

  it('is as long as its longest prompt with its answer', () => {
    expect(longestOf(wekaOf(session, 1 / 32, 'bench'))).toBe(210)
  })

  it('needs a token of each block', () => {
    expect(() => wekaOf(session, 1 / 200, 'bench')).toThrow('leaves no token')
  })
})
