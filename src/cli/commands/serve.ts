/** `kvfold serve`: the server, from its options to its last answer. */
import { once } from 'node:events'
import { chmod, unlink } from 'node:fs/promises'
import { connect, isIP } from 'node:net'
import { basename } from 'node:path'
import { InvalidArgumentError, Option, type Command } from 'commander'
import { type MemToolMode, memToolModes } from '../../agents/memtool-asides.js'
import { CONTRACTS, type ContractChoice } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import { Embedder } from '../../engine/embedder.js'
import type { Address, Server } from '../../server/app.js'
import { PUBLIC, type Acm, type Overflow } from '../../server/ask.js'
import type { EmbeddingModel } from '../../server/embeddings.js'
import type { LogLevel } from '../../server/http.js'
import { parseKeys, unnamed, type ApiKey } from '../../server/keys.js'
import type { ModelSource, ServedEngine } from '../../server/threads/models.js'
import { printable } from '../terminal.js'
import { BUILTIN } from '../builtin.js'
import {
  addEngineOptions,
  embedderOptions,
  type EngineFlags,
  engineSource,
  loadEmbedder,
  loadEngine,
  tryFirst,
} from '../runtime.js'
import { addKeepingOptions, keepRetention, openStore, retentionMs, type KeepingFlags } from '../keeping.js'
import {
  addModelOptions,
  addSamplingOptions,
  decimal,
  given,
  integer,
  readText,
  sampling,
  type ModelFlags,
  type SamplingFlags,
} from '../options.js'
import { serveNotice } from '../serve-notice.js'
import { withAliases } from '../aliases.js'
import { addMcpConfig, mcpServersOf, openMcpHost, toolsOf, type McpFlags } from '../mcp-tools.js'
import type { Shell } from '../shell.js'

interface ServeFlags extends Omit<ModelFlags, 'model'>, SamplingFlags, KeepingFlags, EngineFlags, Pick<McpFlags, 'mcpConfig'> {
  /** `name=model`, or a model alone. */
  readonly model?: readonly string[]
  /** `name=model`, or a name of the first model. */
  readonly alias?: readonly string[]
  readonly host: string
  readonly port: number
  readonly unixSocket?: string
  readonly apiKey?: readonly string[]
  readonly apiKeysFile?: string
  readonly corsOrigin?: readonly string[]
  readonly allowedHosts?: readonly string[]
  readonly bodyLimit: number
  readonly tlsCert?: string
  readonly tlsKey?: string
  readonly logLevel: LogLevel
  readonly slots: number
  readonly maxGap: number
  readonly queue: number
  readonly timeout?: number
  readonly keepAlive?: number
  readonly acm: Acm
  readonly memtoolMode: MemToolMode
  readonly overflow: Overflow
  readonly clientEdits: ContractChoice
  readonly clientEditsOf?: ReadonlyMap<string, ContractChoice>
  readonly costlyFolds: 'refuse' | 'allow'
  readonly attention: 'on' | 'off'
  readonly trial: 'on' | 'off'
  readonly grace: number
  /** As `model`; true: the served models themselves. */
  readonly embeddings?: string | true
}

const MIB = 2 ** 20
const LEVELS: readonly LogLevel[] = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']
const CHOICES: readonly Acm[] = ['off', 'tools', 'auto-policy', 'u-fold', 'resum', 'memtool']
const EDITS: readonly ContractChoice[] = [...CONTRACTS, 'auto']
const OVERFLOWS: readonly Overflow[] = ['refuse', 'fold-tool-results', 'fold-oldest']

