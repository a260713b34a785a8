/**
 * The common part of all agents. Checks their options, gives each sample an engine limited to
 * its window, and handles cancellation. Also has the prompts of RAG, MemAgent and Mem0.
 */
import Type, { type Static, type TObject } from 'typebox'
import type { Session } from '../../runtime/agents/session.js'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { conversationId, type ConversationId } from '../../runtime/core/ids.js'
import { allInWords, checked } from '../../runtime/core/schema.js'
import {
  EngineAround,
  type EngineInfo,
  type EngineReply,
  type EngineRequest,
  type Generation,
  generationOf,
} from '../../runtime/engine/engine.js'
import type { AgentKind, AgentSetting, Answered, CalledTool, EvalAgent } from '../agent.js'

export interface AgentDefinition<Options extends TObject> {
  readonly kind: AgentKind
  readonly title: string
  /** A strict schema (unknown options are faults) with a default for every option. */
  readonly options: Options
  /** Answers one sample. Takes all its steps on `engine`, which is the setting's engine limited to the window. @throws KvfoldError */
  answer(engine: SampleEngine, setting: AgentSetting, options: Static<Options>): Promise<Answered>
}

/** Makes the schema of an option that is a whole number from 1. `standard`: its default, the paper's number if the paper gives one. */
export const count = (standard: number) => Type.Integer({ minimum: 1, default: standard })

/** Checks the given options and makes the agent. @throws KvfoldError eval/bad-agent, whose message names the option */
export function makeAgent<Options extends TObject>(definition: AgentDefinition<Options>, given: unknown): EvalAgent {
  const { kind, title } = definition
  const options = optionsOf(definition, given)
  return { kind, title, options: { ...options }, answer: (setting) => answer(definition, setting, options) }
}

/** Returns the given options with the defaults of the others. @throws KvfoldError eval/bad-agent, whose message names the option */
export function optionsOf<Options extends TObject>(
  { kind, options }: Pick<AgentDefinition<Options>, 'kind' | 'options'>,
  given: unknown,
): Static<Options> {
  const read = checked(options, given)
  if (read.ok) return read.value
  throw new KvfoldError('eval/bad-agent', `Agent ${kind} cannot use these options: ${allInWords(read.faults, 'options')}.`)
}

/** Makes the answer of an agent without tools from the reply of its last step. */
export const answered = ({ message, finish }: EngineReply, details: Answered['details']): Answered => ({
  answer: message.content,
  end: finish === 'length' ? 'length' : 'stop',
  calls: [],
  refusedCalls: 0,
  details,
})

async function answer<Options extends TObject>(
  definition: AgentDefinition<Options>,
  setting: AgentSetting,
  options: Static<Options>,
): Promise<Answered> {
  const engine = new SampleEngine(setting)
  try {
    engine.refuseCancelled()
    const outcome = await definition.answer(engine, setting, options)
    if (outcome.end === 'cancelled') engine.refuseCancelled()
    else return outcome
    throw new KvfoldError('engine/cancelled', 'Other code cancelled a step of the sample; run the sample again.')
  } catch (error) {
    // The caller's signal may stop the agent at any step. The sample then always ends as `cancelled`.
    if (setting.signal?.aborted === true && error instanceof KvfoldError && error.code === 'engine/cancelled')
      return { answer: '', end: 'cancelled', calls: [], refusedCalls: 0, details: {} }
    throw error
  } finally {
    engine.forgetAll()
  }
}

// The engine that the agent of one sample uses: it keeps to the sample's
// window, counts every step and forgets all conversations at the end.

/** The sampling and the contract of edits: the same for every step of an agent. */
export type SampleGeneration = Pick<EngineRequest, 'sampling' | 'contract'>

/** The part of an agent's setting that the engine of a sample needs. */
export type SampleSetting = Pick<AgentSetting, 'engine' | 'name' | 'contract' | 'seed' | 'window' | 'signal'> & {
  readonly task: Pick<AgentSetting['task'], 'temperature'>
}

export class SampleEngine extends EngineAround {
  /** Number of tokens that a prompt and its answer may take together: the setting's window, or the engine's context if that is less. */
  readonly window: number
  readonly generation: SampleGeneration
  readonly #name: string
  readonly #signal: AbortSignal | undefined
  readonly #conversations = new Set<ConversationId>()
  #steps = 0

