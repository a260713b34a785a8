/** Owns the options that attention studies share, and the engine they run on: flash attention off from the start. */
import { InvalidArgumentError, Option, type Command } from 'commander'
import { CONTRACTS, type Contract } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import { LlamaEngine } from '../../engine/llama.js'
import { addModelOptions, integers, type ModelFlags } from '../options.js'
import { modelPath, nativeLibrary, optionsOf } from '../runtime.js'
import type { Shell } from '../shell.js'

export interface StudyFlags extends Omit<ModelFlags, 'contract'> {
  readonly contract: readonly Contract[]
  readonly layers?: readonly number[]
  readonly out?: string
  readonly json?: true
}

/** The options of `addModelOptions`, but `--contract` takes a list; and what every study has. */
export function addStudyOptions(command: Command): Command {
  addModelOptions(command)
  const contract = command.options.find(({ long }) => long === '--contract')
  if (contract !== undefined) {
    contract.argParser(contracts)
    delete contract.argChoices
    contract.description = `how folds are carried out, one or several of ${CONTRACTS.join(', ')}`
    contract.default(CONTRACTS, CONTRACTS.join(','))
    command.setOptionValueWithSource('contract', CONTRACTS, 'default')
  }
  return command
    .addOption(new Option('--layers <list>', 'layers to look at, from 0 (default: all)').argParser(integers(0, 10_000)))
    .option('--out <folder>', 'where results go; a run that was cut off goes on there')
    .option('--json', 'a line of JSON at the end: what was found, and where the report is')
}

function contracts(text: string): Contract[] {
  const names = [...new Set(text.split(',').map((part) => part.trim()))]
  const wrong = names.find((name) => !(CONTRACTS as readonly string[]).includes(name))
  if (wrong !== undefined) throw new InvalidArgumentError(`It must be one or several of ${CONTRACTS.join(', ')}, with commas.`)
  return names as Contract[]
}

/** Loads the model for looking. The caller disposes the engine. @throws KvfoldError cli/bad-usage for `--flash-attention on`, and as LlamaEngine.load */
export async function loadForLooking(flags: StudyFlags, { notes, interrupt }: Shell): Promise<LlamaEngine> {
  if (flags.flashAttention === 'on')
    throw new KvfoldError(
      'cli/bad-usage',
      'Flash attention never computes the weights that this command looks at; leave --flash-attention away.',
    )
  const settings = optionsOf({ ...flags, contract: 'exact' })
  const path = await modelPath(flags.model, notes, interrupt.signal)
  const native = await nativeLibrary(flags.gpu)
  return LlamaEngine.load(native, path, { ...settings, flashAttention: 'off', attention: true, slots: 1 })
}
