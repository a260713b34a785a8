/** The options of `kvfold serve` in groups, and their conversion to keys, limits, model names and TLS. */
import { basename } from 'node:path'
import { InvalidArgumentError, Option, type Command } from 'commander'
import { type MemToolMode, memToolModes } from '../agents/memtool-asides.js'
import { CONTRACT_CHOICES, type ContractChoice } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import { definedFields } from '../core/json.js'
import type { KvEventsOptions } from '../../fleet/events/kv-events.js'
import { type Acm, acms, type Overflow, overflows, type UnsupportedParts } from '../server/ask.js'
import type { LogLevel } from '../server/http.js'
import { type ApiKey, parseKeys, parseLimit, type RateLimit, unnamed } from '../server/keys.js'
import type { LogFormat } from '../server/request-log.js'
import type { ModelSource } from '../server/threads/models.js'
import { addKeepingOptions, type KeepingFlags } from './store-options.js'
import { addMcpConfig, type McpFlags } from './mcp-tools.js'
import {
  addModelOptions,
  addSamplingOptions,
  collectFilled,
  decimal,
  integer,
  readText,
  toolTextsOption,
  type ModelFlags,
  type SamplingFlags,
} from './options.js'
import { addEngineOptions, type EngineFlags } from './remote-engines.js'

export interface ServeFlags
  extends Omit<ModelFlags, 'model'>, SamplingFlags, KeepingFlags, EngineFlags, Pick<McpFlags, 'mcpConfig'> {
  /** The models to serve, each as `name=model`, or just a model. */
  readonly model?: readonly string[]
  /** Further names of models: each as `name=model`, or another name of the first model. */
  readonly alias?: readonly string[]
  readonly host: string
  readonly port: number
  readonly unixSocket?: string
  readonly apiKey?: readonly string[]
  readonly apiKeysFile?: string
  readonly rateLimit?: RateLimit
  readonly corsOrigin?: readonly string[]
  readonly allowedHosts?: readonly string[]
  readonly bodyLimit: number
  readonly tlsCert?: string
  readonly tlsKey?: string
  readonly logLevel: LogLevel
  readonly logFormat: 'auto' | LogFormat
  readonly slots: number
  readonly maxGap?: number
  readonly queue: number
  readonly timeout?: number
  readonly keepAlive?: number
  /** The folder of models to serve. True: the folder that `kvfold pull` downloads to. */
  readonly models?: string | true
  readonly modelsMax?: number
  readonly acm: Acm
  readonly memtoolMode: MemToolMode
  readonly toolTexts?: string
  readonly overflow: Overflow
  readonly clientEdits: ContractChoice
  readonly clientEditsOf?: ReadonlyMap<string, ContractChoice>
  readonly costlyFolds: 'refuse' | 'allow'
  readonly unsupported: UnsupportedParts
  readonly attention: 'on' | 'off'
  readonly trial: 'on' | 'off'
  readonly grace: number
  readonly maxThreads?: number
  /** The embedding model, as in `model`. True: the served models make the embeddings. */
  readonly embeddings?: string | true
  readonly embeddingTokens?: number
  /** The reranking model, as in `model`. */
  readonly reranking?: string
  readonly kvEvents?: string
  readonly kvEventsReplay?: string
  readonly kvEventsTopic?: string
  readonly kvEventsBufferSteps?: number
}

const LEVELS: readonly LogLevel[] = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']

