/**
 * The command `kvfold attention heads`: scores every attention head, and measures how much the loss grows without the heads with the best
 * scores.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { type Command, Option } from 'commander'
import { KvfoldError } from '../../../runtime/core/errors.js'
import { LlamaEngine } from '../../../runtime/engine/llama.js'
import { mean } from '../../../runtime/core/mean.js'
import { mix } from '../../../runtime/core/random.js'
import { left, right, table, terminal } from '../../../runtime/figures/table.js'
import { signed } from '../../../runtime/figures/numbers.js'
import { writeHeadAdapter } from '../../../runtime/native/head-adapter.js'
import type { AttentionHead } from '../../../runtime/native/types.js'
import { addModelOptions, integer, type ModelFlags, readText, withoutDraftModel } from '../../../runtime/cli/options.js'
import { enginePath, nativeLibrary, optionsOf, weightsOf } from '../../../runtime/cli/runtime.js'
import type { Shell } from '../../../runtime/cli/shell.js'
import { headFigure } from '../../attention/figures.js'
import {
  HEAD_SCORES,
  headName,
  type HeadScoreName,
  headScoreFile,
  type HeadScores,
  randomHeads,
  readHeadScores,
  topHeads,
} from '../../attention/head-scores.js'
import { headLosses, type HeadLosses, type HeadPrompts, LOSSES, scoreHeads } from '../../head-study.js'
import { bootstrap, type Interval } from '../../attention/statistics.js'
import { parquet } from '../../attention/tables.js'
import { wordsFrom } from '../../pi-llm.js'
import { ProgressLine } from '../progress.js'
import { loadForLooking } from './study.js'

interface HeadFlags extends ModelFlags {
  readonly prompts: number
  readonly seed: number
  readonly keys: number
  readonly words?: string
  readonly without: number
  readonly by: HeadScoreName
  readonly draws: number
  readonly scores?: string
  readonly out: string
  readonly json?: true
}

const HELP = `
Scores, each between 0 and 1:
  sink        mean weight on the first token of the prompt
  previous    mean weight on the token before
  induction   where a text is said again: mean weight on the token that came next the first time
  retrieval   share of the tokens that an answer copies from a list on which the head looked most when they were copied

--without 8 also loads the model without the 8 heads with the highest score (--by), and without 8 heads that are drawn at random, several
times. It shows how much worse each predicts values that it copies from a list, a text that is said again, and prose that it cannot know.

The folder gets heads.parquet, heads.svg, summary.json, head_score/<model>.json ({"layer-head": [score of each prompt]}, as studies of
retrieval heads share them), and the adapters: kvfold run --lora <folder>/without-retrieval.gguf applies one.`

export function addHeads(command: Command, shell: Shell): void {
  const heads = command
    .command('heads')
    .description('score attention heads (sink, previous token, induction, retrieval), and take chosen ones away')
    .option('--prompts <count>', 'prompts of each kind', integer(1, 1000), 10)
    .option('--seed <number>', 'seed of the prompts', integer(0, 0xffff_ffff), 2026)
    .option('--keys <count>', 'keys of a list', integer(1, 10_000), 24)
    .option('--words <file>', "keys and values from a JSON file {category: [value, ...]} instead of the project's own")
    .option('--without <count>', 'measure the model without this many heads; 0: only score them', integer(0, 10_000), 0)
    .addOption(new Option('--by <score>', 'the score by which these heads are chosen').choices(HEAD_SCORES).default('retrieval'))
    .option('--draws <count>', 'how often as many heads are drawn at random, as a control', integer(1, 100), 3)
    .option('--scores <file>', 'choose these heads by a file {"layer-head": [score, ...]} instead')
  addModelOptions(heads)
    .option('--out <folder>', 'folder for the results', 'kvfold-heads')
    .option('--json', 'end with a line of JSON: the best heads, and the losses without them')
    .addHelpText('after', HELP)
    .action((flags: HeadFlags) => study(flags, shell))
}

/** The losses of the model when some of its heads are switched off. */
interface LossRow {
  readonly without: string
  readonly heads: readonly string[]
  readonly losses: readonly {
    readonly of: (typeof LOSSES)[number]
    readonly nats: number
    /**
     * How much larger the loss is than with all heads. `interval`: the 95 % interval over prompts. For several draws of random heads it is
     * the smallest and the largest result of a draw.
     */
    readonly more: number
    readonly interval: Interval | null
  }[]
}

