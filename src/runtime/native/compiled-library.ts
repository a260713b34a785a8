/**
 * Compiles one of llama.cpp's backend libraries with this machine's own compiler, to use instead of the one that node-llama-cpp ships, from
 * the same source. For the processor, a newer compiler may make far faster code. For a GPU, the shipped library may lack code for this card
 * or its driver.
 */
import { existsSync } from 'node:fs'
import { copyFile, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { writeWhole } from '../core/whole-file.js'
import { builtAddon } from './built-addon.js'
import { COMPILER_OPTIONS, configure, extractSource, make, need, needTools } from './llama-build.js'

/** The kind of hardware on which a library computes. */
export type LibraryKind = 'cpu' | 'cuda' | 'vulkan'
export const LIBRARY_KINDS: readonly LibraryKind[] = ['cpu', 'cuda', 'vulkan']

interface Kind {
  /** ggml's name of the backend. */
  readonly backend: string
  /**
   * Matches the file name of the library. For `cpu` the name contains a kind of processor, e.g. `libggml-cpu-zen4.so`. A CPU library for
   * all processors has another name, and kvfold cannot replace it.
   */
  readonly file: RegExp
  readonly options: Readonly<Record<string, string>>
  /** A compiler that the library needs besides the C++ compiler: the first of these programs that runs. */
  readonly needs?: { readonly programs: readonly string[]; readonly name: string }
  /** The environment variable with the path of another library to use, or with `shipped`. */
  readonly variable: string
}

const KINDS: Readonly<Record<LibraryKind, Kind>> = {
  cpu: {
    backend: 'CPU',
    file: /^libggml-cpu-[\w.]+\.so$/,
    options: { GGML_CPU_ALL_VARIANTS: 'ON' },
    variable: 'KVFOLD_CPU_LIBRARY',
  },
  cuda: {
    backend: 'CUDA',
    file: /^libggml-cuda\.so$/,
    options: { GGML_CUDA: 'ON' },
    needs: { programs: [process.env['CUDACXX'] ?? 'nvcc', '/usr/local/cuda/bin/nvcc'], name: "nvcc, of NVIDIA's CUDA toolkit," },
    variable: 'KVFOLD_CUDA_LIBRARY',
  },
  vulkan: {
    backend: 'Vulkan',
    file: /^libggml-vulkan\.so$/,
    options: { GGML_VULKAN: 'ON' },
    needs: { programs: ['glslc'], name: 'glslc, of the Vulkan SDK,' },
    variable: 'KVFOLD_VULKAN_LIBRARY',
  },
}

/** Returns ggml's name of the backend, e.g. `CUDA`. */
export const backendOf = (kind: LibraryKind): string => KINDS[kind].backend

/** The CMake options with which node-llama-cpp compiles its own libraries, and COMPILER_OPTIONS. */
const OPTIONS = {
  ...COMPILER_OPTIONS,
  CMAKE_BUILD_TYPE: 'Release',
  // The library is loaded beside node-llama-cpp's, whose names have no version. So this one must have none either.
  CMAKE_PLATFORM_NO_VERSIONED_SONAME: 'ON',
  BUILD_SHARED_LIBS: 'ON',
  GGML_BACKEND_DL: 'ON',
  GGML_NATIVE: 'OFF',
  GGML_OPENMP: 'OFF',
  LLAMA_BUILD_COMMON: 'OFF',
  LLAMA_BUILD_TOOLS: 'OFF',
  LLAMA_BUILD_TESTS: 'OFF',
  LLAMA_BUILD_EXAMPLES: 'OFF',
  LLAMA_BUILD_SERVER: 'OFF',
  LLAMA_BUILD_UI: 'OFF',
  LLAMA_OPENSSL: 'OFF',
}

/**
 * Returns the path at which `kvfold compile` puts its library, whether it exists or not.
 * @param file the file name of the shipped library
 */
export function compiledPath(kind: LibraryKind, file = `libggml-${kind}.so`): string {
  const { root, release } = builtAddon()
  return join(root, 'build', kind, release, file)
}

/** Returns the library of this kind among the libraries in a process; null if it has no file of its own. */
export const shippedLibrary = (kind: LibraryKind, libraries: readonly string[]): string | null =>
  libraries.find((path) => KINDS[kind].file.test(basename(path))) ?? null

export interface Compiling {
  readonly kind: LibraryKind
  /** The path of the compiled library (`compiledPath`). The file's name says which target to build. */
  readonly path: string
  /**
   * The generations of NVIDIA cards to build for, as CMake's CMAKE_CUDA_ARCHITECTURES takes them: `90`, `80;90`. Default: the cards of this
   * machine.
   */
  readonly cudaArchitectures?: string
  readonly signal?: AbortSignal
  /** Receives the share that is done, 0..1. */
  readonly onProgress?: (share: number) => void
}

/**
 * Compiles the library and downloads nothing. That takes a minute of one core for the processor, and an hour for CUDA. The file at `path`
 * appears only when it is complete.
 * @throws KvfoldError native/build-failed: git, cmake or a compiler is missing, or the compiler's last words; engine/cancelled on `signal`.
 */
export async function compileLibrary({ kind, path, cudaArchitectures, signal, onProgress }: Compiling): Promise<void> {
  const { options, needs } = KINDS[kind]
  needTools()
  const compiler = needs === undefined ? null : need(needs.programs, needs.name, `the library for ${kind} is built with it`)
  const folder = await mkdtemp(join(tmpdir(), `kvfold-${kind}-`))
  try {
    const [source, build] = [join(folder, 'source'), join(folder, 'build')]
    const watched = { log: join(folder, 'log'), ...(signal === undefined ? {} : { signal }) }
    await extractSource(source, watched)
    const cuda = kind === 'cuda' ? cudaOptions(compiler!, cudaArchitectures ?? 'native') : {}
    await configure(source, build, { ...OPTIONS, ...options, ...cuda }, watched)
    const [, target = ''] = /^lib(.*)\.so$/.exec(basename(path)) ?? []
    await make(build, target, { ...watched, ...(onProgress === undefined ? {} : { onProgress }) })
    await mkdir(dirname(path), { recursive: true })
    await writeWhole(path, (temporary) => copyFile(join(build, 'bin', basename(path)), temporary))
  } catch (error) {
    if (error instanceof KvfoldError) throw error
    throw new KvfoldError(
      'native/build-failed',
      `The library could not be stored in ${dirname(path)} (${(error as Error).message}); check permissions and free space.`,
      {
        cause: error,
      },
    )
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** Returns CMake's options for CUDA. CMake finds only compilers in PATH, so an `nvcc` with an absolute path must be named. */
function cudaOptions(nvcc: string, architectures: string): Readonly<Record<string, string>> {
  const toolkit = isAbsolute(nvcc) ? { CMAKE_CUDA_COMPILER: nvcc, CUDAToolkit_ROOT: dirname(dirname(nvcc)) } : {}
  return { ...toolkit, CMAKE_CUDA_ARCHITECTURES: architectures }
}

/**
 * Returns the library to use instead of the shipped one: the one that `KVFOLD_CPU_LIBRARY` or the like names, or else the compiled one if
 * it exists. Null: the shipped one is used, because the variable says `shipped` or there is no other.
 * @throws KvfoldError native/library-mismatch when there is no file at the path in the variable
 */
export function wantedLibrary(
  kind: LibraryKind,
  compiled: string | null,
  environment: NodeJS.ProcessEnv = process.env,
): string | null {
  const { variable } = KINDS[kind]
  const given = environment[variable] ?? ''
  if (given === 'shipped') return null
  if (given === '') return compiled !== null && existsSync(compiled) ? compiled : null
  if (existsSync(given)) return given
  throw new KvfoldError('native/library-mismatch', `There is no file ${given} (${variable}); give a path, or \`shipped\`.`)
}
