/** Writes the snapshots of collected trajectories as rows: tokens, messages, prompt and completion, or Parquet for verl. */
import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { fileWriter, ParquetWriter } from 'hyparquet-writer'
import Type, { type Static } from 'typebox'
import { type Snapshot, type ShownMessage, shownMessages, type TrajectoryStep } from '../agents/snapshots.js'
import type { ToolDefinition } from '../../runtime/chat/message.js'
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { writeWhole } from '../../runtime/core/whole-file.js'
import { writeJson } from '../../runtime/core/written-json.js'
import { TrajectoryFacts } from './trajectory.js'

/** `verl` is Parquet; the rest are JSON Lines. */
export const formats = ['tokens', 'messages', 'prompt-completion', 'verl'] as const
export type Format = (typeof formats)[number]

export const needsTokens = (format: Format): boolean => format === 'tokens' || format === 'verl'

/** A snapshot of one trajectory before it is written. */
export interface UnwrittenSnapshot {
  readonly facts: TrajectoryFacts
  /** The snapshot in tokens; in messages if neither a model nor the engine provides tokens. */
  readonly snapshot: Snapshot
  /** All steps of the trajectory. */
  readonly steps: readonly TrajectoryStep[]
  /** The right answer, in the form that the task's scorer uses. */
  readonly truth: unknown
}

// Below: the format `tokens`, which kvfold's own trainer reads.

const Stretch = Type.Tuple([Type.Number(), Type.Number()])

/**
 * For each completion with loss, the natural logarithms of its tokens' probabilities under the model that acted, before temperature,
 * filters and grammar.
 */
const Logprobs = Type.Optional(Type.Array(Type.Array(Type.Number())))

export const TrajectoryRecord = Type.Object({
  ...TrajectoryFacts.properties,
  tokens: Type.Array(Type.Number()),
  /**
   * Half-open spans of `tokens` with loss, in order, one per completion. Each completion has loss in exactly one snapshot of its
   * trajectory.
   */
  loss: Type.Array(Stretch),
  /** Log-probabilities, one list per span of `loss`. Absent if a script acted, or if the log-probabilities of any span are unknown. */
  logprobs: Logprobs,
})
export type TrajectoryRecord = Static<typeof TrajectoryRecord>

function tokensRow({ facts, snapshot: { tokens, learned } }: UnwrittenSnapshot): TrajectoryRecord {
  const known = learned.flatMap(({ logprobs }) => (logprobs === undefined ? [] : [logprobs]))
  return {
    ...facts,
    tokens: [...tokens],
    loss: learned.map(({ span: { start, end } }) => [start, end]),
    // All spans or none: a trainer could not tell a missing log-probability from 0, which is certainty.
    ...(known.length === learned.length ? { logprobs: known.map(rounded) } : {}),
  }
}

/** Rounds log-probabilities to six decimals (1e-6 nats). */
const rounded = (logprobs: readonly number[]): number[] => logprobs.map((each) => Number(each.toFixed(6)))

// Below: the formats `messages` and `prompt-completion`, for trainers with their own tokenizer, such as TRL and ms-swift.

type Flagged = ShownMessage & { readonly loss?: boolean }

interface RowFields {
  /** The tool definitions as JSON text in OpenAI's chat format; an empty text without tools. */
  readonly tools: string
  readonly logprobs?: readonly (readonly number[])[]
  /** The text of each token in `logprobs`. Present if the engine reports no token ids. */
  readonly pieces?: readonly (readonly string[])[]
  /** The right answer as JSON text, in the form that the task's scorer uses. */
  readonly truth: string
}

/** Returns the messages of the prompt of a snapshot's last step, and its completion. `first`: index of the first message with loss. */
function conversationOf({ snapshot: { learned }, steps }: UnwrittenSnapshot): {
  messages: Flagged[]
  first: number
  tools: readonly ToolDefinition[]
} {
  const last = steps[learned.at(-1)?.step ?? -1]
  invariant(last !== undefined, 'A snapshot has no completion with loss.')
  const places = learned.map(({ step }) => steps[step]!.messages.length)
  const messages = shownMessages([...last.messages, last.completion], last.edits).map((message, at): Flagged =>
    message.role === 'assistant' ? { ...message, loss: places.includes(at) } : message,
  )
  invariant(
    places.every((at) => messages[at]?.role === 'assistant'),
    'A completion with loss is not a message of its snapshot.',
  )
  return { messages, first: places[0]!, tools: last.tools }
}

