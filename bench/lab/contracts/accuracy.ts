/** Owns PI-LLM under every contract: once the model folds by itself, once a program folds for it, so that the loop's own mistakes do not count. */
import { freshConversation } from '../../../src/runtime/core/ids.js'
import { sculptor } from '../../../src/runtime/agents/sculptor.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { ownWords, piSample, type PiSample, piScore } from '../../../src/lab/pi-llm.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { bootstrap, mean, type Interval } from '../../statistics.js'
import { GapCloser } from './gap-closer.js'
import { SETTINGS } from './stage.js'
import { BY_MODEL, BY_PROGRAM, type Way } from './variants.js'
import type { Watch } from './watch.js'

/** Who folds. */
export type Folder = 'program' | 'model'

/** One stream answered once. */
export interface Answer {
  readonly folder: Folder
  /** A name out of BY_PROGRAM or BY_MODEL. */
  readonly way: string
  /** Updates per key. */
  readonly n: number
  /** From 0; the same number is the same stream every way. */
  readonly stream: number
  /** 0..1 of the keys. */
  readonly accuracy: number
  /** Prompt tokens computed after the whole stream was read: markers, calls and results, and what the contract has computed again. */
  readonly computed: number
  /** Milliseconds of the cache's work and the prefill in the steps that `computed` counts. */
  readonly milliseconds: number
  /** Tokens shown to the answering step, the answer included. */
  readonly shown: number
  /** Whether the answer ended by itself, and after three steps at most where the model folds: cut, fold, answer. */
  readonly clean: boolean
}

/** All streams of one n, folder and way: means, with 95 % bootstrap intervals over streams. */
export interface Score extends Omit<Answer, 'stream' | 'clean'> {
  readonly streams: number
  readonly interval: Interval
  /** Accuracy less that under `exact`, stream by stream; null for `exact` itself. */
  readonly against: { readonly difference: number; readonly interval: Interval } | null
  /** Share of the streams. */
  readonly clean: number
}

export interface AccuracyOptions {
  readonly sizes: readonly number[]
  readonly streams: number
  readonly seed: number
}

/** A step that goes on for longer has lost its way; the answer to 46 keys takes a few hundred tokens. */
const LONGEST_ANSWER = 512
/** Cut, fold, answer. */
const STEPS = 3
/** A program cuts the stream into so many pieces and leaves the last one open. */
const PIECES = 4
const CELLS = 32_768

/** All answers; those so far when it is interrupted. */
export async function measureAccuracy(native: Native, model: string, options: AccuracyOptions, watch: Watch): Promise<Answer[]> {
  const engine = await LlamaEngine.load(native, model, { ...SETTINGS, cells: CELLS, hostBytes: 0 })
  const words = ownWords()
  const answers: Answer[] = []
  for (const n of options.sizes)
    for (let stream = 0; stream < options.streams && !watch.over(); stream++) {
      watch.say(`PI-LLM: n = ${n}, stream ${stream + 1} of ${options.streams}`)
      const sample = piSample({ words, updates: n, seed: options.seed, sample: stream })
      for (const [way, how] of Object.entries(BY_PROGRAM))
        answers.push({ folder: 'program', way, n, stream, ...(await foldedByProgram(engine, sample, how)) })
      for (const [way, how] of Object.entries(BY_MODEL))
        answers.push({ folder: 'model', way, n, stream, ...(await foldedByModel(engine, sample, how)) })
    }
  await engine.dispose()
  return answers
}

type Result = Omit<Answer, 'folder' | 'way' | 'n' | 'stream'>