  constructor({ engine, task, name, contract, seed, window, signal }: SampleSetting) {
    super(engine)
    this.window = Math.min(window, engine.info.context)
    this.generation = { sampling: { temperature: task.temperature, seed }, ...(contract === undefined ? {} : { contract }) }
    this.#name = name
    this.#signal = signal
  }

  override get info(): EngineInfo {
    return { ...this.engine.info, context: this.window }
  }

  /** Number of steps requested so far, which is also the index of the next step in the sample's record. */
  get steps(): number {
    return this.#steps
  }

  /** Limits the answer to the room in the window. The reply rejects with context/full when the prompt leaves no room for one token. */
  respond(request: EngineRequest): Generation {
    this.#conversations.add(request.conversation)
    // When the window is the whole context, the engine enforces the limit itself, by its own count.
    if (this.window === this.engine.info.context) return this.#asked(request)
    const prompt = this.count(request.messages, request.tools ?? [], request.edits)
    const room = this.window - prompt
    if (room < 1)
      return generationOf(() =>
        Promise.reject(
          new KvfoldError(
            'context/full',
            `The prompt takes ${prompt} tokens, but the window has ${this.window}; use a smaller sample or a larger window.`,
          ),
        ),
      )
    return this.#asked({ ...request, maxTokens: Math.min(request.maxTokens ?? room, room) })
  }

  /** Returns the id of the sample's conversation with this label. The labels of another sample give other ids. */
  conversation(label: string): ConversationId {
    return conversationId(`${this.#name}/${label}`)
  }

  /**
   * Takes one step on these messages alone. Steps with the same label share a conversation, so the cells of a common beginning are reused.
   * @throws KvfoldError any error of the engine; engine/cancelled when the step was cancelled
   */
  async ask(
    label: string,
    messages: readonly ChatMessage[],
    options: Pick<EngineRequest, 'maxTokens' | 'schema'>,
  ): Promise<EngineReply> {
    this.refuseCancelled()
    const reply = await this.respond({
      conversation: this.conversation(label),
      messages,
      ...this.generation,
      ...options,
      ...(this.#signal === undefined ? {} : { signal: this.#signal }),
    }).reply
    if (reply.finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'A step of the sample was cancelled.')
    return reply
  }

  /** Returns how many tokens a text adds to an empty message. */
  countText(text: string): number {
    return this.#countAlone(text) - (this.#empty ??= this.#countAlone(''))
  }

  /** Throws if the sample was cancelled. @throws KvfoldError engine/cancelled */
  refuseCancelled(): void {
    if (this.#signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The sample was cancelled.')
  }

  /** Drops the cells of all conversations of the sample. */
  forgetAll(): void {
    for (const conversation of this.#conversations) this.forget(conversation)
  }

  #empty: number | undefined

  #asked(request: EngineRequest): Generation {
    this.#steps++
    return this.engine.respond(request)
  }

  #countAlone(content: string): number {
    return this.engine.count([{ role: 'user', content }], [])
  }
}

// Runs a sample in a session: adds its messages, takes one turn and collects the turn's calls for the log.

/** Answers the sample in one turn of `session`, which must use `engine`. @throws KvfoldError any error of the engine */
export function answerBy(session: Session, engine: SampleEngine, setting: AgentSetting): Promise<Answered> {
  for (const message of setting.sample.messages) session.conversation.add(message)
  return takeTurn(session, engine, setting)
}

/** Takes one turn of a session that has the sample's messages already, and collects its calls. */
export async function takeTurn(
  session: Session,
  engine: SampleEngine,
  { signal, onCall }: Pick<AgentSetting, 'signal' | 'onCall'>,
): Promise<Answered> {
  const calls: CalledTool[] = []
  let step = 0
  const outcome = await session.resume({
    ...(signal === undefined ? {} : { signal }),
    onEvent: (event) => {
      if (event.type === 'step') step = engine.steps
      if (event.type !== 'result') return
      const { call: said, failed, modifies, refused = false } = event
      const call = { step, name: said.name, failed, modifies }
      if (!refused) calls.push(call)
      onCall?.(call, refused)
    },
  })
  return {
    answer: outcome.answer,
    // The session has no client tools, so no answer ends with calls for the client.
    end: outcome.end === 'tool-calls' ? 'stop' : outcome.end,
    calls,
    refusedCalls: outcome.refusedCalls,
    details: {},
  }
}

// The prompts of the agents that reproduce published methods: the same instructions as in the originals, in our own words.

/** Asks for an answer from the retrieved passages alone (Sculptor, D.4: RAG). The best passage comes first. */
export const passagesPrompt = (question: string, passages: readonly string[]): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You answer questions about a long text of which you see a few passages. They were picked by a search, the most relevant first. ' +
      'Answer strictly from these passages and in the form that is asked for. Use nothing that you know from elsewhere.',
  },
  { role: 'user', content: `Passages:\n\n${passages.map((passage) => passage.trim()).join('\n\n')}\n\nQuestion:\n${question}` },
]

