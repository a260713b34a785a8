/**
 * Defines the lines of logs. A run's log needs no other file: it has a header, one record per sample, and a line wherever a stopped run was
 * resumed. An episode's log has a header and one record per turn.
 */
import Type, { type Static, type TLiteral, type TObject } from 'typebox'
import { type Checked, checked, nullable } from '../runtime/core/schema.js'
import { agentKinds } from './agent.js'
import { taskNames } from './task.js'

/** The version of a run's log. Increase it with every change that older readers would misread. */
export const LOG_VERSION = 1

const Counts = Type.Record(Type.String(), Type.Number())
const Anything = Type.Record(Type.String(), Type.Unknown())

const Message = Type.Object({
  role: Type.Enum(['system', 'user', 'assistant', 'tool']),
  content: Type.String(),
  reasoning: Type.Optional(Type.String()),
  toolCalls: Type.Optional(
    Type.Array(
      Type.Object({
        id: Type.String(),
        name: Type.String(),
        arguments: Anything,
        malformed: Type.Optional(Type.String()),
      }),
    ),
  ),
  toolCallId: Type.Optional(Type.String()),
  name: Type.Optional(Type.String()),
})

const LedgerCost = Type.Object({
  kind: Type.Enum(['answer', 'summary', 'refresh', 'cancelled']),
  contract: Type.String(),
  /** The counts from here to `submitted` are tokens. `LedgerEntry` in src/runtime/kv/ledger.ts explains each of them. */
  shown: Type.Number(),
  reused: Type.Number(),
  recomputed: Type.Number(),
  fresh: Type.Number(),
  approximate: Type.Number(),
  side: Type.Number(),
  submitted: Type.Number(),
  milliseconds: Type.Object({ cache: Type.Number(), prefill: Type.Number(), decode: Type.Number() }),
  predicted: nullable(Type.Number()),
  /** Why the step computed tokens that an earlier step had shown, or whose cells a tier had. Absent in older logs. */
  recomputeReason: Type.Optional(nullable(Type.String())),
})

const Step = Type.Object({
  /** Index of the step among all steps of the sample, from 0. The `step` of a tool call refers to it. */
  place: Type.Optional(Type.Number()),
  /** How many of the conversation's messages the step showed, from the first one on. */
  messages: Type.Number(),
  /** The spans that were replaced in the prompt, and the text in place of each. Spans count characters of the message's original text. */
  edits: Type.Array(
    Type.Object({
      message: Type.Number(),
      span: Type.Object({ start: Type.Number(), end: Type.Number() }),
      replacement: Type.String(),
    }),
  ),
  tools: Type.Boolean(),
  /** `failed`: the engine threw an error. Then there is no ledger entry, and all numbers of `ledger` are 0. */
  finish: Type.Enum(['stop', 'tool-calls', 'length', 'cancelled', 'failed']),
  /** A failed step's error code, or the error's text if it has no code. */
  error: Type.Optional(Type.String()),
  ledger: LedgerCost,
  /** `firstToken`, `total`: milliseconds from the request to the first and the last token. */
  timing: Type.Object({ firstToken: Type.Number(), total: Type.Number(), generatedTokens: Type.Number() }),
  /** The generated text. Absent if a later step shows it as a message. */
  said: Type.Optional(Type.String()),
})

/** The messages of one conversation, and its steps. Most agents have one conversation per sample. */
const RecordedConversation = Type.Object({ messages: Type.Array(Message), steps: Type.Array(Step) })

/** When records were made, by which version and command, and on which machine. */
const Occasion = {
  kvfold: Type.String(),
  /** The git commit of the source; null if unknown. */
  commit: nullable(Type.String()),
  date: Type.String(),
  command: Type.String(),
  machine: Type.Object({
    cpu: Type.String(),
    cores: Type.Number(),
    memory: Type.Number(),
    os: Type.String(),
    node: Type.String(),
  }),
}

