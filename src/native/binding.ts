/** Owns this process's llama.cpp: loads the addon once, says what it runs on, and hands out models. The only way into src/native. */
import { resolve } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { loadAddon } from './addon.js'
import { backendFor, usable } from './devices.js'
import { Model } from './model.js'
import { grammarFromSchema } from './schema-grammar.js'
import type { BackendInfo, GpuChoice, Native } from './types.js'

let opened: { readonly gpu: GpuChoice; readonly native: Promise<Native> } | null = null

/**
 * The process's llama.cpp on the best backend that has a device here, unless `gpu` names one. A process has one backend: later calls get
 * the same object, or native/unsupported when they name another backend. When the process exits, what was not disposed is freed.
 * @throws KvfoldError native/unsupported, native/build-failed, native/library-mismatch
 */
export async function openNative({ gpu = 'auto' }: { readonly gpu?: GpuChoice } = {}): Promise<Native> {
  opened ??= { gpu, native: open(gpu) }
  const first = opened
  let native: Native
  try {
    native = await first.native
  } catch (error) {
    // A failure is not kept: the next call may name a backend that works.
    if (opened === first) opened = null
    throw error
  }
  if (gpu !== 'auto' && gpu !== first.gpu && gpu !== native.backend.gpu)
    throw new KvfoldError(
      'native/unsupported',
      `This process already runs llama.cpp on ${native.backend.gpu}; start another process for ${gpu}.`,
    )
  return native
}

async function open(gpu: GpuChoice): Promise<Native> {
  if (process.platform === 'win32')
    throw new KvfoldError('native/unsupported', 'kvfold runs on Linux and macOS, not yet on Windows; use WSL there.')
  const { addon, llama, release } = await loadAddon(gpu)
  // A GPU's driver may be unloaded before llama.cpp's objects; they must go first.
  process.once('exit', () => {
    addon.shutdown()
  })
  const { devices, systemInfo } = addon.about()
  const computesOn = backendFor(gpu, llama.gpu === false ? 'cpu' : llama.gpu, devices)
  const backend: BackendInfo = {
    gpu: computesOn,
    release,
    devices: usable(computesOn, devices).map(({ name, description }) => `${name}: ${description}`),
    systemInfo,
  }
  return {
    backend,
    loadModel: (path, options) => Model.load(addon, backend, resolve(path), options),
    grammarFromSchema: (schema) => grammarFromSchema(llama, schema),
  }
}
