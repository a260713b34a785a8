/**
 * The command `kvfold attention file`: measures the attention to chosen spans of a transcript, complete and with the transcript's folds.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Command } from 'commander'
import { describe, squaredCorrelation, tTest } from '../../attention/statistics.js'
import { parquet } from '../../attention/tables.js'
import { probability } from '../../../runtime/figures/numbers.js'
import { compareSpans, type SpanRow, type SpanStudy, spanTable, type WatchedSpan } from '../../attention/spans.js'
import type { AnswerChoice } from '../../../runtime/attention/measurement.js'
import type { ChatMessage } from '../../../runtime/chat/message.js'
import type { Contract } from '../../../runtime/core/contract.js'
import { isForgotten } from '../../../runtime/context/fragment.js'
import { KvfoldError } from '../../../runtime/core/errors.js'
import type { LlamaEngine } from '../../../runtime/engine/llama.js'
import { refuseHopeless } from '../../../runtime/engine/model-facts.js'
import { refuseBeyond } from '../../attention-study.js'
import { readInput, type Shell } from '../../../runtime/cli/shell.js'
import { integer } from '../../../runtime/cli/options.js'
import { type Column, number, table, terminal } from '../../../runtime/figures/table.js'
import { foldedBy, parseTranscript, stretchOf, type Transcript } from '../../../runtime/cli/transcript.js'
import { ProgressLine } from '../progress.js'
import { addStudyOptions, loadForLooking, type StudyFlags } from './study.js'
import { movedEdits, type ThreadEdits } from '../../../runtime/store/port.js'
import Type, { type Static } from 'typebox'
import { checked, inWords, strict, Text } from '../../../runtime/core/schema.js'
import { span } from '../../../runtime/core/span.js'

interface FileFlags extends StudyFlags {
  readonly answer?: string
  readonly maxTokens: number
}

const FORMAT = `
The transcript is a JSON file as for \`kvfold plan\` (messages, tools, folds). It also names the spans to watch:

  {
    "messages": [
      { "role": "user", "content": "Here is the log. 12:00 started ... 12:58 disk full ... 12:59 stopped. What went wrong?" },
      { "role": "assistant", "content": "The disk was full." }
    ],
    "folds": [{ "message": 0, "from": "12:00 started", "to": "12:30" }],
    "spans": ["disk full", { "name": "end", "message": 0, "from": "12:59", "to": "stopped." }]
  }

A span is a literal text, at its last occurrence. Or it begins where "from" begins and ends where the next "to" ends. The tokens of the
answer look. The answer is --answer, else the transcript's last message if it is the assistant's, else a generated one.`

export function addFile(command: Command, shell: Shell): void {
  const file = command
    .command('file')
    .description('measure attention to spans of a transcript, complete and folded')
    .argument('[transcript]', 'JSON file, `-` for stdin')
    .option('--answer <text>', 'the answer whose tokens look')
    .option('--max-tokens <count>', 'most tokens of a generated answer', integer(1, 65_536), 256)
  addStudyOptions(file, 'kvfold-spans')
    .addHelpText('after', FORMAT)
    .action((path: string | undefined, flags: FileFlags) => run(path, flags, shell))
}

async function run(path: string | undefined, flags: FileFlags, shell: Shell): Promise<void> {
  const { interrupt, notes, out } = shell
  const source = path === undefined || path === '-' ? 'stdin' : path
  const text = await readInput(path, shell)
  const transcript = parseTranscript(text, source)
  const { messages, answer } = answered(transcript, flags)
  const edits = editsOf(transcript, messages)
  const spans = parseWatched(text, source, messages)
  const engine = await loadForLooking(flags, shell)
  const progress = new ProgressLine(notes, flags.json === true)
  try {
    await refuseMisfit(engine, transcript, messages, answer, flags)
    const folded = await foldedBy(engine, { messages, tools: transcript.tools, edits }, transcript.folds)
    const study = await compareSpans({
      engine,
      messages,
      tools: transcript.tools,
      edits: folded.edits(),
      spans,
      answer,
      contracts: flags.contract,
      signal: interrupt.signal,
      onProgress: (done, total, what) => {
        progress.say(done, total, { what })
      },
      ...(flags.blend === undefined ? {} : { blend: { most: flags.blend } }),
      ...(flags.layers === undefined ? {} : { layers: flags.layers }),
    }).finally(() => {
      notes.close()
    })
    const report = await save(flags.out, engine, study)
    if (flags.json === true) out.print(JSON.stringify(machineView(study, flags.contract, engine, report)))
    else for (const line of lines(study, report, out.rule)) out.print(line)
  } finally {
    await engine.dispose()
  }
}

/**
 * Returns the edits that an exported transcript has in these messages; the study compares them with the complete text. Returns null without
 * edits.
 * @throws KvfoldError attention/bad-request if the transcript holds text that was to be forgotten, because the study would show it to a
 * model
 */
