/**
 * A real model in one table: exactness under random edits, against fresh prefills and against Hugging Face's transformers; and the figures
 * of other benchmarks, against llama-server and node-llama-cpp. In the record, each part names its model, its commit and the machine's
 * load. Parts that are left out keep their earlier figures.
 * `npm run --silent bench -- real --model GGUF [--parts exact,plain,serve,folds,pays] [--text file] [--edits 6] [--python path] [--seed
 * 2026] [--json] [--write name]`.
 * `exact` needs a GGUF in F32 (npm run models:real), because quantised products round too much to show anything. `--python`: a Python that
 * has torch, transformers and gguf; without it there is no comparison with transformers. `--text`: a long, real text; default: an RFC of
 * Debian's doc-rfc-std (non-free).
 */
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { gunzipSync } from 'node:zlib'
import { conversationId } from '../../src/runtime/core/ids.js'
import { Random } from '../../src/runtime/core/random.js'
import type { Span } from '../../src/runtime/core/span.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { Native } from '../../src/runtime/native/types.js'
import { edited, freshLogprobs } from '../driver.js'
import { beginRecord, keep, OPTIONS, RESULTS, SEED } from '../record.js'
import { mean } from '../statistics.js'

const TEXT = '/usr/share/doc/RFC/standard/rfc3986.txt.gz'
const SETTINGS = { threads: 1, batchThreads: 1, flashAttention: 'off', keyType: 'f32', valueType: 'f32' } as const
/** Tokens of the text that is folded: more than a sliding window of 512. */
const LENGTH = 800
const STRETCHES = 7
/** How many of the likeliest tokens are compared by their log-probabilities. */
const COMPARED = 20
const CELLS = 4096

interface Exactness {
  readonly edits: number
  readonly tokens: readonly number[]
  /** The largest difference of log-probabilities, in nats, over the likeliest tokens: an exact step against a fresh prefill. */
  readonly exact: number
  /** The same for a fresh prefill one token at a time against one in a single batch. */
  readonly fresh: number
  /** The same for the last edit under `splice` against its fresh prefill. `exact` must be far below this. */
  readonly splice: number
  readonly transformers?: Peer
}

/** Differences of log-probabilities against transformers, in nats. */
interface Peer {
  readonly versions: string
  /** The largest difference, over the likeliest tokens. */
  readonly exact: number
  /** The mean difference of the likeliest token. */
  readonly meanOfLikeliest: number
  /**
   * Transformers against itself: a prompt read one token at a time, and the same prompt read at once. `gelu`: GELU in F32. `table`: GELU
   * rounded as in llama.cpp's table.
   */
  readonly tokenByToken: { readonly gelu: number; readonly table: number }
}

type Top = readonly { readonly token: number; readonly logprob: number }[]

async function exactness(native: Native, model: string, text: string, options: Options): Promise<Exactness> {
  const engine = await LlamaEngine.load(native, model, { ...SETTINGS, cells: CELLS, hostBytes: 2 ** 28 })
  const reference = await native.loadModel(model)
  const cells = 2 ** Math.ceil(Math.log2(LENGTH + 1))
  const whole = await reference.createContext({ ...SETTINGS, cells, batch: cells, ubatch: cells })
  const single = await reference.createContext({ ...SETTINGS, cells, batch: 1, ubatch: 1 })
  const base = engine.model.tokenize(text, { addSpecial: true }).slice(0, LENGTH)
  const marker = engine.model.tokenize('[folded]')
  const show = async (contract: 'exact' | 'splice', holes: readonly Span[]): Promise<{ shown: Int32Array; top: Top }> => {
    const { tokens: shown, origin } = edited(
      base,
      holes.map((span) => ({ ...span, marker })),
    )
    const asked = {
      conversation: conversationId(contract),
      tokens: shown,
      ...(origin === undefined ? {} : { origin }),
      maxTokens: 1,
    }
    const { logprobs, ledger } = await engine.complete({ ...asked, logprobs: COMPARED, terms: { contract } })
    if (contract === 'exact' && ledger.approximate !== 0) throw new Error('an exact step is approximate')
    return { shown, top: logprobs[0]!.top }
  }
  const random = new Random(options.seed)
  const holes = new Map<number, Span>()
  const seen: { shown: Int32Array; top: Top; fresh: Float64Array }[] = []
  const control: number[] = []
  await show('exact', [])
  for (let edit = 0; edit < options.edits; edit++) {
    // The last edit folds text just before the end, because the few tokens behind it have attended to all of it.
    const at = edit === options.edits - 1 ? STRETCHES - 1 : random.below(STRETCHES - 1)
    const end = LENGTH - 10 - 110 * (STRETCHES - 1 - at)
    if (!holes.delete(at)) holes.set(at, { start: end - 30 - random.below(70), end })
    const spans = [...holes.values()].sort((a, b) => a.start - b.start)
    const isLast = edit === options.edits - 1
    // Before the exact step, whose cells the splice would otherwise use.
    if (isLast) await show('splice', [])
    const spliced = isLast ? await show('splice', spans) : null
    const { shown, top } = await show('exact', spans)
    const fresh = await freshLogprobs(whole, shown)
    if (spliced !== null) control.push(most(spliced.top, fresh))
    seen.push({ shown, top, fresh })
    console.error(`edit ${edit + 1} of ${options.edits}: off by ${most(top, fresh).toExponential(1)}`)
  }
  await engine.check('full')
  const { shown, top, fresh } = seen.at(-1)!
  const again = await freshLogprobs(single, shown)
  const result = {
    ...{ edits: options.edits, tokens: seen.map((one) => one.shown.length) },
    exact: Math.max(...seen.map((one) => most(one.top, one.fresh))),
    fresh: Math.max(...top.map(({ token }) => Math.abs(again[token]! - fresh[token]!))),
    splice: Math.max(...control),
  }
  await reference.dispose()
  await engine.dispose()
  return options.python === undefined ? result : { ...result, transformers: againstTransformers(options.python, model, seen) }
}