export const LogHeader = Type.Object({
  kind: Type.Literal('header'),
  version: Type.Literal(LOG_VERSION),
  ...Occasion,
  model: Type.Object({ name: Type.String(), fingerprint: nullable(Type.String()) }),
  engine: Type.Object({
    ...{ engine: Type.String(), release: Type.String(), context: Type.Number() },
    /** The engine's options that change answers, such as the type of the KV cache. Absent if all are default. */
    settings: Type.Optional(Anything),
  }),
  embedder: nullable(Type.String()),
  judge: nullable(Type.String()),
  seed: Type.Number(),
  sampling: Anything,
  contracts: Type.Array(Type.String()),
  tasks: Type.Array(
    Type.Object({
      task: Type.Enum(taskNames),
      options: Anything,
      title: Type.String(),
      differs: Type.Array(Type.String()),
      size: Type.Number(),
      /** SHA-256 of the task's first and last sample. It reveals that the data or the generator changed. */
      samples: Type.Optional(Type.String()),
    }),
  ),
  agents: Type.Array(
    Type.Object({
      agent: Type.Enum(agentKinds),
      title: Type.String(),
      options: Anything,
      /** Whether the model was trained for this agent's prompts on all tasks of the run; null if unknown. */
      trained: nullable(Type.Boolean()),
      /**
       * The tasks of the run for which the model was trained with this agent; absent if unknown. `trained` is true if the list has every
       * task of the run.
       */
      trainedTasks: Type.Optional(Type.Array(Type.Enum(taskNames))),
    }),
  ),
})

const Identity = {
  /** Index of the task in the header's `tasks`. */
  task: Type.Number(),
  agent: Type.Enum(agentKinds),
  contract: Type.String(),
  /** Index of the sample in its task. */
  index: Type.Number(),
  id: Type.String(),
  cell: Type.Record(Type.String(), Type.Union([Type.Number(), Type.String()])),
}

export const SampleRecord = Type.Object({
  kind: Type.Literal('sample'),
  ...Identity,
  /** The right answer, or other data with which the scorer compared the answer. */
  truth: Type.Unknown(),
  answer: Type.String(),
  end: Type.Enum(['stop', 'length', 'cancelled']),
  score: Type.Object({ points: Type.Number(), outcome: Type.Enum(['right', 'partial', 'wrong', 'unparsed']), details: Counts }),
  /** The judge's answer, and its verdict; null if the answer contains no verdict. Present only for tasks with a judge. */
  judgement: Type.Optional(Type.Object({ said: Type.String(), verdict: nullable(Type.Boolean()) })),
  calls: Type.Array(Type.Object({ step: Type.Number(), name: Type.String(), failed: Type.Boolean(), modifies: Type.Boolean() })),
  refusedCalls: Type.Number(),
  details: Counts,
  talks: Type.Array(RecordedConversation),
  /** Tokens in the context: `before` at the end of the first step, `most` at the largest step, `after` at the step that answered. */
  tokens: Type.Object({ before: Type.Number(), most: Type.Number(), after: Type.Number() }),
  /** Numbers of steps and tokens, summed over all steps of the sample. */
  work: Type.Object({
    steps: Type.Number(),
    shown: Type.Number(),
    reused: Type.Number(),
    submitted: Type.Number(),
    generated: Type.Number(),
  }),
  /** Wall time. `cache`, `prefill` and `decode` are sums over the steps' ledger entries. */
  milliseconds: Type.Object({ cache: Type.Number(), prefill: Type.Number(), decode: Type.Number(), total: Type.Number() }),
})

/** A sample that ended with an error, without an answer. It does not count as wrong, and the next run with this log repeats it. */
const ErrorRecord = Type.Object({ kind: Type.Literal('error'), ...Identity, code: Type.String(), message: Type.String() })

/**
 * A step of a sample, written when the step ends (`kvfold eval --follow`). The sample's own record repeats it. If a run is killed before
 * that record, these lines show how far it came.
 */
const StepRecord = Type.Object({ kind: Type.Literal('step'), ...Identity, step: Step })

/**
 * Marks where a stopped run was resumed. It names the program and the machine of the records after it. Everything else is as in the header.
 */
const Resumption = Type.Object({ kind: Type.Literal('resumed'), ...Occasion })

/** Any line of a run's log. Only the first line is a header. */
const LogLine = Type.Union([LogHeader, SampleRecord, ErrorRecord, Resumption, StepRecord])

