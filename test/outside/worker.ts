/** A process that does to the library's public interface what it is told, a line of JSON an operation, and answers each with a line. */
import { createInterface } from 'node:readline'
import {
  Conversation,
  type ConversationState,
  conversationId,
  LlamaEngine,
  openNative,
  portsOf,
  type ChatMessage,
  type EngineReply,
  type LedgerEntry,
  type TierRates,
} from '../../src/index.js'
import type { MessageEdit, Op, Opening, StepOp, StepSaid, WorkerSaid } from './protocol.js'

interface Talk {
  readonly conversation: Conversation
  readonly tenant: string
  readonly parent?: string
  /** What its steps were asked, oldest first. */
  readonly asked: (readonly ChatMessage[])[]
}

const native = await openNative({ gpu: 'cpu' })
let engine: LlamaEngine | null = null
let twin: LlamaEngine | null = null
let opening: Opening | null = null
const talks = new Map<string, Talk>()
/** What the engine's own books would lose when a conversation is forgotten. */
let summaries = 0

async function open(setting: Opening): Promise<void> {
  opening = setting
  const { model, disk, twin: withTwin, ...options } = setting
  const common = { ...options, threads: 1, batchThreads: 1 }
  engine = await LlamaEngine.load(native, model, {
    ...common,
    ...(disk === null ? {} : { disk: { folder: disk, bytes: 2 ** 28 } }),
  })
  if (withTwin) twin = await LlamaEngine.load(native, model, { ...common, contract: 'exact' })
  for (const each of [engine, twin]) each?.useTierRates(CHEAP)
}

/** Copies that cost next to nothing, so that cells leave the device wherever they are a burden. */
const CHEAP: TierRates = {
  host: { saveBytesPerSecond: 1e12, loadBytesPerSecond: 1e12, bytesPerCell: 1 },
  scanned: { prefill: 1, decode: 1 },
}

async function close(): Promise<void> {
  await engine?.dispose()
  await twin?.dispose()
  engine = twin = null
}

const loaded = (): LlamaEngine => {
  if (engine === null) throw new Error('The engine is not loaded.')
  return engine
}

function talkOf(name: string): Talk {
  const talk = talks.get(name)
  if (talk === undefined) throw new Error(`There is no talk ${name}.`)
  return talk
}

function encoded(reply: EngineReply, vocabulary: number): string[] {
  return (reply.logprobs ?? []).map(({ top }) => {
    const row = new Float32Array(vocabulary)
    for (const { token, logprob } of top) row[token] = logprob
    return Buffer.from(row.buffer).toString('base64')
  })
}

async function step(op: StepOp): Promise<StepSaid> {
  const { conversation, tenant, parent, asked } = talkOf(op.talk)
  const of = loaded()
  const edits = conversation.edits()
  const messages = [...conversation.messages]
  asked.push(messages)
  const prompt = [...of.format.render({ messages, edits }).tokens]
  const vocabulary = of.modelInfo.vocabulary
  const abort = new AbortController()
  const before = of.ledger(conversation.id).length
  const request = {
    messages,
    edits,
    ...(op.clientEdits === undefined ? {} : { clientEdits: op.clientEdits }),
    ...(parent === undefined ? {} : { parent: conversationId(parent) }),
    ...(op.maxTokens === undefined ? {} : { maxTokens: op.maxTokens }),
    sampling: op.bias === undefined ? { temperature: 0.7, seed: 1 } : { logitBias: [{ token: op.bias, bias: 1e4 }] },
  }
  const generation = of.respond({
    ...request,
    conversation: conversation.id,
    tenant,
    contract: op.contract,
    logprobs: vocabulary,
    signal: abort.signal,
  })
  const common = {
    talk: op.talk,
    tenant,
    prompt,
    contents: messages.map(({ content }) => content),
    fragments: conversation.fragments.map(({ message, span, state }) => ({ message, span, kind: state.kind })),
  }
  let tokens = 0
  try {
    if (op.cancel !== undefined) {
      const timer = setTimeout(() => {
        abort.abort()
      }, op.cancel.milliseconds)
      for await (const event of generation)
        if (event.type === 'tokens' && (tokens += event.tokens.length) >= op.cancel.tokens) abort.abort()
      clearTimeout(timer)
    }
    const reply = await generation.reply
    const generated = (reply.logprobs ?? []).map(({ token }) => token)
    if (op.keep) conversation.add(reply.message)
    let other: LedgerEntry | null = null
    if (twin !== null && op.bias !== undefined) {
      const plain = edits.map(({ contract: _, ...edit }) => edit)
      const its = twin.respond({
        ...request,
        edits: plain,
        conversation: conversation.id,
        tenant,
        contract: 'exact',
        logprobs: 0,
      })
      other = (await its.reply).ledger
    }
    const said = { ...common, outcome: reply.finish, generated, rows: encoded(reply, vocabulary) }
    return { ...said, ledger: of.ledger(conversation.id).slice(before), twin: other }
  } catch (error) {
    const code = codeOf(error)
    return { ...common, outcome: code, generated: [], rows: [], ledger: of.ledger(conversation.id).slice(before), twin: null }
  }
}

function codeOf(error: unknown): string {
  const { code, stack } = error as { code?: string; stack?: string }
  // An unexpected error has to say where it came from.
  return code === undefined || code === 'internal/invariant' ? `${code ?? 'no code'}: ${stack ?? String(error)}` : code
}

const remade = (state: ConversationState): Conversation => Conversation.of(state, portsOf(loaded(), state.id))

/** Its client sends these messages instead of those before. */
function sending(name: string, talk: Talk, messages: readonly ChatMessage[]): void {
  talks.set(name, { ...talk, conversation: remade({ ...talk.conversation.snapshot(), messages }) })
}

