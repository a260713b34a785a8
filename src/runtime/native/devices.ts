/** Chooses the backend: finds the real GPUs among the devices that llama.cpp lists, and applies the user's choice. */
import { readFileSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'
import type { GpuChoice } from './values.js'

export interface Device {
  readonly name: string
  readonly description: string
  /** Whether llama.cpp computes on this device by default. */
  readonly gpu: boolean
  /** Free bytes of the device's memory, and (next field) all of its bytes. */
  readonly free: number
  readonly total: number
}

/** The backend that a process computes on. */
export type Backend = Exclude<GpuChoice, 'auto'>

/** Drivers that emulate a GPU on the CPU, by the names that they report (Mesa, Chromium, Windows under WSL). */
const SOFTWARE = /llvmpipe|lavapipe|softpipe|swiftshader|basic render driver/i

const isHardware = ({ gpu, description }: Device): boolean => gpu && !SOFTWARE.test(description)

/**
 * Returns the backend on which a process computes. `library` is the backend of the loaded library, which lists `devices`. `auto` takes a
 * real GPU, or the CPU if there are only emulated GPUs or none. A backend that the user names may also use an emulated GPU.
 * @throws KvfoldError native/unsupported when the named backend has no device.
 */
export function backendFor(choice: GpuChoice, library: Backend, devices: readonly Device[]): Backend {
  if (library === 'cpu' || choice === 'cpu') return 'cpu'
  if (choice === 'auto') return devices.some(isHardware) ? library : 'cpu'
  if (devices.some(({ gpu }) => gpu)) return library
  const named = library === 'vulkan' ? ' To use a software device, name it: for example GGML_VK_VISIBLE_DEVICES=0.' : ''
  throw new KvfoldError('native/unsupported', `--gpu ${choice} finds no device on this machine; try --gpu cpu or auto.${named}`)
}

/** The devices that a process on `backend` may use. */
export const usable = (backend: Backend, devices: readonly Device[]): readonly Device[] =>
  backend === 'cpu' ? devices.filter(({ gpu }) => !gpu) : devices

/** The file of Mesa's Vulkan driver for emulated GPUs, and (next constant) the first release without the bug in `refuseBrokenDriver`. */
const SOFTWARE_DRIVER = /libvulkan_lvp\.so/
const SOUND = 25

/** Returns the release that is written in a Mesa driver's bytes, e.g. `22.3.6`; null if there is none. */
export const mesaRelease = (driver: Buffer): string | null => /Mesa (\d+\.\d+\.\d+)/.exec(driver.toString('latin1'))?.[1] ?? null

/**
 * Refuses a driver that would end the process. Mesa 22.3's emulated GPU takes a reference to every buffer that a bound descriptor set
 * names. It does so even for destroyed buffers that no shader uses, which Vulkan allows. As a text grows, ggml replaces its scratch buffers
 * by larger ones, above all without flash attention. Old descriptor sets then name the old buffers, and the driver writes to freed memory.
 * Plain decodes can crash in this way, too.
 * @param libraries paths of the shared libraries in this process
 * @throws KvfoldError native/unsupported
 */
export function refuseBrokenDriver(devices: readonly Device[], libraries: () => readonly string[]): void {
  if (!devices.some(({ gpu, description }) => gpu && SOFTWARE.test(description))) return
  const driver = libraries().find((path) => SOFTWARE_DRIVER.test(path))
  const release = driver === undefined ? null : mesaRelease(readFileSync(driver))
  if (release === null || Number(release.split('.')[0]) >= SOUND) return
  throw new KvfoldError(
    'native/unsupported',
    `The software device of Mesa ${release} writes to freed memory and ends the process; use Mesa ${SOUND} or later, another device, or --gpu cpu.`,
  )
}
