/** Tests that the examples run by the command in their header, and print what they show. */
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { KVFOLD } from '../runtime/cli/support/process.js'
import { LONG } from '../support/long.js'

const ROOT = join(import.meta.dirname, '../..')
const EXAMPLES = join(ROOT, 'examples')

/** Returns an example's output. Here `kvfold` means the sources, by tsconfig.json; in other programs it means the package. */
function example(name: string, environment: Readonly<Record<string, string>> = {}): Promise<string> {
  return new Promise((resolve, reject) => {
    const words = ['--import', 'tsx', join('examples', `${name}.ts`)]
    const child = spawn(process.execPath, words, { cwd: ROOT, env: { ...process.env, ...environment } })
    let [stdout, stderr] = ['', '']
    child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    child.on('error', reject)
    child.on('close', (code) => {
      if (code === 0) resolve(stdout)
      else reject(new Error(`${name} ended with ${code}: ${stderr}`))
    })
  })
}

const numbers = (line: string | undefined): number[] => [...(line ?? '').matchAll(/\d+/g)].map(Number)

it('each of them fits on a page, imports the package by its name and says how to run it', () => {
  const files = readdirSync(EXAMPLES).filter((file) => file.endsWith('.ts'))
  expect(files.sort()).toEqual(['attention.ts', 'fold.ts', 'own-tool.ts', 'policy.ts', 'serve-openai.ts'])
  for (const file of files) {
    const text = readFileSync(join(EXAMPLES, file), 'utf8')
    expect(text.split('\n').length, file).toBeLessThanOrEqual(61)
    expect(text, file).toContain(`node --import tsx examples/${file}`)
    expect(text, file).not.toMatch(/from '\.\.?\//)
  }
})

it('a fold computes a marker under splice, and a restore computes no token of the text', async () => {
  const lines = (await example('fold')).split('\n')
  const [, , recomputed, fresh] = numbers(lines.find((line) => line.startsWith('folded')))
  const [restored, reused, again] = numbers(lines.find((line) => line.startsWith('restored')))
  const [whole] = numbers(lines.find((line) => line.startsWith('all of it')))
  expect(recomputed).toBe(0)
  expect(fresh).toBeLessThan(whole! / 4)
  expect(again).toBe(0)
  expect(reused).toBeGreaterThan(restored! * 0.8)
  expect(lines.join()).toMatch(/the model sees \[folded f[0-9a-f]{5}: \d+ characters/)
})

it.runIf(LONG)('a policy keeps the tokens computed in a turn constant, and the context grows by a marker each turn', async () => {
  const rows = (await example('policy')).trim().split('\n').slice(1).map(numbers)
  expect(rows).toHaveLength(8)
  expect(rows.map(([, folded]) => folded)).toEqual([0, 0, 1, 1, 1, 1, 1, 1])
  for (const [, , , computed] of rows.slice(2)) expect(computed).toBeLessThan(rows[1]![3]! + 60)
  expect(rows[7]![2]! - rows[6]![2]!).toBeLessThan(rows[1]![2]! / 5)
})

it("a program's tool is called, and the turn ends with its result", async () => {
  const said = await example('own-tool')
  const [, fruit] = /the model calls stock_of\(\{"fruit":"(\w+)"\}\)/.exec(said) ?? []
  expect(['apples', 'pears', 'plums']).toContain(fruit)
  const told = new RegExp(`the tool says: (There are \\d+ ${fruit!}\\.)`).exec(said)?.[1]
  expect(said).toContain(`the program has its answer: ${told!}\n1 call, `)
  expect(said).not.toMatch(/error/i)
})

it.runIf(LONG)('a study finds that folding takes attention off older values', async () => {
  const said = await example('attention')
  for (const contract of ['exact', 'splice']) {
    const row = said.split('\n').find((line) => line.startsWith(contract)) ?? ''
    const [before, after] = [...row.matchAll(/([\d.]+) %/g)].map(([, share]) => Number(share)).slice(2)
    expect(after, row).toBeLessThan(before!)
  }
})

it("a server's folds last from request to request of OpenAI's SDK", async () => {
  const server = spawn(process.execPath, [...KVFOLD, 'serve', '--port', '0', '--log-level', 'warn', '--store', 'none'], {
    cwd: ROOT,
  })
  const ended = new Promise((resolve) => server.once('close', resolve))
  try {
    const url = await new Promise<string>((resolve, reject) => {
      let said = ''
      server.stdout.setEncoding('utf8').on('data', (text: string) => {
        said += text
        const found = /http:\/\/\S+/.exec(said)
        if (found !== null) resolve(found[0])
      })
      server.once('close', (code) => {
        reject(new Error(`The server ended with ${code}.`))
      })
    })
    const said = await example('serve-openai', { OPENAI_BASE_URL: `${url}/v1` })
    const asked = said
      .split('\n')
      .filter((line) => line.includes('in the prompt'))
      .map(numbers)
    expect(asked).toHaveLength(3)
    const [first, second, third] = asked
    expect(first![1]).toBe(0)
    expect(second![1]).toBeGreaterThan(first![0]! * 0.95)
    expect(third![0]).toBeLessThan(first![0]! / 4)
  } finally {
    server.kill()
    await ended
  }
})
