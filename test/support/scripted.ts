/** An engine that answers from a script, with a ledger of its own small token model; for tests of the rooms above engines. */
import {
  assistantMessage,
  type ChatMessage,
  type Edit,
  type ToolCall,
  type ToolDefinition,
} from '../../src/runtime/chat/message.js'
import type { ConversationId } from '../../src/runtime/core/ids.js'
import { invariant, KvfoldError, PromptTooLong } from '../../src/runtime/core/errors.js'
import { contains, span, type Span } from '../../src/runtime/core/span.js'
import { cloned } from '../../src/runtime/core/written-json.js'
import { type LedgerEntry, messageCosts, withGenerated } from '../../src/runtime/kv/ledger.js'
import { commonPrefix, type Prompt, type PromptMessage } from '../../src/runtime/kv/prompt.js'
import {
  type Engine,
  type EngineInfo,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Finish,
  type Generation,
  generationOf,
} from '../../src/runtime/engine/engine.js'
import type { ScriptedReply } from '../../src/lab/taught-engine.js'

/** One reply for each step, in order; or a function that returns the reply to a request. `step` counts from 0 over all conversations. */
export type Script = readonly ScriptedReply[] | ((request: EngineRequest, step: number) => ScriptedReply | Promise<ScriptedReply>)

export interface ScriptedEngineOptions {
  /** The most tokens that a conversation may show. Default: no limit. */
  readonly context?: number
  /** The context that the model was trained on. Default: unknown. */
  readonly trained?: number
  /** The model's name, by which it gets the context tools in the form that suits it. Default: the built-in model's. */
  readonly model?: string
}

/** The tokens in a conversation's cache, and those of its last step. */
interface Sequence {
  readonly held: Int32Array
  readonly shown: Prompt
  readonly steps: number
}

/** The steps of a conversation, which run one after another. */
interface Queue {
  readonly steps: Set<AbortController>
  /** Settles when the last step is over; null if there is none. */
  tail: Promise<unknown> | null
}

/**
 * A token is a word with the white space before it. The cache of a conversation has the tokens of its last step: a step reuses the longest
 * common prefix and computes the rest. Reasoning is neither shown nor counted. Do not use it in tests of the engine.
 */
export class ScriptedEngine implements Engine {
  readonly info: EngineInfo
  /** Every request so far. */
  readonly requests: EngineRequest[] = []
  readonly #sequences = new Map<ConversationId, Sequence>()
  readonly #vocabulary = new Map<string, number>()
  readonly #script: Script
  /** For each conversation, the controller that cancels its steps, and the end of the last one. */
  readonly #running = new Map<ConversationId, Queue>()
  #disposed = false

  constructor(script: Script, { context = Number.MAX_SAFE_INTEGER, model = 'kvfold-tiny', trained }: ScriptedEngineOptions = {}) {
    this.#script = script
    this.info = { model, engine: 'scripted', release: 'none', context, ...(trained === undefined ? {} : { trained }) }
  }

