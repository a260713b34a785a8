/**
 * Builds the llama-server to compare with, from the source bundle of the installed node-llama-cpp. The binary stays in the ignored .cache.
 */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { COMPILER_OPTIONS, configure, extractSource, make, needTools } from '../../../src/runtime/native/llama-build.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))
const bundled = join(root, 'node_modules', 'node-llama-cpp', 'llama')

/**
 * CPU only, one static binary for this machine's processor. No web interface, which would be downloaded, and no TLS, which localhost does
 * not need.
 */
const OPTIONS = {
  ...COMPILER_OPTIONS,
  CMAKE_BUILD_TYPE: 'Release',
  BUILD_SHARED_LIBS: 'OFF',
  GGML_NATIVE: 'ON',
  GGML_METAL: 'OFF',
  GGML_BLAS: 'OFF',
  LLAMA_OPENSSL: 'OFF',
  LLAMA_BUILD_UI: 'OFF',
  LLAMA_USE_PREBUILT_UI: 'OFF',
  LLAMA_BUILD_TESTS: 'OFF',
  LLAMA_BUILD_EXAMPLES: 'OFF',
  LLAMA_BUILD_APP: 'OFF',
}

/** Returns the path of the binary if it is built already; else null. */
export function builtLlamaServer(): string | null {
  const { binary } = placeOf()
  return existsSync(binary) ? binary : null
}

function placeOf(): { readonly release: string; readonly folder: string; readonly binary: string } {
  const { release } = JSON.parse(readFileSync(join(bundled, 'binariesGithubRelease.json'), 'utf8')) as { release: string }
  const folder = join(root, '.cache', `llama-server-${release}`)
  return { release, folder, binary: join(folder, 'llama-server') }
}

/**
 * Returns the path of the binary. The first call builds it, which takes up to half an hour on two cores, and says so on stderr. An
 * interrupted build continues where it stopped. Nothing is downloaded. Only one build runs at a time.
 * @throws KvfoldError in one sentence if git, cmake or a compiler is missing, or with the last lines of the step that failed
 */
export async function buildLlamaServer(): Promise<string> {
  const { release, folder, binary } = placeOf()
  if (existsSync(binary)) return binary
  needTools()

  const source = join(folder, 'source')
  const build = join(folder, 'build')
  const log = join(folder, 'build.log')
  mkdirSync(folder, { recursive: true })
  console.error(`building llama-server ${release}, once; this takes up to half an hour, and its log is ${log}`)
  if (!existsSync(source)) {
    // An incomplete clone must not be taken for a complete one.
    const temporary = mkdtempSync(join(folder, 'clone-'))
    try {
      await extractSource(join(temporary, 'source'), { log })
      renameSync(join(temporary, 'source'), source)
    } finally {
      rmSync(temporary, { recursive: true, force: true })
    }
  }
  await configure(source, build, OPTIONS, { log })
  await make(build, 'llama-server', { log })
  renameSync(join(build, 'bin', 'llama-server'), binary)
  for (const leftover of [build, source]) rmSync(leftover, { recursive: true, force: true })
  return binary
}