function saidOf(cut: UnwrittenSnapshot, tools: readonly ToolDefinition[]): RowFields {
  const own = cut.snapshot.learned.map(({ step }) => cut.steps[step]!)
  const known = own.flatMap(({ logprobs }) => (logprobs === undefined ? [] : [rounded(logprobs)]))
  const pieces = own.flatMap((step) =>
    step.pieces === undefined || step.tokens !== undefined || step.completion.sampled !== undefined ? [] : [step.pieces],
  )
  return {
    tools:
      tools.length === 0
        ? ''
        : writeJson(
            tools.map(({ name, description, parameters }) => ({ type: 'function', function: { name, description, parameters } })),
          ),
    ...(known.length === own.length ? { logprobs: known } : {}),
    ...(pieces.length === own.length && known.length === own.length ? { pieces } : {}),
    truth: writeJson(cut.truth ?? null),
  }
}

/** Makes a row of the format `messages`. `loss` of an assistant message says whether it has loss in this snapshot. */
function messagesRow(cut: UnwrittenSnapshot) {
  const { messages, tools } = conversationOf(cut)
  return { ...cut.facts, messages, ...saidOf(cut, tools) }
}

/**
 * Makes a row of `prompt-completion`. `completion` begins with the first message that has loss, and all its assistant messages have loss.
 */
function promptRow(cut: UnwrittenSnapshot) {
  const { messages, first, tools } = conversationOf(cut)
  const bare = messages.map(({ loss: _, ...message }) => message)
  return { ...cut.facts, prompt: bare.slice(0, first), completion: bare.slice(first), ...saidOf(cut, tools) }
}

/** Makes a snapshot's row, which becomes a line of JSON. At the end of the run, rows of `verl` are converted to Parquet. */
export function rowOf(format: Format, cut: UnwrittenSnapshot): object {
  if (format === 'tokens') return tokensRow(cut)
  if (format === 'messages') return messagesRow(cut)
  if (format === 'prompt-completion') return promptRow(cut)
  return { ...unscored(promptRow(cut)), ...tokensRow(cut) }
}

/** Returns the row without the log-probabilities of text pieces, because a row with tokens has those of its tokens. */
const unscored = ({ logprobs: _, pieces: __, ...row }: ReturnType<typeof promptRow>) => row

/** Returns the format of an existing row; null if it has none of the formats. */
export function formatOf(row: object): Format | null {
  if ('prompt' in row) return 'tokens' in row ? 'verl' : 'prompt-completion'
  return 'messages' in row ? 'messages' : 'tokens' in row ? 'tokens' : null
}

// Below: the format `verl`, a Parquet file. verl's RL loader reads `prompt`, `data_source`, `reward_model` and `extra_info`. The columns
// for tokens, labels and mask are for a loader that reads tokens.

type VerlRow = TrajectoryRecord &
  RowFields & { readonly prompt: readonly ShownMessage[]; readonly completion: readonly ShownMessage[] }

/** The label of a token without loss. PyTorch's cross entropy ignores it by default (`ignore_index`). */
const IGNORED = -100
/** Rows in a Parquet row group, all of which are in memory at the same time. */
const GROUP = 256

