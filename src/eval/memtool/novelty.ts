/** Owns counting what is really new in a session: tokens of text that none of its prompts had shown before, whatever was done to the cache. */
import type { ChatMessage, Edit, ToolDefinition } from '../../chat/message.js'
import { EngineAround, type EngineReply, type EngineRequest, type Generation, generationOf } from '../../engine/engine.js'

/**
 * Every message counts once, when it is first shown, by the ledger; every text that stands in place of another once; every definition in the list at
 * the top once; what was generated once. One session each.
 */
export class Novelty extends EngineAround {
  readonly #messages = new Set<string>()
  readonly #texts = new Set<string>()
  readonly #tools = new Set<string>()
  #tokens = 0

  /** What prompts of the session showed before this one began. */
  knows({
    messages,
    edits,
    tools,
  }: {
    messages: readonly ChatMessage[]
    edits: readonly Edit[]
    tools: readonly string[]
  }): void {
    messages.forEach((message, index) => this.#messages.add(keyOf(message, index)))
    for (const edit of edits) this.#texts.add(placeOf(edit))
    for (const name of tools) this.#tools.add(name)
  }

  get tokens(): number {
    return this.#tokens
  }

  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      const running = this.engine.respond(request)
      for await (const event of running) stream.push(event)
      const reply = await running.reply
      this.#count(request, reply)
      return reply
    })
  }

  #count({ messages, edits = [], tools = [] }: EngineRequest, { message, ledger, timing }: EngineReply): void {
    const first = this.#messages.size === 0
    const costs = new Map(ledger.messages.map(({ index, shown }) => [index, shown]))
    for (const [index, one] of messages.entries())
      if (isNew(this.#messages, keyOf(one, index))) this.#tokens += costs.get(index) ?? 0
    if (timing.generatedTokens > 0) {
      this.#tokens += timing.generatedTokens
      this.#messages.add(keyOf(message, messages.length))
    }
    for (const edit of edits) if (isNew(this.#texts, placeOf(edit))) this.#tokens += this.#alone(edit.replacement)
    // Those of the first prompt stand in its first message.
    for (const tool of tools) if (isNew(this.#tools, tool.name) && !first) this.#tokens += this.#definition(tool)
  }

  #definition(tool: ToolDefinition): number {
    const list = (tools: readonly ToolDefinition[]) => this.engine.count([{ role: 'user', content: '' }], tools)
    const spare: ToolDefinition = { name: 'spare', description: '', parameters: { type: 'object' } }
    return list([spare, tool]) - list([spare])
  }

  #alone(content: string): number {
    const count = (text: string) => this.engine.count([{ role: 'user', content: text }], [])
    return count(content) - count('')
  }
}

/** A message by its place and text: sessions that were resumed have others of the same text. */
const keyOf = ({ role, content, toolCalls = [] }: ChatMessage, index: number): string =>
  JSON.stringify([index, role, content, toolCalls.map(({ name, arguments: given }) => [name, given])])

const placeOf = ({ message, span: { start }, replacement }: Edit): string => `${message} ${start} ${replacement}`

function isNew(known: Set<string>, key: string): boolean {
  if (known.has(key)) return false
  known.add(key)
  return true
}
