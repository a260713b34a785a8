/** Opens the agent frameworks that dialogues compare, each as the actor of an episode. They differ in how they manage the context. */
import { MemToolSession, type MemToolState } from '../../runtime/agents/memtool.js'
import { PaperFold, type PaperState } from '../agents/u-fold-paper.js'
import { UFoldSession } from '../../runtime/agents/u-fold/session.js'
import type { FoldReport, UFoldOptions, UFoldState } from '../../runtime/agents/u-fold/u-fold.js'
import { BaselineAgent, type RoundsState } from '../agents/rounds.js'
import { type AskOptions, Session } from '../../runtime/agents/session.js'
import type { AgentEvent, TurnOutcome } from '../../runtime/agents/tool-loop.js'
import type { ClientTool } from '../../runtime/agents/toolbox.js'
import type { ConversationState } from '../../runtime/context/conversation.js'
import { isContextFull } from '../../runtime/core/errors.js'
import { definedFields } from '../../runtime/core/json.js'
import type { Engine } from '../../runtime/engine/engine.js'
import { Catalogue } from '../../runtime/tools/catalogue.js'
import { type Answered, type CalledTool, OVERFLOWED } from '../agent.js'
import type { SampleEngine } from '../agents/define.js'
import type { Actor, TurnAsk } from '../episode/episode.js'

export const frameworkNames = [
  'react',
  'resum',
  'iterresearch',
  'agentfold',
  'sculptor',
  'memtool',
  'u-fold',
  'u-fold-every-turn',
  'u-fold-stable',
  'u-fold-printed',
] as const
export type FrameworkName = (typeof frameworkNames)[number]

/** One line about each framework. */
export const frameworkTitles: Readonly<Record<FrameworkName, string>> = {
  react: 'appends everything; drops its oldest turns when a turn may not fit',
  resum: 'at 0.9 of the window, a summary replaces everything',
  iterresearch: 'sees the question, a report and the last step',
  agentfold: 'every step may replace a range of earlier ones by one text',
  sculptor: 'folds with the six context tools',
  memtool: 'has no tool until it searches; loses tools that two turns did not use',
  'u-fold': 'keeps one log; folds it to notes and chosen lines when the to-do list changes; its helpers run on forks',
  'u-fold-every-turn': 'u-fold at every turn and from the first token on, as in the paper',
  'u-fold-stable': "the paper's three prompts, with the changing parts last",
  'u-fold-printed': "the paper's three prompts, in the paper's order",
}

export interface FrameworkSetting {
  /** The engine for all steps: the episode's recorder, limited to the window. */
  readonly engine: SampleEngine
  readonly system: string
  readonly tools: readonly ClientTool[]
  readonly maxTokens: number
  readonly folder?: Engine
  readonly fold: Pick<UFoldOptions, 'foldFrom' | 'principles' | 'rebuildEvery' | 'results' | 'notes'>
  /** The actor's state from an earlier run; null at the start. */
  readonly state: unknown
}

/** Opens a framework as an actor, which continues from the setting's `state`. */
export async function openFramework(name: FrameworkName, setting: FrameworkSetting): Promise<Actor> {
  const { engine, system, tools: clientTools, maxTokens, fold, folder } = setting
  const id = engine.conversation(name)
  const common = { engine, id, system, clientTools, generation: { ...engine.generation, maxTokens } }
  const before = setting.state ?? undefined
  const asking =
    (session: Asked, details: () => Answered['details'] = () => ({})) =>
    async (content: string, options: AskOptions): Promise<Ended> => {
      const { answer, end, refusedCalls } = await session.ask(content, options)
      return { answer, end: end === 'tool-calls' ? 'stop' : end, refusedCalls, details: details() }
    }
  switch (name) {
    case 'react':
    case 'resum':
    case 'iterresearch':
    case 'agentfold': {
      const rounds = new BaselineAgent({ ...common, kind: name }, before as RoundsState | undefined)
      return actor(
        engine,
        () => rounds.state,
        async (content, options) => ({ ...(await rounds.ask(content, options)), details: { restarts: rounds.restarts } }),
      )
    }
    case 'sculptor': {
      const conversation = before as ConversationState | undefined
      const session = new Session({ ...common, contextTools: true, firstStep: 'auto', ...definedFields({ conversation }) })
      return actor(engine, () => session.conversation.state, asking(session))
    }
    case 'memtool': {
      const tools = new Map(clientTools.map((tool) => [tool.definition.name, tool]))
      const session = new MemToolSession({
        ...{ engine, id, mode: 'hybrid', purpose: system, generation: common.generation },
        catalogue: await Catalogue.of(clientTools.map(({ definition }) => definition)),
        removal: { by: 'unused', turns: 2 },
        execute: (call, signal) => tools.get(call.name)!.execute(call.arguments, signal),
        ...definedFields({ state: before as MemToolState | undefined }),
      })
      return actor(engine, () => session.state, asking(session))
    }
    case 'u-fold':
    case 'u-fold-every-turn': {
      const kept = before as { readonly conversation: ConversationState; readonly fold: UFoldState } | undefined
      const always = { ...fold, foldFrom: 0, when: 'every-turn' } as const
      const agent = new UFoldSession(
        {
          ...{ ...common, fold: name === 'u-fold' ? fold : always },
          ...definedFields({ folder, conversation: kept?.conversation }),
        },
        kept?.fold,
      )
      const state = () => ({ conversation: agent.conversation.state, fold: agent.folding.state })
      return actor(
        engine,
        state,
        asking(agent, () => counts(agent.reports.at(-1)!)),
      )
    }
    case 'u-fold-stable':
    case 'u-fold-printed': {
      const order = name === 'u-fold-printed' ? 'printed' : 'stable'
      const paper = new PaperFold({ ...common, order, principles: fold.principles ?? false }, before as PaperState | undefined)
      const bad = () => ({ badOutputs: paper.state.bad.outputs, refusedRanges: paper.state.bad.ranges })
      return actor(engine, () => paper.state, asking(paper, bad))
    }
  }
}

/** The end of a turn without its calls. */
type Ended = Omit<Answered, 'calls'>

/** The method that all sessions here share, those of the runtime and `PaperFold`. */
interface Asked {
  ask(content: string, options: AskOptions): Promise<TurnOutcome>
}

/**
 * Makes an actor. A turn that does not fit into the window is the framework's failure. It counts as overflowed, with the calls so far, and
 * the run goes on.
 */
function actor(engine: SampleEngine, state: () => unknown, act: (content: string, options: AskOptions) => Promise<Ended>): Actor {
  return {
    get state() {
      return state()
    },
    async act({ messages }: TurnAsk, signal?: AbortSignal) {
      const before = engine.steps
      const calls: CalledTool[] = []
      let step = before
      const onEvent = (event: AgentEvent): void => {
        if (event.type === 'step') step = engine.steps
        if (event.type === 'result') calls.push({ step, name: event.call.name, failed: event.failed, modifies: event.modifies })
      }
      try {
        return { ...(await act(messages.at(-1)?.content ?? '', { ...definedFields({ signal }), onEvent })), calls }
      } catch (error) {
        if (!isContextFull(error)) throw error
        return { ...OVERFLOWED, calls, details: { ...OVERFLOWED.details, steps: engine.steps - before } }
      }
    },
  }
}

const counts = ({ kind, refused, before, after }: FoldReport): Answered['details'] => ({
  folded: Number(kind === 'folded'),
  same: Number(kind === 'same'),
  kept: Number(kind === 'kept'),
  refusedRanges: refused.length,
  foldBefore: before,
  foldAfter: after,
})
