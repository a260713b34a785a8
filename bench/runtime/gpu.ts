/**
 * What a backend achieves: copies of cells out and in, prefill, decode, folds and restores under every contract with their time by part,
 * and a server under load.
 * `npm run bench -- gpu [--gpu <backend>] [--small] [--copies] [--model <gguf>] [--json]`; `--copies`: only copies. Each row names its
 * device. Figures of a software device show only that everything works.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { CONTRACTS } from '../../src/runtime/core/contract.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { LlamaEngine, type Completion } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { synthesizeModel } from '../../src/runtime/native/synthetic.js'
import type { GpuChoice } from '../../src/runtime/native/types.js'
import { endsOfGeneration, median, neverEnding, randomTokens } from '../random-tokens.js'
import { startServer } from '../server-process.js'
import { streamCompletion } from './serve/stream.js'
import { SHAPE } from '../shape.js'
import { measureCopies } from './copies.js'

interface Sizes {
  /** Tokens of the conversation. A fold hides its middle half. */
  readonly length: number
  readonly generated: number
  readonly rounds: number
  readonly clients: number
  readonly seconds: number
}

const LARGE: Sizes = { length: 14_336, generated: 128, rounds: 5, clients: 16, seconds: 30 }
const SMALL: Sizes = { length: 384, generated: 8, rounds: 1, clients: 2, seconds: 2 }
const MARKER = 12
const SLOTS = 4

export async function gpu(words: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...words],
    options: {
      gpu: { type: 'string', default: 'auto' },
      model: { type: 'string' },
      small: { type: 'boolean', default: false },
      copies: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
    },
  })
  const sizes = values.small ? SMALL : LARGE
  const path = values.model ?? (await synthetic())
  const native = await openNative({ gpu: values.gpu as GpuChoice })
  const { gpu, devices, release } = native.backend
  const copies = await measureCopies(native, values.small ? 2 ** 25 : 2 ** 30)
  if (values.copies) {
    console.log(JSON.stringify({ gpu, devices, release, copies }))
    return
  }
  const engine = await LlamaEngine.load(native, path, {
    cells: 2 * Math.ceil(sizes.length / 512) * 512 + 2048,
    hostBytes: 2 ** 30,
  })
  const steps = await episodes(engine, sizes)
  const banned = endsOfGeneration(engine.model)
  const { vocabulary } = engine.modelInfo
  await engine.dispose()
  const serve = await load(path, gpu, { ...sizes, banned, vocabulary })
  const record = { gpu, devices, release, model: values.model ?? 'synthetic 4 x 256', sizes, copies, steps, serve }
  if (values.json) console.log(JSON.stringify(record))
  else {
    console.log(`${gpu} on ${devices.join(', ')}, llama.cpp ${release}`)
    console.table([copies])
    console.table(steps)
    console.log(serve)
  }
}

async function synthetic(): Promise<string> {
  const path = join(tmpdir(), 'kvfold-bench-gpu.gguf')
  await synthesizeModel(path, { ...SHAPE, type: 'f16', seed: 1 })
  return path
}

interface Step {
  readonly step: string
  readonly submitted: number
  readonly milliseconds: number
  /** Milliseconds by the ledger: `books` for bookkeeping, `copies` for copying cells, `decodes` for decoding. */
  readonly books: number
  readonly copies: number
  readonly decodes: number
}

