/** The public API: the exports of `kvfold` and `kvfold/lab`, no more and no fewer. */
import { expect, it } from 'vitest'
import * as kvfold from '../src/index.js'
import * as lab from '../src/lab/index.js'

it('kvfold exports these names', () => {
  expect(Object.keys(kvfold).sort()).toEqual([
    'CONTRACTS',
    'ChatFormat',
    'Conversation',
    'Embedder',
    'KvEventPublisher',
    'KvfoldError',
    'LlamaEngine',
    'MAX_CALLS',
    'OnnxEmbedder',
    'OnnxReranker',
    'RemoteEngine',
    'Reranker',
    'Session',
    'UFold',
    'UFoldSession',
    'attentionPlan',
    'builtinModel',
    'contextTools',
    'contextToolsFor',
    'conversationId',
    'errorTable',
    'fragmentId',
    'freshConversation',
    'isModelUri',
    'openNative',
    'plain',
    'portsOf',
    'proveModel',
    'resolveModel',
    'sculptor',
    'searchId',
    'sharedCells',
    'shortContextTools',
    'synthesizeAdapter',
    'synthesizeModel',
    'systemPrompts',
    'writeHeadAdapter',
  ])
})

it('kvfold/lab exports these names', () => {
  expect(Object.keys(lab).sort()).toEqual([
    'HEAD_SCORES',
    'LOSSES',
    'compareSpans',
    'findingOf',
    'headLosses',
    'headScoreFile',
    'interferenceOf',
    'ownWords',
    'piSample',
    'randomHeads',
    'readHeadScores',
    'scoreHeads',
    'studyValues',
    'topHeads',
    'wordsFrom',
  ])
})
