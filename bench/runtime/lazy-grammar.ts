/**
 * What it costs to hold calls to their tools' schemas while the model may still write anything. Measures tokens per second of a chat with
 * tools and `tool_choice: auto`, where a grammar waits for a call that never comes. Compares it with the same chat that has as many tokens
 * of text in place of the tools. kvfold and llama-server run side by side on the same GGUF with random weights. The order changes every
 * round, and a figure is the median of the rounds.
 * `npm run --silent bench -- lazy-grammar [--json] [--write name]`
 */
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { openNative } from '../../src/runtime/native/binding.js'
import { synthesizeModel } from '../../src/runtime/native/synthetic.js'
import { endsOf, HERE, startKvfold, startLlamaServer } from './serve/servers.js'
import { median } from '../random-tokens.js'
import { beginRecord, keep, OPTIONS } from '../record.js'
import type { ServerProcess } from '../server-process.js'

/** A small and a common vocabulary size: a grammar's cost depends on the number of tokens, not on the weights. */
const VOCABULARIES = [8_192, 131_072]
const SHAPE = {
  architecture: 'llama',
  layers: 4,
  embedding: 512,
  heads: 8,
  kvHeads: 4,
  feedForward: 1408,
  context: 8192,
} as const
const GENERATED = 192
const ROUNDS = 7
const THREADS = Math.max(1, cpus().length - 1)

const tools = ['read_file', 'write_file', 'search', 'run'].map((name) => ({
  type: 'function',
  function: {
    name,
    description: `Does ${name}.`,
    parameters: {
      type: 'object',
      properties: { path: { type: 'string' }, lines: { type: 'integer', minimum: 1 }, mode: { enum: ['a', 'b'] } },
      required: ['path'],
    },
  },
}))

interface Server {
  readonly name: string
  readonly process: ServerProcess
  /** Further request fields, so that no answer ends early. */
  readonly endless: object
}

interface Row {
  readonly server: string
  readonly vocabulary: number
  /** Tokens per second, medians. */
  readonly plain: number
  readonly lazy: number
  /** Median over the rounds of lazy / plain. */
  readonly ratio: number
}

export async function lazyGrammar(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({ args: [...args], options: OPTIONS })
  const release = (await openNative({ gpu: 'cpu' })).backend.release
  const rows: Row[] = []
  const path = join(tmpdir(), 'kvfold-bench-lazy.gguf')
  const done = beginRecord(['lazy-grammar', ...args], values.model, release, THREADS)
  for (const vocabulary of VOCABULARIES) {
    await synthesizeModel(path, { ...SHAPE, vocabulary, type: 'f16', seed: 1 })
    const ends = await endsOf(path)
    const settings = { model: path, slots: 1, threads: THREADS, cells: 4096 }
    const bias = Object.fromEntries(ends.map((token) => [String(token), -100]))
    const servers: Server[] = [
      { name: 'kvfold', process: await startKvfold('kvfold', HERE, settings), endless: { logit_bias: bias } },
      { name: 'llama-server', process: await startLlamaServer(settings, ['--jinja']), endless: { ignore_eos: true } },
    ]
    try {
      for (const row of await compared(servers)) rows.push({ ...row, vocabulary })
    } finally {
      for (const { process } of servers) await process.close()
    }
  }
  for (const { server, vocabulary, plain, lazy, ratio } of values.json ? [] : rows)
    console.log(
      `${server.padEnd(13)} ${String(vocabulary).padStart(7)} tokens in the vocabulary: ${plain.toFixed(1)} tokens/s without tools, ` +
        `${lazy.toFixed(1)} with, ratio ${ratio.toFixed(3)}`,
    )
  const record = {
    bench: 'lazy-grammar',
    shape: SHAPE,
    generated: GENERATED,
    rounds: ROUNDS,
    tools: tools.length,
    rows,
    ...done(),
  }
  if (values.json) console.log(JSON.stringify(record))
  if (values.write !== undefined) await keep(values.write, record)
}

/** Measures every server with and without tools, round by round. */
async function compared(servers: readonly Server[]): Promise<Omit<Row, 'vocabulary'>[]> {
  const samples = new Map(servers.map(({ name }) => [name, { plain: [] as number[], lazy: [] as number[] }]))
  for (let round = 0; round <= ROUNDS; round++) {
    const turns = servers.flatMap((server) => [
      { server, kind: 'plain' as const },
      { server, kind: 'lazy' as const },
    ])
    for (const { server, kind } of round % 2 === 0 ? turns : turns.reverse()) {
      const rate = await rateOf(server, kind === 'lazy', round)
      // The first round warms caches and thread pools.
      if (round > 0) samples.get(server.name)![kind].push(rate)
    }
  }
  return [...samples].map(([server, { plain, lazy }]) => ({
    server,
    plain: median(plain),
    lazy: median(lazy),
    ratio: median(lazy.map((rate, at) => rate / plain[at]!)),
  }))
}

/** Returns the tokens per second behind the first token. */
async function rateOf({ name, process, endless }: Server, withTools: boolean, round: number): Promise<number> {
  // As long as the tools in the prompt.
  const filler = withTools ? '' : JSON.stringify(tools)
  const body = {
    messages: [{ role: 'user', content: `Round ${round}. ${filler}` }],
    ...(withTools ? { tools, tool_choice: 'auto' } : {}),
    ...{ temperature: 1, top_k: 40, seed: round, max_tokens: GENERATED, timings_per_token: true, stream: false },
    ...endless,
  }
  const response = await fetch(`${process.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', connection: 'close' },
    body: JSON.stringify(body),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${name} answered ${response.status}: ${text}`)
  const { timings } = JSON.parse(text) as {
    readonly timings: { readonly predicted_n: number; readonly predicted_per_second: number }
  }
  if (timings.predicted_n < GENERATED) throw new Error(`${name} generated ${timings.predicted_n} tokens instead of ${GENERATED}.`)
  return timings.predicted_per_second
}