export function addServe(program: Command, shell: Shell, version: string): void {
  const command = program
    .command('serve')
    .description('serve models to OpenAI and Anthropic clients, with folds that survive from request to request')
    .option(
      '--alias <name>',
      'another name that requests may call the first model by, or name=model of another one; * for any name; may be given several times',
      collect,
    )
    .option('--host <name>', 'address to listen on; 0.0.0.0 lets other machines in', '127.0.0.1')
    .option('-p, --port <number>', 'port to listen on, 0 for any that is free', integer(0, 65_535), 8080)
    .addOption(new Option('--unix-socket <path>', 'listen on a UNIX socket that only you can open').conflicts(['host', 'port']))
    .option(
      '--api-key <key>',
      'a key that requests must carry; may be given several times, each key sees its own threads',
      collect,
    )
    .option('--api-keys-file <file>', 'keys, `name:key` a line; the one named admin may read /metrics')
    .option('--cors-origin <origin>', 'web pages that may ask, * for all; may be given several times', collect)
    .option(
      '--allowed-hosts <names>',
      'names besides localhost that a server without keys answers to on this machine, separated by commas, * for all',
      (text: string) =>
        text
          .split(',')
          .map((name) => name.trim())
          .filter((name) => name !== ''),
    )
    .option('--body-limit <MiB>', 'largest request', integer(1, 1024), 16)
    .option('--tls-cert <file>', 'PEM certificate chain; with --tls-key')
    .option('--tls-key <file>', 'PEM key of the certificate')
    .addOption(new Option('--log-level <level>', 'what is logged to stderr, never any text').choices(LEVELS).default('info'))
    .option('--slots <count>', 'requests computed at once, for each model', integer(1, 64), 4)
    .option(
      '--max-gap <ms>',
      "longest pause between two tokens of an answer that others' prompts may cause; shorter ones cost throughput",
      decimal(0.1, 86_400_000),
      1000,
    )
    .option('--queue <count>', 'requests that may wait for a slot; more are answered 503', integer(0, 1_000_000), 128)
    .option('--timeout <seconds>', 'time for an answer, waiting included (default: none)', decimal(0.1, 86_400))
    .option('--keep-alive <seconds>', 'how long a model that nobody uses stays loaded (default: for ever)', decimal(0, 1e9))
    .addOption(new Option('--acm <mode>', 'who folds, unless a request says').choices(CHOICES).default('off'))
    .addOption(
      new Option('--memtool-mode <mode>', 'of --acm memtool: who removes tools and who searches, unless a request says')
        .choices(memToolModes)
        .default('hybrid'),
    )
    .addOption(
      new Option('--overflow <policy>', 'what happens to a conversation that does not fit').choices(OVERFLOWS).default('refuse'),
    )
    .addOption(
      new Option('--client-edits <contract>', 'what the cache keeps to where a client changes messages that it had sent before')
        .choices(EDITS)
        .default('exact'),
    )
    .option('--client-edits-of <name=contract>', 'the same for the keys of one name; may be given several times', editsOf)
    .addOption(
      new Option('--costly-folds <policy>', 'what happens to folds and summaries that take at least as many tokens as the text')
        .choices(['refuse', 'allow'])
        .default('refuse'),
    )
    .option(
      '--embeddings [model]',
      'answer /v1/embeddings, by the served models (vectors of their tokens averaged, unless their files say otherwise) or by this one: GGUF file or hub URI, also as name=model',
    )
    .addOption(
      new Option('--attention <switch>', 'whether a second context may be loaded that shows where an answer looked')
        .choices(['on', 'off'])
        .default('on'),
    )
    .addOption(
      new Option(
        '--trial <switch>',
        'whether a model file that was not served before is first tried in a process of its own, which llama.cpp ends in our place where it cannot compute it',
      )
        .choices(['on', 'off'])
        .default('on'),
    )
    .option('--grace <seconds>', 'time that running answers have to end when the server is told to stop', decimal(0, 86_400), 30)
  addMcpConfig(command, 'MCP servers whose tools requests with acm memtool may use, carried out here')
  addSamplingOptions(addModelOptions(addKeepingOptions(addEngineOptions(command))))
  adapt(command)
  command.action((flags: ServeFlags) => serve(flags, shell, version))
}

