/** Opens this process's llama.cpp: loads the addon once, reports its backend, and loads models and tensors. */
import { resolve } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { calling, loadAddon } from './addon.js'
import { backendFor, usable } from './devices.js'
import { NativeModel } from './model.js'
import { readTensor } from './tensor-values.js'
import type { BackendInfo, GpuChoice, ModelOptions, TensorValues } from './values.js'

export interface Native {
  readonly backend: BackendInfo
  loadModel(path: string, options?: ModelOptions): Promise<NativeModel>
  /**
   * Reads one tensor of a model's file as floats, whatever its number format.
   * @throws KvfoldError native/bad-argument when the model has no such tensor; native/unsupported; model/not-found, model/bad-file
   */
  readTensor(path: string, name: string): TensorValues
  /**
   * Makes SIGTERM and SIGINT end the process within this many milliseconds, even while a native call blocks the event loop. A second signal
   * ends it within one second. Call it after the process has added its own listeners for these signals. Only the first call counts.
   */
  endWithin(milliseconds: number): void
}

let opened: { readonly gpu: GpuChoice; readonly native: Promise<Native> } | null = null

/**
 * Returns the process's llama.cpp. `auto` uses the GPU backend that finds a real GPU, or else the CPU. A process has one backend: later
 * calls return the same object, or throw native/unsupported if they name another backend. When the process exits, everything that was not
 * disposed is freed.
 * @throws KvfoldError native/unsupported, native/build-failed, native/library-mismatch
 */
export async function openNative({ gpu = 'auto' }: { readonly gpu?: GpuChoice } = {}): Promise<Native> {
  opened ??= { gpu, native: open(gpu) }
  const first = opened
  let native: Native
  try {
    native = await first.native
  } catch (error) {
    // Do not remember the failure: the next call may name a backend that works.
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
  const { addon, built, release, libraries } = await loadAddon(gpu)
  // Free llama.cpp's objects at exit, before the GPU's driver is unloaded.
  process.once('exit', () => {
    addon.shutdown()
  })
  const { devices, systemInfo, tensorTypes } = addon.about()
  const computesOn = backendFor(gpu, built, devices)
  const backend: BackendInfo = {
    gpu: computesOn,
    release,
    devices: usable(computesOn, devices).map(({ name, description }) => `${name}: ${description}`),
    systemInfo,
    libraries,
  }
  return {
    backend,
    loadModel: (path, options) => NativeModel.load(addon, backend, resolve(path), options),
    readTensor: (path, name) => readTensor(addon, tensorTypes, resolve(path), name),
    endWithin: (milliseconds) => {
      calling(() => {
        addon.endWithin(Math.min(milliseconds, 2 ** 31 - 1))
      })
    },
  }
}