function editsOf({ edits }: Transcript, messages: readonly ChatMessage[]): ThreadEdits | null {
  if (edits?.fragments.some(isForgotten) === true)
    throw new KvfoldError(
      'attention/bad-request',
      'The transcript has text that was to be forgotten, and the study would show it to the model. Take its `edits` out, and that text.',
    )
  return edits === null ? null : movedEdits(edits, (message) => (message < messages.length ? message : undefined))
}

/**
 * Splits a transcript into the messages before the answer, and the answer. @throws KvfoldError attention/bad-request when either is empty
 */
function answered(
  { messages }: Transcript,
  { answer, maxTokens }: FileFlags,
): { messages: readonly ChatMessage[]; answer: AnswerChoice } {
  const last = messages.at(-1)
  const written = last?.role === 'assistant' && last.toolCalls === undefined ? last.content : undefined
  const before = written === undefined ? messages : messages.slice(0, -1)
  const text = answer ?? written
  if (text?.trim() === '')
    throw new KvfoldError('attention/bad-request', 'The answer is empty, so no token looks at anything; give a text.')
  if (before.length === 0)
    throw new KvfoldError('attention/bad-request', 'The transcript has no message before the answer; add one.')
  return { messages: before, answer: text === undefined ? { kind: 'generated', maxTokens } : { kind: 'given', text } }
}

/** Checks layers, contracts and lengths before anything is computed. @throws KvfoldError for values that cannot work */
async function refuseMisfit(
  engine: LlamaEngine,
  { tools }: Transcript,
  messages: readonly ChatMessage[],
  answer: AnswerChoice,
  { layers, contract }: FileFlags,
): Promise<void> {
  refuseBeyond('layer', layers, engine.modelInfo.layers)
  const missing = contract.find((one) => !engine.abilities.contracts.includes(one))
  if (missing !== undefined)
    throw new KvfoldError('attention/bad-request', `This engine cannot fold under ${missing}: ${engine.abilities.refusal ?? ''}.`)
  for (const { content } of messages) await refuseHopeless(engine.model, engine.info.context, [content])
  const whole: readonly ChatMessage[] =
    answer.kind === 'given' ? [...messages, { role: 'assistant', content: answer.text }] : messages
  const needed = engine.count(whole, tools) + (answer.kind === 'generated' ? answer.maxTokens : 0)
  if (needed > engine.info.context)
    throw new KvfoldError(
      'context/full',
      `The transcript and its answer need ${needed} tokens, but the context has ${engine.info.context} cells; give a larger --context.`,
    )
}

async function save(folder: string, engine: LlamaEngine, study: SpanStudy): Promise<string> {
  mkdirSync(folder, { recursive: true })
  const { columns, rows } = spanTable(study.rows)
  const about = { schema: 'kvfold.attention-spans/1', model: engine.info.model }
  writeFileSync(join(folder, 'spans.parquet'), parquet(columns, rows, JSON.stringify(about)))
  writeFileSync(join(folder, 'summary.json'), `${JSON.stringify({ ...about, ...study }, null, 2)}\n`)
  // The drawing code takes long to load, so it is imported only here.
  const { spanReport } = await import('../../attention/report.js')
  const page = join(folder, 'report.html')
  writeFileSync(page, spanReport(engine.info.model, study))
  return page
}