const most = (top: Top, expected: Float64Array): number =>
  Math.max(...top.map(({ token, logprob }) => Math.abs(logprob - expected[token]!)))

/** Returns the log-probabilities that Hugging Face's transformers give for the same prompts with the same weights. */
function againstTransformers(python: string, model: string, seen: readonly { shown: Int32Array; top: Top }[]): Peer {
  const script = fileURLToPath(new URL('peers/transformers_peer.py', import.meta.url))
  const input = JSON.stringify({ prompts: seen.map(({ shown }) => [...shown]), top: 200, likeliest: COMPARED })
  const said = JSON.parse(execFileSync(python, [script, model], { input, encoding: 'utf8', maxBuffer: 2 ** 28 })) as {
    readonly transformers: string
    readonly torch: string
    readonly logprobs: readonly Record<string, number>[]
    readonly tokenByToken: Peer['tokenByToken']
  }
  const differences = seen.map(({ top }, at) =>
    top.map(({ token, logprob }) => {
      const theirs = said.logprobs[at]![token]
      if (theirs === undefined) throw new Error(`token ${token} is among the ${COMPARED} likeliest here, and not among 200 there`)
      return Math.abs(logprob - theirs)
    }),
  )
  return {
    versions: `transformers ${said.transformers}, torch ${said.torch}`,
    exact: Math.max(...differences.flat()),
    meanOfLikeliest: mean(differences.map(([first]) => first!)),
    tokenByToken: said.tokenByToken,
  }
}

interface Options {
  readonly seed: number
  readonly edits: number
  readonly python: string | undefined
}

const MAIN = new URL('../main.ts', import.meta.url)
const PEERS = new URL('peers/main.ts', import.meta.url)

/** Runs another benchmark on the model in its own process, and returns its JSON. */
const ran = (entry: URL, ...args: readonly string[]): Record<string, unknown> =>
  JSON.parse(
    // node-llama-cpp may print lines of its own before the JSON.
    execFileSync(process.execPath, ['--import', 'tsx', fileURLToPath(entry), ...args, '--json'], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
      maxBuffer: 2 ** 28,
    })
      .trim()
      .split('\n')
      .at(-1)!,
  ) as Record<string, unknown>

/** Sizes with which each part takes a few minutes on a model of 270M. */
const PARTS: Record<string, (model: string) => Record<string, unknown>> = {
  plain: (model) => ran(MAIN, 'plain', '--model', model, '--prompts', '128,512', '--rounds', '3'),
  serve: (model) => ran(MAIN, 'serve', '--model', model, '--rounds', '2', '--seconds', '20'),
  folds: (model) => ({
    kvfold: ran(MAIN, 'eight-folds', '--model', model, '--length', '2048'),
    peers: ran(PEERS, '--model', model, '--length', '2048', '--order', 'first-to-last'),
  }),
  pays: (model) => {
    const { measured, commit, settings } = ran(
      MAIN,
      ...['acm', '--model', model, '--threads', '1', '--rounds', '7'],
      ...['--before', '2k', '--after', '500', '--shares', '0,0.9'],
    )
    return { measured, commit, settings }
  },
}

const textOf = (path: string): string => {
  if (!existsSync(path))
    throw new Error(`There is no ${path}: install doc-rfc-std (Debian, non-free), or name a long text with --text.`)
  const bytes = readFileSync(path)
  return (path.endsWith('.gz') ? gunzipSync(bytes) : bytes).toString('utf8').replaceAll(/\s+/g, ' ')
}

