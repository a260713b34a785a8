/** Owns watching an agent's whole turn: after each step, how much its generated tokens looked at every message so far. */
import { sculptor } from '../agents/sculptor.js'
import { MARKERS, massOn, messageSet, overall } from '../attention/measurement.js'
import { place, type Placed } from '../attention/places.js'
import type { EpisodeRecord, EpisodeShare, EpisodeStep } from '../attention/run-folder.js'
import { mean } from '../attention/statistics.js'
import { KvfoldError } from '../core/errors.js'
import { overlaps, length } from '../core/span.js'
import type { AttentionPattern, KeySet } from '../engine/attention.js'
import { EngineAround, type EngineReply, type EngineRequest, type Generation } from '../engine/engine.js'
import { freshConversation, type LlamaEngine } from '../engine/llama.js'
import { piScore } from './pi-score.js'
import type { PiLookOptions, PiPrompt } from './pi-attention.js'

/** A step that goes on for longer has lost its way. */
const LONGEST_STEP = 512

/** The agent folds and answers by itself, under the first contract. @throws KvfoldError engine/cancelled, and as the engine */
export async function watchEpisode({ n, seed, sample }: PiPrompt, options: PiLookOptions): Promise<EpisodeRecord> {
  const { engine, contracts, blend, signal } = options
  const watched = new WatchedEngine(engine, options)
  const [contract = 'exact'] = contracts
  const generation = {
    sampling: { temperature: 0 },
    maxTokens: LONGEST_STEP,
    contract,
    ...(contract === 'blend' && blend !== undefined ? { blend } : {}),
  }
  const session = sculptor({ engine: watched, id: freshConversation(), prompt: 'pi-llm', generation })
  try {
    const outcome = await session.ask(sample.prompt, signal === undefined ? {} : { signal })
    if (outcome.end === 'cancelled') throw new KvfoldError('engine/cancelled', 'The study was interrupted.')
    return {
      part: 'episode',
      n,
      seed,
      steps: watched.steps.map((step, index) => ({ step: index, ...step })),
      right: piScore(sample, outcome.answer).correct,
      asked: sample.keys.length,
    }
  } finally {
    session.forget()
  }
}

/** An engine that asks for attention on every step: from all generated tokens to every message. */
class WatchedEngine extends EngineAround<LlamaEngine> {
  readonly steps: Omit<EpisodeStep, 'step'>[] = []

  constructor(
    engine: LlamaEngine,
    private readonly options: Pick<PiLookOptions, 'layers' | 'heads'>,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    const { engine, options } = this
    const prompt = place(engine.format, request, [])
    const generation = engine.respond({
      ...request,
      attention: {
        queries: { generated: true },
        keys: keysOf(prompt),
        ...(options.layers === undefined ? {} : { layers: options.layers }),
        ...(options.heads === undefined ? {} : { heads: options.heads }),
      },
    })
    const reply = generation.reply.then((done) => {
      if (done.attention !== undefined) this.steps.push(stepOf(done, prompt, done.attention))
      return done
    })
    // Whoever awaits the reply hears of its failure; nobody may be waiting yet.
    reply.catch(() => undefined)
    return { reply, [Symbol.asyncIterator]: () => generation[Symbol.asyncIterator]() }
  }
}

function keysOf({ messages, markers }: Placed): KeySet[] {
  return messages.flatMap(({ index, span }) => {
    const hidden = markers.filter((marker) => overlaps(marker, span))
    return [
      ...(length(span) > 0 ? [{ name: messageSet(index), tokens: [span] }] : []),
      ...(hidden.length > 0 ? [{ name: markersOf(index), tokens: hidden }] : []),
    ]
  })
}

const markersOf = (index: number): string => `${MARKERS} ${index}`

function stepOf({ message }: EngineReply, prompt: Placed, pattern: AttentionPattern): Omit<EpisodeStep, 'step'> {
  const queries = [...pattern.queries]
  const mass = (key: string): number => {
    const map = massOn(pattern, queries, key)
    return map === null ? 0 : overall(map)
  }
  const shares = prompt.messages.flatMap(({ index, role, span }): EpisodeShare[] =>
    length(span) === 0
      ? []
      : [{ message: index, role, tokens: length(span), mass: mass(messageSet(index)), markers: mass(markersOf(index)) }],
  )
  const average = (of: Float32Array): number => (of.length === 0 ? 0 : mean(of))
  return {
    calls: (message.toolCalls ?? []).map(({ name }) => name),
    text: message.content.slice(0, 200),
    queries: queries.length,
    shown: prompt.tokens.length,
    shares,
    own: average(pattern.total.data) - shares.reduce((sum, share) => sum + share.mass, 0),
    sink: average(pattern.sink.data),
  }
}
