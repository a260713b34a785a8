/** `kvfold plan`: predicts what the folds of a transcript cost and save under each contract, without computing them. */
import { definedFields } from '../../core/json.js'
import type { Command } from 'commander'
import type { ChatMessage, Edit, ToolDefinition } from '../../chat/message.js'
import { editOf, type Fragment, priceRemark, savedBy } from '../../context/fragment.js'
import { KvfoldError } from '../../core/errors.js'
import { loadCalibration, type LoadedCalibration } from '../../engine/calibration.js'
import type { LlamaEngine } from '../../engine/llama.js'
import { refuseHopeless } from '../../engine/model-facts.js'
import type { StepContract } from '../../kv/plan/parts.js'
import { type CostModel, decodeInTokens } from '../../kv/cost-model.js'
import { forecast, type Prospect } from '../../kv/forecast.js'
import { dryRun } from '../../kv/dry-run.js'
import type { Prompt } from '../../kv/prompt.js'
import { count, duration, plural } from '../../figures/numbers.js'
import { foldedBy, parseTranscript, type Transcript } from '../transcript.js'
import { readInput, type Shell } from '../shell.js'
import { addModelOptions, type ModelFlags } from '../options.js'
import { loadEngine, nativeLibrary, optionsOf, refuseUnpriced } from '../runtime.js'
import { left, right, table, terminal } from '../../figures/table.js'

interface PlanFlags extends ModelFlags {
  readonly json?: true
}

/** The number of sequences of the simulated cache. */
const SEQUENCES = 64

const FORMAT = `
The transcript may have any of these forms:
- a request body of OpenAI's chat or responses API, or of Anthropic's API
- a list of messages, or JSONL of messages or of requests (the last request counts)
- a session file of Claude Code or Codex
- the output of GET /kvfold/threads/<id>/export

It may list the texts to fold beside the messages:

  {
    "messages": [
      { "role": "user", "content": "Here is the log. 12:00 started ... 12:59 stopped. What went wrong?" }
    ],
    "folds": [{ "message": 0, "from": "12:00 started", "to": "12:59 stopped." }]
  }

Without "folds", kvfold proposes the folds that a pruning agent would make: tool results of 400 characters or more, except the newest three.
If the transcript has none, kvfold proposes messages of 2,000 characters or more before the last message.
"message" counts from 0. A fold begins with "from" and ends with the first "to" after it. Without "from" it begins with the message, without
"to" it ends with the message. "summary" is a text to show instead of a marker. The plan makes all folds in one step, on a cache that holds
the transcript. "cells" counts the cells in use afterwards, with parked ones. "pays after" is the number of generated tokens after which the
edit has saved more time than it took.
The plan shows times only after a calibration: run \`kvfold calibrate\` once with the same model and options.`

export function addPlan(program: Command, shell: Shell): void {
  const command = program
    .command('plan')
    .description('show what folds in a transcript would cost and save under each contract, without computing them')
    .argument('[transcript]', 'JSON file, `-` for stdin')
    .option('--json', 'one JSON object')
  addModelOptions(command)
    .addHelpText('after', FORMAT)
    .action((file: string | undefined, flags: PlanFlags) => run(file, flags, shell))
}

/** One contract, and the predicted steps under it. */
interface PlanRow {
  readonly name: string
  readonly prospect: Prospect
}

async function run(file: string | undefined, flags: PlanFlags, shell: Shell): Promise<void> {
  const { interrupt, notes, out } = shell
  const transcript = parseTranscript(await readInput(file, shell), file === undefined || file === '-' ? 'on stdin' : file)
  if (transcript.folds.length === 0)
    throw new KvfoldError(
      'cli/bad-usage',
      'The transcript has no text that an agent would fold; name texts in "folds" (`kvfold plan --help`).',
    )
  const engine = await loadEngine(flags, notes, interrupt.signal)
  try {
    refuseUnpriced(engine.abilities)
    const calibration = await loadCalibration({
      info: engine.modelInfo,
      settings: optionsOf(flags),
      backend: (await nativeLibrary(flags.gpu)).backend,
    })
    const cost = calibration.kind === 'found' ? calibration.model : null
    const { unedited, rows, folded } = await rehearsed(engine, transcript, flags.blend, cost)
    const view = {
      model: engine.info.model,
      proposed: transcript.proposed,
      unedited,
      rows,
      folded,
      advice: advice(unedited, rows, cost),
    }
    if (flags.json === true) out.print(JSON.stringify(machineView(view, calibration)))
    else for (const line of lines(view, calibration, out.rule)) out.print(line)
  } finally {
    await engine.dispose()
  }
}

