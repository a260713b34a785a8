/** Tests where the messages of a response are in its thread, after later responses changed the thread's first message. */
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { placeOf, rangeOf } from '../../../../src/runtime/server/responses/place.js'

const said = (...roles: ChatMessage['role'][]): ChatMessage[] => roles.map((role, at) => ({ role, content: `${role} ${at}` }))

describe('the range of a response', () => {
  it.each([
    ['resp_t_2', said('user', 'assistant'), { from: 0, answer: 1, end: 2 }],
    // A later response brought instructions.
    ['resp_t_2', said('system', 'user', 'assistant', 'user', 'assistant'), { from: 1, answer: 2, end: 3 }],
    ['resp_t_3i', said('system', 'user', 'assistant'), { from: 1, answer: 2, end: 3 }],
    // A later response took them out.
    ['resp_t_3i', said('user', 'assistant', 'user', 'assistant'), { from: 0, answer: 1, end: 2 }],
    // The same where the input begins with a message of the system.
    ['resp_t_4i', said('system', 'user', 'assistant', 'user', 'assistant'), { from: 0, answer: 2, end: 3 }],
    ['resp_t_3', said('system', 'user', 'assistant'), { from: 0, answer: 2, end: 3 }],
    ['resp_t_3', said('system', 'system', 'user', 'assistant', 'user', 'assistant'), { from: 1, answer: 3, end: 4 }],
    ['resp_t_3', said('user', 'assistant'), null],
    // A summary stands for five messages after that of the system, the response's answer among them.
    ['resp_t_5', [...said('system'), { ...said('user')[0]!, stands: 5 }, ...said('assistant')], null],
    ['resp_t_2', said('user', 'user', 'assistant'), null],
    // Ids have a random end, older ones have none.
    ['resp_t_2x12345678', said('user', 'assistant'), { from: 0, answer: 1, end: 2 }],
    ['resp_t_3ix0a1b2c3d', said('system', 'user', 'assistant'), { from: 1, answer: 2, end: 3 }],
  ])('%s in %j', (id, view, range) => {
    expect(rangeOf(view, placeOf(id)!)).toEqual(range)
  })
})
