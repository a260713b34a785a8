/**
 * Runs kvfold on other releases of Node: `node scripts/smoke.mjs [version ...]`, by default the long-term releases. npm fetches each (its
 * package `node`). The script builds addon, `dist/` and dashboard from scratch, plays a short demo, folds in a program, and
 * folds in a conversation over HTTP. It fails at the first error, and names it.
 */
import { spawn, spawnSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { delimiter, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const VERSIONS = ['22', '24', '26']

class Wrong extends Error {}

function run(program, words, env = process.env) {
  const { status, signal, stdout, stderr, error } = spawnSync(program, words, {
    cwd: root,
    env,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
  })
  if (error) throw error
  if (status === 0) return stdout
  throw new Wrong(`${program} ${words.join(' ')} failed (${signal ?? `exit code ${status}`}): ${stderr.trim().slice(-2000)}`)
}

function expect(fact, what) {
  if (!fact) throw new Wrong(what)
}

const numbers = (text, line) =>
  text
    .split('\n')
    .filter((each) => each.includes(line))
    .map((each) => [...each.matchAll(/\d+/g)].map(([number]) => Number(number)))

/** Returns the program of a Node version from npm. */
function nodeOf(version) {
  const file = run('npx', ['--yes', '--package', `node@${version}`, '--', 'node', '-p', 'process.execPath']).trim()
  expect(file.includes('_npx') || file.includes('node_modules'), `npx gave this machine's own Node for ${version}: ${file}`)
  return file
}

/** Runs a server with this Node while `use` runs. */
async function serving(node, env, use) {
  const words = ['dist/cli/main.js', 'serve', '--port', '0', '--store', 'none', '--log-level', 'warn']
  const server = spawn(node, words, { cwd: root, env, stdio: ['ignore', 'pipe', 'ignore'] })
  const ended = new Promise((resolve) => server.once('close', resolve))
  try {
    const url = await new Promise((resolve, reject) => {
      let said = ''
      server.stdout.setEncoding('utf8').on('data', (text) => {
        said += text
        const found = /http:\/\/\S+/.exec(said)
        if (found !== null) resolve(found[0])
      })
      server.once('close', (code) => reject(new Wrong(`the server ended with ${code}`)))
    })
    use(url)
    server.kill('SIGTERM')
    const code = await ended
    expect(code === 0, `the server ended with ${code} when it was told to stop`)
  } finally {
    server.kill('SIGKILL')
    await ended
  }
}

async function smoke(version) {
  const node = nodeOf(version)
  const env = { ...process.env, PATH: `${dirname(node)}${delimiter}${process.env.PATH}` }
  console.log(`Node ${run(node, ['-p', 'process.version']).trim()}`)

  // Both builds run with this Node. Without its stamp the addon is built again.
  rmSync(join(root, 'build', 'kvfold.json'), { force: true })
  rmSync(join(root, 'dist'), { recursive: true, force: true })
  run('npm', ['run', 'build'], env)
  console.log('  built')

  const demo = JSON.parse(run(node, ['dist/cli/main.js', 'demo', '--tokens', '9000', '--context', '2048', '--json'], env))
  const { conversationTokens, cells, asked, right, computed, prefixCache } = demo
  expect(right > asked / 2 && conversationTokens > 3 * cells, `the demo answers worse than it should: ${JSON.stringify(demo)}`)
  expect(computed < prefixCache.computed, `the demo saved nothing: ${JSON.stringify(demo)}`)
  console.log(`  demo: ${conversationTokens} tokens read in ${cells} cells, ${computed} computed`)

  const fold = run(node, ['--import', 'tsx', 'examples/fold.ts'], env)
  const [[shown, , recomputed] = []] = numbers(fold, 'folded  ')
  expect(recomputed === 0, `a fold under splice computed ${recomputed} tokens again: ${fold}`)
  console.log(`  a fold in a program: ${shown} tokens shown, ${recomputed} computed again`)

  await serving(node, env, (url) => {
    const said = run(node, ['--import', 'tsx', 'examples/serve-openai.ts'], { ...env, OPENAI_BASE_URL: `${url}/v1` })
    const [first, second, third] = numbers(said, 'in the prompt')
    expect(second?.[1] > first?.[0] * 0.9, `the server computed a conversation again: ${said}`)
    expect(third?.[0] < first?.[0] / 4, `folds over HTTP did not last: ${said}`)
    console.log(`  a fold over HTTP: ${second[0]} tokens before, ${third[0]} after`)
  })
}

try {
  const asked = process.argv.slice(2)
  for (const version of asked.length > 0 ? asked : VERSIONS) await smoke(version)
} catch (error) {
  if (!(error instanceof Wrong)) throw error
  console.error(`kvfold: ${error.message}`)
  process.exitCode = 1
}