async function serve(flags: ServeFlags, shell: Shell, version: string): Promise<void> {
  // Other commands should not wait for the libraries of this one.
  const [{ Server }, { ThreadService }] = await Promise.all([import('../../server/app.js'), import('../../server/service.js')])
  const { out, notes, interrupt } = shell
  const keys = keysOf(flags)
  const tls = tlsOf(flags)
  const embeddings = embeddingModel(flags, shell, version)
  const toolServers = mcpServersOf(flags)
  const remote = await engineSource(flags, flags.slots, notes, interrupt.signal)
  const models = withAliases(remote === null ? sourcesOf(flags, shell, version) : [remote], flags.alias)
  const kept = await openStore(
    flags,
    (line) => {
      notes.print(`store: ${printable(line)}`)
    },
    flags.diskCache,
  )
  const told = kept?.store.notes().length ?? 0
  const mcp = toolServers.length === 0 ? null : await openMcpHost(toolServers, notes.print.bind(notes), interrupt.signal)
  const service = await ThreadService.open({
    retentionMs: retentionMs(flags),
    models,
    queueLimit: flags.queue,
    defaults: {
      ...{ acm: flags.acm, memToolMode: flags.memtoolMode, overflow: flags.overflow, clientEdits: flags.clientEdits },
      ...given({ clientEditsOf: editsOfKeys(flags, keys) }),
    },
    costlyFolds: flags.costlyFolds,
    ...given({
      embeddings: embeddings ?? undefined,
      store: kept?.store,
      responses: kept?.responses,
      savedToday: kept?.savedToday,
      timeoutMs: flags.timeout === undefined ? undefined : flags.timeout * 1000,
      keepAliveMs: flags.keepAlive === undefined ? undefined : flags.keepAlive * 1000,
      operatorTools: mcp ?? undefined,
    }),
  })
  const server = await Server.create({
    service,
    version,
    keys,
    corsOrigins: flags.corsOrigin ?? [],
    allowedHosts: flags.allowedHosts ?? [],
    bodyLimit: flags.bodyLimit * MIB,
    logLevel: flags.logLevel,
    // OpenAI's API samples at 1 when nobody says.
    sampling: { temperature: 1, ...sampling(flags) },
    ...given({ tls }),
  })
  const retention =
    kept === null
      ? null
      : keepRetention(kept.store, service, flags, (error) => {
          notes.print(`An old conversation could not be deleted: ${error instanceof Error ? error.message : String(error)}`)
        })
  try {
    // What is wrong with the first model should be said now, not to the first client.
    await (remote === null ? service.load() : service.count(undefined, [], []))
    if (embeddings !== null) await service.embed({ tenant: PUBLIC, inputs: ['a'] })
    // Threads of an earlier release are read only now.
    for (const line of kept?.store.notes().slice(told) ?? []) notes.print(`store: ${printable(line)}`)
    if (interrupt.interrupted) return
    if (mcp !== null)
      notes.print(`${toolsOf(mcp)}; for ${flags.acm === 'memtool' ? 'all requests' : 'requests with acm: memtool'}.`)
    const where = await listen(server, flags)
    if (keys.length === 0 && flags.unixSocket === undefined && !isLocal(flags.host))
      notes.prose(`Anybody who can reach ${flags.host} may use this server; set --api-key.`, notes.colours.yellow)
    out.print(
      `kvfold serves ${service
        .models()
        .map(({ name }) => name)
        .join(', ')} at ${where}`,
    )
    notes.prose(serveNotice({ ...flags, keys: [...new Set(keys.map(({ name }) => name))], where, models }))
    await aborted(interrupt.signal)
    notes.print(`Shutting down; running answers have ${flags.grace} s. Ctrl-C again ends at once.`)
  } finally {
    await retention?.stop()
    await server.close(flags.grace * 1000)
    await mcp?.close()
  }
  // It was asked to end, and did.
  interrupt.renew()
}

/** Listens; a UNIX socket that a dead server left behind is taken over. */
async function listen(server: Server, { host, port, unixSocket }: ServeFlags): Promise<string> {
  const address: Address = unixSocket === undefined ? { host, port } : { path: unixSocket }
  try {
    if (unixSocket !== undefined && (await isDead(unixSocket))) await unlink(unixSocket)
    const where = await server.listen(address)
    if (unixSocket !== undefined) await chmod(unixSocket, 0o600)
    return where
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
    const hint = code === 'EADDRINUSE' ? 'another program listens there; choose another with --port, or 0 for any' : code
    throw new KvfoldError('cli/bad-usage', `Cannot listen on ${unixSocket ?? `${host}:${port}`}: ${hint}.`, { cause: error })
  }
}

/** True when there is a socket of that name and nobody listens on it. */
function isDead(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(false)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      resolve(error.code === 'ECONNREFUSED')
    })
  })
}

/** @throws KvfoldError cli/bad-usage */
function sourcesOf(flags: ServeFlags, { notes, interrupt }: Shell, version: string): ModelSource[] {
  const models = (flags.model ?? [BUILTIN]).map(named)
  const twice = models.find(({ name }, at) => models.findIndex((other) => other.name === name) < at)
  if (twice !== undefined)
    throw new KvfoldError('cli/bad-usage', `Two models are called ${twice.name}; name them with --model name=file.`)
  const uses = { attention: flags.attention === 'on', ...(flags.embeddings === true ? { embeddings: 'beside' as const } : {}) }
  return models.map(({ name, model }) => ({
    name,
    slots: flags.slots,
    load: async () => {
      if (flags.trial === 'on') await tryFirst({ ...flags, model }, uses, version, notes, interrupt.signal)
      return loadEngine({ ...flags, model }, notes, interrupt.signal, { slots: flags.slots, maxGap: flags.maxGap })
    },
    ...(flags.attention === 'on'
      ? { loadForAttention: () => loadEngine(lookingFlags({ ...flags, model }), notes, interrupt.signal, LOOKING) }
      : {}),
    ...(flags.embeddings === true ? { embedder: (engine: ServedEngine) => embedderOn(engine, { ...flags, model }) } : {}),
  }))
}

/** What looks at attention serves one look at a time. */
const LOOKING = { slots: 1, attention: true } as const

