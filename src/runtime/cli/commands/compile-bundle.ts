/**
 * `kvfold compile` builds llama.cpp for this processor with this machine's compiler. `kvfold bundle` puts all that kvfold needs into one
 * folder, for machines without network, compiler or Node.
 */
import { rm } from 'node:fs/promises'
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { InvalidArgumentError, Option, type Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { definedFields } from '../../core/json.js'
import { BUILTIN } from '../builtin.js'
import { BUNDLE_GPUS, bundleContents, type BundleGpu } from '../bundle/contents.js'
import { baseOf } from '../bundle/entries.js'
import { writeArchive, writeFolder } from '../bundle/write.js'
import { bytes, percent, plural } from '../../figures/numbers.js'
import { compiledPath, compileLibrary, LIBRARY_KINDS, type LibraryKind } from '../../native/compiled-library.js'
import { modelPath, nativeLibrary } from '../runtime.js'
import { collect } from '../options.js'
import { placeOf } from '../out-option.js'
import type { Shell } from '../shell.js'
import { printable } from '../terminal.js'

export function addCompile(program: Command, shell: Shell): void {
  program
    .command('compile')
    .description(
      "compile one of llama.cpp's libraries for this machine: for the processor in about a minute, for a GPU in up to an hour. That needs " +
        'git, cmake, a C++ compiler and the tools of the GPU, and downloads nothing. All commands then use the library',
    )
    .addOption(new Option('--gpu <backend>', 'what it computes on').choices(LIBRARY_KINDS).default('cpu'))
    .option('--cuda-architectures <list>', 'generations of NVIDIA cards, such as 90 or 80;90 (default: those in this machine)')
    .option('--remove', 'delete it, and use the shipped library again')
    .action((flags: CompileFlags) => compile(flags, shell))
}

interface CompileFlags {
  readonly gpu: LibraryKind
  readonly cudaArchitectures?: string
  readonly remove?: true
}

async function compile({ gpu: kind, cudaArchitectures, remove }: CompileFlags, { out, notes, interrupt }: Shell): Promise<void> {
  if (cudaArchitectures !== undefined && kind !== 'cuda')
    throw new KvfoldError('cli/bad-usage', '--cuda-architectures needs --gpu cuda; add it, or leave the option out.')
  const path = kind === 'cpu' ? await cpuPath() : compiledPath(kind)
  if (remove === true) {
    await rm(path, { force: true })
    out.print(`kvfold now uses the shipped library for ${kind}.`)
    return
  }
  await compileLibrary({
    kind,
    path,
    ...definedFields({ cudaArchitectures }),
    signal: interrupt.signal,
    onProgress: (share) => {
      notes.frame([`Compiling, ${percent(share, 0)}`])
    },
  }).finally(() => {
    notes.close()
  })
  out.print(printable(`kvfold now uses ${path} where it computes on ${kind}.`))
}

/** @internal Returns the path of the compiled CPU library. Its name contains the kind of processor, which only the loaded shipped library knows. */
export async function cpuPath(): Promise<string> {
  // An earlier compiled library may fail to load. It is replaced or removed here all the same.
  process.env['KVFOLD_CPU_LIBRARY'] = 'shipped'
  const { cpu } = (await nativeLibrary('cpu')).backend.libraries
  if (cpu !== undefined) return cpu.compiled
  throw new KvfoldError(
    'native/unsupported',
    'On this system the CPU library is not a separate file, so there is nothing to compile.',
  )
}

interface BundleFlags {
  readonly out?: string
  readonly gpu: BundleGpu
  readonly model?: readonly string[]
  readonly archive?: true
  /** The size limit of one part of the archive, in bytes. */
  readonly split?: number
}

const MIB = 2 ** 20
/** The default size of a part: below 2 GiB, the limit of many upload forms and old file systems. */
const PART_BYTES = 1900 * MIB

export function addBundle(program: Command, shell: Shell): void {
  program
    .command('bundle')
    .description(
      'write a folder or archive that runs on any Linux machine of this kind, with no network, compiler or Node; making it needs binutils',
    )
    .argument('[folder]', 'folder to make; or give it by --out')
    .option('-o, --out <folder>', 'folder to make')
    .addOption(new Option('--gpu <backend>', 'also include the libraries of this backend').choices(BUNDLE_GPUS).default('cpu'))
    .option(
      '-m, --model <model>',
      'GGUF file or hub URI to put inside, besides the built-in model; may be given several times',
      collect,
    )
    .option('--archive', 'a tar.gz in parts, with a script that checks, joins and unpacks them')
    .option('--split <size>', 'largest part of an archive, e.g. 700M or 4G (default: 1900M)', size)
    .action((folder: string | undefined, flags: BundleFlags) => bundle(placeOf(folder, flags.out, 'folder'), flags, shell))
}

async function bundle(
  folder: string,
  { gpu, model = [], archive, split }: BundleFlags,
  { out, notes, interrupt }: Shell,
): Promise<void> {
  if (split !== undefined && archive === undefined)
    throw new KvfoldError('cli/bad-usage', '--split needs --archive; add it, or leave --split out.')
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

/** Parses a size such as `700M` or `4G`, for commander. Returns bytes. */
function size(text: string): number {
  const [, digits, unit] = /^(\d{1,6})([MG])$/.exec(text) ?? []
  const value = Number(digits) * MIB * (unit === 'G' ? 1024 : 1)
  if (digits === undefined || value === 0) throw new InvalidArgumentError('It must be a size such as 700M or 4G.')
  return value
}

/** Returns the folder that contains package.json. The relative path is the same from `src` and from `dist`. */
const packageRoot = (): string => fileURLToPath(new URL('../../../../', import.meta.url)).replace(/\/$/, '')