/** The first message stays. */
function rewrite(messages: ChatMessage[], { kind, pick, content }: MessageEdit, ever: readonly ChatMessage[]): void {
  const at = 1 + (pick % Math.max(1, messages.length - 1))
  const old = messages[at]
  const role = old?.role ?? 'user'
  const instead = (text: string) => messages.splice(at, 1, { role, content: text })
  if (kind === 'insert' || old === undefined) messages.splice(at, 0, { role: 'user', content })
  else if (kind === 'replace') instead(content)
  else if (kind === 'shorten') instead(old.content.slice(0, old.content.length >> 1))
  else if (kind === 'empty') instead('')
  else if (kind === 'remove') messages.splice(at, messages.length > 2 ? 1 : 0)
  else if (kind === 'summarise') messages.splice(at, 1 + (pick % 4), { role: 'user', content })
  else messages.splice(at, pick % 2, ever.filter((each) => each.role !== 'system')[pick % ever.length] ?? old)
}

const picked = ({ conversation }: Talk, pick: number): string =>
  conversation.fragments[pick % conversation.fragments.length]?.id ?? 'none'

/** Operations that are refused change nothing, and say why. */
const refusal = (result: { readonly ok: boolean; readonly code?: string }): WorkerSaid =>
  result.ok ? {} : { refused: result.code ?? 'refused' }

/** As far as the model's cache can be read back. */
async function checked(): Promise<void> {
  try {
    await loaded().check('full')
  } catch (error) {
    if ((error as { code?: string }).code !== 'model/unsupported') throw error
    await loaded().check('positions')
  }
}

async function carryOut(op: Op): Promise<WorkerSaid> {
  switch (op.op) {
    case 'open':
      await close()
      talks.clear()
      summaries = 0
      await open(op.setting)
      return { edits: loaded().abilities.edits }
    case 'close':
      await close()
      return {}
    case 'reopen':
      await close()
      await open(opening!)
      // Conversations go on, on the new engine.
      for (const [name, talk] of talks) talks.set(name, { ...talk, conversation: remade(talk.conversation.snapshot()) })
      return {}
    case 'begin': {
      const id = conversationId(op.talk)
      talks.set(op.talk, { conversation: new Conversation(id, portsOf(loaded(), id)), tenant: op.tenant, asked: [] })
      return {}
    }
    case 'add': {
      const message: ChatMessage = { role: op.role, content: op.content }
      talkOf(op.talk).conversation.add(message)
      return {}
    }
    case 'fragment': {
      const { conversation } = talkOf(op.talk)
      const message = op.pick % Math.max(1, conversation.messages.length)
      const { length } = conversation.messages[message]?.content ?? ''
      const start = Math.floor(op.start * length)
      const end = Math.min(length, start + Math.max(1, Math.floor(op.share * length)))
      return refusal(conversation.cut([{ message, span: { start, end } }], op.pieces))
    }
    case 'fold': {
      const talk = talkOf(op.talk)
      return refusal(talk.conversation.fold(picked(talk, op.pick), op.contract))
    }
    case 'restore': {
      const talk = talkOf(op.talk)
      return refusal(talk.conversation.restore(picked(talk, op.pick)))
    }
    case 'summarise': {
      const talk = talkOf(op.talk)
      const result = await talk.conversation.summarize(picked(talk, op.pick), 'codes')
      summaries +=
        'ledger' in result
          ? (result as { ledger: readonly LedgerEntry[] }).ledger.reduce((sum, { submitted }) => sum + submitted, 0)
          : 0
      return { ...refusal(result), aside: summaries }
    }
    case 'rewrite': {
      const talk = talkOf(op.talk)
      const messages = [...talk.conversation.messages]
      const ever = [...talk.asked.flat(), ...messages]
      for (const edit of op.edits) rewrite(messages, edit, ever)
      sending(op.talk, talk, messages)
      return {}
    }
    case 'other': {
      const talk = talkOf(op.talk)
      const { messages } = talk.conversation
      const at = messages.findLastIndex(({ role }) => role === 'user')
      const content = `${op.content} ${messages[at]?.content ?? ''}`
      sending(op.talk, talk, [...messages.slice(0, Math.max(0, at)), { role: 'user', content }])
      return {}
    }
    case 'back': {
      const talk = talkOf(op.talk)
      const { length } = talk.asked
      sending(op.talk, talk, talk.asked[op.pick % length]!)
      return {}
    }
    case 'fork': {
      const { conversation, tenant, asked } = talkOf(op.from)
      const fork = {
        tenant,
        parent: op.from,
        asked: [...asked],
        conversation: remade({ ...conversation.snapshot(), id: conversationId(op.talk) }),
      }
      talks.set(op.talk, fork)
      return {}
    }
    case 'search':
      return refusal(talkOf(op.talk).conversation.search({ query: op.query, role: 'all' }))
    case 'step':
      return { steps: [await step(op)] }
    case 'together':
      return { steps: await Promise.all(op.steps.map(step)) }
    case 'refresh': {
      const { ledger } = await loaded().refresh(conversationId(op.talk))
      return { ledger: [...ledger] }
    }
    case 'compact':
      await loaded().compact(conversationId(op.talk))
      return {}
    case 'closeGaps':
      await loaded().closeGaps(conversationId(op.talk))
      return {}
    case 'forget':
      loaded().forget(conversationId(op.talk))
      twin?.forget(conversationId(op.talk))
      talks.delete(op.talk)
      return {}
    case 'check':
      await checked()
      return { submitted: loaded().submitted }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const op = JSON.parse(line) as Op
  let said: WorkerSaid
  try {
    said = await carryOut(op)
  } catch (error) {
    said = { error: codeOf(error) }
  }
  process.stdout.write(`${JSON.stringify(said)}\n`)
}
await close()
