import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { afterEach, beforeAll, describe, expect, test } from 'vitest'
import { span } from '../../../src/runtime/core/span.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeContext, NativeModel, NativeSampler } from '../../../src/runtime/native/types.js'
import { tinyModel } from '../../support/models.js'
import { LOADER, moduleOf, RUN } from '../../support/program.js'
import { batchOf, feed, refused, runScript, seq, someTokens } from './support/fixture.js'

const root = fileURLToPath(new URL('../../..', import.meta.url))
let native: Native
let path: string
const models: NativeModel[] = []

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
  path = await tinyModel()
})
afterEach(async () => {
  for (const model of models.splice(0)) await model.dispose()
})

async function made(): Promise<{ model: NativeModel; context: NativeContext; sampler: NativeSampler }> {
  const model = await native.loadModel(path)
  models.push(model)
  const context = await model.createContext({ cells: 2048, sequences: 2, batch: 2048, threads: 1 })
  return { model, context, sampler: model.createSampler() }
}

/** Every call on a context except abort and dispose, which are always allowed. */
const contextCalls: readonly [string, (context: NativeContext) => unknown][] = [
  ['decode', (context) => context.decode(batchOf([1]))],
  ['logits', (context) => context.logits(0)],
  ['tag', (context) => { context.tag(seq(0), seq(1), span(0, 1)) }],
  ['untag', (context) => { context.untag(seq(0), span(0, 1)) }],
  ['shift', (context) => { context.shift(seq(0), span(0, 1), 1) }],
  ['positions', (context) => context.positions(seq(0))],
  ['readback', (context) => context.readback()],
  ['clear', (context) => { context.clear() }],
  ['saveSequence', (context) => context.saveSequence(seq(0))],
  ['loadSequence', (context) => context.loadSequence(seq(1), new Uint8Array(9))],
  ['copyOut', (context) => context.copyOut(seq(0))],
  ['copyIn', (context) => context.copyIn(seq(1), new Uint8Array(9))],
] // prettier-ignore

const modelCalls: readonly [string, (model: NativeModel) => unknown][] = [
  ['tokenize', (model) => model.tokenize('text')],
  ['detokenize', (model) => model.detokenize([1])],
  ['piece', (model) => model.piece(1)],
  ['createContext', (model) => model.createContext()],
  ['createSampler', (model) => model.createSampler()],
]

describe('after dispose', () => {
  test.each(contextCalls)('context.%s', async (_, call) => {
    const { context } = await made()
    await context.dispose()
    await refused('native/disposed', () => call(context))
    context.abort()
    await context.dispose()
  })

  test.each(contextCalls)('context.%s after its model was disposed', async (_, call) => {
    const { model, context } = await made()
    await model.dispose()
    await refused('native/disposed', () => call(context))
  })

  test.each(modelCalls)('model.%s', async (_, call) => {
    const { model } = await made()
    await model.dispose()
    await refused('native/disposed', () => call(model))
    await model.dispose()
  })

  test('samplers', async () => {
    const { model, context, sampler } = await made()
    await feed(context, [1])
    const second = model.createSampler()
    sampler.dispose()
    sampler.dispose()
    await refused('native/disposed', () => sampler.sample(context, 0))
    await refused('native/disposed', () => { sampler.accept(1) }) // prettier-ignore
    await refused('native/disposed', () => { sampler.reset() }) // prettier-ignore
    await context.dispose()
    await refused('native/disposed', () => second.sample(context, 0))
    await model.dispose()
    await refused('native/disposed', () => { second.accept(1) }) // prettier-ignore
  })

  test('the facts stay readable', async () => {
    const { model, context } = await made()
    await model.dispose()
    expect(model.info.layers).toBe(2)
    expect(context.cells).toBe(2048)
    await refused('native/disposed', () => context.submitted)
  })
})

describe('while a decode runs', () => {
  test.each(contextCalls)('context.%s is refused, and the decode ends well', async (_, call) => {
    const { context } = await made()
    const running = context.decode(batchOf(someTokens(600)))
    await refused('native/busy', () => call(context))
    expect(await running).toBe('done')
    expect(context.submitted).toBe(600)
  })

  test('sampling is refused, and the model stays usable', async () => {
    const { model, context, sampler } = await made()
    const running = context.decode(batchOf(someTokens(600)))
    await refused('native/busy', () => sampler.sample(context, 0))
    expect(model.detokenize(model.tokenize('text'))).toBe('text')
    const second = await model.createContext({ cells: 256, threads: 1 })
    await feed(second, [1])
    expect(await running).toBe('done')
  })

  test('dispose aborts it and waits for it', async () => {
    const { model, context } = await made()
    const running = context.decode(batchOf(someTokens(2000)))
    await model.dispose()
    expect(['aborted', 'done']).toContain(await running)
    await refused('native/disposed', () => context.positions(seq(0)))
  })

  test('dispose waits for a context that is being created', async () => {
    const { model } = await made()
    const making = model.createContext({ cells: 4096 })
    await model.dispose()
    const late = await making
    await refused('native/disposed', () => late.positions(seq(0)))
  })
})

