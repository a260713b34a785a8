/** `kvfold attention file`: stretches of a transcript that somebody watches, complete and with the transcript's folds. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Command } from 'commander'
import { describe, squaredCorrelation, tTest } from '../../attention/statistics.js'
import { parquet } from '../../attention/tables.js'
import { probability } from '../../attention/report.js'
import { compareSpans, spanReport, type SpanRow, type SpanStudy, spanTable } from '../../attention/spans.js'
import type { AnswerChoice } from '../../attention/measurement.js'
import type { ChatMessage } from '../../chat/message.js'
import type { Contract } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import type { LlamaEngine } from '../../engine/llama.js'
import { refuseHopeless } from '../../engine/room.js'
import { refuseBeyond } from '../../eval/attention-study.js'
import { readInput } from '../input.js'
import { integer } from '../options.js'
import type { Shell } from '../shell.js'
import { table } from '../table.js'
import { parseTranscript, type Transcript } from '../transcript.js'
import { addStudyOptions, loadForLooking, type StudyFlags } from './flags.js'
import { editOf } from '../../context/fragment.js'
import { foldedBy } from '../folds.js'
import { Progress } from './lines.js'
import { parseWatched } from './watched.js'

interface FileFlags extends StudyFlags {
  readonly answer?: string
  readonly maxTokens: number
}

const FORMAT = `
The transcript is a JSON file as for \`kvfold plan\` (messages, tools, folds), and the stretches to watch:

  {
    "messages": [
      { "role": "user", "content": "Here is the log. 12:00 started ... 12:58 disk full ... 12:59 stopped. What went wrong?" },
      { "role": "assistant", "content": "The disk was full." }
    ],
    "folds": [{ "message": 0, "from": "12:00 started", "to": "12:30" }],
    "spans": ["disk full", { "name": "end", "message": 0, "from": "12:59", "to": "stopped." }]
  }

A span is literal text (its last occurrence) or goes from where "from" begins to where the first "to" after it ends. Who looks is the
answer: --answer, else the transcript's last message if that is the assistant's, else what the model generates.`

export function addFile(command: Command, shell: Shell): void {
  const file = command
    .command('file')
    .description('watched stretches of a transcript, complete and with its folds')
    .argument('[transcript]', 'JSON file, `-` for stdin')
    .option('--answer <text>', 'the answer that looks')
    .option('--max-tokens <count>', 'tokens of a generated answer', integer(1, 65_536), 256)
  addStudyOptions(file)
    .addHelpText('after', FORMAT)
    .action((path: string | undefined, flags: FileFlags) => run(path, flags, shell))
}

async function run(path: string | undefined, flags: FileFlags, shell: Shell): Promise<void> {
  const { interrupt, notes, out } = shell
  const source = path === undefined || path === '-' ? 'stdin' : path
  const text = await readInput(path, interrupt.signal)
  const transcript = parseTranscript(text, source)
  const { messages, answer } = answered(transcript, flags)
  const spans = parseWatched(text, source, messages)
  const engine = await loadForLooking(flags, shell)
  try {
    refuseMisfit(engine, transcript, messages, answer, flags)
    const folded = await foldedBy(engine, messages, transcript.tools, transcript.folds)
    const edits = folded.map(editOf).filter((edit) => edit !== null)
    const study = await compareSpans({
      engine,
      messages,
      tools: transcript.tools,
      edits,
      spans,
      answer,
      contracts: flags.contract,
      signal: interrupt.signal,
      onProgress: new Progress(notes, flags.json === true).say,
      ...(flags.blend === undefined ? {} : { blend: { ratio: flags.blend } }),
      ...(flags.layers === undefined ? {} : { layers: flags.layers }),
    }).finally(() => {
      notes.close()
    })
    const report = flags.out === undefined ? null : save(flags.out, engine, study)
    if (flags.json === true) out.print(JSON.stringify(machineView(study, flags.contract, engine, report)))
    else for (const line of lines(study, report, out.unicode ? '─' : '-')) out.print(line)
  } finally {
    await engine.dispose()
  }
}

/** The messages before the answer, and the answer. @throws KvfoldError attention/bad-request for an empty one */
function answered(
  { messages }: Transcript,
  { answer, maxTokens }: FileFlags,
): { messages: readonly ChatMessage[]; answer: AnswerChoice } {
  const last = messages.at(-1)
  const written = last?.role === 'assistant' && last.toolCalls === undefined ? last.content : undefined
  const before = written === undefined ? messages : messages.slice(0, -1)
  const text = answer ?? written
  if (text?.trim() === '')
    throw new KvfoldError('attention/bad-request', 'The answer is empty: no token of it looks at anything; give a text.')
  if (before.length === 0) throw new KvfoldError('attention/bad-request', 'There is nothing before the answer to look at.')
  return { messages: before, answer: text === undefined ? { kind: 'generated', maxTokens } : { kind: 'given', text } }
}

