/**
 * Runs the tests that can run on a GPU: `npm run test:gpu [-- --gpu cuda|vulkan|metal] [--short] [vitest's arguments]`. Without a backend
 * it uses the first one with a device, or Vulkan's software device if there is no GPU. Fails if there is neither.
 */
import { spawnSync } from 'node:child_process'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { softwareVulkan } from './software-vulkan.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** Suites on real models, whose references (fresh prefills, contexts driven by hand) are computed on the same device. */
const SUITES = [
  'test/device',
  'test/runtime/native/decode',
  'test/runtime/native/memory',
  'test/runtime/native/device-memory',
  'test/runtime/engine/exact',
  'test/runtime/engine/contracts',
  'test/runtime/engine/parking',
  'test/runtime/engine/reload-ahead',
  'test/runtime/engine/scheduler',
  'test/runtime/engine/quantised',
  'test/runtime/engine/tenants',
  'test/runtime/engine/embedder',
  'test/runtime/native/attention',
  'test/runtime/engine/attention',
  'test/runtime/server/service',
  'test/runtime/server/residency',
  'test/runtime/server/embeddings',
]

/**
 * Suites for a software device, which compiles a kernel for every small batch size and matrix type, half a minute each. These need few
 * kernels.
 */
const SOFTWARE = ['test/device']
const SHORT = ['test/device/folds']
const COMPUTES_IN_SOFTWARE = /llvmpipe|swiftshader/i

const { values, positionals } = parseArgs({
  options: {
    gpu: { type: 'string' },
    short: { type: 'boolean', default: false },
    /** Prints the backend and device, and runs nothing. */
    which: { type: 'boolean', default: false },
    probe: { type: 'string' },
  },
  allowPositionals: true,
})

/**
 * Returns the device of a backend. Runs in a separate process, because a process has one backend. A CUDA library computes a token first:
 * one without machine code for the device still lists it, and ends the process if the driver is too old for its PTX.
 */
async function probe(gpu) {
  const { openNative, LlamaEngine, builtinModel } = await import(pathToFileURL(join(root, 'dist', 'index.js')).href)
  const native = await openNative({ gpu })
  const { backend } = native
  if (backend.gpu === 'cuda') {
    const engine = await LlamaEngine.load(native, builtinModel(), { cells: 64 })
    await engine.complete({ conversation: 'probe', tokens: Int32Array.of(5, 6, 7), maxTokens: 1 })
    await engine.dispose()
  }
  console.log(JSON.stringify(backend))
}

/** Returns the backend in this environment, or null if it has no library or no device. */
function found(gpu, extra) {
  const { status, stdout } = spawnSync(process.execPath, [fileURLToPath(import.meta.url), '--probe', gpu], {
    env: { ...process.env, ...extra },
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  return status === 0 ? { gpu, extra, ...JSON.parse(stdout.trim().split('\n').at(-1)) } : null
}

function choose(wanted) {
  const hardware = wanted === undefined ? ['cuda', 'metal', 'vulkan'] : [wanted]
  const tries = hardware.map((gpu) => [gpu, {}])
  if (hardware.includes('vulkan')) tries.push(['vulkan', softwareVulkan()])
  for (const [gpu, extra] of tries) {
    const backend = found(gpu, extra)
    if (backend !== null) return backend
  }
  return null
}

function main() {
  const backend = choose(values.gpu)
  if (backend === null) {
    console.error(
      `test:gpu: no device for ${values.gpu ?? 'any backend'} on this machine, so nothing was tested. \`node scripts/test-parts.mjs vulkan\` puts one in place that computes in software (Debian).`,
    )
    process.exit(1)
  }
  if (values.which) {
    console.log(JSON.stringify(backend))
    return
  }
  const on = `${backend.gpu} on ${backend.devices[0]}, llama.cpp ${backend.release}`
  console.log(`test:gpu: ${on}`)
  const all = COMPUTES_IN_SOFTWARE.test(backend.devices[0]) ? SOFTWARE : SUITES
  const files = positionals.length > 0 ? positionals : values.short ? SHORT : all
  const { status } = spawnSync(
    process.execPath,
    [join(root, 'node_modules', 'vitest', 'vitest.mjs'), 'run', '--project', 'whole', ...files],
    { cwd: root, stdio: 'inherit', env: { ...process.env, ...backend.extra, KVFOLD_TEST_GPU: backend.gpu } },
  )
  console.log(`test:gpu: ${status === 0 ? 'passed' : 'failed'}: ${on}`)
  process.exit(status ?? 1)
}

if (values.probe === undefined) main()
else await probe(values.probe)
