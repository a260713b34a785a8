/** Owns the form of a run's log: a JSON Lines file that stands alone, with a header, then one record a sample, and a line wherever the run went on. */
import Type, { type Static } from 'typebox'
import { type Checked, checked, nullable } from '../runtime/core/schema.js'
import { agentKinds } from './agent.js'
import { taskNames } from './task.js'

/** Grows with every change that an older reader would misread. */
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
  /** Tokens; see the ledger entry of the cache (src/runtime/kv/ledger.ts). */
  shown: Type.Number(),
  reused: Type.Number(),
  recomputed: Type.Number(),
  fresh: Type.Number(),
  approximate: Type.Number(),
  side: Type.Number(),
  submitted: Type.Number(),
  milliseconds: Type.Object({ cache: Type.Number(), prefill: Type.Number(), decode: Type.Number() }),
  predicted: nullable(Type.Number()),
  /** Why tokens were computed that were shown before or that some tier held; not in older logs. */
  recomputeReason: Type.Optional(nullable(Type.String())),
})

const Step = Type.Object({
  /** Place among all steps of the sample, from 0: what a call's `step` counts. */
  place: Type.Optional(Type.Number()),
  /** How many of the conversation's messages were shown, from the first. */
  messages: Type.Number(),
  /** What was shown instead of stretches of them (characters of the original contents). */
  edits: Type.Array(
    Type.Object({
      message: Type.Number(),
      span: Type.Object({ start: Type.Number(), end: Type.Number() }),
      replacement: Type.String(),
    }),
  ),
  tools: Type.Boolean(),
  /** `failed`: the engine threw; its ledger is all zeros, as there is no account of it. */
  finish: Type.Enum(['stop', 'tool-calls', 'length', 'cancelled', 'failed']),
  /** Code of what a failed step threw. */
  error: Type.Optional(Type.String()),
  ledger: LedgerCost,
  /** Milliseconds from the request to the first token and to the last; tokens generated. */
  timing: Type.Object({ firstToken: Type.Number(), total: Type.Number(), generatedTokens: Type.Number() }),
  /** What was generated, where no later step shows it as a message. */
  said: Type.Optional(Type.String()),
})

/** What an agent said and was shown in one conversation; most agents have one a sample. */
const RecordedConversation = Type.Object({ messages: Type.Array(Message), steps: Type.Array(Step) })

/** Where and by what records were made. */
const Occasion = {
  kvfold: Type.String(),
  /** Of the source, where it is known. */
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
  engine: Type.Object({ engine: Type.String(), release: Type.String(), context: Type.Number() }),
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
      /** SHA-256 of its first and last sample: tells when the data or the generator is no longer the same. */
      samples: Type.Optional(Type.String()),
    }),
  ),
  agents: Type.Array(
    Type.Object({
      agent: Type.Enum(agentKinds),
      title: Type.String(),
      options: Anything,
      /** Whether the model was trained for this agent's prompts; null where nobody knows. */
      trained: nullable(Type.Boolean()),
      /** The tasks of the run that it was trained for with this agent, where that is known; `trained` is whether it is all of them. */
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
  /** What the scorer compared with. */
  truth: Type.Unknown(),
  answer: Type.String(),
  end: Type.Enum(['stop', 'length', 'cancelled']),
  score: Type.Object({ points: Type.Number(), outcome: Type.Enum(['right', 'partial', 'wrong', 'unparsed']), details: Counts }),
  /** What the judge said, and what that came to (null: neither), of tasks whose answers are judged. */
  judgement: Type.Optional(Type.Object({ said: Type.String(), verdict: nullable(Type.Boolean()) })),
  calls: Type.Array(Type.Object({ step: Type.Number(), name: Type.String(), failed: Type.Boolean(), modifies: Type.Boolean() })),
  refusedCalls: Type.Number(),
  details: Counts,
  talks: Type.Array(RecordedConversation),
  /** Tokens of a step's context at its end, everything counted: at the first step, at most, and at the answer. */
  tokens: Type.Object({ before: Type.Number(), most: Type.Number(), after: Type.Number() }),
  /** Summed over all steps. */
  work: Type.Object({
    steps: Type.Number(),
    shown: Type.Number(),
    reused: Type.Number(),
    submitted: Type.Number(),
    generated: Type.Number(),
  }),
  /** Of wall time; the first three from the ledger, summed over steps. */
  milliseconds: Type.Object({ cache: Type.Number(), prefill: Type.Number(), decode: Type.Number(), total: Type.Number() }),
})

/** A sample that could not be answered: no wrong answer, and tried again when the run goes on. */
const ErrorRecord = Type.Object({ kind: Type.Literal('error'), ...Identity, code: Type.String(), message: Type.String() })

/** The run was stopped and went on: what the records below were made by. Everything else is as the header says. */
const Resumption = Type.Object({ kind: Type.Literal('resumed'), ...Occasion })

/** Any line of a log. The first one is the header, and no other. */
export const LogLine = Type.Union([LogHeader, SampleRecord, ErrorRecord, Resumption])

export type LogHeader = Static<typeof LogHeader>
export type SampleRecord = Static<typeof SampleRecord>
export type ErrorRecord = Static<typeof ErrorRecord>
export type Resumption = Static<typeof Resumption>
/** Of one sample the last record counts: an error may be followed by an answer. */
export type LogRecord = SampleRecord | ErrorRecord
export type LogLine = Static<typeof LogLine>
export type RecordedConversation = Static<typeof RecordedConversation>

const kinds = LogLine.anyOf.map(({ properties }) => properties.kind.const)
const OfNoKind = Type.Object({ kind: Type.Enum(kinds) })

/** Whether it is a line of the log; what is wrong is said of its kind alone. */
export function checkedLine(value: unknown): Checked<LogLine> {
  const kind = typeof value === 'object' && value !== null && 'kind' in value ? value.kind : undefined
  const form = LogLine.anyOf.find(({ properties }) => properties.kind.const === kind)
  return checked(form ?? OfNoKind, value) as Checked<LogLine>
}

// The JSON Schema of a line, for readers in other languages: docs/eval-log.schema.json.

/** Fields that are not named may be there: later versions that an older reader would not misread add some. */
export const logSchema = (): object => ({
  title: `A line of a kvfold run log, version ${LOG_VERSION}`,
  description:
    'JSON Lines. The first line is of kind header, and no other. Of one sample (task, agent, contract, index) the last record counts.',
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  ...LogLine,
})