export type LogHeader = Static<typeof LogHeader>
export type SampleRecord = Static<typeof SampleRecord>
export type ErrorRecord = Static<typeof ErrorRecord>
export type Resumption = Static<typeof Resumption>
/** A sample's record. If a sample has several, the last one counts, because an answer may follow an error. */
export type LogRecord = SampleRecord | ErrorRecord
/** A line that a run appends to its log. */
export type LogEntry = LogRecord | Static<typeof StepRecord>
export type RecordedConversation = Static<typeof RecordedConversation>

// Below: the lines of an episode's log.

/** The version of an episode's log. Increase it with every change that older readers would misread. */
export const EPISODE_VERSION = 2

const EpisodeHeader = Type.Object({
  kind: Type.Literal('episode'),
  version: Type.Literal(EPISODE_VERSION),
  ...Occasion,
  /** What identifies the episode: task, agent, model, contract, seed and their options. */
  about: Anything,
})

const { answer, end, score, calls, refusedCalls, details, tokens, work, milliseconds } = SampleRecord.properties

/** One turn of an episode. Its costs are sums over the steps of this turn. */
const TurnRecord = Type.Object({
  kind: Type.Literal('turn'),
  /** The turn's index, from 0. */
  turn: Type.Number(),
  /** The user's message. */
  asked: Type.String(),
  ...{ answer, end, score, calls, refusedCalls, details, tokens, milliseconds },
  work: Type.Object({
    ...work.properties,
    ...{ recomputed: Type.Number(), fresh: Type.Number(), approximate: Type.Number() },
  }),
})

export type EpisodeHeader = Static<typeof EpisodeHeader>
export type TurnRecord = Static<typeof TurnRecord>

// Below: the two kinds of logs, of runs and of episodes: which lines each may have, and when a run may resume one.

export interface LogKind<Header, Entry> {
  /** The name of this kind of log in error messages. */
  readonly name: string
  /** The `kind` and the `version` that the header must have. */
  readonly header: string
  readonly version: number
  /** Checks whether a value is a line of this kind of log. Faults are reported against the schema of the line's own `kind`. */
  readonly read: (value: unknown) => Checked<Header | Entry | Resumption>
  /** Returns the fields of a header that a run must share with the log that it resumes. Date, machine, command and commit may differ. */
  readonly essence: (header: Header) => Readonly<Record<string, unknown>>
}

export const runLog: LogKind<LogHeader, LogEntry> = {
  name: 'log',
  header: 'header',
  version: LOG_VERSION,
  read: readerOf(LogLine.anyOf),
  essence: ({ model, engine, embedder, judge, seed, sampling, contracts, tasks, agents }) => ({
    ...{ model, engine, embedder, judge, seed, sampling, contracts, tasks, agents },
  }),
}

export const episodeLog: LogKind<EpisodeHeader, TurnRecord> = {
  name: 'log of an episode',
  header: 'episode',
  version: EPISODE_VERSION,
  read: readerOf([EpisodeHeader, TurnRecord, Resumption]),
  essence: ({ about }) => about,
}

function readerOf<Line>(forms: readonly TObject<{ kind: TLiteral<string> }>[]): (value: unknown) => Checked<Line> {
  const ofNoKind = Type.Object({ kind: Type.Enum(forms.map(({ properties }) => properties.kind.const)) })
  return (value) => {
    const kind = typeof value === 'object' && value !== null && 'kind' in value ? value.kind : undefined
    return checked(forms.find(({ properties }) => properties.kind.const === kind) ?? ofNoKind, value) as Checked<Line>
  }
}

// Below: the JSON Schema of a run log's lines, for programs in other languages. It is also in docs/eval-log.schema.json.

/** Returns the schema. It allows unknown fields, because a later version may add fields that older readers can ignore. */
export const logSchema = (): object => ({
  title: `A line of a kvfold run log, version ${LOG_VERSION}`,
  description:
    'A log is JSON Lines. Only its first line is of kind header. If a sample (task, agent, contract, index) has several records, the last one counts.',
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  ...LogLine,
})