async function study(flags: HeadFlags, shell: Shell): Promise<void> {
  const { out, notes, interrupt } = shell
  if (flags.lora !== undefined && flags.without > 0)
    throw new KvfoldError(
      'cli/bad-usage',
      '--without takes heads away by adapters, so it cannot measure a model with --lora; leave out one of them.',
    )
  const words = wordsFrom(flags.words)
  const prompts: HeadPrompts = { prompts: flags.prompts, seed: flags.seed, words, keys: Math.min(flags.keys, words.keys.length) }
  const given = flags.scores === undefined ? null : readHeadScores(readText(flags.scores, '--scores'), flags.scores)
  const { signal } = interrupt
  const engine = await loadForLooking({ ...flags, contract: ['exact'] }, shell)
  const progress = new ProgressLine(notes, flags.json === true)
  const onProgress = (done: number, total: number) => {
    progress.say(done, total, { what: 'heads' })
  }
  const { scores, model } = await (async () => {
    try {
      const { heads, layers } = engine.model.info
      if (2 * flags.without > heads * layers)
        throw new KvfoldError(
          'cli/bad-usage',
          `The model has ${heads * layers} heads, and --without ${flags.without} needs twice as many heads as it takes away; take fewer.`,
        )
      return {
        scores: await scoreHeads({ ...prompts, engine, signal, onProgress }),
        model: { name: engine.info.model, fingerprint: await weightsOf(engine) },
      }
    } finally {
      notes.close()
      await engine.dispose()
    }
  })()
  mkdirSync(join(flags.out, 'head_score'), { recursive: true })
  const write = (file: string, content: string | Uint8Array) => {
    writeFileSync(join(flags.out, file), content)
  }
  write(
    'heads.parquet',
    parquet(
      { layer: 'integer', head: 'integer', ...Object.fromEntries(HEAD_SCORES.map((score) => [score, 'real' as const])) },
      scores.map((one) => ({ layer: one.layer, head: one.head, ...meansOf(one) })),
      JSON.stringify({ model }),
    ),
  )
  write('heads.svg', headFigure(scores))
  write(`head_score/${model.name.replaceAll(/[^\p{L}\p{N}.]+/gu, '-')}.json`, headScoreFile(scores, 'retrieval'))
  const name = flags.scores === undefined ? flags.by : basename(flags.scores, '.json')
  const chosen = (given ?? topHeads(scores, flags.by, flags.without)).slice(0, flags.without)
  const losses = flags.without === 0 ? [] : await lossesOf({ flags, shell, prompts, scores, chosen, name })
  const { seed, prompts: count } = flags
  const summary = { model, prompts: count, seed, lossSeed: lossSeed(seed), keys: prompts.keys, best: bestOf(scores), losses }
  write('summary.json', `${JSON.stringify(summary, null, 2)}\n`)
  if (flags.json === true)
    out.print(JSON.stringify({ model: model.name, heads: scores.length, best: bestOf(scores), losses, out: flags.out }))
  else for (const line of [...lines(scores, losses, out.rule), '', `Results: ${flags.out}`]) out.print(line)
}

interface LossStudy {
  readonly flags: HeadFlags
  readonly shell: Shell
  readonly prompts: HeadPrompts
  readonly scores: readonly HeadScores[]
  readonly chosen: readonly AttentionHead[]
  readonly name: string
}

/**
 * The seed of the prompts for the losses. The heads are chosen on other prompts. On the same prompts, the chosen heads would look more
 * important than they are.
 */
const lossSeed = (seed: number): number => mix(seed + 1)