export function addServeOptions(command: Command): Command {
  const group = (heading: string): Command => command.optionsGroup(`${heading}:`)
  addModelOptions(group('Models and their cache'))
  group('Models and their cache')
    .option(
      '--alias <name>',
      'another name for the first model, or name=model for another one; * for any name; may be given several times',
      collectFilled,
    )
    .option(
      '--models [folder]',
      'serve every GGUF of this folder by its name, loaded when it is asked (default: the folder of `kvfold pull`); --model adds others',
    )
    .option(
      '--models-max <count>',
      'most models in memory at once; one more unloads the one unused for longest (default: as many as fit)',
      integer(1, 1000),
    )
    .option('--keep-alive <seconds>', 'how long an unused model stays loaded (default: for ever)', decimal(0, 1e9))
    .option(
      '--embeddings [model]',
      'answer /v1/embeddings with this model (GGUF file or hub URI, folder of an ONNX model, onnx:NAME; also as name=model). Without a name, the served models answer, with the mean of their token vectors unless their files say otherwise',
    )
    .option(
      '--embedding-tokens <count>',
      'longest text of /v1/embeddings, as far as the model reads so much (default: 2048; more takes memory)',
      integer(1, 2 ** 20),
    )
    .option(
      '--reranking <model>',
      'answer /v1/rerank with this reranker (GGUF file or hub URI, folder of an ONNX model, onnx:NAME; also as name=model)',
    )
    .addOption(
      new Option('--attention <switch>', 'whether a second context may be loaded to show where an answer looked')
        .choices(['on', 'off'])
        .default('on'),
    )
    .addOption(
      new Option(
        '--trial <switch>',
        'whether kvfold first tries a new model file in a process of its own, so that a crash of llama.cpp does not end the server',
      )
        .choices(['on', 'off'])
        .default('on'),
    )
  addSamplingOptions(group('Sampling, for requests that do not set it'))
  group('Network access')
    .option('--host <name>', 'address to listen on; 0.0.0.0 lets other machines in', '127.0.0.1')
    .option('-p, --port <number>', 'port to listen on, 0 for any that is free', integer(0, 65_535), 8080)
    .addOption(new Option('--unix-socket <path>', 'listen on a UNIX socket that only you can open').conflicts(['host', 'port']))
    .option(
      '--allowed-hosts <names>',
      'host names besides localhost that a server without keys accepts, separated by commas, * for all',
      (text: string) =>
        text
          .split(',')
          .map((name) => name.trim())
          .filter((name) => name !== ''),
    )
    .option(
      '--cors-origin <origin>',
      'origin of web pages that may send requests, * for all; may be given several times',
      collectFilled,
    )
    .option('--tls-cert <file>', 'PEM certificate chain; with --tls-key')
    .option('--tls-key <file>', 'PEM key of the certificate')
  group('Keys and limits')
    .option(
      '--api-key <key>',
      'a key that requests must carry; may be given several times. Each key sees its own threads',
      collectFilled,
    )
    .option(
      '--api-keys-file <file>',
      'file of keys, one `name:key` a line, with optional limits after it (requests=60 tokens=100000). The key named admin may read /metrics',
    )
    .option(
      '--rate-limit <limits>',
      'limits a minute for keys that have none in the file: requests=60, tokens=100000, or both with a comma between. Cached tokens do not count',
      limitOf,
    )
    .option('--body-limit <MiB>', 'largest request', integer(1, 1024), 16)
    .option('--slots <count>', 'requests computed at once, for each model', integer(1, 64), 4)
    .option('--queue <count>', 'requests that may wait for a slot; more are answered 503', integer(0, 1_000_000), 128)
    .option(
      '--max-gap <ms>',
      'longest pause between two tokens of an answer while other prompts are computed (default: 50, or up to 250 where shorter ones cost throughput, or up to 1000 for 64 tokens)',
      decimal(0.1, 86_400_000),
    )
    .option('--timeout <seconds>', 'time for an answer, waiting included (default: none)', decimal(0.1, 86_400))
    .option('--grace <seconds>', 'time that running answers have to end when the server stops', decimal(0, 86_400), 30)
  group('Contexts, for requests that do not set it')
    .addOption(new Option('--acm <mode>', 'how conversations are folded').choices(acms).default('off'))
    .addOption(toolTextsOption())
    .addOption(
      new Option('--memtool-mode <mode>', 'with --acm memtool: how tools are searched and removed')
        .choices(memToolModes)
        .default('hybrid'),
    )
    .addOption(
      new Option('--overflow <policy>', 'what happens to a conversation that does not fit').choices(overflows).default('refuse'),
    )
    .addOption(
      new Option('--client-edits <contract>', 'contract for the changes that a client makes to messages that it sent before')
        .choices(CONTRACT_CHOICES)
        .default('exact'),
    )
    .option('--client-edits-of <name=contract>', 'the same for the keys of one name; may be given several times', editsOf)
    .addOption(
      new Option('--costly-folds <policy>', 'what happens to folds and summaries that take at least as many tokens as the text')
        .choices(['refuse', 'allow'])
        .default('refuse'),
    )
    .addOption(
      new Option(
        '--unsupported <policy>',
        'what happens to parts of messages that are not text, such as images; in tool results a placeholder always replaces them',
      )
        .choices(['refuse', 'placeholder'])
        .default('refuse'),
    )
  addMcpConfig(command, 'MCP servers whose tools this server calls for requests with acm memtool')
  addKeepingOptions(group('Storage and logs'))
    .option(
      '--max-threads <count>',
      'most conversations of a tenant (all keys of one name); each further one deletes the one that was unused for longest, and the log says so (default: no limit)',
      integer(1, 1_000_000_000),
    )
    .addOption(
      new Option('--log-level <level>', 'how much kvfold logs to stderr; it never logs the text of conversations')
        .choices(LEVELS)
        .default('info'),
    )
    .addOption(
      new Option('--log-format <format>', 'one line for each request, as text or as JSON; auto: text on a terminal')
        .choices(['auto', 'text', 'json'])
        .default('auto'),
    )
  addEngineOptions(group('Models of another server'))
  group('KV events for routers, as vLLM publishes them')
    .addOption(
      new Option(
        '--kv-events <address>',
        'publish over ZeroMQ which blocks of tokens the cache holds: tcp://*:5557 listens there, tcp://host:5557 connects',
      ).conflicts(['engine', 'engines']),
    )
    .option('--kv-events-replay <address>', 'where subscribers ask for what they missed, such as tcp://*:5558')
    .option('--kv-events-topic <topic>', 'topic of the messages; {model} stands for the name of the model (default: empty)')
    .option('--kv-events-buffer-steps <count>', 'how many batches are kept for replay (default: 10000)', integer(1, 10_000_000))
  adapt(command)
  return command
}