const leaf = (name: string, type: object, repetition = 'REQUIRED') => [{ name, repetition_type: repetition, ...type }]
const TEXT = { type: 'BYTE_ARRAY', converted_type: 'UTF8' }
const text = (name: string, repetition?: string) => leaf(name, TEXT, repetition)
const struct = (name: string, fields: readonly (readonly object[])[], repetition = 'REQUIRED') => [
  { name, repetition_type: repetition, num_children: fields.length },
  ...fields.flat(),
]
const list = (name: string, element: readonly object[], repetition = 'REQUIRED') => [
  { name, repetition_type: repetition, num_children: 1, converted_type: 'LIST' },
  { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
  ...element,
]
const CALL = struct('element', [text('id'), text('type'), struct('function', [text('name'), text('arguments')])])
const MESSAGE = struct('element', [
  ...[text('role'), text('content'), text('reasoning_content', 'OPTIONAL'), list('tool_calls', CALL, 'OPTIONAL')],
  ...[text('tool_call_id', 'OPTIONAL'), text('name', 'OPTIONAL')],
])

const integers = (name: string) => list(name, leaf('element', { type: 'INT32' }))
const small = (name: string) => leaf(name, { type: 'INT32' })

/** The Parquet columns: the schema of each, and a function that returns its value in a row. `index`: the row's index in the file. */
const COLUMNS: Readonly<Record<string, readonly [schema: readonly object[], of: (row: VerlRow, index: number) => unknown]>> = {
  data_source: [text('data_source'), ({ task }) => `kvfold/${task}`],
  ability: [text('ability'), () => 'context'],
  prompt: [list('prompt', MESSAGE), ({ prompt }) => prompt.map(messageOf)],
  completion: [list('completion', MESSAGE), ({ completion }) => completion.map(messageOf)],
  tools: [text('tools'), ({ tools }) => tools],
  reward_model: [
    struct('reward_model', [text('style'), text('ground_truth')]),
    ({ truth }) => ({ style: 'rule', ground_truth: truth }),
  ],
  extra_info: [
    struct('extra_info', [small('index'), text('id'), text('group')]),
    ({ id, group }, index) => ({ index, id, group }),
  ],
  input_ids: [integers('input_ids'), ({ tokens }) => tokens],
  labels: [integers('labels'), ({ tokens, loss }) => spread(tokens.length, loss, IGNORED, (at) => tokens[at]!)],
  loss_mask: [integers('loss_mask'), ({ tokens, loss }) => spread(tokens.length, loss, 0, () => 1)],
  old_log_probs: [
    list('old_log_probs', leaf('element', { type: 'FLOAT' }), 'OPTIONAL'),
    ({ tokens, loss, logprobs }) =>
      logprobs === undefined ? null : spread(tokens.length, loss, 0, (at, which, from) => logprobs[which]![at - from]!),
  ],
  trajectory: [text('trajectory'), ({ group, id, rollout }) => `${group}/${id}/${rollout}`],
  uid: [text('uid'), ({ group }) => group],
  rollout: [small('rollout'), ({ rollout }) => rollout],
  snapshot: [small('snapshot'), ({ snapshot }) => snapshot],
  snapshots: [small('snapshots'), ({ snapshots }) => snapshots],
  steps: [integers('steps'), ({ steps }) => steps],
  reward: [leaf('reward', { type: 'DOUBLE' }), ({ reward }) => reward],
  points: [leaf('points', { type: 'DOUBLE' }), ({ points }) => points],
  parts: [text('parts'), ({ parts }) => JSON.stringify(parts)],
  outcomes: [text('outcomes'), ({ outcomes = [] }) => JSON.stringify(outcomes)],
  sampling: [text('sampling', 'OPTIONAL'), ({ sampling }) => (sampling === undefined ? null : JSON.stringify(sampling))],
  seed: [leaf('seed', { type: 'INT64' }, 'OPTIONAL'), ({ sampling }) => (sampling === undefined ? null : BigInt(sampling.seed))],
  agent: [text('agent'), ({ agent }) => agent],
  teacher: [text('teacher'), ({ teacher }) => teacher],
  model: [text('model'), ({ model }) => model.name],
}

const messageOf = ({
  role,
  content,
  reasoning_content = null,
  tool_calls = null,
  tool_call_id = null,
  name = null,
}: Nullable<ShownMessage>) => ({
  ...{ role, content, reasoning_content, tool_calls, tool_call_id, name },
})
type Nullable<T> = { readonly [Key in keyof T]: T[Key] | null }

/** Returns one value per token: `value` inside the spans with loss, else `outside`. `which`: the span's index; `from`: its first token. */
function spread<Value>(
  length: number,
  loss: TrajectoryRecord['loss'],
  outside: Value,
  value: (at: number, which: number, from: number) => Value,
): Value[] {
  const all = Array.from({ length }, () => outside)
  loss.forEach(([start, end], which) => {
    for (let at = start; at < end; at++) all[at] = value(at, which, start)
  })
  return all
}

/**
 * Converts the file `from` (rows of `verl` as JSON lines) to the Parquet file `to`, which appears only when it is complete.
 * @throws KvfoldError eval/bad-log when it cannot be written
 */
export async function writeParquet(from: string, to: string): Promise<void> {
  try {
    await writeWhole(to, (temporary) => writeRows(from, temporary))
  } catch (cause) {
    throw new KvfoldError(
      'eval/bad-log',
      `${to} cannot be written (${cause instanceof Error ? cause.message : String(cause)}); ${from} has all rows.`,
      { cause },
    )
  }
}

async function writeRows(from: string, to: string): Promise<void> {
  const columns = Object.entries(COLUMNS)
  const schema = [{ name: 'root', num_children: columns.length }, ...columns.flatMap(([, [part]]) => part)]
  const writer = new ParquetWriter({
    writer: fileWriter(to),
    schema: schema as ParquetWriter['schema'],
    statistics: false,
  })
  let [rows, index] = [[] as VerlRow[], 0]
  const flush = async () => {
    if (rows.length === 0) return
    const first = index - rows.length
    const columnData = columns.map(([name, [, of]]) => ({ name, data: rows.map((row, at) => of(row, first + at)) }))
    await writer.write({ columnData: columnData, rowGroupSize: rows.length })
    rows = []
  }
  for await (const line of createInterface({ input: createReadStream(from) })) {
    rows.push(JSON.parse(line) as VerlRow)
    index++
    if (rows.length === GROUP) await flush()
  }
  await flush()
  await writer.finish()
}