/** What can be known to fail before anything is computed. */
function refuseMisfit(
  engine: LlamaEngine,
  { tools }: Transcript,
  messages: readonly ChatMessage[],
  answer: AnswerChoice,
  { layers, contract }: FileFlags,
): void {
  refuseBeyond('layer', layers, engine.modelInfo.layers)
  const missing = contract.find((one) => !engine.abilities.contracts.includes(one))
  if (missing !== undefined)
    throw new KvfoldError(
      'attention/bad-request',
      `Folds cannot be carried out under ${missing} here: ${engine.abilities.refusal ?? ''}.`,
    )
  for (const { content } of messages) refuseHopeless(engine.model, engine.info.context, content)
  const whole: readonly ChatMessage[] =
    answer.kind === 'given' ? [...messages, { role: 'assistant', content: answer.text }] : messages
  const needed = engine.count(whole, tools) + (answer.kind === 'generated' ? answer.maxTokens : 0)
  if (needed > engine.info.context)
    throw new KvfoldError(
      'context/full',
      `The transcript and its answer need ${needed} tokens and the context has ${engine.info.context} cells; give a larger --context.`,
    )
}

function save(folder: string, engine: LlamaEngine, study: SpanStudy): string {
  mkdirSync(folder, { recursive: true })
  const { columns, rows } = spanTable(study.rows)
  const about = { schema: 'kvfold.attention-spans/1', model: engine.info.model }
  writeFileSync(join(folder, 'spans.parquet'), parquet(columns, rows, JSON.stringify(about)))
  writeFileSync(join(folder, 'summary.json'), `${JSON.stringify({ ...about, ...study }, null, 2)}\n`)
  const page = join(folder, 'report.html')
  writeFileSync(page, spanReport(engine.info.model, study))
  return page
}

/** Spans as pairs: those that are shown on both sides. */
function statistics(rows: readonly SpanRow[]) {
  const both = rows.flatMap(({ complete, folded, change }) =>
    folded === null || change === null ? [] : [{ complete, folded, change }],
  )
  const changes = both.map(({ change }) => change)
  const description = describe(changes)
  return {
    pairs: both.length,
    improved: changes.filter((change) => change > 0).length,
    meanChange: description?.mean ?? null,
    medianChange: description?.median ?? null,
    r2: squaredCorrelation(both.map(({ complete, folded }) => [complete, folded])),
    p: tTest(changes)?.p ?? null,
  }
}

function machineView(
  { rows, answers }: SpanStudy,
  contracts: readonly Contract[],
  { info }: LlamaEngine,
  report: string | null,
): object {
  const of = (contract: Contract) => rows.filter((row) => row.contract === contract)
  return {
    ...statistics(of(contracts[0]!)),
    model: info.model,
    findings: contracts.map((contract) => ({ contract, ...statistics(of(contract)) })),
    spans: rows,
    answers,
    report,
  }
}

function lines({ rows, answers }: SpanStudy, report: string | null, rule: string): string[] {
  const right = (title: string) => ({ title, align: 'right' as const })
  const columns = [{ title: 'span' }, { title: 'folded' }, ...['tokens', 'complete', 'folded', 'change %'].map(right)]
  const share = (mass: number | null): string => (mass === null ? 'not shown' : probabilityLike(mass))
  return [
    ...table(
      columns,
      rows.map(({ name, contract, tokens, complete, folded, change }) => [
        name.replace(/\s+/gu, ' '),
        contract,
        String(tokens),
        share(complete),
        share(folded),
        change === null ? '-' : change.toFixed(2),
      ]),
      { rule },
    ),
    '',
    'Share of the attention of the whole answer that lies on the span: mean over layers, heads and the tokens of the answer.',
    ...answers.flatMap(({ side, fallback }) => (fallback === null ? [] : [`${side}: exact instead, because ${fallback}.`])),
    ...(report === null ? [] : [`Report: ${report}`]),
  ]
}

const probabilityLike = (mass: number): string => (mass === 0 ? '0' : mass < 0.001 ? probability(mass) : mass.toFixed(4))