export async function real(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      ...SEED,
      model: { type: 'string' },
      parts: { type: 'string', default: ['exact', ...Object.keys(PARTS)].join() },
      text: { type: 'string', default: TEXT },
      edits: { type: 'string', default: '6' },
      python: { type: 'string' },
    },
  })
  const { model, python } = values
  if (model === undefined) throw new Error('--model: name a GGUF, such as those that npm run models:real makes.')
  const native = await openNative({ gpu: 'cpu' })
  const kept = values.write === undefined ? null : new URL(`${values.write}.json`, RESULTS)
  const before = (): Recorded['parts'] =>
    kept !== null && existsSync(kept) ? (JSON.parse(readFileSync(kept, 'utf8')) as Recorded).parts : {}
  let parts: Recorded['parts'] = {}
  let origin = {}
  for (const name of values.parts.split(',')) {
    const record = beginRecord(
      ['real', ...args.map((arg) => (arg === python ? 'PYTHON' : arg))],
      model,
      native.backend.release,
      1,
    )
    const part = PARTS[name]
    if (part === undefined && name !== 'exact') throw new Error(`there is no part ${name}`)
    const options = { seed: Number(values.seed), edits: Number(values.edits), python }
    const found = part === undefined ? await exactness(native, model, textOf(values.text), options) : part(model)
    origin = record()
    parts = { ...before(), ...parts, [name]: { ...origin, ...found } }
    await keep(values.write, { ...origin, parts })
  }
  console.log(values.json ? JSON.stringify({ ...origin, parts }) : terminal(tableOf(parts)).join('\n'))
}

interface Recorded {
  readonly parts: Record<string, Record<string, unknown>>
}

function tableOf(parts: Recorded['parts']) {
  const rows = Object.entries(parts).flatMap(([name, part]): string[][] => {
    switch (name) {
      case 'exact': {
        const { exact, fresh, splice, transformers } = part as unknown as Exactness
        return [
          [
            'off a fresh prefill, nats',
            exact.toExponential(1),
            `two fresh ones ${fresh.toExponential(1)}`,
            `splice ${splice.toExponential(1)}`,
          ],
          ...(transformers === undefined
            ? []
            : [['off transformers, nats', transformers.exact.toExponential(1), transformers.versions, '']]),
        ]
      }
      case 'plain':
        return (part['rows'] as readonly { sequences: number; prompt: number; firstToken: Ratio; perToken: Ratio }[]).map(
          (row) => [
            `${row.sequences} x ${row.prompt} tokens, of ${String(part['peer'])}`,
            `first token ${row.firstToken.ratio.toFixed(2)}`,
            `each token ${row.perToken.ratio.toFixed(2)}`,
            '',
          ],
        )
      case 'serve':
        return (part['ratios'] as readonly { peer: string; throughput: number; cpu: number; gap: number }[]).map((row) => [
          `serving, of ${row.peer}`,
          `throughput ${row.throughput.toFixed(2)}`,
          `CPU ${row.cpu.toFixed(2)}`,
          `gap ${row.gap.toFixed(2)}`,
        ])
      case 'folds': {
        const { tokensComputed, seconds } = part['kvfold'] as Record<string, Record<string, number>>
        const { rows: theirs } = part['peers'] as { rows: readonly { peer: string; tokens: number; seconds: number }[] }
        const line = (who: string, tokens: number, took: number) => [
          `eight folds, ${who}`,
          `${tokens} tokens`,
          `${took.toFixed(1)} s`,
          '',
        ]
        return [
          ...Object.keys(tokensComputed!).map((way) => line(way, tokensComputed![way]!, seconds![way]!)),
          ...theirs.map((row) => line(row.peer, row.tokens, row.seconds)),
        ]
      }
      default:
        return (part['measured'] as readonly Measured[]).flatMap(({ point, ways }) =>
          ways.map(({ way, computed, first, pays }) => [
            `${point.before} to ${point.after} tokens, ${100 * point.share} % before: ${way}`,
            `${computed} computed`,
            `first token ${Math.round(first.median)} ms`,
            pays === null ? '' : `pays from ${pays.from}`,
          ]),
        )
    }
  })
  return table([left('what'), right('kvfold'), right(''), right('')], rows)
}

interface Ratio {
  readonly ratio: number
}

interface Measured {
  readonly point: { readonly before: number; readonly after: number; readonly share: number }
  readonly ways: readonly {
    readonly way: string
    readonly computed: number
    readonly first: { readonly median: number }
    readonly pays: { readonly from: number } | null
  }[]
}
