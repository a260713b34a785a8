/** Loads the C++ addon onto the llama.cpp library that node-llama-cpp chose, and types its raw functions. Only binding.ts uses it. */
import { existsSync, readFileSync } from 'node:fs'
import { constants } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { getLlama, type Llama } from 'node-llama-cpp'
import { KvfoldError, type ErrorCode, errorTable } from '../core/errors.js'
import type { GpuChoice, SpecialTokens } from './types.js'

declare const kind: unique symbol
type Handle<Name extends string> = { readonly [kind]: Name }
export type ModelHandle = Handle<'model'>
export type ContextHandle = Handle<'context'>
export type SamplerHandle = Handle<'sampler'>

export interface Device {
  readonly name: string
  readonly description: string
  readonly gpu: boolean
  /** Bytes. */
  readonly free: number
  readonly total: number
}

/** The addon as it is: unguarded; every sequence, token and span must have been checked before. */
export interface Addon {
  start(): void
  about(): { version: string; systemInfo: string; maxSequences: number; devices: Device[] }
  modelLoad(path: string, options: object, progress: ((value: number) => void) | null): Promise<ModelHandle>
  modelFree(model: ModelHandle): Promise<void>
  modelDescribe(model: ModelHandle): RawDescription
  tokenize(model: ModelHandle, text: string, addSpecial: boolean, parseSpecial: boolean): Int32Array
  piece(model: ModelHandle, token: number, special: boolean): Uint8Array
  contextCreate(model: ModelHandle, options: object): Promise<ContextHandle>
  contextFree(context: ContextHandle): Promise<void>
  contextSizes(context: ContextHandle): { cells: number; batch: number; ubatch: number; sequences: number; canShift: boolean }
  decode(context: ContextHandle, tokens: Int32Array, positions: Int32Array, sequences: Int32Array, outputs: Uint8Array): Promise<'done' | 'no-room' | 'aborted'>
  abort(context: ContextHandle): void
  submitted(context: ContextHandle): number
  logits(context: ContextHandle, index: number): Float32Array
  tag(context: ContextHandle, from: number, to: number, start: number, end: number): void
  untag(context: ContextHandle, seq: number, start: number, end: number): void
  shift(context: ContextHandle, seq: number, start: number, end: number, delta: number): void
  positions(context: ContextHandle, seq: number): [number, number]
  clear(context: ContextHandle): void
  readback(context: ContextHandle): Int32Array
  saveSequence(context: ContextHandle, seq: number): Uint8Array
  loadSequence(context: ContextHandle, seq: number, state: Uint8Array): boolean
  samplerCreate(model: ModelHandle, options: object): SamplerHandle
  samplerSample(sampler: SamplerHandle, context: ContextHandle, index: number): number
  samplerAccept(sampler: SamplerHandle, token: number): void
  samplerReset(sampler: SamplerHandle): void
  samplerFree(sampler: SamplerHandle): void
}

export interface RawDescription {
  readonly description: string
  readonly parameters: number
  readonly size: number
  readonly layers: number
  readonly embedding: number
  readonly heads: number
  readonly kvHeads: number
  readonly trainedContext: number
  readonly vocabulary: number
  readonly slidingWindow: number
  readonly vocabType: string
  readonly rope: string
  readonly recurrent: boolean
  readonly hybrid: boolean
  readonly encoder: boolean
  readonly metadata: Record<string, string>
  readonly chatTemplate: string | null
  readonly special: SpecialTokens
  /** Per token: bit 0 ends generation, bit 1 is control or unknown. */
  readonly flags: Uint8Array
}

/** Errors of the addon come as "code\nsentence". */
export function translated(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  const [code = '', ...rest] = error.message.split('\n')
  return code in errorTable ? new KvfoldError(code as ErrorCode, rest.join(' '), { cause: error }) : error
}

/**
 * Finds the backend through node-llama-cpp, makes its library's symbols global, and loads our addon on top.
 * @throws KvfoldError native/build-failed when the addon is not built, native/library-mismatch when headers and library differ.
 */
export async function loadAddon(gpu: GpuChoice): Promise<{ addon: Addon; llama: Llama; release: string }> {
  const root = packageRoot()
  const file = join(root, 'build', 'kvfold.node')
  if (!existsSync(file)) throw new KvfoldError('native/build-failed', `The native addon is not built (${file}); run npm ci or npm run build in ${root}.`)
  const { release } = JSON.parse(readFileSync(join(root, 'build', 'kvfold.json'), 'utf8')) as { release: string }
  const llama = await detect(gpu)
  if (llama.llamaCppRelease.release !== release)
    throw new KvfoldError(
      'native/library-mismatch',
      `The addon was built for llama.cpp ${release}, but the installed library is ${llama.llamaCppRelease.release}; run npm ci again.`,
    )
  const { RTLD_NOW, RTLD_GLOBAL } = constants.dlopen as { RTLD_NOW: number; RTLD_GLOBAL: number }
  // node-llama-cpp loaded its library for itself alone; opening it once more makes its symbols visible to ours.
  const loaded = sharedObjects().find((path) => path.endsWith('llama-addon.node'))
  if (loaded === undefined) throw new KvfoldError('native/library-mismatch', 'node-llama-cpp loaded no library of its own; run npm ci again.')
  process.dlopen({ exports: {} }, loaded, RTLD_NOW | RTLD_GLOBAL)
  const module = { exports: {} }
  try {
    process.dlopen(module, file, RTLD_NOW)
  } catch (error) {
    throw new KvfoldError('native/library-mismatch', `The addon does not fit the installed llama.cpp library: ${(error as Error).message}`, { cause: error })
  }
  const addon = module.exports as Addon
  addon.start()
  const { version } = addon.about()
  // The prebuilt libraries are built outside a release checkout and call themselves -dev of the same version.
  if (`v${version.replace(/-dev$/, '')}` !== release)
    throw new KvfoldError('native/library-mismatch', `The addon was built for llama.cpp ${release}, but the loaded library says ${version}; run npm ci again.`)
  return { addon, llama, release }
}

/** Files of the libraries this process has loaded. */
function sharedObjects(): readonly string[] {
  // @types/node of the oldest supported line does not know the switch; without it the report asks the name server about open sockets.
  const report = process.report as (typeof process)['report'] & { excludeNetwork?: boolean }
  report.excludeNetwork = true
  const { sharedObjects } = report.getReport() as unknown as { readonly sharedObjects: readonly string[] }
  return sharedObjects
}

async function detect(gpu: GpuChoice): Promise<Llama> {
  try {
    return await getLlama({
      gpu: gpu === 'auto' ? 'auto' : gpu === 'cpu' ? false : gpu,
      build: 'never',
      progressLogs: false,
      logger: () => undefined,
      skipDownload: true,
    })
  } catch (error) {
    throw new KvfoldError(
      'native/library-mismatch',
      `node-llama-cpp has no ready library for --gpu ${gpu} on this machine (${(error as Error).message.split('\n')[0]}); try --gpu cpu or auto.`,
      { cause: error },
    )
  }
}

/** The folder that holds package.json, from src/native and dist/native alike. */
export function packageRoot(): string {
  return dirname(dirname(dirname(fileURLToPath(import.meta.url))))
}
