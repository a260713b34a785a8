/**
 * `--engine` and `--engines`: models that run on other servers. Reads the options and the file of engines, and passes changes of the file
 * to the engine.
 */
import { definedFields } from '../core/json.js'
import { unwatchFile, watchFile } from 'node:fs'
import { type Command, Option } from 'commander'
import Type from 'typebox'
import { KvfoldError } from '../core/errors.js'
import { allInWords, checked, strict, Text } from '../core/schema.js'
import type { FlavourName } from '../engine/elsewhere.js'
import { KEY_VARIABLE, readKey } from '../../fleet/engines/endpoint.js'
import type { EngineEntry } from '../../fleet/engines/engine-pool.js'
import { RemoteEngine, type RemoteEngineOptions } from '../../fleet/engines/remote.js'
import { collectFilled, decimal, integer, readText } from './options.js'
import type { Terminal } from './terminal.js'

export interface EngineFlags {
  readonly engine?: readonly string[]
  readonly engines?: string
  readonly engineModel?: string
  readonly engineFlavour?: FlavourName
  readonly engineKeyEnv?: string
  readonly engineKeyFile?: string
  readonly engineContext?: number
  readonly engineTimeout: number
  readonly engineSessionHeader?: string
  /**
   * Set: folds wait until they pay. A number: the price of a cached token, as a share of a computed one. True: that price is estimated from
   * the times that the engine reports.
   */
  readonly deferEdits?: number | true
}

/** A model on another server: its name, its slots, and a function that connects to it. */
export interface EngineSource {
  readonly name: string
  readonly slots: number
  readonly load: () => Promise<RemoteEngine>
}

/** Whether the served model runs on another server. */
export const isRemote = ({ engine, engines }: Pick<EngineFlags, 'engine' | 'engines'>): boolean =>
  engine !== undefined || engines !== undefined

const FLAVOURS = ['kvfold', 'llama-server', 'vllm', 'sglang', 'akv', 'openai'] as const

export function addEngineOptions(command: Command): Command {
  return command
    .addOption(
      new Option(
        '--engine <url>',
        'serve the model of another OpenAI-compatible server: vLLM, SGLang, llama-server, kvfold. May be given several times; a conversation then goes to the engine that has its beginning cached',
      )
        .conflicts(['model', 'lora'])
        .argParser(collectFilled),
    )
    .addOption(
      new Option(
        '--engines <file>',
        'JSON file that names the engines: { "engines": [{ "url", "weight", "keyEnv", "flavour", "model", "drain" }] }. kvfold reads it again when it changes and on SIGHUP',
      ).conflicts(['model', 'engine', 'lora']),
    )
    .option('--engine-model <name>', 'which model of that server (default: the first that it lists)')
    .addOption(
      new Option(
        '--engine-flavour <name>',
        "kind of that server (default: as it says itself); akv: SGLang with AKV's fields",
      ).choices(FLAVOURS),
    )
    .option('--engine-key-env <variable>', `environment variable with the key for that server (default: ${KEY_VARIABLE}, if set)`)
    .option('--engine-key-file <file>', 'file whose first line is the key for that server')
    .option('--engine-context <tokens>', 'context of that server in tokens, if it does not report one', integer(1, 1 << 30))
    .option('--engine-timeout <seconds>', 'longest time that the server may send nothing', decimal(0.1, 86_400), 600)
    .option(
      '--engine-session-header <name>',
      'header that names the conversation to a router in between, as a stable hash: X-SMG-Routing-Key, X-Session-ID, ...',
    )
    .option(
      '--defer-edits [price]',
      'delay folds until they pay for the cached tokens that the engine loses by them. price: the cost of a cached token as a share of a computed one (default: from the times that the engine reports, else 0.1)',
      decimal(0, 1),
    )
}

/**
 * Connects to the engines of `--engine` or `--engines`, so that errors of the endpoints are reported now and not to the first client. The
 * source has the model name that the engines report. Returns null when neither option is given. The file is watched until `signal` is
 * aborted.
 * @throws KvfoldError cli/bad-usage for options that need `--engine`, and for an invalid file; remote/*, model/not-found
 */
