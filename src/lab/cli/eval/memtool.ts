/**
 * The command `kvfold eval memtool`: agents load and remove tools over many turns. Reads the options, runs the sessions, and writes table,
 * report and JSON.
 */
import { definedFields } from '../../../runtime/core/json.js'
import { createHash } from 'node:crypto'
import { existsSync, statSync } from 'node:fs'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { Option, type Command } from 'commander'
import { type Placement, placements } from '../../../runtime/agents/memtool.js'
import { CONTRACT_CHOICES, type ContractChoice } from '../../../runtime/core/contract.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import type { Engine, EngineInfo } from '../../../runtime/engine/engine.js'
import { type MemToolResult, type MemToolRun, type WayName, wayNames, ways } from '../../memtool/session.js'
import { type Relation, relations, type World } from '../../memtool/companies.js'
import type { Catalogue, CatalogueOptions, KeptVectors } from '../../../runtime/tools/catalogue.js'
import { count, percent } from '../../../runtime/figures/numbers.js'
import { BUILTIN } from '../../../runtime/cli/builtin.js'
import { addEngineOptions, type EngineFlags, engineSource, isRemote } from '../../../runtime/cli/remote-engines.js'
import { loadEngine, weightsOf } from '../../../runtime/cli/runtime.js'
import { addModelOptions, answerSettings, integer, type ModelFlags } from '../../../runtime/cli/options.js'
import { addOut } from '../../../runtime/cli/out-option.js'
import { commandOf, type Shell } from '../../../runtime/cli/shell.js'
import { listContracts, oneOf, toolCount } from '../lists.js'
import { ProgressLine } from '../progress.js'
import { FOLLOW, Follower } from './follow.js'

interface MemToolFlags extends Omit<ModelFlags, 'contract'>, EngineFlags {
  readonly agent?: MemToolRun['agent']
  readonly mode: readonly WayName[]
  readonly placement?: readonly Placement[]
  readonly contract: readonly ContractChoice[]
  readonly turns: number
  readonly sessions: number
  readonly tools: number
  readonly relation: Relation
  /** Whether some tools take a year as an argument; false with `--no-arguments`. */
  readonly arguments: boolean
  readonly seed: number
  readonly limit: number
  readonly tokenLimit?: number
  readonly history?: number
  readonly historyBy: 'truncate' | 'summarize'
  readonly temperature: number
  readonly embedder?: string
  readonly retrieval?: true
  readonly catalogue?: string
  readonly log?: string
  readonly report?: string
  readonly follow?: true
  readonly json?: true
}

/** The default context in cells. It is large, because sessions are long. */
const CELLS = 65_536
/** Number of queries per wording when the tool search is measured. */
const QUERIES = 1000
/** Number of queries that are embedded in one call. */
const TOGETHER = 64

const HELP = `
Ways of managing tools (--mode):
${wayNames.map((name) => `  ${name.padEnd(12)} ${ways[name].about}`).join('\n')}

Without --model, --engine or --engines a script speaks for the model (--agent taught). The real engine
computes every prompt, so tokens are real, but correctness is the script's. The same command continues
a stopped session, and takes a finished one from its log.

Examples:
  $ kvfold eval memtool --mode autonomous,workflow,hybrid --contract splice
  $ kvfold eval memtool --mode hybrid --placement list,late --contract exact,splice --turns 100 --report memtool.html
  $ kvfold eval memtool --agent model --model qwen3-4b-q8_0.gguf --mode hybrid --turns 20
  $ kvfold eval memtool --retrieval --embedder nomic-embed-text.gguf
  $ kvfold eval memtool --retrieval --catalogue tools.json      queries: those of the file, else each tool's description`