/**
 * Simulates steps on a cache that holds the transcript: once without the new folds, and once with them under each contract. Each simulation
 * starts with the same cache.
 * @param cost the measured times, by which a step under `blend` also chooses its tokens
 */
async function rehearsed(engine: LlamaEngine, transcript: Transcript, most: number | undefined, cost: CostModel | null) {
  const { messages, tools, folds, edits } = transcript
  const { cacheTotals, model, modelInfo } = engine
  for (const { content } of messages) await refuseHopeless(model, cacheTotals.cells, [content])
  const before = await foldedBy(engine, transcript, [])
  const after = await foldedBy(engine, transcript, folds)
  const old = new Set(edits?.fragments.map(({ id }) => id))
  const folded = after.fragments.filter(({ id }) => !old.has(id))
  const open = shownOf(engine, messages, tools, before.edits())
  const shown = shownOf(engine, messages, tools, after.edits())
  if (open.tokens.length >= cacheTotals.cells)
    throw new KvfoldError(
      'context/full',
      `The transcript has ${open.tokens.length} tokens, but the context has ${cacheTotals.cells} cells; give a larger --context.`,
    )
  const limits = {
    cells: cacheTotals.cells,
    sequences: SEQUENCES,
    shift: engine.abilities.shift,
    ...definedFields({ positions: modelInfo.trainedContext > 0 ? modelInfo.trainedContext : undefined }),
  }
  const second = (shown: Prompt, terms: StepContract): Prospect =>
    dryRun(
      [
        { prompt: open, terms: { contract: 'exact' } },
        { prompt: shown, terms },
      ],
      limits,
    )[1]!
  const rows: PlanRow[] = [
    { name: 'exact', prospect: second(shown, { contract: 'exact' }) },
    { name: 'splice', prospect: second(shown, { contract: 'splice' }) },
    {
      name: 'blend',
      prospect: second(shown, {
        contract: 'blend',
        blend: definedFields({ most, decode: cost === null ? undefined : decodeInTokens(cost) }),
      }),
    },
  ]
  return { unedited: second(open, { contract: 'exact' }), rows, folded }
}

function shownOf(
  { format }: LlamaEngine,
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  edits: readonly Edit[],
): Prompt {
  const rendered = format.render({ messages, tools, edits })
  const { tokens, origin } = rendered
  return { tokens, messages: rendered.messages.map(({ index, role, span }) => ({ index, role, span })), origin }
}

interface PlanView {
  readonly model: string
  readonly proposed: boolean
  readonly unedited: Prospect
  readonly rows: readonly PlanRow[]
  readonly folded: readonly Fragment[]
  readonly advice: string
}

const computed = ({ runs }: Prospect): number => runs.reduce((sum, { tokens }) => sum + tokens, 0)

function machineView(
  { model, proposed, unedited, rows, folded, advice: text }: PlanView,
  calibration: LoadedCalibration,
): object {
  const priced = (prospect: Prospect) => {
    const { asked, contract, fallback, cells, positions } = prospect
    const tokens = { asked, contract, fallback, computeTokens: computed(prospect), cellsAfter: cells, positionsAfter: positions }
    const unknown = { milliseconds: null, perToken: null, savingPerToken: null, breakEven: null }
    return calibration.kind === 'found' ? forecast(calibration.model, unedited, prospect) : { ...tokens, ...unknown }
  }
  return {
    model,
    proposed,
    tokens: { unedited: unedited.shown, edited: rows[0]?.prospect.shown ?? unedited.shown },
    folds: folded.map((fragment) => {
      const { message, span, price } = fragment
      const tokens = price === undefined ? null : { ...price, saved: savedBy(price) }
      return { message, characters: span, shown: editOf(fragment)?.replacement ?? '', tokens }
    }),
    unedited: priced(unedited),
    forecasts: rows.map(({ prospect }) => priced(prospect)),
    advice: text,
    calibration:
      calibration.kind === 'found'
        ? { file: calibration.path, date: calibration.model.on.date }
        : { file: null, reason: calibration.kind === 'refused' ? calibration.reason : 'none yet' },
  }
}

