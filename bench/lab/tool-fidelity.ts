/**
 * What it costs in fidelity to remove tools and bring them back when definitions stand in the conversation (MemTool). The bench compares
 * the next token's distribution with a fresh prefill's after five definitions were folded, and after they are shown again in their place.
 * It reads it at the first token of the answer, of a called tool's name and of an argument. The noise floor is two fresh prefills, one of
 * them in two pieces. The session that removed nothing is there for scale. The bench prints a table; with --write it also writes a record.
 * `npm run --silent bench -- tool-fidelity [--samples 16] [--seed 2026] [--model path] [--json] [--write name]`
 */
import { parseArgs } from 'node:util'
import type { ChatFormat } from '../../src/runtime/chat/format.js'
import type { ChatMessage, Edit } from '../../src/runtime/chat/message.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { Conversation } from '../../src/runtime/context/conversation.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { World } from '../../src/lab/memtool/companies.js'
import { left, right, table, terminal, type Table } from '../../src/runtime/figures/table.js'
import type { StepContract } from '../../src/runtime/kv/plan/parts.js'
import type { Prompt } from '../../src/runtime/kv/prompt.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { LateDefinitions, lineOf } from '../../src/runtime/tools/late-definitions.js'
import { SETTINGS, Stage } from './contracts/stage.js'
import { EXACT, SPLICE } from './contracts/variants.js'
import { Watch } from './contracts/watch.js'
import { divergence } from '../driver.js'
import { beginRecord, keep, OPTIONS, SEED } from '../record.js'
import { bootstrap, mean } from '../statistics.js'

const CELLS = 8192
/** For models without a chat template; calls are part of the text. */
const COMPLETION = '{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}'
const WHEN = ['removed', 'returned'] as const
const POINTS = ['first token', "first of a tool's name", "first of an argument's name"] as const
const WAYS = ['fresh again', 'exact', 'splice', 'not removed'] as const
type Way = (typeof WAYS)[number]

/** The steps of a session. The bench takes a reading at the last step of each stage. */
interface Session {
  /** First everything is shown, then five definitions are removed, then they are back. */
  readonly stages: readonly [whole: Prompt, removed: Prompt, returned: Prompt]
  /** The tokens that an answer begins with, at each point. */
  readonly openings: readonly Int32Array[]
}

function sessionOf(format: ChatFormat, world: World, at: number): Session {
  const [mine, other] = [world.tools.slice(10 * at, 10 * at + 5), world.tools[10 * at + 5]!]
  const call = (name: string): ChatMessage => ({
    role: 'assistant',
    content: '',
    toolCalls: [{ id: `c${name.length}`, name, arguments: {} }],
  })
  const result = (name: string, content: string): ChatMessage => ({ role: 'tool', content, name, toolCallId: `c${name.length}` })
  const tool = mine[0]!.name
  const conversation = new Conversation(conversationId('tools'), {
    snap: (messages, message, chars) => format.snap({ messages, tools: [], message, chars }),
  })
  const add = (...messages: readonly ChatMessage[]) => {
    for (const message of messages) conversation.add(message)
  }
  const prompt = () => promptOf(format, conversation.messages, conversation.edits())
  add({ role: 'user', content: `Look for tools: ${mine[0]!.description}; ${other.description}` }, call('search_tools'))
  add(result('search_tools', ['6 tools added.', ...[...mine, other].map(lineOf)].join('\n')))
  add({ role: 'assistant', content: 'They are loaded.' }, { role: 'user', content: mine[0]!.description }, call(tool))
  add(result(tool, '42'), { role: 'assistant', content: 'It is 42.' }, { role: 'user', content: other.description })
  const whole = prompt()
  const late = new LateDefinitions(conversation, { restores: true })
  late.hide(mine)
  const removed = prompt()
  add({ role: 'assistant', content: 'It is 7.' }, { role: 'user', content: mine[1]!.description })
  const anew = late.show(mine)
  if (removed.tokens.length >= whole.tokens.length || anew.length > 0)
    throw new Error('definitions were not hidden, or are not back')
  const openings = ['', '{"name": "', `{"name": "${tool}", "arguments": {"`].map((text) => openingOf(format, text))
  return { stages: [whole, removed, prompt()], openings }
}

function promptOf(format: ChatFormat, messages: readonly ChatMessage[], edits: readonly Edit[]): Prompt {
  const { tokens, origin } = format.render({ messages, edits })
  return { tokens, origin, messages: [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }] }
}

function openingOf(format: ChatFormat, content: string): Int32Array {
  const asked: ChatMessage = { role: 'user', content: 'x' }
  const from = format.render({ messages: [asked] }).tokens.length
  if (content === '') return new Int32Array()
  const { tokens, messages } = format.render({ messages: [asked, { role: 'assistant', content }], generationPrompt: false })
  return tokens.slice(from, messages[1]?.content?.tokens.end)
}