/** The plain prompt is read whole, then three quarters of its stream are folded, then the model answers. */
async function foldedByProgram(loaded: LlamaEngine, sample: PiSample, way: Way | null): Promise<Result> {
  const engine = way?.closing === true ? new GapCloser(loaded) : loaded
  const conversation = freshConversation()
  const messages: ChatMessage[] = [{ role: 'user', content: sample.prompt }]
  const request = { conversation, messages, ...(way?.terms ?? {}), sampling: { temperature: 0 } }
  await loaded.respond({ ...request, maxTokens: 0 }).reply
  const edits = way === null ? [] : olderFolded(loaded, messages)
  const reply = await engine.respond({ ...request, edits, maxTokens: LONGEST_ANSWER }).reply
  loaded.forget(conversation)
  await loaded.check('books')
  const { milliseconds } = reply.ledger
  const more = engine instanceof GapCloser ? engine.spent : { tokens: 0, milliseconds: 0 }
  return {
    accuracy: piScore(sample, reply.message.content).accuracy,
    computed: reply.timing.prefillTokens + more.tokens,
    milliseconds: milliseconds.cache + milliseconds.prefill + more.milliseconds,
    shown: reply.ledger.shown,
    clean: reply.finish === 'stop',
  }
}

function olderFolded(engine: LlamaEngine, messages: readonly ChatMessage[]): readonly Edit[] {
  const id = freshConversation()
  const conversation = new Conversation(id, portsOf(engine, id, []))
  for (const message of messages) conversation.add(message)
  const [startMarker, endMarker] = ['The stream of updates starts here.', 'The stream of updates ends here.']
  const cut = conversation.fragment({ startMarker, endMarker, numFragments: PIECES })
  if (!cut.ok) throw new Error('the stream cannot be cut')
  for (const fragment of cut.fragments.slice(0, -1)) conversation.fold(fragment.id)
  return conversation.edits()
}

/** The agent's own loop: cut, fold, answer. What it computes after its first step counts, so calls and results do, too. */
async function foldedByModel(loaded: LlamaEngine, sample: PiSample, { terms, closing }: Way): Promise<Result> {
  const engine = closing ? new GapCloser(loaded) : loaded
  const generation = { sampling: { temperature: 0 }, maxTokens: LONGEST_ANSWER, ...terms }
  const session = sculptor({ engine, id: freshConversation(), prompt: 'pi-llm', generation })
  const { answer, steps, end, contextAfter } = await session.ask(sample.prompt)
  session.forget()
  await loaded.check('books')
  const later = steps.slice(1)
  const more = engine instanceof GapCloser ? engine.spent : { tokens: 0, milliseconds: 0 }
  return {
    accuracy: piScore(sample, answer).accuracy,
    computed: later.reduce((sum, { timing }) => sum + timing.prefillTokens, more.tokens),
    milliseconds: later.reduce(
      (sum, { ledger: { milliseconds } }) => sum + milliseconds.cache + milliseconds.prefill,
      more.milliseconds,
    ),
    shown: contextAfter,
    clean: end === 'stop' && steps.length <= STEPS,
  }
}

/** A score for every folder, way and n that has answers, in the order of measuring. */
export function scoresOf(answers: readonly Answer[]): Score[] {
  const groups = new Map<string, Answer[]>()
  for (const answer of answers) {
    const key = `${answer.folder}|${answer.way}|${answer.n}`
    groups.set(key, [...(groups.get(key) ?? []), answer])
  }
  return [...groups.values()].map((group) => scoreOf(group, groups.get(`${group[0]!.folder}|exact|${group[0]!.n}`) ?? []))
}

function scoreOf(group: readonly Answer[], exact: readonly Answer[]): Score {
  const { folder, way, n } = group[0]!
  const accuracies = group.map(({ accuracy }) => accuracy)
  const average = (of: 'computed' | 'milliseconds' | 'shown') => mean(group.map((answer) => answer[of]))
  return {
    ...{ folder, way, n },
    streams: group.length,
    accuracy: mean(accuracies),
    interval: bootstrap(accuracies),
    against: way === 'exact' ? null : differenceOf(group, exact),
    computed: average('computed'),
    milliseconds: average('milliseconds'),
    shown: average('shown'),
    clean: mean(group.map(({ clean }) => Number(clean))),
  }
}

/** Stream by stream, because a hard stream is hard every way. */
function differenceOf(group: readonly Answer[], exact: readonly Answer[]): Score['against'] {
  const differences = group.flatMap(({ stream, accuracy }) => {
    const other = exact.find((answer) => answer.stream === stream)
    return other === undefined ? [] : [accuracy - other.accuracy]
  })
  return differences.length === 0 ? null : { difference: mean(differences), interval: bootstrap(differences) }
}
