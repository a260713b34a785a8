/**
 * Defines the lines of logs. A run's log is complete without any other file. It has a header, one record for each sample, and a line
 * wherever a stopped run continued. An episode's log has a header and one record for each turn.
 */
import Type, { type Static, type TLiteral, type TObject } from 'typebox'
import { type Checked, checked, nullable } from '../runtime/core/schema.js'
import { agentKinds } from './agent.js'
import { taskNames } from './task.js'

/** The version of a run's log. Increase it with every change that an older reader would misread. */
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
  /** The counts from here to `submitted` are tokens. `LedgerEntry` in src/runtime/kv/ledger.ts explains each. */
  shown: Type.Number(),
  reused: Type.Number(),
  recomputed: Type.Number(),
  fresh: Type.Number(),
  approximate: Type.Number(),
  side: Type.Number(),
  submitted: Type.Number(),
  milliseconds: Type.Object({ cache: Type.Number(), prefill: Type.Number(), decode: Type.Number() }),
  predicted: nullable(Type.Number()),
  /** Why the step computed tokens again, although an earlier step had shown them or a tier had their cells. Older logs lack it. */
  recomputeReason: Type.Optional(nullable(Type.String())),
})

const Step = Type.Object({
  /** Index among all steps of the sample, from 0; the `step` of a tool call refers to it. */
  place: Type.Optional(Type.Number()),
  /** Number of the conversation's messages that the step showed, counted from the first. */
  messages: Type.Number(),
  /** The spans of these messages that the prompt replaced, and the text in place of each. Spans count characters of the original text. */
  edits: Type.Array(
    Type.Object({
      message: Type.Number(),
      span: Type.Object({ start: Type.Number(), end: Type.Number() }),
      replacement: Type.String(),
    }),
  ),
  tools: Type.Boolean(),
  /** `failed`: the engine threw an error. There is no ledger entry then, so all of `ledger` is zero. */
  finish: Type.Enum(['stop', 'tool-calls', 'length', 'cancelled', 'failed']),
  /** The error code of a failed step, or the error's text when it has no code. */
  error: Type.Optional(Type.String()),
  ledger: LedgerCost,
  /** `firstToken` and `total`: milliseconds from the request to the first and to the last token. */
  timing: Type.Object({ firstToken: Type.Number(), total: Type.Number(), generatedTokens: Type.Number() }),
  /** The generated text, unless a later step shows it as a message. */
  said: Type.Optional(Type.String()),
})

/** The messages of one conversation and its steps. Most agents have one conversation for each sample. */
const RecordedConversation = Type.Object({ messages: Type.Array(Message), steps: Type.Array(Step) })

/** When the records were made, by which version and command, and on which machine. */
const Occasion = {
  kvfold: Type.String(),
  /** The commit of the source; null when it is not known. */
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
    /** The engine's options that change answers, such as the format of cached keys; absent when all have their defaults. */
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
      /** SHA-256 of the task's first and last sample. It changes when the data or the generator changes. */
      samples: Type.Optional(Type.String()),
    }),
  ),
  agents: Type.Array(
    Type.Object({
      agent: Type.Enum(agentKinds),
      title: Type.String(),
      options: Anything,
      /** Whether the model was trained for this agent's prompts on all tasks of the run; null when that is not known. */
      trained: nullable(Type.Boolean()),
      /**
       * The tasks of the run for which the model was trained with this agent; absent when that is not known. `trained` is true when every
       * task of the run is in this list.
       */
      trainedTasks: Type.Optional(Type.Array(Type.Enum(taskNames))),
    }),
  ),
})

const Identity = {
  /** Index in the header's `tasks`. */
  task: Type.Number(),
  agent: Type.Enum(agentKinds),
  contract: Type.String(),
  /** Index of the sample in the task. */
  index: Type.Number(),
  id: Type.String(),
  cell: Type.Record(Type.String(), Type.Union([Type.Number(), Type.String()])),
}

