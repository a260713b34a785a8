/** Tests that benches name files that exist, and that records name their origin and the weights that they are of. */
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { lacking } from '../../bench/record.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { modelFingerprint } from '../../src/runtime/engine/model-facts.js'

const FOLDER = new URL('../../bench/results/', import.meta.url)
const NAME = 'kvfold-tiny'
/**
 * Records of weights shipped earlier, with the same shape and vocabulary, by the hash of these weights. Remove a record from the list when
 * it is measured again; the test fails until then. They have times, counts of a script's tokens, which do not depend on weights, and
 * `gspo`, whose runs began with these weights.
 */
const EARLIER: Readonly<Record<string, readonly string[]>> = {
  d1f032ae15565fb7a68471e580d81bf484585feb4c1cb55993deb30062a1e6c6: ['gpu-cuda'],
  ee4a043456d1075c73063ad7d013cdd45b021f2e9187e2e42dec7fc263dffeaa: [
    ...['acm', 'client-edits', 'edit-price', 'engine-table', 'engine-table-transformers', 'engines', 'engines-llama-server'],
    ...['fleet', 'fleet-killed', 'gspo', 'lazy-grammar', 'memtool-builtin', 'service', 'service-long', 'service-orders'],
    ...['service-replay', 'service-replay-printed', 'tau2-airline', 'tau2-retail', 'travel'],
  ],
}

/** Returns every model that a record names with a hash. */
function modelsIn(value: unknown): { readonly name: unknown; readonly hash: unknown }[] {
  if (typeof value !== 'object' || value === null) return []
  const { name, sha256, fingerprint } = value as Record<string, unknown>
  const hash = sha256 ?? fingerprint
  return [...(hash === undefined ? [] : [{ name, hash }]), ...Object.values(value).flatMap(modelsIn)]
}

/**
 * Records from before benches recorded the whole origin, and the parts that they lack. Remove a record from the list when it is complete or
 * gone; the test fails until then.
 */
const OLD: Readonly<Record<string, string>> = {
  'acm-0.6b.json': 'model',
  'acm-1.7b.json': 'model',
  'attention-gemma3-270m.json': 'commit, load, processor',
}

/** Files and folders of the checkout that programs name beside themselves: up to the first part that a variable decides. */
function namedBeside(folder: URL): string[] {
  const programs = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((name) => /\.m?[jt]s$/.test(name))
  return programs.flatMap((name) => {
    const program = new URL(name, folder)
    const named = readFileSync(program, 'utf8').matchAll(/new URL\(['"`]([^'"`$]+)[^)]*, import\.meta\.url\)/g)
    return Array.from(named, ([, path = '']) => fileURLToPath(new URL(path, program)))
  })
}

describe('benches', () => {
  it('name files and folders that exist', () => {
    const named = ['bench', 'scripts'].flatMap((name) => namedBeside(new URL(`../../${name}/`, import.meta.url)))
    expect(named.length).toBeGreaterThan(10)
    expect(named.filter((path) => !path.includes('/dist/') && !existsSync(path))).toEqual([])
  })
})

describe('records', () => {
  it('name the model by its hash, the commit, the load and the processor', () => {
    const found = readdirSync(FOLDER)
      .filter((file) => file.endsWith('.json'))
      .map((file) => [file, lacking(JSON.parse(readFileSync(new URL(file, FOLDER), 'utf8'))).join(', ')] as const)
      .filter(([, lacks]) => lacks !== '')
    expect(Object.fromEntries(found)).toEqual(OLD)
  })

  it('show no path of the machine that they were made on', () => {
    const text = readdirSync(FOLDER)
      .map((file) => readFileSync(new URL(file, FOLDER), 'utf8'))
      .join('\n')
    expect(text.match(/(?<=[\s"'=`])\/[^\s"'`]+\.(?:gguf|jinja|jsonl?|onnx|parquet)\b/gu)).toBeNull()
  })

  it('of the built-in model are of the shipped weights, or of listed earlier ones', async () => {
    const shipped = [
      createHash('sha256').update(readFileSync(builtinModel())).digest('hex'),
      (await modelFingerprint(builtinModel())).toString('hex'),
    ]
    const named = readdirSync(FOLDER)
      .filter((file) => file.endsWith('.json'))
      .flatMap((file) => modelsIn(JSON.parse(readFileSync(new URL(file, FOLDER), 'utf8'))).map((model) => ({ file, ...model })))
      .filter(({ name }) => name === NAME)
    expect(named.length).toBeGreaterThanOrEqual(3)
    const others = named.filter(({ hash }) => !shipped.includes(String(hash)))
    expect(others.filter(({ file, hash }) => EARLIER[String(hash)]?.includes(file.replace('.json', '')) !== true)).toEqual([])
    expect(new Set(others.map(({ file }) => file.replace('.json', '')))).toEqual(new Set(Object.values(EARLIER).flat()))
  })
})
