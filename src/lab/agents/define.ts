/**
 * What all agents share: checking options, an engine limited to the sample's window, and cancellation. Also holds the prompts of RAG,
 * MemAgent and Mem0.
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
  /** A strict schema (unknown options are errors) with a default for every option. */
  readonly options: Options
  /** Answers one sample. Every step must run on `engine`, which is the setting's engine limited to the window. @throws KvfoldError */
  answer(engine: SampleEngine, setting: AgentSetting, options: Static<Options>): Promise<Answered>
}

/**
 * Makes the schema of an option that is a whole number of at least 1. `standard`: its default, taken from the paper where the paper has
 * one.
 */
export const count = (standard: number) => Type.Integer({ minimum: 1, default: standard })

/** Checks the given options and makes the agent. @throws KvfoldError eval/bad-agent, whose message names the option */
export function makeAgent<Options extends TObject>(definition: AgentDefinition<Options>, given: unknown): EvalAgent {
  const { kind, title } = definition
  const options = optionsOf(definition, given)
  return { kind, title, options: { ...options }, answer: (setting) => answer(definition, setting, options) }
}

/** Returns the given options, with defaults for the rest. @throws KvfoldError eval/bad-agent, whose message names the option */
export function optionsOf<Options extends TObject>(
  { kind, options }: Pick<AgentDefinition<Options>, 'kind' | 'options'>,
  given: unknown,
): Static<Options> {
  const read = checked(options, given)
  if (read.ok) return read.value
  throw new KvfoldError('eval/bad-agent', `Agent ${kind} cannot use these options: ${allInWords(read.faults, 'options')}.`)
}

/** Turns the reply of the last step of an agent without tools into its answer. */
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
    // The caller's signal may stop the agent during any step. The sample's answer is then `cancelled`.
    if (setting.signal?.aborted === true && error instanceof KvfoldError && error.code === 'engine/cancelled')
      return { answer: '', end: 'cancelled', calls: [], refusedCalls: 0, details: {} }
    throw error
  } finally {
    engine.forgetAll()
  }
}

// Below: the engine that an agent uses for one sample. It keeps to the sample's window, counts the steps, and can forget all conversations.

/** Sampling options and contract, which are the same for every step of an agent. */
export type SampleGeneration = Pick<EngineRequest, 'sampling' | 'contract'>

/** The fields of an agent's setting that `SampleEngine` needs. */
export type SampleSetting = Pick<AgentSetting, 'engine' | 'name' | 'contract' | 'seed' | 'window' | 'signal'> & {
  readonly task: Pick<AgentSetting['task'], 'temperature'>
}

export class SampleEngine extends EngineAround {
  /** The most tokens that a prompt and its answer may take together: the setting's window, or the engine's context if that is smaller. */
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

  /** Number of steps requested so far. It is also the index of the next step in the sample's record. */
  get steps(): number {
    return this.#steps
  }

  /**
   * Runs a step whose answer is limited to the room left in the window. Rejects with context/full if the prompt leaves no room for a token.
   */
  respond(request: EngineRequest): Generation {
    this.#conversations.add(request.conversation)
    // If the window is the whole context, the engine enforces the limit by its own count.
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

  /** Returns the id of the sample's conversation with this label. Two samples never share an id. */
  conversation(label: string): ConversationId {
    return conversationId(`${this.#name}/${label}`)
  }

  /**
   * Runs one step with exactly these messages. Steps with the same label share a conversation, so the cells of a common beginning are
   * reused.
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

  /** Returns the number of tokens that a text adds to an empty message. */
  countText(text: string): number {
    return this.#countAlone(text) - (this.#empty ??= this.#countAlone(''))
  }

  /** @throws KvfoldError engine/cancelled if the sample was cancelled */
  refuseCancelled(): void {
    if (this.#signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The sample was cancelled.')
  }

  /** Forgets all conversations of the sample, and frees their cells. */
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

// Below: runs a sample in a session, and collects the turn's calls for the log.

/** Adds the sample's messages to `session` and runs one turn. The session must use `engine`. @throws KvfoldError any error of the engine */
export function answerBy(session: Session, engine: SampleEngine, setting: AgentSetting): Promise<Answered> {
  for (const message of setting.sample.messages) session.conversation.add(message)
  return takeTurn(session, engine, setting)
}

/** Runs one turn of a session that already has the sample's messages, and collects the turn's tool calls. */
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
    // Cannot happen: the session has no client tools that would end an answer with calls for the client.
    end: outcome.end === 'tool-calls' ? 'stop' : outcome.end,
    calls,
    refusedCalls: outcome.refusedCalls,
    details: {},
  }
}

// Below: the prompts of the agents from papers. They give the same instructions as the originals, in our own words.

/** Asks for an answer from the retrieved passages alone, which are in order of relevance (Sculptor, D.4: RAG). */
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
 * Asks for a new memory after the next chunk of the text (MemAgent). The text that all calls share comes first, so its cells are reused.
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
 * Asks for the facts in one chunk of the text that help with the question (Mem0; Sculptor, D.4). Mem0 itself extracts a user's preferences
 * from chats; this prompt reads a document.
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

/** A stored fact in a prompt. `id`: its index in the prompt's list, in place of its real id. */
interface NumberedFact {
  readonly id: string
  readonly text: string
}

/** Asks how new facts change the stored facts: ADD, UPDATE, DELETE or NONE (Mem0). */
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

/** Asks for an answer from the facts that the search found, which are in order of relevance (Mem0). */
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