/**
 * Adds aliases to models. Each item of `alias` is `name=model`, or another name of the first model. `folder`: further models that aliases
 * may name.
 * @throws KvfoldError cli/bad-usage
 */
export function withAliases(
  models: readonly ModelSource[],
  alias: readonly string[] = [],
  folder: () => readonly ModelSource[] = () => [],
): readonly ModelSource[] {
  const pairs = alias.map((text) => {
    const [, name = text, model = models[0]?.name] = /^([^=]+)=(.+)$/.exec(text) ?? []
    if ([...models, ...folder()].some((each) => each.name === model)) return { name, model }
    throw new KvfoldError(
      'cli/bad-usage',
      `--alias ${text} names a model that is not served; use the model's name as --model gives it.`,
    )
  })
  return models.map((model) => ({
    ...model,
    aliases: pairs.filter((pair) => pair.model === model.name).map(({ name }) => name),
  }))
}

/** Parses `name=model`. Without a name, the model is called like its file, without the extension. */
export function named(text: string): { readonly name: string; readonly model: string } {
  const [, name, model] = /^([\w.:-]+)=(.+)$/.exec(text) ?? []
  if (name !== undefined && model !== undefined) return { name, model }
  return { name: basename(text).replace(/\.gguf$/i, ''), model: text }
}

