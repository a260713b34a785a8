/** `kvfold run`: one prompt and one answer, for scripts and pipes. */
import { definedFields } from '../../core/json.js'
import { freshConversation } from '../../core/ids.js'
import { existsSync } from 'node:fs'
import { Option, type Command } from 'commander'
import type { MemToolSession } from '../../agents/memtool.js'
import { plain, sculptor } from '../../agents/sculptor.js'
import type { TurnOutcome } from '../../agents/tool-loop.js'
import type { Session } from '../../agents/session.js'
import { KvfoldError } from '../../core/errors.js'
import { readJson, writeJson } from '../../core/written-json.js'
import type { LlamaEngine } from '../../engine/llama.js'
import type { ConversationState } from '../../context/conversation.js'
import { begunBy, givenTranscript } from '../transcript.js'
import { printable } from '../terminal.js'
import { readInput, type Shell } from '../shell.js'
import { count } from '../../figures/numbers.js'
import { ledgerLine, TurnView } from '../turn-view.js'
import {
  addModelOptions,
  addSamplingOptions,
  collect,
  integer,
  readText,
  sampling,
  toolTextsOf,
  toolTextsOption,
  type ModelFlags,
  type SamplingFlags,
} from '../options.js'
import { modelCalled, modelsFolder, modelsIn } from '../../models/folder.js'
import { refuseHopeless } from '../../engine/model-facts.js'
import { addMcpOptions, mcpServersOf, openMcpTools, sessionWith, type McpFlags, type McpTools } from '../mcp-tools.js'
import { FITTING, loadEngine, warnOfContract } from '../runtime.js'

interface RunFlags extends ModelFlags, SamplingFlags, McpFlags {
  readonly prompt?: string
  readonly system?: string
  readonly transcript?: string
  readonly tools?: true
  readonly firstStep?: 'required' | 'auto'
  readonly toolTexts?: string
  readonly maxTokens: number
  readonly stop?: readonly string[]
  readonly schema?: string
  readonly grammar?: string
  readonly raw?: true
  readonly json?: true
}

/** The default limit on tokens per step. It stops a model that repeats itself endlessly. */
const MAX_TOKENS = 4096

export function addRun(program: Command, shell: Shell): void {
  const command = program
    .command('run')
    .description('answer one prompt: from --prompt, a file, or stdin')
    .argument('[file]', 'file with the prompt, `-` for stdin')
    .option('-p, --prompt <text>', 'the prompt itself')
    .option('-s, --system <text>', 'system message')
    .addOption(
      new Option(
        '--transcript <file>',
        'continue a conversation, in any form that `kvfold plan` reads; needs no prompt if it does not end with an answer',
      ).conflicts(['raw', 'system']),
    )
    .option('--tools', 'let the model fold, summarise and search its own context before it answers')
    .addOption(
      new Option('--first-step <mode>', 'with --tools: whether the first step must call a tool (default: required)').choices([
        'required',
        'auto',
      ]),
    )
    .addOption(toolTextsOption())
    .option('--max-tokens <count>', 'end each step after this many tokens', integer(1, 1 << 30), MAX_TOKENS)
    .addOption(new Option('--stop <text>', 'end where this text appears; may be given several times').argParser(collect))
    .addOption(new Option('--schema <file>', 'JSON schema the answer must satisfy').conflicts(['grammar', 'raw']))
    .addOption(new Option('--grammar <file>', 'GBNF grammar the answer must satisfy').conflicts('raw'))
    .addOption(
      new Option('--raw', 'use no chat template: complete the text as given; control tokens in it are read as such').conflicts([
        'tools',
        'system',
        'mcpConfig',
      ]),
    )
    .option('--json', 'one JSON object: answer, calls, ledger, timing')
  addSamplingOptions(addModelOptions(addMcpOptions(command))).action((file: string | undefined, flags: RunFlags) =>
    run(file, flags, shell),
  )
}