/** Of the same model: no flash attention, so no quantised values either, and nothing kept for later. */
function lookingFlags({ diskCache: _, cacheTypeV, ...rest }: ModelFlags): ModelFlags {
  const isQuantised = cacheTypeV !== undefined && !/^b?f\d/.test(cacheTypeV)
  return { ...rest, flashAttention: 'off', hostCache: 0, ...(cacheTypeV === undefined || isQuantised ? {} : { cacheTypeV }) }
}

/** `--embeddings` with a model: it embeds and the served ones do not. @throws KvfoldError cli/bad-usage */
function embeddingModel(flags: ServeFlags, { notes, interrupt }: Shell, version: string): EmbeddingModel | null {
  if (flags.embeddings === undefined) return null
  if (flags.embeddings !== true) {
    const { name, model } = named(flags.embeddings)
    const load = async () => {
      if (flags.trial === 'on') await tryFirst({ ...flags, model }, { embeddings: 'alone' }, version, notes, interrupt.signal)
      return loadEmbedder({ ...flags, model }, notes, interrupt.signal)
    }
    return { name, load }
  }
  if (flags.engine !== undefined)
    throw new KvfoldError('cli/bad-usage', '--embeddings needs a model beside --engine, whose vectors are not to be had here.')
  return null
}

function embedderOn({ model }: ServedEngine, flags: ModelFlags): Promise<Embedder> {
  if (model === undefined) throw new KvfoldError('model/unsupported', 'A model that another server computes makes no embeddings.')
  return Embedder.on(model, embedderOptions(flags))
}

/** `name=model`; without a name the file's, less its ending. */
function named(text: string): { readonly name: string; readonly model: string } {
  const [, name, model] = /^([\w.:-]+)=(.+)$/.exec(text) ?? []
  if (name !== undefined && model !== undefined) return { name, model }
  return { name: basename(text).replace(/\.gguf$/i, ''), model: text }
}

function keysOf({ apiKey = [], apiKeysFile }: ServeFlags): ApiKey[] {
  const keys = apiKey.map(unnamed)
  if (apiKeysFile === undefined) return keys
  const inFile = parseKeys(readText(apiKeysFile, '--api-keys-file'))
  // An empty file must not leave the door open.
  if (inFile.length === 0) throw new KvfoldError('cli/bad-usage', `The file ${apiKeysFile} given to --api-keys-file has no key.`)
  return [...keys, ...inFile]
}

/** `name=contract` */
function editsOf(text: string, before: ReadonlyMap<string, ContractChoice> = new Map()): ReadonlyMap<string, ContractChoice> {
  const [, name = '', contract = ''] = /^(.+)=(\w+)$/.exec(text) ?? []
  const known = EDITS.find((each) => each === contract)
  if (known === undefined) throw new InvalidArgumentError(`It must be name=contract, with one of ${EDITS.join(', ')}.`)
  return new Map([...before, [name, known]])
}

function editsOfKeys({ clientEditsOf }: ServeFlags, keys: readonly ApiKey[]): ServeFlags['clientEditsOf'] {
  for (const name of clientEditsOf?.keys() ?? [])
    if (!keys.some((key) => key.name === name))
      throw new KvfoldError(
        'cli/bad-usage',
        `--client-edits-of names ${name}, and no key has that name; --api-keys-file gives keys names.`,
      )
  return clientEditsOf
}

function tlsOf({ tlsCert, tlsKey }: ServeFlags): { cert: string; key: string } | undefined {
  if ((tlsCert === undefined) !== (tlsKey === undefined))
    throw new KvfoldError('cli/bad-usage', '--tls-cert and --tls-key go together.')
  if (tlsCert === undefined || tlsKey === undefined) return undefined
  return { cert: readText(tlsCert, '--tls-cert'), key: readText(tlsKey, '--tls-key') }
}

/** Options of all commands that mean something else here: several models, and the sampling of OpenAI's API. */
function adapt(command: Command): void {
  const optionOf = (name: string) => command.options.find((option) => option.attributeName() === name)!
  const model = optionOf('model')
  model.argParser(collect).description =
    'GGUF file, hub URI or `builtin`, also as name=model; may be given several times, the first is the default'
  // Else the default would be the first of the list.
  command.setOptionValueWithSource('model', undefined, 'default')
  optionOf('temperature').description = 'of requests that do not say; 0 always takes the likeliest token (default: 1)'
}

function collect(text: string, all: readonly string[] | undefined): readonly string[] {
  if (text === '') throw new InvalidArgumentError('It must not be empty.')
  return [...(all ?? []), text]
}

const isLocal = (host: string): boolean => host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'))

const aborted = async (signal: AbortSignal): Promise<void> => {
  if (!signal.aborted) await once(signal, 'abort')
}