  respond(request: EngineRequest): Generation {
    return generationOf((stream) => this.#queued(request, stream))
  }

  snap(messages: readonly ChatMessage[], _tools: readonly ToolDefinition[], message: number, chars: Span): Span {
    let { start, end } = chars
    for (const token of words(messages[message]?.content ?? '')) {
      if (token.start < chars.start && chars.start < token.end) start = token.start
      if (token.start < chars.end && chars.end < token.end) end = token.end
    }
    return span(start, end)
  }

  count(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits: readonly Edit[] = []): number {
    return this.#show(messages, tools, edits).tokens.length
  }

  /** Returns the prompt's text of a request, as this engine writes it. */
  prompt({ messages, tools = [], edits = [] }: Pick<EngineRequest, 'messages' | 'tools' | 'edits'>): string {
    const { tokens } = this.#show(messages, tools, edits)
    const texts = [...this.#vocabulary.keys()]
    return Array.from(tokens, (token) => texts[token] ?? '').join('')
  }

  forget(conversation: ConversationId): void {
    this.#sequences.delete(conversation)
    for (const step of this.#running.get(conversation)?.steps ?? []) step.abort()
  }

  async dispose(): Promise<void> {
    this.#disposed = true
    for (const { steps } of this.#running.values()) for (const step of steps) step.abort()
    await Promise.all([...this.#running.values()].map(({ tail }) => tail ?? Promise.resolve()))
  }

  async #queued(request: EngineRequest, stream: EventStream): Promise<EngineReply> {
    const { conversation, signal } = request
    const queue: Queue = this.#running.get(conversation) ?? { steps: new Set(), tail: null }
    const own = new AbortController()
    queue.steps.add(own)
    const merged = signal === undefined ? own.signal : AbortSignal.any([own.signal, signal])
    const before = queue.tail
    const run = () => this.#respond(request, stream, merged)
    const step = before === null ? run() : before.then(run)
    queue.tail = step.catch(() => undefined)
    this.#running.set(conversation, queue)
    try {
      return await step
    } finally {
      queue.steps.delete(own)
      if (queue.steps.size === 0) this.#running.delete(conversation)
    }
  }

  async #respond(request: EngineRequest, stream: EventStream, signal: AbortSignal): Promise<EngineReply> {
    if (this.#disposed) throw new KvfoldError('engine/disposed', 'The engine was disposed; create a new one.')
    if (request.attention !== undefined)
      throw new KvfoldError('attention/unavailable', 'A script computes no attention; ask an engine with a model.')
    const step = this.requests.push(copyOf(request)) - 1
    const sequence = this.#sequences.get(request.conversation)
    const prompt = this.#show(request.messages, request.tools ?? [], request.edits ?? [])
    const asked = prompt.tokens.length
    if (asked > this.info.context)
      throw new PromptTooLong(
        { tokens: asked, atLeast: false, context: this.info.context },
        `The prompt takes ${asked} tokens, the context has ${this.info.context}.`,
      )
    const reused = commonPrefix(sequence?.held ?? new Int32Array(), prompt.tokens)
    stream.push({ type: 'plan', shown: asked, reused, compute: Math.max(1, asked - reused), contract: 'exact', fallback: null })

    const said = typeof this.#script === 'function' ? await this.#script({ ...request, signal }, step) : this.#script[step]
    if (said === undefined) throw new KvfoldError('engine/bad-request', `The script has no reply for step ${step + 1}.`)
    const calls = (said.calls ?? []).map((call, at): ToolCall => ({ id: `call_${at + 1}`, arguments: {}, ...call }))
    invariant(
      request.toolChoice !== 'required' || calls.length > 0,
      `The script makes no call in step ${step + 1}, which requires one.`,
    )
    const finish = signal.aborted ? 'cancelled' : (said.finish ?? (calls.length > 0 ? 'tool-calls' : 'stop'))
    const message = assistantMessage({ ...said, toolCalls: calls })
    const generated = this.#tokens(body(message))
    const text = body(message)
    stream.push({ type: 'prefill', done: asked - reused, total: asked - reused })
    if (text !== '') stream.push({ type: 'tokens', tokens: [...generated], text })
    if (message.reasoning !== undefined) stream.push({ type: 'reasoning', text: message.reasoning })
    if (message.content !== '') stream.push({ type: 'text', text: message.content })
    for (const call of calls) {
      for (const text of call.malformed === undefined ? halves(JSON.stringify(call.arguments)) : [])
        stream.push({ type: 'arguments', id: call.id, name: call.name, text })
      stream.push({ type: 'call', call })
    }

    // The last sampled token is never submitted.
    const held = Int32Array.from([...prompt.tokens, ...generated.slice(0, -1)])
    const shown = withGenerated(prompt, held)
    const entry = this.#entry(request, shown, reused, asked, sequence, finish, generated.length)
    this.#sequences.set(request.conversation, { held, shown, steps: entry.step + 1 })
    const timing = { firstToken: 0, total: 0, prefillTokens: asked - reused, generatedTokens: generated.length }
    return { message, finish, ledger: entry, timing }
  }

  #entry(
    { kind = 'answer' }: EngineRequest,
    shown: Prompt,
    reused: number,
    asked: number,
    sequence: Sequence | undefined,
    finish: Finish,
    generated: number,
  ): LedgerEntry {
    const messages = messageCosts(shown, [{ start: reused, end: asked }], asked, sequence?.shown ?? null, shown.tokens.length)
    const sum = (part: 'reused' | 'recomputed' | 'fresh') => messages.reduce((total, cost) => total + cost[part], 0)
    const side = reused === asked ? 1 : 0
    return {
      step: sequence?.steps ?? 0,
      kind: finish === 'cancelled' ? 'cancelled' : kind,
      contract: 'exact',
      fallback: null,
      messages,
      shown: shown.tokens.length,
      approximate: 0,
      positions: shown.tokens.length,
      reused: sum('reused'),
      recomputed: sum('recomputed'),
      fresh: sum('fresh'),
      side,
      submitted: sum('recomputed') + sum('fresh') + side,
      pending: Math.min(1, generated),
      sources: { own: reused, parked: 0, shared: 0 },
      parked: 0,
      evicted: 0,
      moved: 0,
      tiers: { host: 0, disk: 0 },
      milliseconds: { cache: 0, prefill: 0, decode: 0 },
      predicted: null,
    }
  }

  /**
   * Builds the prompt: header, content under its edits and end of every message, then the header of the answer. Tools come before the first
   * message.
   */
  #show(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits: readonly Edit[]): Prompt {
    const tokens: number[] = []
    const add = (text: string) => {
      for (const token of this.#tokens(text)) tokens.push(token)
    }
    const shown = messages.map((message, index): PromptMessage => {
      const start = tokens.length
      if (index === 0 && tools.length > 0) add(`<tools> ${tools.map(({ name }) => name).join(' ')}\n`)
      add(`<${message.role}>\n`)
      for (const piece of pieces(
        message.content,
        edits.filter((edit) => edit.message === index),
      ))
        add(piece)
      add(message.note ?? '')
      add(body({ ...message, content: '' }))
      add('<end>\n')
      return { index, role: message.role, span: span(start, tokens.length) }
    })
    const start = tokens.length
    add('<assistant>\n')
    return {
      tokens: Int32Array.from(tokens),
      messages: [...shown, { index: messages.length, role: 'assistant', span: span(start, tokens.length) }],
    }
  }

  #tokens(text: string): Int32Array {
    return Int32Array.from(words(text), ({ start, end }) => {
      const word = text.slice(start, end)
      const known = this.#vocabulary.get(word) ?? this.#vocabulary.size
      this.#vocabulary.set(word, known)
      return known
    })
  }
}

/** Returns tokens as spans of characters, which cover the text. */
function words(text: string): Span[] {
  return Array.from(text.matchAll(/\s*\S+|\s+$/gu), ({ index, 0: word }) => span(index, index + word.length))
}

const halves = (text: string): readonly string[] => [text.slice(0, text.length / 2), text.slice(text.length / 2)]

/** Returns an assistant's text: its content, then its calls in Hermes' syntax, on separate lines. */
function body({ content, toolCalls = [] }: ChatMessage): string {
  const calls = toolCalls.map(
    ({ name, arguments: args, malformed }) =>
      `\n<tool_call>\n${malformed ?? JSON.stringify({ name, arguments: args })}\n</tool_call>`,
  )
  return content + calls.join('')
}

/**
 * Returns the shown content in pieces that are tokenized separately.
 * @throws KvfoldError internal/invariant when a border splits a token
 */
function* pieces(content: string, edits: readonly Edit[]): Generator<string> {
  const tokens = words(content)
  let at = 0
  for (const { span: hidden, replacement } of edits) {
    const split = tokens.find(({ start, end }) => [hidden.start, hidden.end].some((border) => start < border && border < end))
    invariant(split === undefined, `The edit [${hidden.start}, ${hidden.end}) splits a token.`)
    invariant(hidden.start >= at && contains(span(0, content.length), hidden), 'Edits are out of order, or outside the content.')
    yield content.slice(at, hidden.start)
    yield replacement
    at = hidden.end
  }
  yield content.slice(at)
}

/** Copies the request as it came, because callers change the objects it refers to. */
function copyOf({ signal, endsWith: _, ...request }: EngineRequest): EngineRequest {
  return { ...cloned(request), ...(signal === undefined ? {} : { signal }) }
}