async function run(file: string | undefined, flags: RunFlags, shell: Shell): Promise<void> {
  if (flags.prompt !== undefined && file !== undefined)
    throw new KvfoldError('cli/bad-usage', 'Give --prompt or a file, not both.')
  if (flags.firstStep !== undefined && flags.tools === undefined)
    throw new KvfoldError('cli/bad-usage', '--first-step needs --tools; add it, or leave --first-step out.')
  const { interrupt, notes } = shell
  const constraints = definedFields({
    schema: flags.schema === undefined ? undefined : parseSchema(readText(flags.schema, '--schema'), flags.schema),
    grammar: flags.grammar === undefined ? undefined : readText(flags.grammar, '--grammar'),
  })
  const transcript = givenTranscript(flags.transcript)
  const isAsked = transcript !== null && transcript.messages.at(-1)?.role !== 'assistant'
  if (file !== undefined && file !== '-') refuseModelAsFile(file)
  const prompt = flags.prompt ?? (isAsked && file === undefined ? null : await readInput(file, shell))
  if (prompt === '') throw new KvfoldError('cli/bad-usage', 'The prompt is empty.')
  const begun = performance.now()
  const configs = mcpServersOf(flags)
  const engine = await loadEngine(flags, notes, interrupt.signal, FITTING)
  await warnOfContract(flags.contract, engine, flags, notes)
  let servers: McpTools | null = null
  try {
    servers = await openMcpTools(configs, flags, engine, shell)
    if (interrupt.interrupted) return
    if (prompt !== null) await refuseHopeless(engine.model, engine.info.context, [prompt])
    const load = performance.now() - begun
    const conversation = transcript === null ? undefined : await begunBy(engine, transcript)
    if (flags.raw === true) await complete(engine, prompt ?? '', flags, shell, load)
    else await answer({ engine, servers }, { prompt, ...definedFields({ conversation }) }, flags, constraints, shell, load)
  } finally {
    await servers?.close()
    await engine.dispose()
  }
}

/**
 * Refuses an argument that names a model. In `ollama run NAME` and `llama-cli FILE` the argument is a model; here it is a file with the
 * prompt. @throws KvfoldError cli/bad-usage
 */
function refuseModelAsFile(file: string): void {
  const isThere = existsSync(file)
  const model = isThere ? null : modelCalled(file, modelsIn(modelsFolder()))
  if (model === null && !(isThere ? /\.gguf$/i.test(file) : /^[\w][\w.:/-]*$/.test(file) && !/\.(?:txt|md|json)$/i.test(file)))
    return
  const types = (name: string) => `kvfold run --model ${name} --prompt "Hello", or kvfold chat ${name}`
  throw new KvfoldError(
    'cli/bad-usage',
    isThere || model !== null
      ? `${file} is a model, and run takes a prompt there. Type ${types(file)}.`
      : `There is no file ${file} with a prompt. If it is a model, get it with kvfold pull hf:owner/repository:quant and type ${types('NAME')}; kvfold list has the names.`,
  )
}

