/**
 * Opens agents by name, defines `sculptor` (six context tools) and `plain` (no tools), and knows for which agents the built-in model was
 * trained.
 */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import Type from 'typebox'
import { plain, sculptor, type SystemPrompt, systemPrompts } from '../../runtime/agents/sculptor.js'
import { MAX_CALLS, type SessionOptions } from '../../runtime/agents/session.js'
import { readToolTexts } from '../../runtime/context/short-tools.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { definedFields } from '../../runtime/core/json.js'
import { strict } from '../../runtime/core/schema.js'
import { type AgentKind, agentKinds, type EvalAgent } from '../agent.js'
import type { TaskName } from '../task.js'
import { archive, editText, files } from './baselines.js'
import { policy, summary } from './compaction.js'
import { type AgentDefinition, answerBy, count, makeAgent, optionsOf } from './define.js'
import { mem0, memAgent } from './memory.js'
import { ragBm25, ragDense } from './rag.js'

// The agent `sculptor`, which manages its own context with six tools (Sculptor, sections 2 and 4).

const prompts = Object.keys(systemPrompts) as SystemPrompt[]

const SculptorOptions = strict({
  /** The system prompt. `task`: the one that the task names. */
  prompt: Type.Enum(['task', ...prompts], { default: 'task' }),
  /** The most tool calls in the turn. */
  maxCalls: count(MAX_CALLS),
  /** Whether the first step must call a tool (`required`) or may answer at once (`auto`). */
  firstStep: Type.Enum(['required', 'auto'], { default: 'required' }),
  /** Path of a file with names and descriptions of the tools. Default: the texts that suit the model. */
  toolTexts: Type.String({ default: '' }),
  /** Path of a file with a system prompt in place of `prompt`. Default: none. */
  system: Type.String({ default: '' }),
  /** Whether the model gets a line of advice when it folds in a needlessly expensive order. */
  hints: Type.Boolean({ default: false }),
})

/** The contents of the files that the agent's options name. */
type SculptorFiles = Pick<SessionOptions, 'system' | 'toolTexts'>

const sculptorAgent = (files: SculptorFiles): AgentDefinition<typeof SculptorOptions> => ({
  kind: 'sculptor',
  title: 'Sculptor',
  options: SculptorOptions,
  answer: async (engine, setting, { prompt, maxCalls, firstStep, hints }) => {
    const { task } = setting
    const session = sculptor({
      engine,
      id: engine.conversation('turn'),
      prompt: prompt === 'task' ? task.prompt : prompt,
      ...{ maxCalls, firstStep, hints, ...files },
      generation: { ...engine.generation, maxTokens: task.maxTokens },
    })
    const outcome = await answerBy(session, engine, setting)
    const states = session.conversation.fragments.map(({ state }) => state.kind)
    const standing = (kind: (typeof states)[number]) => states.filter((state) => state === kind).length
    return {
      ...outcome,
      details: { fragments: states.length, folded: standing('folded'), summarised: standing('summarised') },
    }
  },
})

/**
 * Opens the agent. Its files are read once, so all samples get the same texts. The files' hashes become options, so a log can be resumed
 * only with the same texts.
 */
function openSculptor(given: unknown): EvalAgent {
  const { system, toolTexts } = optionsOf({ kind: 'sculptor', options: SculptorOptions }, given)
  const [prompt, texts] = [readOption(system, 'system'), readOption(toolTexts, 'toolTexts')]
  const files = definedFields({
    system: prompt?.text,
    toolTexts: texts === null ? undefined : readToolTexts(texts.text, toolTexts),
  })
  const hashes = definedFields({ systemSha256: prompt?.sha256, toolTextsSha256: texts?.sha256 })
  const agent = makeAgent(sculptorAgent(files), given)
  return { ...agent, options: { ...agent.options, ...hashes } }
}

/** Reads the file that an option names; null if the option is empty. @throws KvfoldError eval/bad-agent when the file cannot be read */
function readOption(file: string, option: string): { readonly text: string; readonly sha256: string } | null {
  if (file === '') return null
  try {
    const text = readFileSync(file, 'utf8')
    return { text, sha256: createHash('sha256').update(text).digest('hex') }
  } catch (error) {
    throw new KvfoldError(
      'eval/bad-agent',
      `Agent sculptor cannot read the file of its option ${option}: ${(error as Error).message}.`,
    )
  }
}

// The agent `plain`. It shows the whole sample and answers in one step, without tools or a system message.

const PlainOptions = strict({})

const plainAgent: AgentDefinition<typeof PlainOptions> = {
  kind: 'plain',
  title: 'Plain',
  options: PlainOptions,
  answer: (engine, setting) => {
    const generation = { ...engine.generation, maxTokens: setting.task.maxTokens }
    return answerBy(plain({ engine, id: engine.conversation('turn'), generation }), engine, setting)
  },
}

const makers: Readonly<Record<AgentKind, (options: unknown) => EvalAgent>> = {
  plain: (options) => makeAgent(plainAgent, options),
  sculptor: openSculptor,
  'rag-bm25': (options) => makeAgent(ragBm25, options),
  'rag-dense': (options) => makeAgent(ragDense, options),
  memagent: (options) => makeAgent(memAgent, options),
  mem0: (options) => makeAgent(mem0, options),
  policy: (options) => makeAgent(policy, options),
  summary: (options) => makeAgent(summary, options),
  archive: (options) => makeAgent(archive, options),
  files: (options) => makeAgent(files, options),
  'edit-text': (options) => makeAgent(editText, options),
}

/**
 * Opens the agent. Options default to the paper's values (Sculptor, D.4). One agent may answer any number of samples at the same time.
 * @throws KvfoldError eval/bad-agent for an unknown kind or a bad option, which the message names
 */
export function openAgent(kind: AgentKind, options: Readonly<Record<string, unknown>> = {}): EvalAgent {
  if (!Object.hasOwn(makers, kind))
    throw new KvfoldError('eval/bad-agent', `${JSON.stringify(kind)} is not an agent; the agents are ${agentKinds.join(', ')}.`)
  return makers[kind](options)
}

/** The agents that search by similarity, and so need `AgentSetting.embedder`. */
export const embeddingAgents: readonly AgentKind[] = ['rag-dense', 'mem0']

/** The tasks that the built-in model was trained on. */
const learned: readonly TaskName[] = ['pi-llm', 'needles', 'mrcr']

/**
 * Returns whether the built-in model was trained on this agent's prompts for this task. If not, its results say nothing about the agent.
 */
export const isBuiltinTrained = (agent: AgentKind, task: TaskName): boolean =>
  learned.includes(task) && (agent === 'plain' || agent === 'sculptor')