/**
 * Asks for a new memory after one more part of the text (MemAgent). The
 * text that is the same in all calls comes first, so its cells are reused.
 */
export const memoryPrompt = (question: string, memory: string, part: string): readonly ChatMessage[] => [
  {
    role: 'user',
    content:
      'You read a long text part by part and keep a memory of what is needed to solve a problem about it. Below are the problem, your ' +
      'memory so far and the next part of the text. Write the whole memory anew: keep everything in it that is still of use, and add ' +
      'what this part has to say about the problem. You will not see this part again.\n\n' +
      `Problem:\n${question}\n\nMemory:\n${memoryOr(memory)}\n\nNext part:\n${part.trim()}\n\nThe new memory:`,
  },
]

/** Asks for an answer from the memory alone (MemAgent). */
export const fromMemoryPrompt = (question: string, memory: string): readonly ChatMessage[] => [
  {
    role: 'user',
    content:
      'You have read a long text and kept a memory of it. Solve the problem by what the memory says, and answer in the form that is ' +
      `asked for.\n\nProblem:\n${question}\n\nMemory:\n${memoryOr(memory)}\n\nYour answer:`,
  },
]

const memoryOr = (memory: string): string => (memory.trim() === '' ? '(nothing yet)' : memory)

/**
 * Asks for the facts of one part of the text that help with the question (Mem0;
 * Sculptor, D.4). Mem0 extracts a user's preferences; this prompt reads a document.
 */
export const factsPrompt = (question: string, part: string): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You collect facts from a document. From the part you are shown, take every fact that may help to answer the question. Write each ' +
      'as a short sentence that can be understood alone, with names, numbers and words exactly as they stand there. Add nothing. Reply ' +
      'with JSON alone: {"facts": ["...", "..."]}; {"facts": []} when there are none.',
  },
  { role: 'user', content: `Question:\n${question}\n\nPart of the document:\n${part.trim()}` },
]

/** A stored fact in a prompt: `id` is a small number in place of the fact's real id. */
interface NumberedFact {
  readonly id: string
  readonly text: string
}

/** Asks how new facts change the stored facts: add, update, delete or none (Mem0). */
export const decisionsPrompt = (stored: readonly NumberedFact[], facts: readonly string[]): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You keep a store of facts in order. You see stored facts, each with an id, and new facts. Decide what is to be done, one entry a ' +
      'decision: ADD a new fact that the store has nothing about (id: an empty text); UPDATE a stored fact that a new one corrects or ' +
      'says more about (its id, and the full new text); DELETE a stored fact that a new one shows to be wrong (its id); NONE for a stored ' +
      'fact that stays as it is (its id). Reply with JSON alone: {"decisions": [{"event": "ADD", "id": "", "text": "..."}]}.',
  },
  { role: 'user', content: `Stored facts:\n${JSON.stringify(stored)}\n\nNew facts:\n${JSON.stringify(facts)}` },
]

/** Asks for an answer from the facts that the search found (Mem0). The best fact comes first. */
export const fromFactsPrompt = (question: string, facts: readonly string[]): readonly ChatMessage[] => [
  {
    role: 'system',
    content:
      'You answer questions about a long document from facts that were collected from it, the most relevant first. Answer from these facts ' +
      'and in the form that is asked for.',
  },
  {
    role: 'user',
    content: `Facts:\n${facts.length === 0 ? '(none)' : facts.map((fact) => `- ${fact}`).join('\n')}\n\nQuestion:\n${question}`,
  },
]