export function addMemTool(parent: Command, shell: Shell): void {
  const command = parent
    .command('memtool')
    .description(
      'measure agents that load and remove tools over many turns (MemTool): tokens by contract and way, correctness, retrieval',
    )
    .addOption(new Option('-a, --agent <who>', 'the speaker: a script, or the model itself').choices(['taught', 'model']))
    .option('--mode <list>', 'ways of managing tools, separated by commas, or all', oneOf(wayNames, 'all'), ['hybrid'])
    .option('--placement <list>', "place of the definitions: late, list (default: the way's own)", oneOf(placements))
    .option('--turns <count>', 'turns of a session', integer(1, 100_000), 100)
    .option(
      '--sessions <count>',
      'sessions of each way, with consecutive seeds and companies of their own',
      integer(1, 10_000),
      1,
    )
    .option('--tools <count>', 'tools in the catalogue, five for each company', toolCount, 5000)
    .addOption(new Option('--relation <kind>', 'relation of a turn to the one before').choices(relations).default('mixed'))
    .option('--no-arguments', 'make tools without arguments')
    .option('--seed <number>', 'seed of companies, values and requests', integer(0, 0xffff_ffff), 1)
    .option('--limit <tools>', 'most tools that may be loaded', integer(1, 1_000_000), 128)
    .option('--token-limit <tokens>', 'most tokens of loaded definitions', integer(1, 1 << 30))
    .option('--history <turns>', 'number of latest turns whose long texts stay visible (default: all)', integer(1, 100_000))
    .addOption(
      new Option('--history-by <how>', 'how to hide the long texts of earlier turns')
        .choices(['truncate', 'summarize'])
        .default('truncate'),
    )
    .option('-t, --temperature <value>', 'temperature of a model that speaks itself', Number, 0)
    .option('--embedder <model>', 'a GGUF or the folder of an ONNX model that makes vectors (default: BM25 alone)')
    .option('--retrieval', 'measure only the search for tools: recall by BM25, embeddings and both')
    .option(
      '--catalogue <file>',
      'other tools for --retrieval: a JSON list, {tools: [...]}, LiveMCPBench servers, or ToolRet queries and tools',
    )
    .option('--report <file>', 'write an HTML page with figures and tables')
    .option('--follow', FOLLOW)
    .option('--json', 'end with a line of JSON')
  addOut(command, '<file>', 'file for the turns of a single session (default: a file in kvfold-eval/)', 'log')
  addEngineOptions(addModelOptions(command))
  const about = `contracts for folds of removed definitions: one or several of ${CONTRACT_CHOICES.join(', ')}`
  listContracts(command, about, CONTRACT_CHOICES, ['exact'])
  command.addHelpText('after', HELP).action((flags: MemToolFlags) => memTool(flags, shell))
}

async function memTool(flags: MemToolFlags, shell: Shell): Promise<void> {
  if (flags.catalogue !== undefined && flags.retrieval === undefined)
    throw new KvfoldError('cli/bad-usage', '--catalogue needs --retrieval, because sessions have tools about companies.')
  const embedder = flags.embedder === undefined ? null : await keptEmbedder(flags.embedder, flags, shell)
  const { signal } = shell.interrupt
  try {
    const options = definedFields({ embedder: embedder?.vectors, onEmbedded: embedder?.onEmbedded, signal })
    if (flags.retrieval === true) await retrieval(flags, options, shell)
    else await sessions(flags, options, shell)
  } finally {
    await embedder?.dispose()
  }
}

async function sessions(flags: MemToolFlags, options: CatalogueOptions, shell: Shell): Promise<void> {
  const { out, notes, interrupt } = shell
  const [{ World }, { Catalogue }] = await Promise.all([
    import('../../memtool/companies.js'),
    import('../../../runtime/tools/catalogue.js'),
  ])
  const runs = runsOf(flags)
  const sessionCount = runs.flat().length
  if (flags.log !== undefined && sessionCount > 1)
    throw new KvfoldError('cli/bad-usage', `--out takes one session, but this run has ${sessionCount}; leave it out.`)
  const engine = await engineOf(flags, shell)
  const settings = new Map<number, { readonly world: World; readonly catalogue: Catalogue }>()
  try {
    for (const seed of new Set(runs.flat().map((run) => run.seed))) {
      const world = new World({ seed, tools: flags.tools, arguments: flags.arguments })
      settings.set(seed, { world, catalogue: await Catalogue.of(world.tools, options) })
    }
    const [{ memToolSession, together }, { playKept }] = await Promise.all([
      import('../../memtool/session.js'),
      import('../../episode/episode.js'),
    ])
    const weights = await weightsOf(engine)
    const follower = flags.follow === true ? new Follower(notes) : null
    const followed = ({ way, contract, seed }: MemToolRun) =>
      follower === null ? {} : { onStep: follower.of(`${way}, ${contract}, seed ${seed}`) }
    const planned = runs.flatMap((alike, group) =>
      alike.map((run) => ({
        ...{ run, group, ...logOf(run, flags, engine.info, weights) },
        play: (setting: object) => memToolSession(run, { engine, ...settings.get(run.seed)!, ...followed(run), ...setting }),
      })),
    )
    const json = flags.json === true
    const played = await playKept(planned, {
      command: commandOf(shell),
      signal: interrupt.signal,
      onResumed: ({ path, run }, turns) => {
        if (json) return
        if (turns < run.turns) notes.prose(`The session continues in ${path} at turn ${turns + 1}.`)
        else notes.prose(`${path} has the whole session; delete it to play the session again.`)
      },
      onTurn: ({ run: { way, contract, seed, turns } }, { turn, tokens }) => {
        if (!json)
          notes.frame([`${way}, ${contract}, seed ${seed}: ${turn + 1} of ${turns} turns, ${count(tokens.after)} tokens`])
      },
    })
    const results = runs.map((_, group) =>
      together(played.filter((_one, at) => planned[at]!.group === group) as [MemToolResult, ...MemToolResult[]]),
    )
    const { tokenTable, removalTable, correctnessTable, memToolPage } = await import('../../memtool/report.js')
    const report = {
      command: commandOf(shell),
      date: new Date().toISOString().slice(0, 10),
      model: `${engine.info.model} (${engine.info.engine} ${engine.info.release})`,
      agent: agentOf(flags),
      tools: flags.tools,
      results,
    }
    if (flags.report !== undefined) await writeFile(flags.report, memToolPage(report))
    if (flags.json === true) {
      out.print(JSON.stringify({ ...machineLine(results, flags), logs: planned.map(({ path }) => path) }))
      return
    }
    const { terminal } = await import('../../../runtime/figures/table.js')
    for (const made of [tokenTable, removalTable, correctnessTable].map((of) => of(results))) {
      for (const line of terminal(made, out.rule)) out.print(line)
      out.print()
    }
    if (report.agent === 'taught')
      out.prose("A script spoke for the model, so tokens are real, but correctness is the script's.", out.colours.dim)
    if (flags.report !== undefined) out.print(`Report: ${flags.report}`)
  } finally {
    notes.close()
    await engine.dispose()
    for (const { catalogue } of settings.values()) catalogue.close()
  }
}