/** Computes the same statistics over spans that the PI-LLM study computes over pairs. Only spans that both prompts show count. */
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
  report: string,
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

function lines({ rows, answers }: SpanStudy, report: string, rule: string): string[] {
  const share = (mass: number | null): string => (mass === null ? 'not shown' : probabilityLike(mass))
  const columns: Column<SpanRow>[] = [
    { title: 'span', text: ({ name }) => name.replace(/\s+/gu, ' ') },
    { title: 'folded', text: ({ contract }) => contract },
    number('tokens', ({ tokens }) => String(tokens)),
    number('complete', ({ complete }) => share(complete)),
    number('folded', ({ folded }) => share(folded)),
    number('change %', ({ change }) => (change === null ? '-' : change.toFixed(2))),
  ]
  return [
    ...terminal(table(columns, rows), rule),
    '',
    "Share of the whole answer's attention on the span: mean over layers, heads and the tokens of the answer.",
    ...answers.flatMap(({ side, fallback }) => (fallback === null ? [] : [`${side}: exact instead, because ${fallback}.`])),
    `Report: ${report}`,
  ]
}

const probabilityLike = (mass: number): string => (mass === 0 ? '0' : mass < 0.001 ? probability(mass) : mass.toFixed(4))

// Below: reads a transcript's field `spans`, which names the spans whose attention is measured.

const Place = strict({
  name: Type.Optional(Text),
  text: Type.Optional(Text),
  message: Type.Optional(Type.Integer({ minimum: 0 })),
  from: Type.Optional(Text),
  to: Type.Optional(Text),
})
const File = Type.Object({ spans: Type.Array(Type.Union([Text, Place]), { minItems: 1 }) })

/**
 * Reads a transcript's field `spans`. An entry is a text, which means its last occurrence, or a position written as in the transcript's
 * folds.
 * @throws KvfoldError attention/bad-request with the first error
 */
export function parseWatched(json: string, source: string, messages: readonly ChatMessage[]): WatchedSpan[] {
  const parsed = checked(File, JSON.parse(json))
  if (!parsed.ok) throw wrong(source, inWords(parsed.faults[0]))
  const spans = parsed.value.spans.map((one, index) =>
    watched(typeof one === 'string' ? { text: one } : one, messages, (why) => wrong(source, `spans.${index}: ${why}`)),
  )
  const twice = spans.find(({ name }, index) => spans.findIndex((other) => other.name === name) < index)
  if (twice !== undefined)
    throw wrong(source, `two spans have the name ${JSON.stringify(twice.name)}; give each a "name" of its own`)
  return spans
}

function watched(
  { name, text, message, from, to }: Static<typeof Place>,
  messages: readonly ChatMessage[],
  fail: (why: string) => KvfoldError,
): WatchedSpan {
  if (text === undefined && message === undefined) throw fail('the span needs "text", or "message" with "from" and "to"')
  if (message !== undefined && messages[message] === undefined)
    throw fail(`message ${message} does not exist before the answer; the first is 0, the last ${messages.length - 1}`)
  const index = message ?? messages.findLastIndex(({ content }) => content.includes(text!))
  const content = messages[index]?.content
  if (content === undefined) throw fail(`no message contains ${JSON.stringify(text)}`)
  const first = text === undefined ? 0 : content.lastIndexOf(text)
  if (first < 0) throw fail(`message ${index} does not contain ${JSON.stringify(text)}`)
  const chars =
    text === undefined ? stretchOf(messages, { message: index, from, to }, fail, 'span') : span(first, first + text.length)
  const inside = content.slice(chars.start, chars.end)
  return { name: name ?? shortened(inside), text: inside, message: index, chars }
}

const shortened = (text: string): string => (text.length > 40 ? `${text.slice(0, 39)}…` : text)

const wrong = (source: string, why: string): KvfoldError =>
  new KvfoldError(
    'attention/bad-request',
    `The spans of ${source} are wrong: ${why}. \`kvfold attention file --help\` shows the format.`,
  )
