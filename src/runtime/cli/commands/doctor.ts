/** `kvfold doctor`: what kvfold finds on this machine, what is missing, and what to do about it. */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, statfsSync, statSync } from 'node:fs'
import { connect } from 'node:net'
import { availableParallelism, cpus, freemem, homedir, release, totalmem } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { cacheFolder } from '../../engine/calibration.js'
import { bytes, plural } from '../../figures/numbers.js'
import { modelsFolder, modelsIn } from '../../models/folder.js'
import { LIBRARY_KINDS } from '../../native/compiled-library.js'
import type { BackendInfo } from '../../native/types.js'
import { stateFolder } from '../../store/store-file.js'
import { builtinModel } from '../builtin.js'
import { integer } from '../options.js'
import { nativeLibrary } from '../runtime.js'
import type { Shell } from '../shell.js'

interface DoctorFlags {
  readonly port: number
  readonly json?: true
}

/** The result of one check of the machine or installation. */
export interface Finding {
  readonly what: string
  /** `missing`: kvfold does not work without it. `note`: kvfold works, but could do more. */
  readonly state: 'ok' | 'note' | 'missing'
  readonly found: string
  /** What to do. Absent when there is nothing to do. */
  readonly advice?: string
}

/** With fewer free bytes, the disk counts as nearly full. */
const LITTLE_DISK = 2 * 2 ** 30
/** How many milliseconds to wait for an answer from a port. */
const PATIENCE = 1000
/** The most models to list by name. Further ones are only counted. */
const NAMED = 6

export function addDoctor(program: Command, shell: Shell, version: string): void {
  program
    .command('doctor')
    .description('say what this machine has (devices, libraries, compilers, models, ports) and what to do about what is missing')
    .option('--port <number>', 'the port to look at', integer(1, 65_535), 8080)
    .option('--json', 'print one line of JSON')
    .action((flags: DoctorFlags) => doctor(flags, shell, version))
}

async function doctor({ port, json }: DoctorFlags, { out }: Shell, version: string): Promise<void> {
  const native = await nativeFindings()
  const findings = [machine(version), ...native, ...devices(native), ...tools(), ...models(), disk(), await portFinding(port)]
  const broken = findings.filter(({ state }) => state === 'missing')
  if (json === true) out.print(JSON.stringify({ works: broken.length === 0, findings }))
  else {
    const width = Math.max(...findings.map(({ what }) => what.length))
    const { green, yellow, red } = out.colours
    const mark = { ok: green('ok     '), note: yellow('note   '), missing: red('missing') }
    for (const { what, state, found } of findings) out.print(`${mark[state]}  ${what.padEnd(width)}  ${found}`)
    const advice = findings.flatMap((finding) => finding.advice ?? [])
    out.print()
    if (advice.length === 0) out.print('Nothing is missing. `kvfold demo` shows in a minute what kvfold does.')
    else out.print(broken.length === 0 ? 'kvfold works here. It could do more:' : 'kvfold does not work here yet. What to do:')
    for (const line of advice) out.prose(`- ${line}`)
  }
  if (broken.length > 0)
    throw new KvfoldError('native/unsupported', `kvfold cannot run here: ${broken.map(({ what }) => what).join(', ')}.`)
}

function machine(version: string): Finding {
  const [first] = cpus()
  const processor = `${plural(availableParallelism(), 'core')} ${first?.model.trim() ?? ''}`.trim()
  const memory = `${bytes(freemem())} of ${bytes(totalmem())} memory free`
  const found = `kvfold ${version}, Node ${process.versions.node}, ${process.platform} ${release()} ${process.arch}, ${processor}, ${memory}`
  return { what: 'machine', state: 'ok', found }
}