function lines(
  { model, proposed, unedited, rows, folded, advice: text }: PlanView,
  calibration: LoadedCalibration,
  rule: string,
): string[] {
  const cost = calibration.kind === 'found' ? calibration.model : null
  const columns = [
    left('contract'),
    ...['tokens computed', ...(cost === null ? [] : ['time']), 'cells used', 'positions used'].map(right),
    ...(cost === null ? [] : ['ms a token', 'ms saved a token', 'pays after'].map(right)),
  ]
  const row = (name: string, prospect: Prospect, edited: boolean): string[] => {
    const { fallback, cells, positions } = prospect
    const title = fallback === null ? name : `${name} *`
    const tokens = [count(cells), count(positions)]
    if (cost === null) return [title, count(computed(prospect)), ...tokens]
    const { milliseconds, perToken, savingPerToken, breakEven } = forecast(cost, unedited, prospect)
    const pays = breakEven === null ? 'never' : breakEven === 0 ? 'at once' : plural(breakEven, 'token')
    return [
      title,
      count(computed(prospect)),
      duration(milliseconds),
      ...tokens,
      perToken.toFixed(2),
      ...(edited ? [savingPerToken.toFixed(2), pays] : []),
    ]
  }
  const shown = rows[0]?.prospect.shown ?? 0
  return [
    `${model}: ${count(unedited.shown)} tokens, ${count(shown)} with the folds`,
    ...(proposed
      ? [`${plural(folded.length, 'fold')} proposed, in messages ${folded.map(({ message }) => message).join(', ')}.`]
      : []),
    text,
    '',
    'Before the next answer, by contract:',
    ...terminal(
      table(columns, [row('no folds', unedited, false), ...rows.map(({ name, prospect }) => row(name, prospect, true))]),
      rule,
    ),
    ...rows.flatMap(({ name, prospect: { fallback } }) =>
      fallback === null ? [] : [`* ${name}: exact instead, because ${fallback}.`],
    ),
    ...folded.flatMap((fragment, index) => {
      const remark = priceRemark(fragment)
      return remark === null ? [] : [`Fold ${index + 1}, in message ${fragment.message}: ${remark}`]
    }),
    ...(calibration.kind === 'refused' ? [calibration.reason] : []),
    ...(calibration.kind === 'none'
      ? ['No times: run `kvfold calibrate` with the same --model and options once (--quick: 10 s).']
      : []),
  ]
}

/** Returns a few sentences of advice: which contract to choose, and what it costs. */
function advice(unedited: Prospect, rows: readonly PlanRow[], cost: CostModel | null): string {
  const of = (contract: string): Prospect => rows.find(({ prospect }) => prospect.asked === contract)!.prospect
  const [exact, splice] = [of('exact'), of('splice')]
  const freed = unedited.shown - exact.shown
  const [slow, fast] = cost === null ? [null, null] : [forecast(cost, unedited, exact), forecast(cost, unedited, splice)]
  const took = (prospect: Prospect, time: { readonly milliseconds: number } | null): string =>
    `computes ${plural(computed(prospect), 'token')}${time === null ? '' : ` in ${duration(time.milliseconds)}`}`
  return [
    freed > 0
      ? `The folds free ${plural(freed, 'token')} of the context.`
      : `The folds free nothing: their markers take ${plural(-freed, 'more token')}.`,
    ...(slow === null ? [] : [paysText(slow)]),
    splice.fallback !== null
      ? `Use exact, which ${took(exact, slow)}: a splice is not possible here, because ${splice.fallback}.`
      : computed(exact) <= 2 * computed(splice)
        ? `Use exact, which ${took(exact, slow)}: a splice is hardly cheaper (${count(computed(splice))}).`
        : `Use exact if the answers matter: it ${took(exact, slow)} before the next answer. A splice ${took(splice, fast)}, and changes what real models say.`,
  ].join(' ')
}

/** Says when an exact fold pays: later tokens become faster, until the saved time exceeds the time that the fold cost. */
const paysText = ({ breakEven }: { readonly breakEven: number | null }): string =>
  breakEven === null
    ? 'They make answers no faster, so fold only to make room.'
    : breakEven === 0
      ? 'Under exact they cost no time.'
      : `Under exact they save time once ${plural(breakEven, 'token')} are generated.`