export const SampleRecord = Type.Object({
  kind: Type.Literal('sample'),
  ...Identity,
  /** The right answer, or other data that the scorer compared the answer with. */
  truth: Type.Unknown(),
  answer: Type.String(),
  end: Type.Enum(['stop', 'length', 'cancelled']),
  score: Type.Object({ points: Type.Number(), outcome: Type.Enum(['right', 'partial', 'wrong', 'unparsed']), details: Counts }),
  /** The judge's answer, and its verdict (null when the answer contains none). Only samples of tasks with a judge have this field. */
  judgement: Type.Optional(Type.Object({ said: Type.String(), verdict: nullable(Type.Boolean()) })),
  calls: Type.Array(Type.Object({ step: Type.Number(), name: Type.String(), failed: Type.Boolean(), modifies: Type.Boolean() })),
  refusedCalls: Type.Number(),
  details: Counts,
  talks: Type.Array(RecordedConversation),
  /** Tokens in the context at the end of the first step, of the step with the most tokens, and of the step that answered. */
  tokens: Type.Object({ before: Type.Number(), most: Type.Number(), after: Type.Number() }),
  /** Numbers of steps and tokens, summed over all steps of the sample. */
  work: Type.Object({
    steps: Type.Number(),
    shown: Type.Number(),
    reused: Type.Number(),
    submitted: Type.Number(),
    generated: Type.Number(),
  }),
  /** Wall time. `cache`, `prefill` and `decode` are sums over the ledger entries of the steps. */
  milliseconds: Type.Object({ cache: Type.Number(), prefill: Type.Number(), decode: Type.Number(), total: Type.Number() }),
})

/** A sample that an error left without an answer. It does not count as wrong, and the next run with this log tries the sample again. */
const ErrorRecord = Type.Object({ kind: Type.Literal('error'), ...Identity, code: Type.String(), message: Type.String() })

/**
 * A step of a sample, written when the step ends (`kvfold eval --follow`). The sample's own record repeats it. If a run stops before that
 * record, these lines show how far it came.
 */
const StepRecord = Type.Object({ kind: Type.Literal('step'), ...Identity, step: Step })

/**
 * Marks the place in a log where a stopped run continued. It names the program and the machine that made the records after it; everything
 * else is as in the header.
 */
const Resumption = Type.Object({ kind: Type.Literal('resumed'), ...Occasion })

/** Any line of a run's log. The first line is the header, and there is only one. */
const LogLine = Type.Union([LogHeader, SampleRecord, ErrorRecord, Resumption, StepRecord])

export type LogHeader = Static<typeof LogHeader>
export type SampleRecord = Static<typeof SampleRecord>
export type ErrorRecord = Static<typeof ErrorRecord>
export type Resumption = Static<typeof Resumption>
/** A sample's record. When a sample has several records, the last one counts, because an answer may follow an error. */
export type LogRecord = SampleRecord | ErrorRecord
/** A line that a run adds to its log after the header. */
export type LogEntry = LogRecord | Static<typeof StepRecord>
export type RecordedConversation = Static<typeof RecordedConversation>

// The lines of an episode's log.

/** The version of an episode's log. Increase it with every change that an older reader would misread. */
export const EPISODE_VERSION = 2

const EpisodeHeader = Type.Object({
  kind: Type.Literal('episode'),
  version: Type.Literal(EPISODE_VERSION),
  ...Occasion,
  /** Identifies the episode: task, agent, model, contract, seed and their options. */
  about: Anything,
})

const { answer, end, score, calls, refusedCalls, details, tokens, work, milliseconds } = SampleRecord.properties

/** One turn of an episode, with its costs summed over the steps of this turn. */
const TurnRecord = Type.Object({
  kind: Type.Literal('turn'),
  /** The turn's number, from 0. */
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

// The two kinds of logs, of runs and of episodes: which lines each may have, and when a run may continue one.

export interface LogKind<Header, Entry> {
  /** The name of this kind of log in error texts. */
  readonly name: string
  /** The header's `kind`; `version` is the version of the header. */
  readonly header: string
  readonly version: number
  /** Checks whether a value is a line of this kind of log. The faults refer to the schema of the line's own `kind` only. */
  readonly read: (value: unknown) => Checked<Header | Entry | Resumption>
  /** Returns the part of a header that must be equal in a run and in its continuation. Date, machine, command and commit may differ. */
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

// The JSON Schema of a line of a run's log, for programs in other languages. The file docs/eval-log.schema.json has it.

/** The schema allows unknown fields: a later version may add fields that an older reader can ignore. */
export const logSchema = (): object => ({
  title: `A line of a kvfold run log, version ${LOG_VERSION}`,
  description:
    'A log is JSON Lines. Only its first line is of kind header. If a sample (task, agent, contract, index) has several records, the last one counts.',
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  ...LogLine,
})