describe('one llama.cpp per process', () => {
  test('a second call returns the same one', async () => {
    expect(await openNative()).toBe(native)
    expect(await openNative({ gpu: 'cpu' })).toBe(native)
    expect(native.backend).toMatchObject({ gpu: 'cpu', release: 'v0.5.0' })
    expect(native.backend.devices.length).toBeGreaterThan(0)
  })

  test('another backend is refused', async () => {
    await refused('native/unsupported', () => openNative({ gpu: 'cuda' }))
  })
})

describe('memory', () => {
  test('dispose frees the memory that load took', { timeout: 180_000 }, async () => {
    // Weights of 27 MB and a cache of 32 MB, 30 times: a leak of a tenth of either shows.
    const large = await tinyModel({ embedding: 512, heads: 8, kvHeads: 8, feedForward: 2048, layers: 2, vocabulary: 1024 })
    const cycle = async () => {
      const model = await native.loadModel(large, { mmap: false })
      const context = await model.createContext({ cells: 8192, sequences: 4, batch: 64, ubatch: 64, threads: 1 })
      await feed(context, someTokens(32))
      const sampler = model.createSampler({ grammar: 'root ::= [a-z]*' })
      sampler.sample(context, 31)
      await model.dispose()
      return process.memoryUsage().rss
    }
    for (let warm = 0; warm < 6; warm++) await cycle()
    const before = await cycle()
    let after = before
    for (let round = 0; round < 24; round++) after = await cycle()
    expect((after - before) / 2 ** 20).toBeLessThan(60)
  })
})

describe('the end of the process', () => {
  const script = (end: string): string => `
    import { openNative } from 'kvfold/native/binding'
    const native = await openNative({ gpu: 'cpu' })
    const model = await native.loadModel('${path}')
    const context = await model.createContext({ cells: 4096, batch: 4096, threads: 1 })
    const sampler = model.createSampler({ grammar: 'root ::= "a"*' })
    const tokens = new Int32Array(4000)
    const batch = { tokens, positions: tokens.map((_, i) => i), sequences: new Int32Array(4000), outputs: new Uint8Array(4000) }
    ${end}`

  test.each<[string, string, number]>([
    ['comes by itself', 'await context.decode(batch); console.log("end")', 0],
    ['is asked for', 'await context.decode(batch); console.log("end"); process.exit(3)', 3],
    [
      'is asked for during a decode',
      'void context.decode(batch); setTimeout(() => { console.log("end"); process.exit(4) }, 20)',
      4,
    ],
    ['comes with an error', 'await context.decode(batch); console.log("end"); throw new Error("wanted")', 1],
    ['comes after dispose', 'await model.dispose(); console.log("end")', 0],
    [
      'is asked for during a run',
      `await context.decode({ ...batch, tokens: tokens.slice(1), positions: batch.positions.slice(0, -1), sequences: tokens.slice(1), outputs: batch.outputs.slice(1) })
       const one = Int32Array.of(0)
       const plain = model.createSampler({ temperature: 0 })
       void context.generate({ tokens: one, positions: Int32Array.of(3999), sequences: one, samplers: [plain], limits: Int32Array.of(90), steps: 90 }, () => undefined)
       setTimeout(() => { console.log("end"); process.exit(4) }, 5)`,
      4,
    ],
    [
      'meets a call in its last moment',
      'process.on("exit", () => { try { context.positions(0) } catch (error) { console.log("end", error.code) } }); process.exit(0)',
      0,
    ],
  ])('%s', async (_, end, code) => {
    const ended = await runScript(script(end))
    expect(ended).toMatchObject({ code, signal: null })
    expect(ended.stdout).toMatch(/^end( native\/disposed)?\n$/)
    if (code !== 1) expect(ended.stderr.replaceAll(/^npm warn.*\n/gm, '')).toBe('')
  })

  test.each(['SIGTERM', 'SIGINT'])('comes after %s, even if the event loop never gets a turn', async (signal) => {
    const ended = await runScript(`
      import { openNative } from 'kvfold/native/binding'
      const native = await openNative({ gpu: 'cpu' })
      process.on('${signal}', () => console.log('never heard'))
      native.endWithin(300)
      console.log('end')
      process.kill(process.pid, '${signal}')
      for (;;);`)
    expect(ended).toMatchObject({ code: signal === 'SIGTERM' ? 143 : 130, stdout: 'end\n' })
  })

  test('is left to the handler if it hears the signal in time', async () => {
    const ended = await runScript(`
      import { openNative } from 'kvfold/native/binding'
      const native = await openNative({ gpu: 'cpu' })
      process.on('SIGTERM', () => { console.log('end'); process.exit(5) })
      native.endWithin(60_000)
      setInterval(() => undefined, 1000)
      process.kill(process.pid, 'SIGTERM')`)
    expect(ended).toMatchObject({ code: 5, stdout: 'end\n' })
  })

  test('a worker thread may end without disposing anything', async () => {
    const inWorker = `
      void (async () => {
        ${LOADER.length === 0 ? '' : "(await import('tsx/esm/api')).register()"}
        const { openNative } = await import('${pathToFileURL(root).href}/${moduleOf('runtime/native/binding')}')
        const model = await (await openNative({ gpu: 'cpu' })).loadModel('${path}')
        const context = await model.createContext({ cells: 256, threads: 1 })
        model.createSampler()
        console.log('end', context.cells)
        setTimeout(() => process.exit(0), 50)
      })()`
    const ended = await runScript(`
      import { Worker } from 'node:worker_threads'
      const worker = new Worker(${JSON.stringify(inWorker)}, { eval: true })
      worker.once('error', (error) => { console.error(error); process.exitCode = 9 })
      worker.once('exit', () => console.log('over'))`)
    expect(ended.stdout).toBe('end 256\nover\n')
    expect(ended).toMatchObject({ code: 0, signal: null })
  })

  test.each(['model.createContext({ cells: 8192 })', "native.loadModel('PATH')", 'context.generate(run, () => undefined)'])(
    'a worker thread may end during %s',
    async (call) => {
      const inWorker = `
        void (async () => {
          ${LOADER.length === 0 ? '' : "(await import('tsx/esm/api')).register()"}
          const { openNative } = await import('${pathToFileURL(root).href}/${moduleOf('runtime/native/binding')}')
          const native = await openNative({ gpu: 'cpu' })
          const model = await native.loadModel('${path}')
          const context = await model.createContext({ cells: 2048, threads: 1, batchThreads: 1 })
          const run = {
            ...{ tokens: Int32Array.of(1), positions: Int32Array.of(0), sequences: Int32Array.of(0), steps: 1000 },
            ...{ samplers: [model.createSampler({ temperature: 0 })], limits: Int32Array.of(1000) },
          }
          console.log('begun')
          void ${call.replace('PATH', path)}
          process.exit(0)
        })()`
      const ended = await runScript(`
        import { Worker } from 'node:worker_threads'
        const worker = new Worker(${JSON.stringify(inWorker)}, { eval: true })
        worker.once('error', (error) => { console.error(error); process.exitCode = 9 })
        worker.once('exit', () => setTimeout(() => console.log('over'), 300))`)
      expect(ended.stdout).toBe('begun\nover\n')
      expect(ended).toMatchObject({ code: 0, signal: null })
    },
  )
})

