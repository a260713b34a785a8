import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { backendFor, mesaRelease, refuseBrokenDriver, usable, type Device } from '../../../src/runtime/native/devices.js'
import { refused, runScript } from './support/fixture.js'

const device = (description: string, gpu = true): Device => ({ name: 'x', description, gpu, free: 1e9, total: 2e9 })
const CPU = device('AMD EPYC', false)
const GPU = device('NVIDIA H100 80GB HBM3')
const SOFTWARE = [
  'llvmpipe (LLVM 15.0.6, 256 bits)',
  'SwiftShader Device (Subzero)',
  'Microsoft Direct3D12 (Microsoft Basic Render Driver)',
].map((description) => device(description))

describe('auto', () => {
  test('takes the GPU of the library', () => {
    expect(backendFor('auto', 'cuda', [GPU, CPU])).toBe('cuda')
    expect(backendFor('auto', 'vulkan', [SOFTWARE[0]!, GPU, CPU])).toBe('vulkan')
  })

  test('takes the CPU if the library finds no device', () => {
    expect(backendFor('auto', 'vulkan', [CPU])).toBe('cpu')
    expect(backendFor('auto', 'cpu', [CPU])).toBe('cpu')
  })

  test.each(SOFTWARE)('takes the CPU if $description is the only device', (only) => {
    expect(backendFor('auto', 'vulkan', [only, CPU])).toBe('cpu')
  })
})

describe('a named backend', () => {
  test('is taken, even with a software device', () => {
    expect(backendFor('vulkan', 'vulkan', [SOFTWARE[0]!, CPU])).toBe('vulkan')
    expect(backendFor('cpu', 'vulkan', [GPU, CPU])).toBe('cpu')
  })

  test('is refused without a device', async () => {
    const { message } = await refused('native/unsupported', () => backendFor('cuda', 'cuda', [CPU]))
    expect(message).toBe('--gpu cuda finds no device on this machine; try --gpu cpu or auto.')
  })
})

test('the CPU backend uses no GPU', () => {
  expect(usable('cpu', [GPU, CPU])).toEqual([CPU])
  expect(usable('cuda', [GPU, CPU])).toEqual([GPU, CPU])
})

describe('a software device', () => {
  const driver = (release: string, check: (libraries: () => readonly string[]) => unknown) => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-driver-'))
    const file = join(folder, 'libvulkan_lvp.so')
    writeFileSync(file, `\x7fELF\0Mesa ${release} (git-1)\0`)
    try {
      return check(() => ['/lib/libc.so.6', file])
    } finally {
      rmSync(folder, { recursive: true })
    }
  }

  test('is refused on a Mesa release that writes to freed memory', async () => {
    const { message } = await refused('native/unsupported', () =>
      driver('22.3.6', (libraries) => {
        refuseBrokenDriver([SOFTWARE[0]!, CPU], libraries)
      }),
    )
    expect(message).toMatch(/Mesa 22\.3\.6 .* use Mesa 25/)
  })

  test('is accepted on a later release; with other devices no driver is looked for', () => {
    driver('25.0.7', (libraries) => {
      refuseBrokenDriver([SOFTWARE[0]!, CPU], libraries)
    })
    for (const devices of [[GPU, CPU], [CPU]])
      refuseBrokenDriver(devices, () => {
        throw new Error('looked')
      })
    expect(mesaRelease(Buffer.from('no release'))).toBeNull()
  })
})

// On a machine without a Vulkan driver the CPU library is loaded; the outcome is the same.
test('a process beside a software device computes every layer on the CPU', async () => {
  const { stdout, stderr } = await runScript(`
    process.env.GGML_VK_VISIBLE_DEVICES = '0'
    import { openNative } from 'kvfold/native/binding'
    import { builtinModel } from 'kvfold/cli/builtin'
    const native = await openNative()
    const model = await native.loadModel(builtinModel())
    const context = await model.createContext({ cells: 256, threads: 1 })
    console.log(JSON.stringify({ ...native.backend, layers: model.gpuLayers }))
    await context.dispose()`)
  const { gpu, devices, layers } = JSON.parse(stdout) as { gpu: string; devices: string[]; layers: number }
  // On a machine with a GPU the variable may name that GPU.
  if (gpu === 'cpu') {
    expect(devices.join()).not.toMatch(/vulkan/i)
    expect(layers).toBe(0)
  } else expect(devices.join(), stderr).not.toMatch(/llvmpipe/)
})
