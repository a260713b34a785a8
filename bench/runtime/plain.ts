/**
 * Plain generation compared with node-llama-cpp on the same library, GGUF, threads, ubatch and flash attention: time to first token and
 * decode speed, for 4 prompt sizes and for 1 and 4 sequences. Rounds alternate between the two, so that a noisy machine hurts both. The
 * figure is the median of the rounds' ratios (ours / theirs; below 1 is faster).
 * `npm run --silent bench -- plain [--model path] [--prompts 128,512,2048,8192] [--sequences 1,4] [--rounds 5] [--json] [--write name]`;
 * without a model, one with random weights.
 */
import { readFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { getLlama, type LlamaContextSequence, type Token } from 'node-llama-cpp'
import { conversationId } from '../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { median, neverEnding, randomTokens } from '../random-tokens.js'
import { beginRecord, keep } from '../record.js'
import { benchModel } from '../shape.js'

const SHAPE = {
  architecture: 'llama',
  layers: 4,
  embedding: 512,
  heads: 8,
  kvHeads: 4,
  feedForward: 1408,
  vocabulary: 8192,
  context: 16384,
} as const
const GENERATED = 48
/** Rounds for prompts of at least `MANY` tokens, each of which takes a minute. */
const FEWER_ROUNDS = 2
const MANY = 16_384
const UBATCH = 512
/** Leaves one core to Node. If all are taken, both peers wait for a time slice at every token. */
const THREADS = Math.max(1, cpus().length - 1)

/** `firstToken`: milliseconds to the first token of the slowest sequence. `perToken`: mean milliseconds for each later token. */
interface Sample {
  readonly firstToken: number
  readonly perToken: number
}

interface Peer {
  readonly name: string
  /** Generates behind these prompts, which share no beginning with earlier ones, so that nothing is reused. */
  run(prompts: readonly Int32Array[]): Promise<Sample>
}

export async function plain(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      model: { type: 'string' },
      prompts: { type: 'string', default: '128,512,2048,8192' },
      sequences: { type: 'string', default: '1,4' },
      rounds: { type: 'string', default: '5' },
      json: { type: 'boolean', default: false },
      write: { type: 'string' },
    },
  })
  const { json } = values
  const numbers = (list: string) => list.split(',').map(Number)
  const { path, vocabulary } = await benchModel(values.model, 'plain', SHAPE)
  const { release } = (await openNative({ gpu: 'cpu' })).backend
  const origin = beginRecord(['plain', ...args], path, release, THREADS)
  const rows = []
  let salt = 0
  for (const sequences of numbers(values.sequences))
    for (const size of numbers(values.prompts)) {
      const cells = sequences * (size + GENERATED + 64)
      const peers = [await kvfold(path, cells), await nodeLlamaCpp(path, sequences, size + GENERATED + 64)]
      const rounds = sequences * size < MANY ? Number(values.rounds) : FEWER_ROUNDS
      const samples: Sample[][] = peers.map(() => [])
      for (let round = 0; round <= rounds; round++)
        for (const [index, peer] of round % 2 === 0 ? [...peers.entries()] : [...peers.entries()].reverse()) {
          const prompts = Array.from({ length: sequences }, () => randomTokens(size, ++salt, vocabulary))
          const sample = await peer.run(prompts)
          // The first round warms caches and thread pools.
          if (round > 0) samples[index]!.push(sample)
        }
      for (const peer of peers) await peer.close()
      const [ours, theirs] = samples as [Sample[], Sample[]]
      const row = {
        sequences,
        prompt: size,
        rounds,
        firstToken: {
          kvfold: median(ours.map((s) => s.firstToken)),
          peer: median(theirs.map((s) => s.firstToken)),
          ratio: ratio(ours, theirs, 'firstToken'),
        },
        perToken: {
          kvfold: median(ours.map((s) => s.perToken)),
          peer: median(theirs.map((s) => s.perToken)),
          ratio: ratio(ours, theirs, 'perToken'),
        },
      }
      rows.push(row)
      if (!json)
        console.log(
          `${sequences} x ${String(size).padStart(5)} tokens   first token ${row.firstToken.kvfold.toFixed(1)} ms, ratio ${row.firstToken.ratio.toFixed(3)}` +
            `   per token ${row.perToken.kvfold.toFixed(2)} ms, ratio ${row.perToken.ratio.toFixed(3)}`,
        )
    }
  const peer = `node-llama-cpp ${peerVersion()}`
  const result = { ...origin(), peer, ubatch: UBATCH, generated: GENERATED, rows }
  await keep(values.write, result)
  if (json) console.log(JSON.stringify(result))
  else
    console.log(
      `ratios: kvfold / ${peer}, medians of ${values.rounds} rounds (${FEWER_ROUNDS} from ${MANY} tokens on); below 1 is faster`,
    )
}

