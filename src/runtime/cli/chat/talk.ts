/** A person's conversation with a model: runs slash commands, sends messages, shows answers. */
import { writeFile } from 'node:fs/promises'
import { MemToolSession, type MemToolState } from '../../agents/memtool.js'
import type { Session } from '../../agents/session.js'
import type { ConversationState } from '../../context/conversation.js'
import { priceRemark } from '../../context/fragment.js'
import type { Result } from '../../context/refusal.js'
import { cloned, mappedJson, writeJson } from '../../core/written-json.js'
import type { LlamaEngine } from '../../engine/llama.js'
import { standingOf, type McpTools } from '../mcp-tools.js'
import { printable, type Terminal } from '../terminal.js'
import { count, plural } from '../../figures/numbers.js'
import type { Interrupt } from '../shell.js'
import { ledgerLine, ledgerTable, TurnView } from '../turn-view.js'
import { refuseHopeless } from '../../engine/model-facts.js'
import { type ChatCommand, chatHelp } from './input.js'

export interface ChatSessionOptions {
  readonly engine: LlamaEngine
  readonly out: Terminal
  readonly interrupt: Interrupt
  /** Starts a session: a new one at the beginning and after /clear, or one that continues from a saved state. */
  readonly begin: (before?: BeforeTurn) => Session | MemToolSession
  readonly servers: McpTools | null
}

/** A saved state to continue from. With MCP servers whose tools the model searches, it also has the loaded tools. */
export type BeforeTurn = { readonly conversation: ConversationState } | MemToolState

/** The most tools that /tools shows for a search. */
const FOUND = 10

/** Descriptions of search hits that are in no fragment. */
const WHOLE = { shown: 'shown', omitted: 'hidden with the whole message' } as const

export class ChatSession {
  #session: Session | MemToolSession

  constructor(private readonly options: ChatSessionOptions) {
    this.#session = options.begin()
  }

  /**
   * Sends a message and streams the answer. Ctrl-C stops the answer; the conversation goes on. @throws KvfoldError what the engine throws
   */
  async say(text: string): Promise<void> {
    const { engine, out, interrupt } = this.options
    await refuseHopeless(engine.model, engine.info.context, [text])
    const view = new TurnView({ answer: out, remarks: out, reasoning: true })
    const session = this.#session
    const before = cloned(session instanceof MemToolSession ? session.state : { conversation: session.conversation.state })
    const outcome = await session
      .ask(text, { signal: interrupt.signal, onEvent: view.onEvent })
      .catch((error: unknown) => {
        this.#takeBack(before)
        throw error
      })
      .finally(() => {
        view.end()
      })
    if (outcome.end === 'cancelled') this.#note('(stopped)')
    if (outcome.end === 'length') this.#note('(cut off: the context is full or --max-tokens is reached)')
    this.#note(`[${ledgerLine(outcome.ledger)}]`)
    this.tellNews()
  }

