/** Tests that the programs which train the built-in model name files that exist. Most tests of them need PyTorch; this one does not. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

const models = join(import.meta.dirname, '../../native-models')
const train = join(models, 'train')
const programs = (kind: string) =>
  readdirSync(train)
    .filter((name) => name.endsWith(kind))
    .map((name) => ({ name, text: readFileSync(join(train, name), 'utf8') }))

describe('the programs that train', () => {
  it.each(programs('.mts'))('$name imports files that exist', ({ text }) => {
    const imports = [...text.matchAll(/ from '(\.[^']+)\.js'/gu)].map(([, path]) => `${path!}.ts`)
    expect(imports.length).toBeGreaterThan(0)
    expect(imports.filter((path) => !existsSync(join(train, path)))).toEqual([])
  })

  it.each(programs('.sh'))('$name runs files that exist', ({ text }) => {
    // A script runs in native-models, and what it runs behind `cd ..` in the folder of the repository.
    const scripts = [...text.matchAll(/[\w.-]+(?:\/[\w.-]+)*\/[\w.-]+\.(?:[cm]?[jt]s|sh|py)\b/gu)].map(([path]) => path)
    const modules = [...text.matchAll(/ -m (train\.\w+)/gu)].map(([, name]) => `${name!.replace('.', '/')}.py`)
    const run = [...scripts, ...modules]
    expect(run.length).toBeGreaterThan(0)
    expect(run.filter((path) => ![models, join(models, '..')].some((folder) => existsSync(join(folder, path))))).toEqual([])
  })
})