/** Measures the losses with all heads, without the chosen heads, and without as many random heads (mean of several draws). */
async function lossesOf({ flags, shell, prompts, scores, chosen, name }: LossStudy): Promise<readonly LossRow[]> {
  const { notes, interrupt } = shell
  const plain = { ...flags, contract: 'exact' as const }
  const native = await nativeLibrary(flags.gpu)
  const path = await enginePath(plain, {}, notes, interrupt.signal)
  const draws = Array.from({ length: flags.draws }, (_, at) => randomHeads(scores, chosen.length, chosen, flags.seed + at))
  const temporary = mkdtempSync(join(tmpdir(), 'kvfold-heads-'))
  try {
    const adapters = [join(flags.out, `without-${name}.gguf`), ...draws.map((_, at) => join(temporary, `${at}.gguf`))]
    for (const [at, heads] of [chosen, ...draws].entries()) await writeHeadAdapter(native, adapters[at]!, path, heads)
    const lora = adapters.map((adapter) => ({ path: adapter, scale: 0 }))
    const engine = await LlamaEngine.load(native, path, { ...optionsOf(withoutDraftModel(plain)), slots: 1, lora })
    const progress = new ProgressLine(notes, flags.json === true)
    try {
      const measured: HeadLosses[] = []
      for (const without of [null, ...adapters.keys()]) {
        progress.say(measured.length, adapters.length + 1, { what: without === null ? 'all heads' : 'without heads' })
        measured.push(await headLosses({ ...prompts, seed: lossSeed(flags.seed), engine, signal: interrupt.signal }, without))
      }
      progress.say(measured.length, measured.length, { what: 'done' })
      const [whole, best, ...random] = measured as [HeadLosses, HeadLosses, ...HeadLosses[]]
      const rowOf = (without: string, heads: readonly AttentionHead[], tries: readonly HeadLosses[]): LossRow => ({
        without,
        heads: heads.map(headName),
        losses: LOSSES.map((of) => {
          // An interval over prompts would hide how much the draws differ. So for several draws, show the smallest and the largest result.
          const nats = whole[of].map((_, prompt) => mean(tries.map((one) => one[of][prompt]!)))
          const more = nats.map((value, prompt) => value - whole[of][prompt]!)
          const drawn = tries.map((one) => mean(one[of]) - mean(whole[of]))
          const interval =
            tries.length > 1 ? ([Math.min(...drawn), Math.max(...drawn)] as const) : bootstrap(more, (some) => mean(some))
          return { of, nats: mean(nats), more: mean(more), interval }
        }),
      })
      return [
        rowOf('none', [], [whole]),
        rowOf(`${chosen.length} by ${name}`, chosen, [best]),
        rowOf(`${chosen.length} at random`, draws.flat(), random),
      ]
    } finally {
      notes.close()
      await engine.dispose()
    }
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

const meansOf = (one: HeadScores) => Object.fromEntries(HEAD_SCORES.map((score) => [score, mean(one[score])]))

const BEST = 8

/** Returns the best heads for each kind of score. */
const bestOf = (scores: readonly HeadScores[]) =>
  Object.fromEntries(
    HEAD_SCORES.map((score) => [
      score,
      topHeads(scores, score, BEST).map((one) => ({ head: headName(one), score: Number(mean(one[score]).toFixed(4)) })),
    ]),
  )

function lines(scores: readonly HeadScores[], losses: readonly LossRow[], rule: string): readonly string[] {
  const best = HEAD_SCORES.map((score) =>
    topHeads(scores, score, BEST).map((one) => `${headName(one)} ${mean(one[score]).toFixed(2)}`),
  )
  const rows = Array.from({ length: Math.min(BEST, scores.length) }, (_, at) => best.map((column) => column[at]!))
  const heads = terminal(table(HEAD_SCORES.map(left), rows), rule)
  const about = `The ${BEST} highest of ${scores.length} heads, as layer-head and mean score.`
  if (losses.length === 0) return [...heads, '', about]
  const cells = losses.map(({ without, losses: own }) => [
    without,
    ...own.flatMap(({ nats, more, interval }) => [
      nats.toFixed(3),
      without === 'none' ? '' : `${signed(more)}${interval === null ? '' : ` (${interval.map(signed).join(' to ')})`}`,
    ]),
  ])
  return [
    ...heads,
    '',
    about,
    '',
    ...terminal(table([left('heads taken away'), ...LOSSES.flatMap((of) => [right(of), right('more')])], cells), rule),
    '',
    'Losses of a token in nats; more: than with all heads, with 95 % intervals over prompts; at random: the least and the most of the draws.',
  ]
}
