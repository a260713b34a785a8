/** Builds parts of llama.cpp from its source. The installed node-llama-cpp package contains the source as a git bundle. */
import { spawn, spawnSync } from 'node:child_process'
import { createWriteStream, existsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { basename, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { nodeLlamaCpp } from './built-addon.js'

/**
 * Compiler flags that avoid a bug of GCC 12. It assumes that `ldtilecfg` reads only 8 bytes, and removes the stores of all other bytes.
 * Then the process dies at the first quantised product on a processor with AMX (ggml-cpu/amx/mmq.cpp).
 */
export const COMPILER_OPTIONS = { CMAKE_CXX_FLAGS: '-fno-tree-dse -fno-dse' } as const

export interface WatchedBuild {
  /** The file to which all output is appended. */
  readonly log: string
  readonly signal?: AbortSignal
}

/** Checks that the programs for a build are installed. @throws KvfoldError native/build-failed: git, cmake or a C++ compiler is missing */
export function needTools(): void {
  need(['git'], 'git', 'the source is a git bundle')
  need(['cmake'], 'cmake', 'the source is built with it')
  need([process.env['CXX'] ?? 'c++', 'g++', 'clang++'], 'a C++ compiler', 'the source is built with it')
}

/**
 * Returns the first of these programs that runs.
 * @throws KvfoldError native/build-failed, naming the missing program (`name`) and the reason why it is needed (`why`)
 */
export function need(programs: readonly string[], name: string, why: string): string {
  const found = programs.find((program) => spawnSync(program, ['--version'], { stdio: 'ignore' }).status === 0)
  if (found !== undefined) return found
  throw new KvfoldError('native/build-failed', `${name} was not found, and ${why}; install it and try again.`)
}

/** Extracts llama.cpp's source as files into `folder`. */
export function extractSource(folder: string, watched: WatchedBuild): Promise<void> {
  const bundle = join(nodeLlamaCpp() ?? '', 'llama', 'gitRelease.bundle')
  if (!existsSync(bundle))
    throw new KvfoldError(
      'native/build-failed',
      "The installed node-llama-cpp package lacks llama.cpp's source (llama/gitRelease.bundle); install kvfold with npm.",
    )
  return run('git', ['clone', '--quiet', bundle, folder], watched)
}

export const configure = (
  source: string,
  build: string,
  options: Readonly<Record<string, string>>,
  watched: WatchedBuild,
): Promise<void> => {
  const given = Object.entries(options).map(([name, value]) => `-D${name}=${value}`)
  return run('cmake', ['-S', source, '-B', build, ...given], watched)
}

/** Builds a CMake target in the folder `build`. Continues an interrupted build. */
export const make = (
  build: string,
  target: string,
  { onProgress, ...watched }: WatchedBuild & { readonly onProgress?: (share: number) => void },
): Promise<void> =>
  run('cmake', ['--build', build, '--target', target, '--parallel', String(availableParallelism())], watched, (line) => {
    const [, percent] = /^\[ *(\d+)%\]/.exec(line) ?? []
    if (percent !== undefined) onProgress?.(Number(percent) / 100)
  })

/** Runs a program to its end. @throws KvfoldError native/build-failed with the program's last lines, engine/cancelled */
async function run(
  program: string,
  args: readonly string[],
  { log, signal }: WatchedBuild,
  heard: (line: string) => void = () => undefined,
): Promise<void> {
  // Remove GIT_* variables: the git settings of a calling process, e.g. of a git hook, could mislead this git.
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('GIT_')))
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'pipe'], ...(signal === undefined ? {} : { signal }) })
  const file = createWriteStream(log, { flags: 'a' })
  let last: string[] = []
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      file.write(text)
      const lines = text.split('\n').filter((line) => line.trim() !== '')
      lines.forEach(heard)
      last = [...last, ...lines].slice(-8)
    })
  const code = await new Promise<number | NodeJS.Signals>((resolve, reject) => {
    child.on('error', reject).on('close', (status, killed) => {
      resolve(status ?? killed ?? 1)
    })
  })
    .catch((error: unknown) => {
      // The signal kills the child, which Node reports as an error.
      if (signal?.aborted !== true) throw error
      return 1
    })
    .finally(() => {
      file.end()
    })
  if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The build was stopped.')
  if (code !== 0) throw new KvfoldError('native/build-failed', `${basename(program)} failed (${code}): ${last.join('\n')}`)
}
