/** Tests which library of llama.cpp is used, and that another file of it computes the same. */
import { copyFileSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import { compileLibrary, shippedLibrary, wantedLibrary } from '../../../src/runtime/native/compiled-library.js'
import { tinyModel } from '../../support/models.js'
import { decoding, runScript } from './support/fixture.js'
import { LONG } from '../../support/long.js'

let folder: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-library-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

const shipped = async () => {
  const { cpu } = (await openNative({ gpu: 'cpu' })).backend.libraries
  expect(cpu?.used).toBe(cpu?.shipped)
  return cpu!.shipped
}

/** A real, quantised model (npm run models:real). Its matrix products have separate code for each processor. */
const QUANTISED = join(
  process.env['KVFOLD_REAL_MODELS'] ?? join(homedir(), '.cache', 'kvfold', 'real'),
  'gemma-3-270m-q4_k_m.gguf',
)

/** Runs a process with this library. Returns the library it used, its devices and the logits of a prompt. */
async function said(library: string, gguf?: string): Promise<{ used: string; devices: string[]; logits: number[] }> {
  const { code, stdout, stderr } = await runScript(`
    import { openNative } from 'kvfold/native/binding'
    process.env.KVFOLD_CPU_LIBRARY = ${JSON.stringify(library)}
    const { backend, loadModel } = await openNative({ gpu: 'cpu' })
    ${decoding(gguf ?? (await tinyModel()))}
    console.log(JSON.stringify({ used: backend.libraries.cpu.used, devices: backend.devices, logits }))
    await model.dispose()`)
  expect(stderr).toBe('')
  expect(code).toBe(0)
  return JSON.parse(stdout) as { used: string; devices: string[]; logits: number[] }
}

it('is the one compiled on this machine, unless another one is named', () => {
  const compiled = join(folder, 'libggml-cpu-haswell.so')
  expect(wantedLibrary('cpu', null, {})).toBeNull()
  expect(wantedLibrary('cpu', compiled, {})).toBeNull()
  writeFileSync(compiled, '')
  expect(wantedLibrary('cpu', compiled, {})).toBe(compiled)
  expect(wantedLibrary('cpu', compiled, { KVFOLD_CPU_LIBRARY: 'shipped' })).toBeNull()
  expect(wantedLibrary('cpu', null, { KVFOLD_CPU_LIBRARY: compiled })).toBe(compiled)
  expect(() => wantedLibrary('cpu', compiled, { KVFOLD_CPU_LIBRARY: join(folder, 'none.so') })).toThrow('There is no file')
})

it('is a separate file if a file name names a processor', () => {
  expect(shippedLibrary('cpu', ['/a/libggml-base.so', '/a/libggml-cpu-zen4.so'])).toBe('/a/libggml-cpu-zen4.so')
  expect(shippedLibrary('cpu', ['/a/libggml-cpu-armv8.2_1.so'])).toBe('/a/libggml-cpu-armv8.2_1.so')
  expect(shippedLibrary('cpu', ['/a/libggml-cpu.so', '/a/libllama.so'])).toBeNull()
  expect(shippedLibrary('cuda', ['/a/libggml-cuda.so', '/a/libggml-cpu-zen4.so'])).toBe('/a/libggml-cuda.so')
})

it('replaces the shipped one, which is then not loaded', async () => {
  const copy = join(folder, 'libggml-cpu-copy.so')
  copyFileSync(await shipped(), copy)
  const [theirs, ours] = [await said('shipped'), await said(copy)]
  expect(ours.used).toBe(copy)
  expect(ours.devices).toEqual(theirs.devices)
  expect(ours.logits).toEqual(theirs.logits)
})

it('is refused if ggml does not load it', async () => {
  const broken = join(folder, 'libggml-cpu-broken.so')
  writeFileSync(broken, 'no library')
  const { code, stderr } = await runScript(`
    import { openNative } from 'kvfold/native/binding'
    process.env.KVFOLD_CPU_LIBRARY = ${JSON.stringify(broken)}
    await openNative({ gpu: 'cpu' })`)
  expect(code).not.toBe(0)
  expect(stderr).toContain(
    `ggml cannot use the CPU library ${broken} on this machine or with this release; run kvfold compile again`,
  )
})

it('is found for another compilation even if the compiled one does not load', async () => {
  const broken = join(folder, 'libggml-cpu-broken.so')
  writeFileSync(broken, 'no library')
  const { stdout } = await runScript(`
    import { cpuPath } from 'kvfold/cli/commands/compile-bundle'
    process.env.KVFOLD_CPU_LIBRARY = ${JSON.stringify(broken)}
    console.log(await cpuPath())`)
  expect(stdout).toMatch(/libggml-cpu-[\w.]+\.so$/m)
})

it('is not stored by a compilation that was stopped', async () => {
  const path = join(folder, 'libggml-cpu-none.so')
  const stopped = compileLibrary({ kind: 'cpu', path, signal: AbortSignal.abort() })
  await expect(stopped).rejects.toMatchObject({ code: 'engine/cancelled' })
  expect(existsSync(path)).toBe(false)
})

it.runIf(LONG)(
  'compiled on this machine, gives the same logits as the shipped one',
  async () => {
    const from = await shipped()
    const path = join(folder, 'there', from.slice(from.lastIndexOf('/') + 1))
    const shares: number[] = []
    await compileLibrary({ kind: 'cpu', path, onProgress: (share) => shares.push(share) })
    expect(existsSync(path)).toBe(true)
    expect(shares.at(-1)).toBe(1)
    const [theirs, ours] = [await said('shipped'), await said(path)]
    expect(Math.max(...ours.logits.map((logit, at) => Math.abs(logit - theirs.logits[at]!)))).toBeLessThan(1e-3)
    // Without the compiler's options the process dies at this call on a processor with AMX.
    if (existsSync(QUANTISED)) expect((await said(path, QUANTISED)).logits.every(Number.isFinite)).toBe(true)
  },
  600_000,
)