type ClosablePeer = Peer & { close(): Promise<void> }

async function kvfold(path: string, cells: number): Promise<ClosablePeer> {
  const native = await openNative({ gpu: 'cpu' })
  const engine = await LlamaEngine.load(native, path, {
    cells,
    batch: 4 * UBATCH,
    ubatch: UBATCH,
    threads: THREADS,
    batchThreads: THREADS,
    flashAttention: 'on',
    sequences: 8,
  })
  const bias = neverEnding(engine.model)
  let run = 0
  return {
    name: 'kvfold',
    async run(prompts) {
      run++
      const conversations = prompts.map((_, index) => conversationId(`bench-${run}-${index}`))
      const begun = performance.now()
      const firsts: number[] = []
      await Promise.all(
        prompts.map(async (tokens, index) => {
          let first = true
          await engine.complete({
            conversation: conversations[index]!,
            tokens,
            maxTokens: GENERATED,
            sampling: { temperature: 0, logitBias: bias },
            onText: (_text, sampled) => {
              if (!first || sampled.length === 0) return
              first = false
              firsts.push(performance.now() - begun)
            },
          })
        }),
      )
      const sample = toSample(begun, firsts)
      for (const conversation of conversations) engine.forget(conversation)
      await engine.check('books')
      return sample
    },
    close: () => engine.dispose(),
  }
}

async function nodeLlamaCpp(path: string, sequences: number, contextSize: number): Promise<ClosablePeer> {
  const llama = await getLlama({ gpu: false, build: 'never', progressLogs: false, maxThreads: THREADS })
  const model = await llama.loadModel({ modelPath: path })
  const context = await model.createContext({ contextSize, sequences, batchSize: UBATCH, threads: THREADS, flashAttention: true })
  const slots: LlamaContextSequence[] = Array.from({ length: sequences }, () => context.getSequence())
  return {
    name: 'node-llama-cpp',
    async run(prompts) {
      for (const slot of slots) await slot.clearHistory()
      const begun = performance.now()
      const firsts: number[] = []
      await Promise.all(
        prompts.map(async (tokens, index) => {
          let count = 0
          const answer = slots[index]!.evaluate([...tokens] as Token[], { temperature: 0, yieldEogToken: true })
          while (count < GENERATED && (await answer.next()).done !== true)
            if (++count === 1) firsts.push(performance.now() - begun)
          await answer.return()
        }),
      )
      return toSample(begun, firsts)
    },
    async close() {
      await context.dispose()
      await model.dispose()
    },
  }
}

function toSample(begun: number, firsts: readonly number[]): Sample {
  const firstToken = Math.max(...firsts)
  return { firstToken, perToken: (performance.now() - begun - firstToken) / (GENERATED - 1) }
}

function peerVersion(): string {
  const manifest = new URL('../package.json', import.meta.resolve('node-llama-cpp'))
  return (JSON.parse(readFileSync(manifest, 'utf8')) as { version: string }).version
}

function ratio(ours: readonly Sample[], theirs: readonly Sample[], key: keyof Sample): number {
  return median(ours.map((sample, round) => sample[key] / theirs[round]![key]))
}
