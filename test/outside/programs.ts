/** Owns the two C++ programs of the outside tests: made from the sources here, against the headers the addon's build took, once a version. */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = join(import.meta.dirname, '../..')

export interface Programs {
  /** Preloaded under a program, writes down what llama.cpp is asked to do (shim.cc). */
  readonly shim: string
  /** Fresh prefills by llama.cpp's C API alone (reference.cc). */
  readonly reference: string
  /** Where the shared libraries of llama.cpp lie. */
  readonly libraries: string
}

let made: Programs | null = null

/** Builds what is not there yet. Linux only: the shim comes in by LD_PRELOAD. */
export function programs(): Programs {
  if (made !== null) return made
  const { release } = JSON.parse(readFileSync(join(ROOT, 'build/kvfold.json'), 'utf8')) as { release: string }
  const headers = join(ROOT, 'build/llama.cpp', release)
  const platform = `linux-${process.arch === 'arm' ? 'armv7l' : process.arch}`
  const libraries = join(ROOT, 'node_modules/@node-llama-cpp', platform, 'bins', platform)
  const shared = readdirSync(libraries).filter((name) => /^lib(llama\.|ggml\.|ggml-base\.).*so$/.test(name))
  const folder = join(ROOT, 'build/outside')
  mkdirSync(folder, { recursive: true })
  const make = (source: string, options: readonly string[]): string => {
    const path = join(import.meta.dirname, source)
    const hash = createHash('sha256')
      .update(readFileSync(path))
      .update(JSON.stringify([release, headers, options]))
    const output = join(folder, `${source.replace('.cc', '')}-${hash.digest('hex').slice(0, 12)}`)
    if (existsSync(output)) return output
    const temporary = `${output}.${process.pid}`
    const all = ['-std=c++17', '-O2', `-I${headers}`, path, '-o', temporary, ...options]
    const { status, stderr, error } = spawnSync(process.env['CXX'] ?? 'g++', all, { encoding: 'utf8' })
    if (status !== 0) throw new Error(`${source} cannot be built: ${error?.message ?? stderr}`)
    renameSync(temporary, output)
    return output
  }
  made = {
    shim: make('shim.cc', ['-fPIC', '-shared', '-ldl']),
    reference: make('reference.cc', [...shared.map((name) => join(libraries, name)), `-Wl,-rpath,${libraries}`]),
    libraries,
  }
  return made
}