async function answer(
  { engine, servers }: { readonly engine: LlamaEngine; readonly servers: McpTools | null },
  { prompt, conversation }: { readonly prompt: string | null; readonly conversation?: ConversationState },
  flags: RunFlags,
  constraints: { schema?: unknown; grammar?: string },
  { out, notes, interrupt }: Shell,
  load: number,
): Promise<void> {
  const setup = {
    engine,
    id: freshConversation(),
    generation: { sampling: sampling(flags), ...definedFields({ maxTokens: flags.maxTokens, stop: flags.stop }), ...constraints },
    ...definedFields({ system: flags.system, conversation, toolTexts: toolTextsOf(flags) }),
  }
  const first = definedFields({ firstStep: flags.firstStep })
  const session =
    servers !== null
      ? sessionWith(servers, { ...setup, ...first, contextTools: flags.tools === true })
      : flags.tools === true
        ? sculptor({ ...setup, ...first })
        : plain(setup)
  for (const line of servers?.news() ?? []) notes.prose(line, notes.colours.dim)
  const json = flags.json === true
  const view = json ? null : new TurnView({ answer: out, remarks: notes })
  const options = { signal: interrupt.signal, ...(view === null ? {} : { onEvent: view.onEvent }) }
  const outcome = await (prompt === null ? session.resume(options) : session.ask(prompt, options)).finally(() => {
    view?.end()
    for (const line of servers?.news() ?? []) notes.prose(line, notes.colours.yellow)
  })
  if (outcome.end === 'cancelled') return
  if (json) out.print(turnJson(engine.info.model, session, outcome, load))
  else {
    if (outcome.end === 'length') notes.print(notes.colours.yellow(cutOff(flags)))
    notes.print(notes.colours.dim(ledgerLine(outcome.ledger)))
  }
}

const cutOff = ({ maxTokens }: RunFlags): string =>
  `(cut off: a step wrote ${count(maxTokens)} tokens, which --max-tokens changes, or the context is full)`

/** Returns the output of `--json` for a turn. Times are in milliseconds; `load` is the time that loading the model took. */
export function turnJson(model: string, session: Session | MemToolSession, outcome: TurnOutcome, load: number): string {
  const { answer, end, steps, ledger, contextBefore, contextAfter, refusedCalls } = outcome
  const { reasoning } = session.conversation.messages.at(-1) ?? {}
  const last = steps.at(-1)
  const sum = (key: 'total' | 'prefillTokens' | 'generatedTokens'): number =>
    steps.reduce((total, { timing }) => total + timing[key], 0)
  return writeJson({
    model,
    answer,
    ...definedFields({ reasoning }),
    finish: end,
    calls: steps.flatMap(({ calls }, step) =>
      calls.map(({ call, text, failed }) => ({
        step,
        name: call.name,
        arguments: call.malformed ?? call.arguments,
        result: text,
        failed,
      })),
    ),
    refusedCalls,
    context: { before: contextBefore, after: contextAfter },
    ledger,
    timing: {
      firstToken: last?.timing.firstToken ?? 0,
      total: sum('total'),
      prefillTokens: sum('prefillTokens'),
      generatedTokens: sum('generatedTokens'),
    },
    load: Math.round(load),
  })
}

async function complete(
  engine: LlamaEngine,
  prompt: string,
  flags: RunFlags,
  { out, notes, interrupt }: Shell,
  load: number,
): Promise<void> {
  const json = flags.json === true
  const result = await engine.complete({
    conversation: freshConversation(),
    tokens: engine.model.tokenize(prompt, { addSpecial: true, parseSpecial: true }),
    sampling: sampling(flags),
    ...definedFields({ maxTokens: flags.maxTokens, stop: flags.stop }),
    signal: interrupt.signal,
    onText: (text) => {
      if (!json) out.write(out.live ? printable(text) : text)
    },
  })
  const { text, finish, ledger, timing } = result
  if (finish === 'cancelled') return
  const model = engine.info.model
  if (json)
    out.print(
      JSON.stringify({
        model,
        answer: text,
        finish: finish === 'stop-string' ? 'stop' : finish,
        calls: [],
        ledger: [ledger],
        timing,
        load: Math.round(load),
      }),
    )
  else {
    if (!text.endsWith('\n')) out.write('\n')
    if (finish === 'length') notes.print(notes.colours.yellow(cutOff(flags)))
    notes.print(notes.colours.dim(ledgerLine([ledger])))
  }
}

function parseSchema(text: string, file: string): unknown {
  try {
    return readJson(text)
  } catch (error) {
    throw new KvfoldError(
      'cli/bad-usage',
      `${file} given to --schema is not JSON (${error instanceof Error ? error.message : String(error)}).`,
      { cause: error },
    )
  }
}