/** Returns medians over rounds, each of which has its own conversation. */
async function episodes(engine: LlamaEngine, { length, generated, rounds }: Sizes): Promise<Step[]> {
  const { vocabulary } = engine.modelInfo
  const ban = neverEnding(engine.model)
  const taken = new Map<string, Record<Exclude<keyof Step, 'step'>, number[]>>()
  const note = async (step: string, request: Omit<Completion, 'sampling'>) => {
    const begun = performance.now()
    const { ledger } = await engine.complete({ ...request, sampling: { temperature: 0, logitBias: ban } })
    const row = taken.get(step) ?? { submitted: [], milliseconds: [], books: [], copies: [], decodes: [] }
    taken.set(step, row)
    row.submitted.push(ledger.submitted)
    row.milliseconds.push(performance.now() - begun)
    const { copying = 0 } = ledger
    const { cache, prefill, decode } = ledger.milliseconds
    row.books.push(cache - copying)
    row.copies.push(copying)
    row.decodes.push(prefill + decode)
  }
  const hole = { start: length >> 2, end: (length >> 2) + (length >> 1) }
  // The first round compiles the device's kernels.
  for (let round = 0; round <= rounds; round++) {
    if (round === 1) taken.clear()
    for (const contract of CONTRACTS) {
      const salt = 1 + round * 10 + CONTRACTS.indexOf(contract)
      const base = randomTokens(length, salt, vocabulary)
      const tokens = Int32Array.from([
        ...base.subarray(0, hole.start),
        ...randomTokens(MARKER, salt + 5000, vocabulary),
        ...base.subarray(hole.end),
      ])
      const conversation = conversationId(`${contract} ${round}`)
      const terms = { contract }
      await note('prefill', { conversation, tokens: base, terms, maxTokens: 1 })
      await note(`decode ${generated}`, { conversation, tokens: base, terms, maxTokens: generated })
      await note(`fold, ${contract}`, {
        conversation,
        tokens,
        origin: { base, holes: [{ span: hole, marker: MARKER }] },
        terms,
        maxTokens: 1,
      })
      await note(`restore, ${contract}`, { conversation, tokens: base, terms, maxTokens: 1 })
      engine.forget(conversation)
    }
  }
  const rounded = (values: readonly number[]) => Number(median(values).toFixed(2))
  return [...taken].map(([step, { submitted, milliseconds, books, copies, decodes }]) => ({
    step,
    submitted: median(submitted),
    milliseconds: rounded(milliseconds),
    books: rounded(books),
    copies: rounded(copies),
    decodes: rounded(decodes),
  }))
}

interface LoadOptions extends Sizes {
  readonly banned: readonly number[]
  readonly vocabulary: number
}

/** Lets clients send requests without pause to `kvfold serve` in its own process, and checks every stream to its end. */
async function load(path: string, backend: GpuChoice, { clients, seconds, generated, length, banned, vocabulary }: LoadOptions) {
  const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))
  const server = await startServer('kvfold serve', process.execPath, (port) => [
    ...[main, 'serve', '--model', `bench=${path}`, '--port', String(port), '--slots', String(SLOTS), '--gpu', backend],
    ...['--context', String(SLOTS * length), '--store', 'none', '--log-level', 'error', '--queue', '64'],
  ])
  const sizes = [48, 192, 768, 2048].filter((size) => size <= length)
  const begun = performance.now()
  const streams: Awaited<ReturnType<typeof streamCompletion>>[] = []
  const client = async (number: number) => {
    for (let turn = 0; performance.now() - begun < 1000 * seconds; turn++) {
      const prompt = [...randomTokens(sizes[(number + turn) % sizes.length]!, 7919 * number + turn + 1, vocabulary)]
      streams.push(await streamCompletion({ url: server.url, prompt, tokens: generated, banned, model: 'bench' }))
    }
  }
  await Promise.all(Array.from({ length: clients }, (_, number) => client(number)))
  const took = (performance.now() - begun) / 1000
  await server.close()
  const gaps = streams.flatMap(({ gaps }) => gaps).sort((a, b) => a - b)
  return {
    streams: streams.length,
    faults: [...new Set(streams.flatMap(({ fault }) => (fault === null ? [] : [fault])))],
    tokensPerSecond: Number((streams.reduce((sum, stream) => sum + stream.generated, 0) / took).toFixed(1)),
    gap: { p50: gaps[Math.floor(0.5 * gaps.length)] ?? null, p95: gaps[Math.floor(0.95 * gaps.length)] ?? null },
  }
}
