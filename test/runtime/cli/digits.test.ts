/** Tests that commands keep numbers and the order of keys as written, in their input and their output. */
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Session } from '../../../src/runtime/agents/session.js'
import { turnJson } from '../../../src/runtime/cli/commands/run.js'
import { readRecorded } from '../../../src/runtime/cli/transcript.js'
import { callText } from '../../../src/runtime/cli/turn-view.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { someThread } from '../store/support/threads.js'
import { tinyModel } from '../../support/models.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { kvfoldHere } from './support/process.js'

const GIVEN = '{"zeta":[9007199254740993,1e400,1.50],"id":12345678901234567890,"7":{"b":1.0,"3":"x"}}'
const fields = () => readJson(GIVEN) as Record<string, unknown>

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-digits-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

describe('a transcript', () => {
  const read = (text: string) => {
    const { messages, tools } = readRecorded(text)
    return {
      calls: messages.flatMap(({ toolCalls = [] }) =>
        toolCalls.map(({ arguments: args, malformed }) => malformed ?? writeJson(args)),
      ),
      results: messages.flatMap(({ role, content }) => (role === 'tool' ? [content] : [])),
      tools: tools.map(({ parameters }) => writeJson(parameters)),
    }
  }
  const quoted = JSON.stringify(GIVEN)

  it.each([
    [
      'chat completions',
      `{"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"look","arguments":${quoted}}}]},
        {"role":"tool","tool_call_id":"c","content":${GIVEN}}],"tools":[{"type":"function","function":{"name":"look","parameters":${GIVEN}}}]}`,
    ],
    [
      "Anthropic's",
      `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"look","input":${GIVEN}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":${GIVEN}}]}],"tools":[{"name":"look","input_schema":${GIVEN}}]}`,
    ],
    [
      'responses',
      `{"input":[{"type":"function_call","call_id":"c","name":"look","arguments":${quoted}},
        {"type":"function_call_output","call_id":"c","output":${GIVEN}}],"tools":[{"type":"function","name":"look","parameters":${GIVEN}}]}`,
    ],
    [
      'an export of ours',
      `{"messages":[{"message":{"role":"assistant","content":"","toolCalls":[{"id":"c","name":"look","arguments":${GIVEN}}]}},
        {"message":{"role":"tool","content":${quoted}}}],"tools":[{"name":"look","parameters":${GIVEN}}]}`,
    ],
  ])('%s', (_, text) => {
    expect(read(text)).toEqual({ calls: [GIVEN], results: [GIVEN], tools: [GIVEN] })
  })

  it('arguments that are not an object', () => {
    const list = '[1.0,9007199254740993]'
    expect(read(`[{"type":"function_call","call_id":"c","name":"look","arguments":${list}}]`).calls).toEqual([list])
  })
})

it('a call in one line', () => {
  expect(callText({ id: 'c', name: 'look', arguments: readJson('{"id":9007199254740993,"7":{"b":1.0}}') as never })).toBe(
    'look(9007199254740993, {"b":1.0})',
  )
})

it('a schema, and an answer that keeps to it', async () => {
  const schema = join(folder, 'schema.json')
  writeFileSync(schema, '{"type":"object","properties":{"id":{"const":9007199254740993}},"required":["id"]}')
  const model = await tinyModel()
  const { code, stdout, stderr } = await kvfoldHere(['run', '--model', model, '--schema', schema, '-p', 'Which?'])
  expect([code, stderr]).toMatchObject([0, expect.any(String)])
  expect(stdout.replaceAll(/\s/g, '')).toBe('{"id":9007199254740993}')
})

it('calls in the JSON of a turn', async () => {
  const engine = new ScriptedEngine([{ calls: [{ name: 'look', arguments: fields() }] }, { content: 'Done.' }])
  const look = { definition: { name: 'look', description: '', parameters: {} }, execute: () => 'R' }
  const session = new Session({ engine, id: conversationId('turn'), contextTools: false, firstStep: 'auto', clientTools: [look] })
  expect(turnJson('script', session, await session.ask('Look.'), 0)).toContain(`"name":"look","arguments":${GIVEN},"result":"R"`)
})

it('a saved chat', async () => {
  const [transcript, saved] = [join(folder, 'transcript.json'), join(folder, 'saved.json')]
  const call = `{"id":"c","function":{"name":"look","arguments":${JSON.stringify(GIVEN)}}}`
  writeFileSync(transcript, `[{"role":"user","content":"Look."},{"role":"assistant","content":"","tool_calls":[${call}]}]`)
  const words = ['chat', '--no-tools', '--model', await tinyModel(), '--transcript', transcript]
  const { code, stderr } = await kvfoldHere(words, { input: `/save ${saved}\n` })
  expect([code, stderr]).toEqual([0, ''])
  expect(readFileSync(saved, 'utf8').replaceAll(/\s/g, '')).toContain(`"arguments":${GIVEN}`)
})

it('the export of a store', async () => {
  const store = SqliteStore.open({ folder: join(folder, 'store') })
  const call = { id: 'c', name: 'look', arguments: fields() }
  const message = { role: 'assistant', content: '', toolCalls: [call] } as const
  const tools = [{ name: 'look', description: '', parameters: fields() }]
  await store.create({ ...someThread(1), tools, messages: [{ message, seen: 'same' }] }, null)
  await store.close()
  const { stdout } = await kvfoldHere(['store', 'export', '--store', join(folder, 'store')])
  expect(stdout).toContain(`"toolCalls":[{"id":"c","name":"look","arguments":${GIVEN}}]`)
  expect(stdout).toContain(`"parameters":${GIVEN}`)
  const path = join(folder, 'threads.jsonl')
  await kvfoldHere(['store', 'export', '--store', join(folder, 'store'), '--out', path])
  expect(readFileSync(path, 'utf8')).toBe(stdout)
  expect(statSync(path).mode & 0o777).toBe(0o600)
})
