/** Runs coding agents against the server, installed by this test and configured as docs/clients.md says; only in the long run. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { EngineAround, generationOf, type EngineRequest, type Generation } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { SpokenEngine, type ScriptedReply } from '../../../src/lab/taught-engine.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { AGENTS, Agents, documented, versionRun } from './clients/agents.js'
import { endless, serving, type Serving } from './support/serving.js'
import { LONG } from '../../support/long.js'

const isShell = ({ name }: ToolDefinition) => /^(shell|bash|exec|run_?(shell|terminal))/i.test(name)

/** Makes a call of the agent's own shell. */
function callOf({ name, parameters }: ToolDefinition, command: string) {
  const { properties, required = [] } = parameters as {
    properties: Record<string, { type?: string }>
    required?: string[]
  }
  const key = ['command', 'cmd'].find((each) => each in properties)!
  const valueOf = (type = 'string') => (type === 'string' ? 'says hello' : type === 'boolean' ? false : 1)
  return {
    name,
    arguments: {
      ...Object.fromEntries(required.map((each) => [each, valueOf(properties[each]!.type)])),
      [key]: properties[key]!.type === 'array' ? ['bash', '-c', command] : command,
    },
  }
}

/** Plays a model that has the shell add two numbers, and then repeats the output of all commands. */
function runner({ messages, tools = [] }: EngineRequest): ScriptedReply {
  const shell = tools.find(isShell)
  if (shell === undefined) return { content: 'A title, or a summary' }
  const asked = messages.findLastIndex(({ role, content }) => role === 'user' && content.includes('Add 40 and'))
  const results = messages.filter(({ role }) => role === 'tool').map(({ content }) => /hello-\d+/.exec(content)?.[0] ?? content)
  if (messages.slice(asked).some(({ role }) => role === 'tool')) return { content: `Heard ${results.join(', ')}.` }
  const [, number] = /Add 40 and (\d)/.exec(messages[asked]!.content)!
  return { calls: [callOf(shell, `echo hello-$((40 + ${number}))`)] }
}

/** A `SpokenEngine` whose answer does not end if the prompt says so, and which reports that it has begun. */
class Talker extends EngineAround {
  readonly #spoken = new SpokenEngine(this.engine, runner)
  #began: () => void = () => undefined

  /** Resolves with the first words of the next endless answer. */
  begins(): Promise<void> {
    return new Promise((resolve) => (this.#began = resolve))
  }

  respond(request: EngineRequest): Generation {
    const { tools = [], ...rest } = request
    const goesOn = tools.some(isShell) && request.messages.some(({ content }) => content.includes('Go on without end'))
    if (!goesOn) return this.#spoken.respond(request)
    return generationOf(async (stream) => {
      const running = this.engine.respond({ ...rest, toolChoice: 'none', grammar: endless.kvfold.grammar })
      for await (const event of running) {
        stream.push(event)
        if (event.type === 'text') this.#began()
      }
      return running.reply
    })
  }
}

it.each(AGENTS)('docs/clients.md has the settings of $name and the tested version', (agent) => {
  const { file, env, words } = documented(agent, 'http://127.0.0.1:8080')
  expect([file?.text, ...Object.values(env), ...words].join('\n')).toMatch(
    agent.name === 'pi' ? /kvfold/ : /http:\/\/127.0.0.1:8080/,
  )
  expect(versionRun(agent)).toBe(agent.package[1])
})

describe.runIf(LONG)('coding agents', { timeout: 900_000 }, () => {
  let folder: string
  let agents: Agents
  const engines: LlamaEngine[] = []
  let talker: Talker
  let served: Serving
  /** A server whose context holds no agent's prompt. */
  let small: Serving

  const serve = async (cells: number) => {
    const options = { threads: 2, batchThreads: 2, slots: 2, cells }
    const engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), options)
    engines.push(engine)
    const talker = new Talker(engine)
    const models = [{ name: 'name', slots: 2, load: () => Promise.resolve(talker) }]
    return { talker, serving: await serving({ service: { models } }) }
  }

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'kvfold-agents-'))
    agents = await Agents.install(folder)
    ;({ talker, serving: served } = await serve(65_536))
    ;({ serving: small } = await serve(2048))
  }, 900_000)

  afterEach(() => {
    agents.end()
  })

  afterAll(async () => {
    await served.close()
    await small.close()
    for (const engine of engines) await engine.dispose()
    rmSync(folder, { recursive: true })
    // The packages of six agents are more than a hundred thousand files: removing them took 45 of the 46 seconds on two busy cores.
  }, 600_000)

  /** Returns the cached share of the prompts of the last two requests. */
  const cached = () =>
    served.log
      .map((line) => JSON.parse(line) as { prompt?: number; cached?: number })
      .flatMap(({ prompt, cached }) => (prompt === undefined ? [] : [cached! / prompt]))
      .slice(-2)

  const stopped = ({ service }: Serving) => expect.poll(() => service.status().running, { timeout: 60_000 }).toBe(0)

  it.each(AGENTS)('$name: two turns with its shell, SIGINT in an answer, a prompt that does not fit', async (agent) => {
    const say = (to: Serving, prompt: string, again = false) => agents.start(agent, to.url, prompt, again)

    expect(await say(served, 'Add 40 and 1').ended).toContain('Heard hello-41.')
    expect(await say(served, 'Add 40 and 2', true).ended).toContain('Heard hello-41, hello-42.')
    await expect.poll(() => Math.min(...cached()), { timeout: 20_000 }).toBeGreaterThan(0.9)

    const { cancelled } = served.service.status().asks
    const begins = talker.begins()
    const { ended, interrupt } = say(served, 'Go on without end')
    await Promise.race([begins, ended.then((output) => expect.fail(`It ended before an answer began: ${output}`))])
    interrupt()
    await ended
    await expect.poll(() => served.service.status().asks.cancelled, { timeout: 60_000 }).toBe(cancelled + 1)
    await stopped(served)

    const refused = () => small.log.filter((line) => line.includes('"refused":"context/full"')).length
    const before = refused()
    expect(await say(small, `Add 40 and 3. ${'word '.repeat(4000)}`).ended).toMatch(agent.full)
    expect(refused()).toBeGreaterThan(before)
    await stopped(small)
    for (const engine of engines) await engine.check('books')
  })
})