  /** Removes a question that failed before any step was added. Otherwise the next question would fail in the same way. */
  #takeBack(before: BeforeTurn): void {
    const { conversation, ledger } = this.#session
    if (conversation.messages.length !== before.conversation.messages.length + 1) return
    this.#session = this.options.begin(before)
    this.#session.account(ledger)
  }

  /** Prints news about the MCP servers, for example that one has ended. */
  tellNews(): void {
    for (const line of this.options.servers?.news() ?? []) this.#note(`· ${line}`)
  }

  /** Runs a slash command. Returns false when the command ends the conversation. */
  async command(command: ChatCommand): Promise<boolean> {
    const { conversation, ledger } = this.#session
    const { out, interrupt } = this.options
    switch (command.name) {
      case 'help': {
        const width = Math.max(...chatHelp.map(([usage]) => usage.length))
        for (const [usage, meaning] of chatHelp) out.print(`${usage.padEnd(width)}  ${out.colours.dim(meaning)}`)
        return true
      }
      case 'messages':
        this.#list()
        return true
      case 'fragment': {
        const { where, pieces } = command
        const cut =
          'start' in where
            ? conversation.fragment({ startMarker: where.start, endMarker: where.end, numFragments: pieces, role: 'all' })
            : this.#cutMessage(where.message, pieces)
        this.#tell(cut, ({ fragments }) => `${plural(fragments.length, 'fragment')}: ${fragments.map(({ id }) => id).join(' ')}`)
        return true
      }
      case 'fold':
        this.#tell(conversation.fold(command.id, command.contract), ({ fragment }) =>
          [`Folded ${fragment.id}; the cache follows at the next answer.`, priceRemark(fragment) ?? []].flat().join(' '),
        )
        return true
      case 'restore':
        this.#tell(
          conversation.restore(command.id),
          ({ fragment }) => `Restored ${fragment.id}; the cache follows at the next answer.`,
        )
        return true
      case 'summarize':
        this.#tell(await this.#session.summarize(command.id, command.focus, interrupt.signal), ({ fragment, ledger: spent }) => {
          const { state } = fragment
          const remark = priceRemark(fragment)
          return `${state.kind === 'summarised' ? state.summary : ''}\n[${ledgerLine(spent)}]${remark === null ? '' : `\n${remark}`}`
        })
        return true
      case 'search':
        this.#tell(conversation.search({ query: command.text, role: 'all', contextSize: 60 }), ({ hits, total }) =>
          [
            ...hits.map((hit) => {
              const { standing } = hit
              const isWhole = standing.kind === 'shown' || standing.kind === 'omitted'
              const where = isWhole ? WHOLE[standing.kind] : `in ${standing.kind} ${standing.fragment}`
              return `${hit.id}  message ${hit.message + 1} (${hit.role}), ${where}: ${this.#excerpt(hit)}`
            }),
            hits.length < total ? `${count(total)} hits, the first ${hits.length} shown` : plural(total, 'hit'),
          ].join('\n'),
        )
        return true
      case 'detail':
        this.#tell(conversation.detail(command.id), ({ hit }) => this.#text(hit.message, hit.excerpt))
        return true
      case 'tools':
        await this.#tools(command.words)
        return true
      case 'ledger':
        if (ledger.length === 0) this.#note('No steps yet.')
        for (const line of ledger.length === 0 ? [] : ledgerTable(ledger, out.rule)) out.print(line)
        return true
      case 'refresh': {
        const { exact, ledger: spent } = await this.options.engine.refresh(conversation.id, { signal: interrupt.signal })
        this.#session.account(spent)
        const tokens = spent.reduce((sum, { submitted }) => sum + submitted, 0)
        if (exact) this.#note(spent.length === 0 ? 'It was exact already.' : `Exact again: ${plural(tokens, 'token')} computed.`)
        else
          this.#note('Not exact yet: the conversation has no answer, or you stopped the computation. Computed tokens are kept.')
        return true
      }
      case 'clear':
        this.#session.forget()
        this.#session = this.options.begin()
        this.#note('A new conversation.')
        return true
      case 'save':
        await this.#save(command.file)
        return true
      case 'wrong':
        this.#complain(command.reason)
        return true
      case 'exit':
        return false
    }
  }

  #list(): void {
    const { out } = this.options
    const { messages, fragments } = this.#session.conversation
    if (messages.length === 0) this.#note('No messages yet.')
    for (const [index, { role, content, toolCalls = [] }] of messages.entries()) {
      const calls = toolCalls.length === 0 ? '' : ` [${toolCalls.map(({ name }) => name).join(', ')}]`
      const start = printable(content.replace(/\s+/g, ' ').slice(0, 60))
      out.print(
        `${String(index + 1).padStart(3)}  ${role.padEnd(9)}  ${plural(content.length, 'character')}${calls}  ${out.colours.dim(start)}`,
      )
      for (const { id, span, state } of fragments.filter((fragment) => fragment.message === index))
        out.print(
          `       ${id}  ${state.kind.padEnd(10)}  ${plural(span.end - span.start, 'character')}  ${out.colours.dim(this.#text(index, span).replace(/\s+/g, ' ').slice(0, 50))}`,
        )
    }
  }

  async #tools(words: string | null): Promise<void> {
    const { out, servers } = this.options
    if (servers === null) {
      this.#note('No MCP servers; name them with --mcp-config <file>.')
      return
    }
    const { host } = servers
    const first = (text: string) => out.colours.dim(printable(text.replace(/\s+/g, ' ').slice(0, 80)))
    if (words !== null) {
      const found = await host.catalogue.search(words, FOUND)
      if (found.length === 0) this.#note('No tool matches these words.')
      for (const { name, description } of found) out.print(`${name}  ${first(description)}`)
      return
    }
    out.print(standingOf(servers))
    for (const { name, state, problem, tools } of host.servers) {
      const said = state === 'ready' ? plural(tools.length, 'tool') : `${state}${problem === null ? '' : `: ${problem}`}`
      out.print(printable(`${name}  ${said}`))
      if (servers.way === 'off')
        for (const tool of tools) out.print(`  ${tool}  ${first(host.catalogue.get(tool)?.description ?? '')}`)
    }
    if (!(this.#session instanceof MemToolSession)) return
    const { memory } = this.#session
    out.print(`Loaded: ${plural(memory.size, 'tool')}, ${plural(Math.round(memory.tokens), 'token')}`)
    for (const { definition, tokens } of memory.loaded)
      out.print(`  ${definition.name}  ${plural(Math.round(tokens), 'token')}  ${first(definition.description)}`)
  }

  #cutMessage(number: number, pieces: number): ReturnType<Session['conversation']['cut']> {
    const { conversation } = this.#session
    const message = conversation.messages[number - 1]
    if (message === undefined || message.content === '')
      return { ok: false, code: 'tool/bad-arguments', message: `There is no message ${number} with text; /messages lists them.` }
    return conversation.cut([{ message: number - 1, span: { start: 0, end: message.content.length } }], pieces)
  }

  async #save(file: string): Promise<void> {
    const { engine } = this.options
    const { conversation, ledger } = this.#session
    try {
      const session = { model: engine.info.model, conversation: conversation.snapshot(), ledger }
      const plain = mappedJson(session, (value) => (value instanceof Int32Array ? [...value] : value))
      await writeFile(file, writeJson(plain, 1) + '\n')
      this.#note(`Saved to ${file}.`)
    } catch (error) {
      this.#complain(
        `${file} cannot be written (${error instanceof Error && 'code' in error ? String(error.code) : String(error)}).`,
      )
    }
  }

  #excerpt(hit: { readonly message: number; readonly excerpt: { readonly start: number; readonly end: number } }): string {
    return this.#text(hit.message, hit.excerpt).replace(/\s+/g, ' ')
  }

  #text(message: number, { start, end }: { readonly start: number; readonly end: number }): string {
    return printable(this.#session.conversation.messages[message]?.content.slice(start, end) ?? '')
  }

  #tell<T extends object>(result: Result<T>, words: (result: T) => string): void {
    if (result.ok) this.options.out.print(words(result))
    else this.#complain(result.message)
  }

  #note(text: string): void {
    const { out } = this.options
    out.print(out.colours.dim(text))
  }

  #complain(text: string): void {
    const { out } = this.options
    out.print(out.colours.yellow(printable(text)))
  }
}
