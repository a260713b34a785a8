/** Owns `--engine`: a model that another server computes, from its options to the engine. */
import { Option, type Command } from 'commander'
import { KvfoldError } from '../core/errors.js'
import { KEY_VARIABLE, readKey } from '../engine/remote/endpoint.js'
import { RemoteEngine } from '../engine/remote/remote.js'
import { decimal, given, integer } from './options.js'
import type { Terminal } from './terminal.js'

/** What commander hands to a command that called `addEngineOptions`. */
export interface EngineFlags {
  readonly engine?: string
  readonly engineModel?: string
  readonly engineKeyEnv?: string
  readonly engineKeyFile?: string
  readonly engineContext?: number
  readonly engineTimeout: number
  /** True: at the price of a cached token that is usual. */
  readonly deferEdits?: number | true
}

/** What a remote engine is asked for, whoever asks. */
export interface EngineSource {
  readonly name: string
  readonly slots: number
  readonly load: () => Promise<RemoteEngine>
}

export function addEngineOptions(command: Command): Command {
  return command
    .addOption(
      new Option(
        '--engine <url>',
        'serve the model of another OpenAI-compatible server: vLLM, SGLang, llama-server, kvfold',
      ).conflicts('model'),
    )
    .option('--engine-model <name>', 'which of its models (default: the first that it lists)')
    .option('--engine-key-env <variable>', `environment variable that holds its key (default: ${KEY_VARIABLE}, if set)`)
    .option('--engine-key-file <file>', 'file whose first line is its key')
    .option('--engine-context <tokens>', 'tokens that a conversation may have there, if it does not say', integer(1, 1 << 30))
    .option('--engine-timeout <seconds>', 'how long it may be silent', decimal(0.1, 86_400), 600)
    .option(
      '--defer-edits [price]',
      'keep folds back until they pay for the cache that they cost there; price: a cached token as a share of a computed one (0.1)',
      decimal(0, 1),
    )
}

/**
 * The source of the model behind `--engine`, under the name that it has there; null without the option. What is wrong with the endpoint is
 * said now, not to the first client.
 * @throws KvfoldError cli/bad-usage for options that belong to it without it; remote/*, model/not-found
 */
export async function engineSource(
  flags: EngineFlags,
  slots: number,
  notes: Terminal,
  signal: AbortSignal,
): Promise<EngineSource | null> {
  const { engine: url, engineModel, engineKeyEnv, engineKeyFile, engineContext, engineTimeout, deferEdits } = flags
  if (url === undefined) {
    const alone = Object.entries({ engineModel, engineKeyEnv, engineKeyFile, engineContext, deferEdits }).find(
      ([, value]) => value !== undefined,
    )
    if (alone === undefined) return null
    const option = alone[0].replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
    throw new KvfoldError('cli/bad-usage', `--${option} belongs to --engine, which names another server; add it.`)
  }
  const key = readKey(given({ variable: engineKeyEnv, file: engineKeyFile }))
  const connect = () =>
    RemoteEngine.connect({
      url,
      key,
      signal,
      patience: { idle: engineTimeout * 1000 },
      ...given({
        model: engineModel,
        context: engineContext,
        deferEdits: deferEdits === undefined ? undefined : deferEdits === true ? {} : { cachedPrice: deferEdits },
      }),
    })
  let first: RemoteEngine | null = await connect()
  for (const note of first.notes) notes.prose(note, notes.colours.dim)
  const load = () => {
    const engine = first
    first = null
    return engine === null ? connect() : Promise.resolve(engine)
  }
  return { name: first.info.model, slots, load }
}
