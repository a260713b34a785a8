/** Tests `kvfold calibrate` and `kvfold plan` as processes, on the built-in model. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { CostModel } from '../../../src/runtime/kv/cost-model.js'
import type { Forecast } from '../../../src/runtime/kv/forecast.js'
import { mambaModel } from '../../support/models.js'
import { kvfoldHere } from './support/process.js'

let folder: string
let environment: Record<string, string>

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-plan-'))
  environment = { XDG_CACHE_HOME: folder }
})

afterAll(() => {
  rmSync(folder, { recursive: true })
})

interface Planned {
  readonly tokens: { readonly unedited: number; readonly edited: number }
  readonly folds: readonly { readonly shown: string }[]
  readonly forecasts: readonly { readonly [K in keyof Forecast]: Forecast[K] | null }[]
  readonly advice: string
  readonly calibration: { readonly file: string | null }
}

const log = Array.from({ length: 60 }, (_, minute) => `12:${String(minute).padStart(2, '0')} step ${minute} wrote rows.`).join(
  ' ',
)
const messages = [
  { role: 'system', content: 'You help.' },
  { role: 'user', content: [{ type: 'text', text: `Here is the log. ${log}` }] },
  {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: 'c1', type: 'function', function: { name: 'look', arguments: '{"at":1}' } }],
  },
  { role: 'tool', tool_call_id: 'c1', content: `Nothing is wrong. ${log}` },
  { role: 'user', content: 'What went wrong?' },
]
const tools = [
  { type: 'function', function: { name: 'look', description: 'Looks.', parameters: { type: 'object', properties: {} } } },
]
const folds = [{ message: 1, from: '12:01 step', to: '12:50' }]
const transcript = (change: object = {}) => JSON.stringify({ messages, tools, folds, ...change })
const plan = (input: string, ...words: string[]) => kvfoldHere(['plan', '-', ...words], { input, environment })

describe('plan', () => {
  it('without a calibration counts tokens and says how to get times', async () => {
    const { code, stdout, stderr } = await plan(transcript())
    expect(stderr).toBe('')
    expect(code).toBe(0)
    expect(stdout).toMatch(/^contract +tokens computed +cells used +positions used$/m)
    for (const name of ['no folds', 'exact', 'splice', 'blend']) expect(stdout).toMatch(new RegExp(`^${name}(?: \\*)? +\\d`, 'm'))
    // The sentence comes before the table.
    expect(stdout).toMatch(
      /^The folds free \d+ tokens of the context\. Use exact if the answers matter: it computes \d+ tokens before the next answer\. A splice computes \d+ tokens, .*\n\nBefore the next answer, by contract:\ncontract/m,
    )
    expect(stdout).toMatch(/run `kvfold calibrate`/)
  })

  it('of a session file without folds proposes those that an agent would prune', async () => {
    const turn = (role: string, content: unknown) => JSON.stringify({ type: role, message: { role, content } })
    const session = [
      turn('user', 'Read the logs.'),
      ...[0, 1, 2, 3, 4].flatMap((at) => [
        turn('assistant', [{ type: 'tool_use', id: `c${at}`, name: 'read', input: { at } }]),
        turn('user', [{ type: 'tool_result', tool_use_id: `c${at}`, content: `${at}: ${log.slice(0, 600)}` }]),
      ]),
    ].join('\n')
    const { code, stdout, stderr } = await plan(session)
    expect(stderr).toBe('')
    expect(code).toBe(0)
    expect(stdout).toMatch(/^2 folds proposed, in messages 2, 4\.$/m)
    expect(stdout).toMatch(/^splice +\d/m)
    const nothing = await plan(JSON.stringify([{ role: 'user', content: 'Hi.' }]))
    expect([nothing.code, nothing.stdout]).toEqual([2, ''])
    expect(nothing.stderr).toMatch(/no text that an agent would fold/)
  })

  it('as JSON counts the differences between the contracts', async () => {
    const { stdout } = await plan(transcript({ folds: [...folds, { message: 3, summary: 'Fine.' }] }), '--json', '--blend', '1')
    const { tokens, forecasts, folds: made, calibration } = JSON.parse(stdout) as Planned
    expect(forecasts.map(({ asked }) => asked)).toEqual(['exact', 'splice', 'blend'])
    const [exact, splice, blend] = forecasts.map(({ computeTokens }) => computeTokens!)
    expect(splice).toBeLessThan(blend!)
    expect(blend).toBeLessThan(exact!)
    expect(forecasts[0]!.positionsAfter).toBe(tokens.edited)
    expect(forecasts[1]!.positionsAfter).toBe(tokens.unedited)
    expect(made[0]!.shown).toMatch(/^\[folded f/)
    expect(made[1]!.shown).toMatch(/^\[summary of f.*: Fine\.\]$/)
    expect(forecasts[0]).toMatchObject({ milliseconds: null, breakEven: null })
    expect(calibration.file).toBeNull()
  })

  it('refuses invalid transcripts and folds', async () => {
    for (const [input, why] of [
      ['{"messages":', /on stdin cannot be used: it is not JSON/],
      [transcript({ folds: [...folds, ...folds] }), /folds\.1 cannot be made: .*fragment/],
    ] as const) {
      const { code, stdout, stderr } = await plan(input)
      expect(stderr).toMatch(why)
      expect(stderr).toMatch(/\[cli\/bad-usage\]$/m)
      expect(stdout).toBe('')
      expect(code).toBe(2)
    }
  })

  it('refuses a model with states that can only be extended, as calibrate does', async () => {
    const model = await mambaModel()
    for (const command of [
      ['plan', '-'],
      ['calibrate', '--quick'],
    ]) {
      const words = [...command, '--model', model, '--context', '2048']
      const { code, stdout, stderr } = await kvfoldHere(words, { input: transcript(), environment })
      expect(stderr).toMatch(/cannot predict the costs of folds here: mamba keeps a recurrent state.*\[model\/unsupported\]$/m)
      expect(stdout).toBe('')
      expect(code).toBe(1)
    }
  })

  it('describes its format', async () => {
    const { stdout } = await kvfoldHere(['plan', '--help'])
    expect(stdout).toContain('"folds": [{ "message": 0, "from": "12:00 started", "to": "12:59 stopped." }]')
  })
})

describe('calibrate', () => {
  it('writes the cost model that plan then uses', async () => {
    const words = ['calibrate', '--quick', '--json', '--context', '1024']
    const { code, stdout, stderr } = await kvfoldHere(words, { environment })
    expect(stderr).toBe('')
    expect(code).toBe(0)
    const cost = JSON.parse(stdout) as CostModel & { readonly file: string }
    expect(cost).toMatchObject({ version: 1, on: { model: 'kvfold-tiny', threads: 1 } })
    expect(cost.file.startsWith(folder)).toBe(true)

    const written = JSON.parse(readFileSync(cost.file, 'utf8')) as { readonly cost: CostModel }
    const planned = JSON.parse((await plan(transcript(), '--json')).stdout) as Planned
    expect(planned.calibration.file).toBe(cost.file)
    for (const { milliseconds, perToken } of planned.forecasts) {
      expect(milliseconds).toBeGreaterThan(0)
      expect(perToken).toBeGreaterThan(0)
    }
    expect((await plan(transcript())).stdout).toMatch(
      /^contract +tokens computed +time +cells used +positions used +ms a token +ms saved a token +pays after$/m,
    )

    // A blend chooses its tokens by these times, as a step does: a dear decode joins stretches. The letters repeat little of the log.
    const letters = Array.from({ length: 400 }, (_, at) => String.fromCharCode(97 + ((at * at) % 26))).join(' ')
    const text = transcript({ messages: messages.map((each) => (each.role === 'tool' ? { ...each, content: letters } : each)) })
    const blended = async (call: number) => {
      const rates = { ...cost.prefill.rates, call, token: 1 }
      writeFileSync(cost.file, JSON.stringify({ ...written, cost: { ...written.cost, prefill: { ...cost.prefill, rates } } }))
      return (JSON.parse((await plan(text, '--json', '--blend', '1')).stdout) as Planned).forecasts[2]!.computeTokens!
    }
    expect(await blended(100)).toBeGreaterThan(await blended(0))

    writeFileSync(cost.file, 'rubbish')
    const { stdout: without } = await plan(transcript())
    expect(without).toMatch(/does not use the calibration in .*, because it is damaged/)
    expect(without).not.toMatch(/ms a token/)
  })
})