/** The version of the rule for right answers. A log holds each turn's points, so a log with another version is not resumed. */
const SCORING = 2

/** Returns the facts that identify a session, and the path of its log. */
function logOf(run: MemToolRun, flags: MemToolFlags, { model, engine, release }: EngineInfo, weights: string | null) {
  const about = {
    ...{ task: 'memtool', scoring: SCORING, ...run, tools: flags.tools, arguments: flags.arguments },
    ...{ model, weights, engine, release, embedder: flags.embedder ?? null },
    ...definedFields({ context: flags.context }),
    ...answerSettings(flags),
  }
  const print = createHash('sha256').update(JSON.stringify(about)).digest('hex').slice(0, 8)
  return { about, path: flags.log ?? `kvfold-eval/memtool-${run.way}-${run.contract}-${print}.jsonl` }
}

const agentOf = (flags: MemToolFlags): MemToolRun['agent'] =>
  flags.agent ?? (flags.model === BUILTIN && !isRemote(flags) ? 'taught' : 'model')

/** Returns the runs: for each combination of way, placement and contract, one list with a run per session. */
function runsOf(flags: MemToolFlags): MemToolRun[][] {
  const { mode, contract, turns, relation, limit, tokenLimit, history, historyBy, temperature } = flags
  const seeds = Array.from({ length: flags.sessions }, (_, session) => (flags.seed + session) % 2 ** 32)
  return mode.flatMap((way) =>
    (flags.placement ?? [ways[way].placement]).flatMap((placement) =>
      contract.map((one) =>
        seeds.map((seed) => ({
          ...{ agent: agentOf(flags), way, placement, contract: one, turns, relation, seed, sampling: { temperature, seed } },
          limits: { tools: limit, ...definedFields({ tokens: tokenLimit }) },
          ...(history === undefined ? {} : { history: { turns: history, by: historyBy } }),
        })),
      ),
    ),
  )
}

async function engineOf(flags: MemToolFlags, { notes, interrupt }: Shell): Promise<Engine> {
  const remote = await engineSource(flags, 1, notes, interrupt.signal)
  if (remote !== null) {
    if (agentOf(flags) === 'taught')
      throw new KvfoldError(
        'cli/bad-usage',
        'A script cannot speak for the model of another server; leave out --agent taught, or the other server.',
      )
    return remote.load()
  }
  const modelFlags: ModelFlags = { ...flags, context: flags.context ?? CELLS, contract: flags.contract[0] ?? 'exact' }
  return loadEngine(modelFlags, notes, interrupt.signal, { slots: 1 })
}

