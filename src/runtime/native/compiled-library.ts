/**
 * Compiles a library of llama.cpp with this machine's own compiler, to be used instead of the library that node-llama-cpp ships. Both have
 * the same source. For the processor, a newer compiler may make far quicker code. For a GPU, the shipped library may lack code for this
 * card or its driver.
 */
import { existsSync } from 'node:fs'
import { copyFile, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { writeWhole } from '../core/whole-file.js'
import { builtAddon } from './built-addon.js'
import { COMPILER_OPTIONS, configure, extractSource, make, need, needTools } from './llama-build.js'

/** The hardware on which a library computes. */
export type LibraryKind = 'cpu' | 'cuda' | 'vulkan'
export const LIBRARY_KINDS: readonly LibraryKind[] = ['cpu', 'cuda', 'vulkan']

interface Kind {
  /** ggml's name of the backend. */
  readonly backend: string
  /**
   * Matches the file name of the library. For the processor the name contains a kind of processor, e.g. `libggml-cpu-zen4.so`. A library
   * for all kinds of processors has another name, and kvfold cannot compile it.
   */
  readonly file: RegExp
  readonly options: Readonly<Record<string, string>>
  /** A compiler that the library needs besides the C++ compiler: one of these programs must run. */
  readonly needs?: { readonly programs: readonly string[]; readonly name: string }
  /** The environment variable with the path of another library to use, or with `shipped`. */
  readonly variable: string
}

const KINDS: Readonly<Record<LibraryKind, Kind>> = {
  cpu: {
    backend: 'CPU',
    file: /^libggml-cpu-\w+\.so$/,
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

/** ggml's name of the backend that a library of this kind has. */
export const backendOf = (kind: LibraryKind): string => KINDS[kind].backend

/** The options with which node-llama-cpp compiles its own libraries, the compiler aside. */
const OPTIONS = {
  ...COMPILER_OPTIONS,
  CMAKE_BUILD_TYPE: 'Release',
  // This library is loaded beside those of node-llama-cpp, so its name must have no version, as theirs have none.
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

/** Returns the path for the library that `kvfold compile` builds, whether it exists or not. @param file the name of the shipped library */
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
 * Compiles the library and downloads nothing. It takes a minute of one core for the processor, and an hour for CUDA. The file at `path` is
 * never incomplete.
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

/**
 * Returns CMake's options for CUDA. CMake finds the toolkit only by a compiler in PATH. So an `nvcc` with an absolute path is named to it.
 */
function cudaOptions(nvcc: string, architectures: string): Readonly<Record<string, string>> {
  const toolkit = isAbsolute(nvcc) ? { CMAKE_CUDA_COMPILER: nvcc, CUDAToolkit_ROOT: dirname(dirname(nvcc)) } : {}
  return { ...toolkit, CMAKE_CUDA_ARCHITECTURES: architectures }
}

/**
 * Returns the library to use instead of the shipped one; null to use the shipped one. `KVFOLD_CPU_LIBRARY` and the like may be `shipped`,
 * or the path of another library.
 * @throws KvfoldError native/library-mismatch when that path is no file
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
