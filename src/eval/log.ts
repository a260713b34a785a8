/** Owns the form of a run's log: a JSON Lines file that stands alone, with a header, then one record a sample, and a line wherever the run went on. */
import { z } from 'zod'
import { agentKinds } from './agent.js'
import { taskNames } from './task.js'

/** Grows with every change that an older reader would misread. */
export const LOG_VERSION = 1

const Counts = z.record(z.string(), z.number())

const Message = z.object({
  role: z.enum(['system', 'user', 'assistant', 'tool']),
  content: z.string(),
  reasoning: z.string().optional(),
  toolCalls: z
    .array(
      z.object({
        id: z.string(),
        name: z.string(),
        arguments: z.record(z.string(), z.unknown()),
        malformed: z.string().optional(),
      }),
    )
    .optional(),
  toolCallId: z.string().optional(),
  name: z.string().optional(),
})

const LedgerCost = z.object({
  kind: z.enum(['answer', 'summary', 'refresh', 'cancelled']),
  contract: z.string(),
  /** Tokens; see the ledger entry of the cache (src/kv/ledger.ts). */
  shown: z.number(),
  reused: z.number(),
  recomputed: z.number(),
  fresh: z.number(),
  approximate: z.number(),
  side: z.number(),
  submitted: z.number(),
  milliseconds: z.object({ cache: z.number(), prefill: z.number(), decode: z.number() }),
  predicted: z.number().nullable(),
  /** Why tokens were computed that were shown before or that some tier held; not in older logs. */
  recomputeReason: z.string().nullable().optional(),
})

const Step = z.object({
  /** Place among all steps of the sample, from 0: what a call's `step` counts. */
  place: z.number().optional(),
  /** How many of the conversation's messages were shown, from the first. */
  messages: z.number(),
  /** What was shown instead of stretches of them (characters of the original contents). */
  edits: z.array(
    z.object({ message: z.number(), span: z.object({ start: z.number(), end: z.number() }), replacement: z.string() }),
  ),
  tools: z.boolean(),
  /** `failed`: the engine threw; its ledger is all zeros, as there is no account of it. */
  finish: z.enum(['stop', 'tool-calls', 'length', 'cancelled', 'failed']),
  /** Code of what a failed step threw. */
  error: z.string().optional(),
  ledger: LedgerCost,
  /** Milliseconds from the request to the first token and to the last; tokens generated. */
  timing: z.object({ firstToken: z.number(), total: z.number(), generatedTokens: z.number() }),
  /** What was generated, where no later step shows it as a message. */
  said: z.string().optional(),
})

/** What an agent said and was shown in one conversation; most agents have one a sample. */
const Talk = z.object({ messages: z.array(Message), steps: z.array(Step) })

/** Where and by what records were made. */
const Occasion = {
  kvfold: z.string(),
  /** Of the source, where it is known. */
  commit: z.string().nullable(),
  date: z.string(),
  command: z.string(),
  machine: z.object({ cpu: z.string(), cores: z.number(), memory: z.number(), os: z.string(), node: z.string() }),
}

export const LogHeader = z.object({
  kind: z.literal('header'),
  version: z.literal(LOG_VERSION),
  ...Occasion,
  model: z.object({ name: z.string(), fingerprint: z.string().nullable() }),
  engine: z.object({ engine: z.string(), release: z.string(), context: z.number() }),
  embedder: z.string().nullable(),
  judge: z.string().nullable(),
  seed: z.number(),
  sampling: z.record(z.string(), z.unknown()),
  contracts: z.array(z.string()),
  tasks: z.array(
    z.object({
      task: z.enum(taskNames),
      options: z.record(z.string(), z.unknown()),
      title: z.string(),
      differs: z.array(z.string()),
      size: z.number(),
      /** SHA-256 of its first and last sample: tells when the data or the generator is no longer the same. */
      samples: z.string().optional(),
    }),
  ),
  agents: z.array(
    z.object({
      agent: z.enum(agentKinds),
      title: z.string(),
      options: z.record(z.string(), z.unknown()),
      /** Whether the model was trained for this agent's prompts; null where nobody knows. */
      trained: z.boolean().nullable(),
      /** The tasks of the run that it was trained for with this agent, where that is known; `trained` is whether it is all of them. */
      trainedTasks: z.array(z.enum(taskNames)).optional(),
    }),
  ),
})

const Identity = {
  /** Index in the header's `tasks`. */
  task: z.number(),
  agent: z.enum(agentKinds),
  contract: z.string(),
  /** Index of the sample in the task. */
  index: z.number(),
  id: z.string(),
  cell: z.record(z.string(), z.union([z.number(), z.string()])),
}

export const SampleRecord = z.object({
  kind: z.literal('sample'),
  ...Identity,
  /** What the scorer compared with. */
  truth: z.unknown(),
  answer: z.string(),
  end: z.enum(['stop', 'length', 'cancelled']),
  score: z.object({ points: z.number(), outcome: z.enum(['right', 'partial', 'wrong', 'unparsed']), details: Counts }),
  /** What the judge said, and what that came to (null: neither), of tasks whose answers are judged. */
  judgement: z.object({ said: z.string(), verdict: z.boolean().nullable() }).optional(),
  calls: z.array(z.object({ step: z.number(), name: z.string(), failed: z.boolean(), modifies: z.boolean() })),
  refusedCalls: z.number(),
  details: Counts,
  talks: z.array(Talk),
  /** Tokens of a step's context at its end, everything counted: at the first step, at most, and at the answer. */
  tokens: z.object({ before: z.number(), most: z.number(), after: z.number() }),
  /** Summed over all steps. */
  work: z.object({ steps: z.number(), shown: z.number(), reused: z.number(), submitted: z.number(), generated: z.number() }),
  /** Of wall time; the first three from the ledger, summed over steps. */
  milliseconds: z.object({ cache: z.number(), prefill: z.number(), decode: z.number(), total: z.number() }),
})

/** A sample that could not be answered: no wrong answer, and tried again when the run goes on. */
const ErrorRecord = z.object({ kind: z.literal('error'), ...Identity, code: z.string(), message: z.string() })

/** The run was stopped and went on: what the records below were made by. Everything else is as the header says. */
const Resumption = z.object({ kind: z.literal('resumed'), ...Occasion })

/** Of one sample the last record counts: an error may be followed by an answer. */
export const LogRecord = z.discriminatedUnion('kind', [SampleRecord, ErrorRecord])

/** Any line of a log. The first one is the header, and no other. */
export const LogLine = z.discriminatedUnion('kind', [LogHeader, SampleRecord, ErrorRecord, Resumption])

export type LogHeader = z.infer<typeof LogHeader>
export type SampleRecord = z.infer<typeof SampleRecord>
export type ErrorRecord = z.infer<typeof ErrorRecord>
export type Resumption = z.infer<typeof Resumption>
export type LogRecord = z.infer<typeof LogRecord>
export type LogLine = z.infer<typeof LogLine>
export type Talk = z.infer<typeof Talk>