/** Returns the distributions at each point, in the stages that the conversation goes through one after another. */
async function readings(stage: Stage, session: Session, terms: StepContract): Promise<Float32Array[]> {
  const [whole, ...later] = session.stages
  const conversation = await stage.read(whole, terms)
  const read: Float32Array[] = []
  for (const prompt of later) {
    await stage.show(conversation, prompt, terms)
    for (const opening of session.openings) read.push((await stage.ask(conversation, prompt, opening, 0)).next)
  }
  await stage.forget(conversation)
  return read
}

/** Reads each stage in its own conversation. With `pieces` 2 it shows the first half in a step of its own. */
async function fresh(stage: Stage, { stages, openings }: Session, pieces: 1 | 2): Promise<Float32Array[]> {
  const read: Float32Array[] = []
  for (const prompt of stages.slice(1)) {
    const shown = plain(prompt.tokens)
    const conversation = await stage.read(pieces === 2 ? plain(shown.tokens.slice(0, shown.tokens.length >> 1)) : shown, EXACT)
    if (pieces === 2) await stage.show(conversation, shown, EXACT)
    for (const opening of openings) read.push((await stage.ask(conversation, shown, opening, 0)).next)
    await stage.forget(conversation)
  }
  return read
}

const plain = (tokens: Int32Array): Prompt => ({
  tokens,
  messages: [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }],
})

export async function toolFidelity(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      ...SEED,
      samples: { type: 'string', default: '16' },
    },
  })
  const { model } = values
  const [samples, seed] = [Number(values.samples), Number(values.seed)]
  const watch = new Watch()
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['tool-fidelity', ...args], model, native.backend.release, SETTINGS.threads)
  const stage = await Stage.open(native, model, CELLS, model === builtinModel() ? undefined : COMPLETION)
  const world = new World({ seed, tools: 10 * samples, arguments: true })
  const found = new Map<string, { divergence: number; same: number }[]>()
  for (let at = 0; at < samples && !watch.over(); at++) {
    watch.say(`sample ${at + 1} of ${samples}`)
    const session = sessionOf(stage.engine.format, world, at)
    const reference = await fresh(stage, session, 1)
    const read: Record<Way, Float32Array[]> = {
      'fresh again': await fresh(stage, session, 2),
      exact: await readings(stage, session, EXACT),
      splice: await readings(stage, session, SPLICE),
      'not removed': await fresh(stage, { ...session, stages: [session.stages[0], session.stages[0], session.stages[2]] }, 1),
    }
    for (const way of WAYS)
      reference.forEach((exact, index) => {
        const key = JSON.stringify([WHEN[Math.floor(index / POINTS.length)], POINTS[index % POINTS.length], way])
        const other = read[way][index]!
        const same = Number(likeliest(exact) === likeliest(other))
        found.set(key, [...(found.get(key) ?? []), { divergence: Math.max(0, divergence(exact, other)), same }])
      })
  }
  watch.end()
  await stage.engine.dispose()
  const keys = WHEN.flatMap((when) => POINTS.flatMap((point) => WAYS.map((way) => [when, point, way] as const)))
  const rows = keys.flatMap(([when, point, way]) => {
    const all = found.get(JSON.stringify([when, point, way])) ?? []
    if (all.length === 0) return []
    const nats = all.map((one) => one.divergence)
    return {
      when,
      point,
      way,
      samples: all.length,
      nats: mean(nats),
      interval: bootstrap(nats),
      sameToken: mean(all.map(({ same }) => same)),
    }
  })
  const result = { ...origin(), seed, rows }
  await keep(values.write, result)
  console.log(values.json ? JSON.stringify(result) : terminal(tableOf(rows)).join('\n'))
}

const likeliest = (next: Float32Array): number => next.reduce((best, logprob, at) => (logprob > next[best]! ? at : best), 0)

interface Row {
  readonly when: string
  readonly point: string
  readonly way: Way
  readonly nats: number
  readonly interval: readonly [number, number]
  readonly sameToken: number
}

function tableOf(rows: readonly Row[]): Table {
  const titles = [left('tools'), left('at'), left('by'), right('KL, nats (95 %)'), right('same likeliest token')]
  const number = (value: number) => (value === 0 ? '0' : value.toPrecision(2))
  const lines = rows.map(({ when, point, way, nats, interval, sameToken }) => [
    ...[when, point, way, `${number(nats)} (${interval.map(number).join(' to ')})`],
    `${Math.round(100 * sameToken)} %`,
  ])
  return table(titles, lines, { opens: (row, before) => row[1] !== before[1] })
}