/** Returns the object for the line of JSON. The top level has the first result; with several results, `sessions` lists all of them. */
function machineLine(results: readonly MemToolResult[], { tools }: MemToolFlags): object {
  const lines = results.map(({ way, placement, contract, measures, intervals, tokens, sessions }) => ({
    ...{ mode: way, placement, contract, ...measures, tools },
    ...(sessions.length === 1 ? {} : { each: sessions.length, intervals }),
    ...{ tokensShown: tokens.shown, tokensComputed: tokens.computed, tokensNew: tokens.new },
    ...{ tokensReused: tokens.reused, tokensApproximate: tokens.approximate, contextLast: tokens.last },
  }))
  return lines.length === 1 ? lines[0]! : { ...lines[0], sessions: lines }
}

async function retrieval(flags: MemToolFlags, options: CatalogueOptions, { out }: Shell): Promise<void> {
  const [{ World }, { Catalogue, wordsOf }, { queriesOf, recallOf, lookupsIn, wordings }, { left, right, table, terminal }] =
    await Promise.all([
      import('../../memtool/companies.js'),
      import('../../../runtime/tools/catalogue.js'),
      import('../../memtool/retrieval.js'),
      import('../../../runtime/figures/table.js'),
    ])
  const world = new World({ seed: flags.seed, tools: flags.tools, arguments: flags.arguments })
  const own = flags.catalogue === undefined ? null : lookupsIn(await readFile(flags.catalogue, 'utf8'), flags.catalogue)
  const catalogue = await Catalogue.of(own?.tools ?? world.tools, options)
  try {
    const sets =
      own === null
        ? wordings.map((wording) => ({ wording, queries: queriesOf(world, wording, QUERIES, flags.seed) }))
        : [{ wording: "the file's", queries: own.queries }]
    const { embedder, onEmbedded, signal } = options
    const words = [...new Set(sets.flatMap(({ queries }) => queries.map((query) => wordsOf(query.words))))]
    // Embed the queries in batches before the searches are timed. One query alone takes as long as a batch.
    for (let from = 0; embedder !== undefined && from < words.length; from += TOGETHER) {
      await embedder.embed(words.slice(from, from + TOGETHER), signal)
      onEmbedded?.(Math.min(words.length, from + TOGETHER), words.length)
    }
    const found = []
    for (const { wording, queries } of sets)
      for (const one of await recallOf(catalogue, queries, signal)) found.push({ wording, ...one })
    if (flags.json === true) {
      out.print(JSON.stringify({ tools: catalogue.size, embedder: flags.embedder ?? null, recall: found }))
      return
    }
    const lines = table(
      [left('words'), left('ranking'), ...['queries', 'recall at 1', 'at 5', 'ms a query'].map(right)],
      found.map(({ wording, ranking, queries, at1, at5, milliseconds }) => [
        ...[wording, ranking, count(queries), percent(at1), percent(at5), milliseconds.toFixed(1)],
      ]),
    )
    for (const line of terminal(lines, out.rule)) out.print(line)
  } finally {
    catalogue.close()
  }
}

interface KeptEmbedder {
  readonly vectors: KeptVectors
  readonly onEmbedded: (done: number, total: number) => void
  readonly dispose: () => Promise<void>
}

/**
 * Returns an embedder whose vectors are kept in a file in kvfold-eval/. The file's name depends on the model's path, size and modification
 * time.
 */
async function keptEmbedder(model: string, flags: MemToolFlags, shell: Shell): Promise<KeptEmbedder> {
  const [{ KeptVectors }, { namedEmbedder }] = await Promise.all([
    import('../../../runtime/tools/catalogue.js'),
    import('./evaluate.js'),
  ])
  const embedder = await namedEmbedder(model, { ...flags, contract: 'exact' }, shell)
  const about = [resolve(model), embedder.name, ...[model, join(model, 'onnx', 'model.onnx')].map(standingOf)]
  const print = createHash('sha256').update(JSON.stringify(about)).digest('hex').slice(0, 8)
  const path = `kvfold-eval/vectors-${print}.db`
  await mkdir('kvfold-eval', { recursive: true })
  const vectors = new KeptVectors(embedder, path)
  const { notes } = shell
  if (flags.json !== true) notes.prose(`${path} keeps the vectors of tools and queries.`, notes.colours.dim)
  let line = new ProgressLine(notes, flags.json === true)
  return {
    vectors,
    onEmbedded: (done, total) => {
      line.say(done, total)
      if (done < total) return
      notes.close()
      line = new ProgressLine(notes, flags.json === true)
    },
    dispose: async () => {
      notes.close()
      vectors.close()
      await embedder.dispose()
    },
  }
}

/** Returns a file's size in bytes and its modification time in milliseconds, which reveal a changed file. Null if there is no such file. */
function standingOf(path: string): readonly [bytes: number, changed: number] | null {
  if (!existsSync(path)) return null
  const { size, mtimeMs } = statSync(path)
  return [size, mtimeMs]
}