export function keysOf({ apiKey = [], apiKeysFile }: ServeFlags): ApiKey[] {
  const keys = apiKey.map(unnamed)
  if (apiKeysFile === undefined) return keys
  const inFile = parseKeys(readText(apiKeysFile, '--api-keys-file'))
  // A file without keys is an error: an empty list of keys would open the server to everyone.
  if (inFile.length === 0) throw new KvfoldError('cli/bad-usage', `The file ${apiKeysFile} given to --api-keys-file has no key.`)
  return [...keys, ...inFile]
}

function limitOf(text: string): RateLimit {
  try {
    return parseLimit(text)
  } catch (error) {
    throw new InvalidArgumentError(error instanceof Error ? error.message : String(error))
  }
}

/** Parses `name=contract` for commander. The option may be repeated. */
function editsOf(text: string, before: ReadonlyMap<string, ContractChoice> = new Map()): ReadonlyMap<string, ContractChoice> {
  const [, name = '', contract = ''] = /^(.+)=(\w+)$/.exec(text) ?? []
  const known = CONTRACT_CHOICES.find((each) => each === contract)
  if (known === undefined) throw new InvalidArgumentError(`It must be name=contract, with one of ${CONTRACT_CHOICES.join(', ')}.`)
  return new Map([...before, [name, known]])
}

export function editsOfKeys({ clientEditsOf }: ServeFlags, keys: readonly ApiKey[]): ServeFlags['clientEditsOf'] {
  for (const name of clientEditsOf?.keys() ?? [])
    if (!keys.some((key) => key.name === name))
      throw new KvfoldError(
        'cli/bad-usage',
        `--client-edits-of names ${name}, but no key has that name; name the key in --api-keys-file.`,
      )
  return clientEditsOf
}

/** Returns the options of the KV event publisher; undefined when it is not wanted. @throws KvfoldError cli/bad-usage */
export function kvEventsOf(flags: ServeFlags): KvEventsOptions | undefined {
  const { kvEvents: endpoint, kvEventsReplay: replay, kvEventsTopic: topic, kvEventsBufferSteps: bufferSteps } = flags
  if (endpoint === undefined) {
    const alone = Object.entries({ replay, topic, 'buffer-steps': bufferSteps }).find(([, value]) => value !== undefined)
    if (alone === undefined) return undefined
    throw new KvfoldError('cli/bad-usage', `--kv-events-${alone[0]} needs --kv-events, which says where events go; add it.`)
  }
  const isOne = flags.models === undefined && (flags.model ?? []).length < 2
  if (!isOne && topic?.includes('{model}') !== true)
    throw new KvfoldError(
      'cli/bad-usage',
      'With several models, the topic of KV events must name the model; give --kv-events-topic with {model} in it, such as kv@pod@{model}.',
    )
  return { endpoint, ...definedFields({ replay, topic, bufferSteps }) }
}

export function tlsOf({ tlsCert, tlsKey }: ServeFlags): { cert: string; key: string } | undefined {
  if ((tlsCert === undefined) !== (tlsKey === undefined))
    throw new KvfoldError('cli/bad-usage', '--tls-cert and --tls-key go together; give both.')
  if (tlsCert === undefined || tlsKey === undefined) return undefined
  return { cert: readText(tlsCert, '--tls-cert'), key: readText(tlsKey, '--tls-key') }
}

/**
 * Changes shared options that mean something else in `serve`: it takes several models, and its sampling defaults are those of OpenAI's API.
 */
function adapt(command: Command): void {
  const optionOf = (name: string) => command.options.find((option) => option.attributeName() === name)!
  const model = optionOf('model')
  model.argParser(collectFilled).description =
    'GGUF file, hub URI or `builtin`, also as name=model; may be given several times, the first is the default'
  // Clear the default value: commander would otherwise make it the first model of the list.
  command.setOptionValueWithSource('model', undefined, 'default')
  optionOf('temperature').description =
    'for requests that do not set it; 0 always takes the likeliest token (default: as the model says, else 0.8)'
}