describe('an incomplete installation', () => {
  /** Makes a copy of the project with its own build folder. */
  function copy(): string {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-install-'))
    for (const room of ['core', 'native'])
      cpSync(join(root, RUN, 'runtime', room), join(folder, RUN, 'runtime', room), { recursive: true })
    mkdirSync(join(folder, 'build'))
    symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
    writeFileSync(join(folder, 'package.json'), '{ "type": "module" }')
    return folder
  }
  const open = `
    import { openNative } from 'kvfold/native/binding'
    try { await openNative({ gpu: 'cpu' }); console.log('opened') } catch (error) { console.log(error.code, error.message) }`

  test('has no addon', async () => {
    const folder = copy()
    const { stdout } = await runScript(open, folder)
    expect(stdout).toMatch(/^native\/build-failed The native addon is not built .* run npm ci/)
    rmSync(folder, { recursive: true })
  })

  test('has an addon for another release', async () => {
    const folder = copy()
    cpSync(join(root, 'build', 'kvfold.node'), join(folder, 'build', 'kvfold.node'))
    writeFileSync(join(folder, 'build', 'kvfold.json'), '{"release":"v9.9.9","hash":""}')
    const { stdout } = await runScript(open, folder)
    expect(stdout).toMatch(
      /^native\/library-mismatch The native addon was built for llama.cpp v9.9.9, but the installed library is v0.5.0/,
    )
    rmSync(folder, { recursive: true })
  })

  test('has a file that is not an addon', async () => {
    const folder = copy()
    writeFileSync(join(folder, 'build', 'kvfold.node'), 'text')
    writeFileSync(join(folder, 'build', 'kvfold.json'), '{"release":"v0.5.0","hash":""}')
    const { stdout } = await runScript(open, folder)
    expect(stdout).toMatch(/^native\/library-mismatch The native addon does not load/)
    rmSync(folder, { recursive: true })
  })
})