/** Checks the addon, the backend that it chose, and the library for each kind of device. */
async function nativeFindings(): Promise<Finding[]> {
  let backend: BackendInfo
  try {
    backend = (await nativeLibrary('auto')).backend
  } catch (error) {
    const found = error instanceof Error ? error.message : String(error)
    return [
      {
        what: 'addon',
        state: 'missing',
        found,
        advice: 'Run `node scripts/build-native.mjs` in kvfold’s folder, or install it again.',
      },
    ]
  }
  const { gpu, devices: usable, libraries, release: llama } = backend
  const addon: Finding = { what: 'addon', state: 'ok', found: `made for llama.cpp ${llama}` }
  const on: Finding = { what: 'computes on', state: 'ok', found: [gpu, ...usable].join(', ') }
  const files = LIBRARY_KINDS.flatMap((kind): Finding[] => {
    const library = libraries[kind]
    if (library === undefined) return []
    const isCompiled = library.used === library.compiled
    return [
      {
        what: `library for ${kind}`,
        state: 'ok',
        found: isCompiled ? `compiled for this machine: ${library.used}` : `as shipped: ${library.used}`,
        ...(isCompiled || gpu !== 'cpu' || kind !== 'cpu'
          ? {}
          : { advice: '`kvfold compile` makes a faster CPU library for this processor, in about a minute.' }),
      },
    ]
  })
  return [addon, on, ...files]
}

/** Reports a GPU that kvfold does not use, and installed backend packages that no device here can use. */
function devices(native: readonly Finding[]): Finding[] {
  const packages = backendPackages()
  const used = native.find(({ what }) => what === 'computes on')?.found.split(',')[0] ?? 'cpu'
  const nvidia = existsSync('/dev/nvidia0') || existsSync('/proc/driver/nvidia/version')
  const [other] = ['/dev/dri', '/dev/kfd'].filter((path) => existsSync(path))
  const has = (kind: string) => packages.some(({ name }) => name.includes(kind))
  const here = `${process.platform === 'darwin' ? 'mac' : process.platform}-${process.arch}`
  const unused = packages.filter(
    ({ name }) => !name.startsWith(here) || (used === 'cpu' && !nvidia && other === undefined && /cuda|vulkan/.test(name)),
  )
  const spare = unused.reduce((sum, { size }) => sum + size, 0)
  const listed = packages.map(({ name, size }) => `${name} (${bytes(size)})`).join(', ')
  return [
    ...(nvidia && used !== 'cuda'
      ? [
          {
            what: 'NVIDIA GPU',
            state: 'note' as const,
            found: `there is one, but kvfold computes on ${used}`,
            advice: has('cuda')
              ? 'The NVIDIA driver does not work for CUDA here: `nvidia-smi` must list the GPU.'
              : 'Install the CUDA backend: `npm install @node-llama-cpp/linux-x64-cuda`, with the version of node-llama-cpp.',
          },
        ]
      : []),
    {
      what: 'backends',
      state: 'ok',
      found: listed === '' ? 'none beside the addon’s own folder' : listed,
      ...(spare > 2 ** 26
        ? {
            advice: `${bytes(spare)} of backends are of no use on this machine: docs/configuration.md says how to install without them.`,
          }
        : {}),
    },
  ]
}

/** Lists the installed packages with llama.cpp's libraries, with their sizes in bytes. */
function backendPackages(): { readonly name: string; readonly size: number }[] {
  for (let folder = dirname(fileURLToPath(import.meta.url)); ; folder = dirname(folder)) {
    const packages = join(folder, 'node_modules', '@node-llama-cpp')
    if (existsSync(packages)) return readdirSync(packages).map((name) => ({ name, size: sizeOf(join(packages, name)) }))
    if (folder === dirname(folder)) return []
  }
}

function sizeOf(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false })
  if (found?.isDirectory() !== true) return found?.size ?? 0
  return readdirSync(path).reduce((sum, name) => sum + sizeOf(join(path, name)), 0)
}

/** Checks for the programs that some commands need. */
function tools(): Finding[] {
  const needed = [
    { program: 'git', of: '`kvfold compile`, and building from a checkout' },
    { program: 'cmake', of: '`kvfold compile`' },
    { program: 'g++', of: '`kvfold compile`, and building from a checkout', or: ['clang++', 'c++'] },
  ]
  return needed.map(({ program, of, or = [] }) => {
    const found = [program, ...or].map((name) => versionOf(name)).find((line) => line !== null)
    return found != null
      ? { what: program, state: 'ok', found }
      : { what: program, state: 'note', found: `not found; needed for ${of}`, advice: `Install ${program} if you want ${of}.` }
  })
}

