/** `kvfold bundle`: everything kvfold needs to run, in one folder, for machines without network, compiler or Node. */
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { InvalidArgumentError, Option, type Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { BUILTIN } from '../builtin.js'
import { BUNDLE_GPUS, bundleContents, type BundleGpu } from '../bundle/contents.js'
import { baseOf } from '../bundle/entries.js'
import { writeArchive, writeFolder } from '../bundle/write.js'
import { bytes, plural } from '../../figures/numbers.js'
import { modelPath } from '../runtime.js'
import type { Shell } from '../shell.js'

interface BundleFlags {
  readonly gpu: BundleGpu
  readonly model?: readonly string[]
  readonly archive?: true
  /** Bytes. */
  readonly split?: number
}

const MIB = 2 ** 20
/** Below 2 GiB, which is as much as many upload forms and old file systems take. */
const PART_BYTES = 1900 * MIB

export function addBundle(program: Command, shell: Shell): void {
  program
    .command('bundle')
    .description('write a folder or archive that runs on any Linux machine of this kind, with no network, compiler or Node')
    .argument('<folder>', 'folder to make')
    .addOption(
      new Option('--gpu <backend>', 'whose libraries come along, besides those of the CPU').choices(BUNDLE_GPUS).default('cpu'),
    )
    .option(
      '-m, --model <model>',
      'GGUF file or hub URI to put inside, besides the built-in model; may be given several times',
      collect,
    )
    .option('--archive', 'a tar.gz in parts, with a script that checks, joins and unpacks them')
    .option('--split <size>', 'largest part of an archive, e.g. 700M or 4G (default: 1900M)', size)
    .action((folder: string, flags: BundleFlags) => bundle(folder, flags, shell))
}

async function bundle(
  folder: string,
  { gpu, model = [], archive, split }: BundleFlags,
  { out, notes, interrupt }: Shell,
): Promise<void> {
  if (split !== undefined && archive === undefined)
    throw new KvfoldError('cli/bad-usage', '--split means nothing without --archive.')
  const models: string[] = []
  for (const name of model) if (name !== BUILTIN) models.push(resolve(await modelPath(name, notes, interrupt.signal)))
  const { name, entries, requirements } = await bundleContents({ root: packageRoot(), gpu, models })
  const at = resolve(folder)
  notes.print(`Writing ${name} (${plural(entries.length, 'file')}) to ${at} ...`)
  const written =
    archive === undefined
      ? await writeFolder(at, entries, interrupt.signal)
      : await writeArchive(at, name, entries, split ?? PART_BYTES, interrupt.signal)
  const needs = [baseOf(requirements), ...requirements.missing.keys()].join(', ')
  out.print(`${at}: ${plural(written.files, 'file')}, ${bytes(written.bytes)}; the machine it runs on must have ${needs}`)
}

/** A commander parser of `700M` or `4G`. */
function size(text: string): number {
  const [, digits, unit] = /^(\d{1,6})([MG])$/.exec(text) ?? []
  const value = Number(digits) * MIB * (unit === 'G' ? 1024 : 1)
  if (digits === undefined || value === 0) throw new InvalidArgumentError('It must be a size such as 700M or 4G.')
  return value
}

function collect(text: string, all: readonly string[] | undefined): readonly string[] {
  return [...(all ?? []), text]
}

/** The folder that holds package.json, from src/cli/commands and dist/cli/commands alike. */
const packageRoot = (): string => fileURLToPath(new URL('../../../', import.meta.url)).replace(/\/$/, '')
