/** Tests that agents which show a model its own earlier calls keep their digits and the order of their keys. */
import { expect, it } from 'vitest'
import { BaselineAgent } from '../../../src/lab/agents/rounds.js'
import { PaperFold } from '../../../src/lab/agents/u-fold-paper.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { readJson } from '../../../src/runtime/core/written-json.js'
import { ScriptedEngine } from '../../support/scripted.js'

const GIVEN = '{"zeta":[9007199254740993,1e400,1.50],"7":{"b":1.0,"3":"x"}}'
const call = { name: 'look', arguments: readJson(GIVEN) as Record<string, unknown> }
const clientTools = [{ definition: { name: 'look', description: '', parameters: {} }, execute: () => 'R' }]

it('AgentFold, in its steps', async () => {
  let step = 0
  const engine = new ScriptedEngine(() => (step++ < 2 ? { content: '', calls: [call] } : { content: 'Done.' }))
  await new BaselineAgent({ engine, id: conversationId('rounds'), kind: 'agentfold', clientTools }).ask('Look.')
  expect(engine.requests.at(-1)?.messages[0]?.content).toContain(`look ${GIVEN}`)
})

it('U-Fold as printed, to the helper that keeps its notes', async () => {
  const engine = new ScriptedEngine(({ messages }) =>
    messages.at(-1)?.content.endsWith('Look.') ? { calls: [call] } : { content: 'Done.' },
  )
  const agent = new PaperFold({ engine, id: conversationId('paper'), clientTools, order: 'stable' })
  for (const words of ['Look.', 'Thanks.']) await agent.ask(words)
  const asked = engine.requests.find(({ kind }) => kind === 'summary')
  expect(asked?.messages[0]?.content).toContain(`look(${GIVEN})`)
})