export async function engineSource(
  flags: EngineFlags,
  slots: number,
  notes: Terminal,
  signal: AbortSignal,
  extra: Pick<RemoteEngineOptions, 'tokens'> = {},
): Promise<EngineSource | null> {
  const { engine: urls = [], engines: file, engineModel, engineKeyEnv, engineKeyFile, engineContext, engineTimeout } = flags
  const { engineSessionHeader, deferEdits, engineFlavour } = flags
  if (!isRemote(flags)) {
    const own = { engineModel, engineFlavour, engineKeyEnv, engineKeyFile, engineContext, engineSessionHeader, deferEdits }
    const alone = Object.entries(own).find(([, value]) => value !== undefined)
    if (alone === undefined) return null
    const option = alone[0].replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
    throw new KvfoldError('cli/bad-usage', `--${option} needs --engine, which names another server; add it.`)
  }
  const key = readKey(definedFields({ variable: engineKeyEnv, file: engineKeyFile }))
  const list = file === undefined ? null : new EnginesFile(file, key, engineFlavour)
  const named = urls.map((url): EngineEntry => ({ url, key, ...definedFields({ flavour: engineFlavour }) }))
  const connect = async () => {
    const entries = list?.entries ?? named
    const engine = await RemoteEngine.connect({
      url: entries[0]!.url,
      key,
      signal,
      ...extra,
      patience: { idle: engineTimeout * 1000 },
      ...(list === null && entries.length === 1 ? {} : { engines: entries }),
      ...definedFields({
        model: engineModel,
        flavour: engineFlavour,
        context: engineContext,
        sessionHeader: engineSessionHeader,
        deferEdits: deferEdits === undefined ? undefined : deferEdits === true ? {} : { cachedPrice: deferEdits },
      }),
    })
    list?.tell(engine)
    return engine
  }
  let first: RemoteEngine | null = await connect()
  for (const note of first.notes) notes.prose(note, notes.colours.dim)
  for (const { name, state, problem } of first.engines)
    if (state !== 'up') notes.prose(`${name} is ${state}${problem === null ? '.' : `: ${problem}`}`, notes.colours.yellow)
  list?.follow(signal, (line) => {
    notes.print(line)
  })
  const load = () => {
    const engine = first
    first = null
    return engine === null ? connect() : Promise.resolve(engine)
  }
  return { name: first.info.model, slots, load }
}

// The file of `--engines`. It may change while the server runs.

const File = strict({
  engines: Type.Array(
    strict({
      url: Text,
      weight: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 1e6 })),
      keyEnv: Type.Optional(Text),
      flavour: Type.Optional(Type.Enum([...FLAVOURS])),
      model: Type.Optional(Text),
      drain: Type.Optional(Type.Boolean()),
    }),
    { minItems: 1 },
  ),
})

/** How many milliseconds lie between two checks of the file. */
const LOOK = 1000

/** A file of engines: its current content. Changes are passed to the engine. */
export class EnginesFile {
  entries: readonly EngineEntry[]
  #engine: RemoteEngine | null = null
  #text: string
  #last: Promise<unknown> = Promise.resolve()

  /**
   * @param key the API key for engines of which the file names none
   * @param flavour the kind of server for engines of which the file names none. Default: found out by asking them
   * @throws KvfoldError cli/bad-usage; remote/bad-endpoint for a missing key
   */
  constructor(
    private readonly path: string,
    private readonly key: string | null,
    private readonly flavour?: FlavourName,
  ) {
    this.#text = this.#read()
    this.entries = this.#parsed(this.#text)
  }

  /** Sets the engine that later changes are passed to. */
  tell(engine: RemoteEngine): void {
    this.#engine = engine
  }

  /**
   * Reads the file again whenever it changes, and on SIGHUP, until `signal` is aborted. Errors in the file are reported, and the last valid
   * content stays in use.
   */
  follow(signal: AbortSignal, told: (line: string) => void): void {
    const again = () =>
      void this.reread().then((line) => {
        if (line !== null) told(line)
      })
    watchFile(this.path, { interval: LOOK, persistent: false }, again)
    process.on('SIGHUP', again)
    signal.addEventListener(
      'abort',
      () => {
        unwatchFile(this.path, again)
        process.off('SIGHUP', again)
      },
      { once: true },
    )
  }

  /** Reads the file again, once earlier calls are done. Returns a line about the result; null when nothing changed. */
  reread(): Promise<string | null> {
    const line = this.#last.then(() => this.#reread())
    this.#last = line
    return line
  }

  async #reread(): Promise<string | null> {
    try {
      const text = this.#read()
      if (text === this.#text && this.#engine?.enginesProblem === null) return null
      const entries = this.#parsed(text)
      await this.#engine?.setEngines(entries)
      this.#text = text
      this.entries = entries
      const states = this.#engine?.engines.map(({ name, state }) => `${name} ${state}`) ?? []
      return `engines: ${this.path} was read again: ${states.join(', ')}`
    } catch (error) {
      const problem = error instanceof Error ? error.message : String(error)
      if (this.#engine !== null) this.#engine.enginesProblem = problem
      return `engines: ${problem} kvfold keeps the last valid engines.`
    }
  }

  #read(): string {
    return readText(this.path, '--engines')
  }

  #parsed(text: string): readonly EngineEntry[] {
    let json: unknown
    try {
      json = JSON.parse(text)
    } catch (error) {
      throw this.#wrong(`it is not JSON (${error instanceof Error ? error.message : String(error)})`, error)
    }
    const file = checked(File, json)
    if (!file.ok) throw this.#wrong(allInWords(file.faults, 'its content'))
    return file.value.engines.map(({ keyEnv, ...entry }) => ({
      ...definedFields({ flavour: this.flavour }),
      ...entry,
      key: keyEnv === undefined ? this.key : readKey({ variable: keyEnv }),
    }))
  }

  #wrong(what: string, cause?: unknown): KvfoldError {
    return new KvfoldError('cli/bad-usage', `The file ${this.path} given to --engines: ${what}.`, { cause })
  }
}
