/** `kvfold chat`: a conversation with a model whose context the person can edit, or the model itself. */
import { definedFields } from '../../core/json.js'
import { freshConversation } from '../../core/ids.js'
import { Option, type Command } from 'commander'
import type { MemToolSession } from '../../agents/memtool.js'
import { plain, sculptor } from '../../agents/sculptor.js'
import type { Session } from '../../agents/session.js'
import { KvfoldError } from '../../core/errors.js'
import type { LlamaEngine } from '../../engine/llama.js'
import { begunBy, givenTranscript } from '../transcript.js'
import { printable } from '../terminal.js'
import { BUILTIN } from '../builtin.js'
import { TypedLines, messageOf, parseCommand } from '../chat/input.js'
import { type BeforeTurn, ChatSession } from '../chat/talk.js'
import { describe, type Shell } from '../shell.js'
import { count } from '../../figures/numbers.js'
import {
  addModelOptions,
  addSamplingOptions,
  integer,
  sampling,
  toolTextsOf,
  toolTextsOption,
  type ModelFlags,
  type SamplingFlags,
} from '../options.js'
import { addMcpOptions, mcpServersOf, openMcpTools, sessionWith, standingOf, type McpFlags, type McpTools } from '../mcp-tools.js'
import { FITTING, loadEngine, warnOfContract } from '../runtime.js'

interface ChatFlags extends ModelFlags, SamplingFlags, McpFlags {
  readonly system?: string
  readonly transcript?: string
  readonly tools: boolean
  readonly firstStep: 'required' | 'auto'
  readonly toolTexts?: string
  readonly maxTokens?: number
}

export function addChat(program: Command, shell: Shell): void {
  const command = program
    .command('chat')
    .description('talk to a model; /help lists the commands that edit its context. Each line of piped input is a turn')
    .argument('[model]', 'as --model')
    .option('-s, --system <text>', 'system message (default with tools: one that explains them)')
    .addOption(
      new Option('--transcript <file>', 'continue a conversation, in any form that `kvfold plan` reads').conflicts('system'),
    )
    .option('--no-tools', 'the model gets no context tools; the slash commands still work')
    .addOption(
      new Option('--first-step <mode>', 'whether the first step of a turn must call a tool')
        .choices(['required', 'auto'])
        .default('auto'),
    )
    .addOption(toolTextsOption())
    .option('--max-tokens <count>', 'end each step after this many tokens', integer(1, 1 << 30))
  addSamplingOptions(addModelOptions(addMcpOptions(command))).action((model: string | undefined, flags: ChatFlags) =>
    chat({ ...flags, model: oneModel(model, flags.model, command) }, shell),
  )
}

/** Returns the model to chat with: the command's argument, or `--model`. @throws KvfoldError cli/bad-usage when both are given */
function oneModel(named: string | undefined, model: string, command: Command): string {
  if (named !== undefined && command.getOptionValueSource('model') !== 'default')
    throw new KvfoldError('cli/bad-usage', 'Give the model once: with --model or without.')
  return named ?? model
}

async function chat(flags: ChatFlags, shell: Shell): Promise<void> {
  const { out, notes, interrupt } = shell
  const transcript = givenTranscript(flags.transcript)
  const configs = mcpServersOf(flags)
  const engine = await loadEngine(flags, notes, interrupt.signal, FITTING)
  await warnOfContract(flags.contract, engine, flags, notes)
  let servers: McpTools | null = null
  try {
    servers = await openMcpTools(configs, flags, engine, shell)
    // Reads the format here, so that an unusable chat template is reported before the first message.
    const { syntax } = engine.format
    let recorded = transcript === null ? undefined : { conversation: await begunBy(engine, transcript) }
    const begin = (before: BeforeTurn | undefined = recorded) => {
      recorded = undefined
      return beginSession(engine, flags, servers, before)
    }
    const talk = new ChatSession({ engine, out, interrupt, begin, servers })
    if (interrupt.interrupted) return
    const lines = new TypedLines(shell)
    try {
      if (lines.interactive) greet(engine, flags, shell, syntax.name)
      if (servers !== null) notes.prose(standingOf(servers), notes.colours.dim)
      await converse(talk, lines, shell)
    } finally {
      lines.close()
    }
  } finally {
    await servers?.close()
    await engine.dispose()
  }
}

async function converse(talk: ChatSession, lines: TypedLines, { out, notes, interrupt }: Shell): Promise<void> {
  for (let line = await lines.next(); line !== null; line = await lines.next()) {
    if (line.trim() === '') continue
    try {
      const command = parseCommand(line)
      talk.tellNews()
      if (command === null) await talk.say(messageOf(line))
      else if (!(await talk.command(command))) return
    } catch (error) {
      // A failed turn leaves the conversation unchanged. A person can go on from there; a pipe cannot, so there the error ends the program.
      if (!(error instanceof KvfoldError) || !lines.interactive) throw error
      notes.print(notes.colours.red(describe(error)))
    }
    if (!interrupt.interrupted) continue
    // At a terminal, Ctrl-C only stops the answer. With a pipe it ends the program.
    if (!lines.interactive) return
    interrupt.renew()
    out.close()
  }
}

function beginSession(
  engine: LlamaEngine,
  flags: ChatFlags,
  servers: McpTools | null,
  before: BeforeTurn | undefined,
): Session | MemToolSession {
  const conversation = before?.conversation
  const options = {
    engine,
    id: conversation?.id ?? freshConversation(),
    generation: { sampling: sampling(flags), ...definedFields({ maxTokens: flags.maxTokens }) },
    ...definedFields({ system: flags.system, conversation, toolTexts: toolTextsOf(flags) }),
  }
  if (servers !== null)
    return sessionWith(
      servers,
      { ...options, contextTools: flags.tools, firstStep: flags.firstStep },
      before !== undefined && 'memory' in before ? before : undefined,
    )
  return flags.tools ? sculptor({ ...options, firstStep: flags.firstStep }) : plain(options)
}

function greet(engine: LlamaEngine, { model, tools }: ChatFlags, { out }: Shell, syntax: string): void {
  const { bold, dim, yellow } = out.colours
  out.print(
    `${bold(printable(engine.info.model))}, ${count(engine.info.context)} cells, llama.cpp ${engine.info.release}, tools ${tools ? `on (${syntax})` : 'off'}`,
  )
  if (model === BUILTIN)
    out.print(
      yellow(
        'The built-in model only knows the tasks that it was trained on, such as `kvfold demo`; to talk, name another with --model.',
      ),
    )
  out.print(dim('/help lists commands. A backslash at the end of a line continues it on the next. Ctrl-D leaves.'))
}