function versionOf(program: string): string | null {
  const { status, stdout } = spawnSync(program, ['--version'], { encoding: 'utf8' })
  return status === 0 ? (stdout.split('\n', 1)[0]?.trim() ?? program) : null
}

/** Looks for GGUF files in the models folder, the current folder, and the folders of kvfold's scripts and of node-llama-cpp. */
function models(): Finding[] {
  const builtin = builtinModel()
  const own: Finding = existsSync(builtin)
    ? { what: 'built-in model', state: 'ok', found: builtin }
    : { what: 'built-in model', state: 'missing', found: `not there: ${builtin}`, advice: 'Install kvfold again.' }
  const folders = [process.cwd(), join(homedir(), '.node-llama-cpp', 'models'), join(cacheFolder(), 'real')]
  const beside = folders.flatMap((folder) =>
    existsSync(folder)
      ? readdirSync(folder)
          .filter((name) => name.endsWith('.gguf'))
          .map((name) => join(folder, name))
      : [],
  )
  const files = [...new Set([...modelsIn(modelsFolder()).map(({ path }) => path), ...beside])]
  const more = files.length - NAMED
  const named = files.slice(0, NAMED).map((path) => `${path} (${bytes(statSync(path, { throwIfNoEntry: false })?.size ?? 0)})`)
  return [
    own,
    files.length > 0
      ? { what: 'models', state: 'ok', found: [...named, ...(more > 0 ? [`${more} more`] : [])].join(', ') }
      : {
          what: 'models',
          state: 'note',
          found: `no GGUF file in ${[modelsFolder(), ...folders].join(', ')}`,
          advice: 'Get a model: `kvfold chat --model hf:user/repository/file.gguf` downloads one; any GGUF file will do.',
        },
  ]
}

/** Checks the free space on the disk with the cache folder, where downloads and saved cells go. */
function disk(): Finding {
  const folder = [cacheFolder(), homedir()].find((path) => existsSync(path)) ?? '/'
  const { bavail, bsize } = statfsSync(folder)
  const free = bavail * bsize
  const found = `${bytes(free)} free at ${folder}; conversations are kept in ${stateFolder()}`
  return free < LITTLE_DISK
    ? { what: 'disk', state: 'note', found, advice: `Free some space at ${folder}, or keep less there with --disk-cache-size.` }
    : { what: 'disk', state: 'ok', found }
}

async function portFinding(port: number): Promise<Finding> {
  if (!(await isTaken(port))) return { what: `port ${port}`, state: 'ok', found: 'free' }
  const kvfold = await kvfoldAt(port)
  return {
    what: `port ${port}`,
    state: 'note',
    found: kvfold ? `kvfold serves at http://127.0.0.1:${port}` : 'another program listens there',
    ...(kvfold ? {} : { advice: `Serve on another port: \`kvfold serve --port ${port === 65_535 ? 8081 : port + 1}\`.` }),
  }
}

const isTaken = (port: number): Promise<boolean> =>
  new Promise((done) => {
    const socket = connect({ host: '127.0.0.1', port, timeout: PATIENCE })
    const end = (taken: boolean) => () => {
      socket.destroy()
      done(taken)
    }
    socket.once('connect', end(true)).once('error', end(false)).once('timeout', end(false))
  })

/** Whether the program on this port is a kvfold server. */
async function kvfoldAt(port: number): Promise<boolean> {
  try {
    const answer = await fetch(`http://127.0.0.1:${port}/openapi.json`, { signal: AbortSignal.timeout(PATIENCE) })
    const { info } = (await answer.json()) as { readonly info?: { readonly title?: string } }
    return info?.title?.toLowerCase().includes('kvfold') === true
  } catch {
    return false
  }
}
