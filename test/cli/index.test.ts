/** The public API: what can be imported from the package, no more and no less. */
import { expect, it } from 'vitest'
import * as kvfold from '../../src/index.js'

it('exports what it promises', () => {
  expect(Object.keys(kvfold).sort()).toEqual([
    'CONTRACTS',
    'ChatFormat',
    'Conversation',
    'KvfoldError',
    'LlamaEngine',
    'MAX_CALLS',
    'Session',
    'contextTools',
    'conversationId',
    'errorTable',
    'fragmentId',
    'freshConversation',
    'isModelUri',
    'openNative',
    'plain',
    'portsOf',
    'resolveModel',
    'sculptor',
    'searchId',
    'synthesizeModel',
    'systemPrompts',
  ])
})
