/** Tests bundles: their contents, that they run on an empty machine, that damage is named, and that a bundle can make itself again. */
import { spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import ts from 'typescript'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { bundleContents, type Contents, productionPackages } from '../../../src/runtime/cli/bundle/contents.js'
import { highest, readElf, requirementsOf } from '../../../src/runtime/cli/bundle/requirements.js'
import { textEntry } from '../../../src/runtime/cli/bundle/entries.js'
import { tarOf, writeArchive, writeFolder } from '../../../src/runtime/cli/bundle/write.js'
import { RUN } from '../../support/program.js'
import { EmptyMachine } from './support/empty-machine.js'
import { kvfold } from './support/process.js'
import { LONG } from '../../support/long.js'

const ROOT = join(import.meta.dirname, '../../..')
const forever = new AbortController().signal

let folder: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-bundle-'))
})

afterAll(() => {
  rmSync(folder, { recursive: true, force: true })
}, 600_000)

const text = (...path: string[]): string => readFileSync(join(...path), 'utf8')

/** Returns every file below a folder, by its path in it. */
const filesOf = (at: string): string[] =>
  readdirSync(at, { recursive: true, withFileTypes: true })
    .filter((item) => item.isFile())
    .map((item) => join(item.parentPath, item.name).slice(at.length + 1))
    .sort()

const check = (at: string) => spawnSync('sha256sum', ['--quiet', '-c', 'SHA256SUMS'], { cwd: at, encoding: 'utf8' })

/** Returns the compiled program: `dist` if it is newer than the sources; otherwise it compiles to `to`, file by file. */
function compiled(to: string): string {
  const dashboard = join(ROOT, 'dist/dashboard')
  if (RUN === 'dist' && existsSync(dashboard)) return join(ROOT, 'dist')
  for (const name of readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })) {
    if (!name.endsWith('.ts')) continue
    const { outputText } = ts.transpileModule(text(ROOT, 'src', name), {
      fileName: name,
      compilerOptions: { target: ts.ScriptTarget.ES2023, module: ts.ModuleKind.ESNext, verbatimModuleSyntax: true },
    })
    const place = join(to, name.replace(/ts$/, 'js'))
    mkdirSync(join(place, '..'), { recursive: true })
    writeFileSync(place, outputText)
  }
  if (existsSync(dashboard)) cpSync(dashboard, join(to, 'dashboard'), { recursive: true })
  else {
    mkdirSync(join(to, 'dashboard'))
    writeFileSync(join(to, 'dashboard/index.html'), '<!doctype html><title>kvfold</title>\n')
  }
  return to
}

describe('the reading of binaries', () => {
  it('agrees with objdump on every library of llama.cpp, on the addon and on Node', () => {
    const libraries = join(ROOT, `node_modules/@node-llama-cpp/linux-${process.arch}/bins/linux-${process.arch}`)
    const files = [
      process.execPath,
      join(ROOT, 'build/kvfold.node'),
      ...readdirSync(libraries)
        .filter((name) => /\.(so|node)$/.test(name))
        .map((name) => join(libraries, name)),
    ]
    expect(files.length).toBeGreaterThan(5)
    for (const file of files) {
      const { stdout } = spawnSync('objdump', ['-p', file], { encoding: 'utf8' })
      const elf = readElf(file)
      expect(elf?.needs).toEqual([...stdout.matchAll(/^ +NEEDED +(\S+)/gm)].map(([, name]) => name))
      const versions = stdout.slice(stdout.indexOf('Version References:'))
      const names = [...versions.matchAll(/^ +0x\w+ 0x\w+ \d+ (\S+)/gm)].map(([, name]) => name)
      expect(names.length).toBeGreaterThan(3)
      expect([...elf!.needsVersions].sort()).toEqual(names.sort())
    }
  })

  it('recognises files that are not binaries', () => {
    expect(readElf(join(ROOT, 'package.json'))).toBeNull()
  })

  it('orders versions by their numbers and leaves out names', () => {
    expect(highest(['GLIBC_2.9', 'GLIBC_2.34', 'GLIBC_PRIVATE', 'GLIBCXX_3.4.30'], 'GLIBC_')).toBe('2.34')
    expect(highest(['GLIBC_2.2.5', 'GLIBC_2.2'], 'GLIBC_')).toBe('2.2.5')
    expect(highest([], 'GLIBC_')).toBeNull()
  })

  it('lists the requirements of a machine', () => {
    const elf = (needs: string[], needsVersions: string[]) => ({
      machine: 'Advanced Micro Devices X86-64',
      interpreter: null,
      needs,
      needsVersions,
      hasVersions: [],
    })
    const requirements = requirementsOf(
      [
        {
          path: 'app/a.node',
          elf: elf(['libb.so', 'libc.so.6', 'libvulkan.so.1'], ['GLIBC_2.31', 'GLIBCXX_3.4.20', 'CXXABI_1.3.14']),
        },
        { path: 'app/libb.so', elf: elf(['libstdc++.so.6', 'ld-linux-x86-64.so.2'], ['GLIBC_2.28']) },
      ],
      { libraries: [{ path: 'lib/libstdc++.so.6', elf: elf(['libc.so.6'], ['GLIBC_2.38']) }], minor: 33 },
    )
    expect(requirements).toEqual({
      glibc: '2.31',
      cppMinor: 31,
      glibcForOurs: '2.38',
      missing: new Map([['libvulkan.so.1', ['app/a.node']]]),
    })
  })
})

describe('the packages', () => {
  it("are the lock file's production packages for this machine", async () => {
    const { packages: locked } = JSON.parse(text(ROOT, 'package-lock.json')) as { packages: Record<string, { dev?: boolean }> }
    const found = await productionPackages(ROOT, (name) => !name.startsWith('@node-llama-cpp/'))
    const paths = found.slice(1).map((each) => each.folder.slice(ROOT.length + 1))
    expect(paths.filter((path) => locked[path] === undefined || locked[path].dev === true)).toEqual([])
    for (const name of ['node-llama-cpp', 'commander', 'libsql', 'fastify']) expect(paths).toContain(`node_modules/${name}`)
    for (const name of ['typescript', 'vitest', '@node-llama-cpp/linux-x64']) expect(paths).not.toContain(`node_modules/${name}`)
  })

  it('that are missing are named', async () => {
    const root = join(folder, 'lonely')
    mkdirSync(root)
    writeFileSync(
      join(root, 'package.json'),
      JSON.stringify({ name: 'lonely', version: '1.0.0', dependencies: { nowhere: '1' } }),
    )
    await expect(productionPackages(root, () => true)).rejects.toMatchObject({
      code: 'bundle/unsuitable',
      message: expect.stringMatching(/nowhere is not installed \(lonely needs it\)/) as string,
    })
  })
})

describe('an archive', () => {
  const long = `${'deep/'.repeat(25)}file.txt`
  const entries = [textEntry('a.sh', '#!/bin/sh\n', true), textEntry(long, 'x'.repeat(1000)), textEntry('empty', '')]

  it('is read by tar as it was written', async () => {
    const file = join(folder, 'plain.tar')
    const pieces: Buffer[] = []
    for await (const piece of tarOf('top', entries)) pieces.push(piece)
    writeFileSync(file, Buffer.concat(pieces))
    const to = join(folder, 'plain')
    mkdirSync(to)
    expect(spawnSync('tar', ['-xf', file, '-C', to], { encoding: 'utf8' })).toMatchObject({ status: 0, stderr: '' })
    expect(filesOf(join(to, 'top'))).toEqual(['SHA256SUMS', 'a.sh', long, 'empty'])
    expect(text(to, 'top', long)).toBe('x'.repeat(1000))
    expect(check(join(to, 'top'))).toMatchObject({ status: 0, stdout: '' })
    const { stdout } = spawnSync('tar', ['-tvf', file], { encoding: 'utf8' })
    expect(stdout).toMatch(/^-rwxr-xr-x 0\/0 +10 1970-01-01 .* top\/a\.sh$/m)
    expect(stdout).toMatch(/^-rw-r--r-- 0\/0 +0 1970-01-01 .* top\/empty$/m)
  })

  it('with damaged or missing parts is refused, and a complete one is put together', async () => {
    const at = join(folder, 'parts')
    // This content does not compress, so that there are several parts.
    const noise = Array.from({ length: 3000 }, (_, index) => Math.sin(index).toString(36)).join('')
    await writeArchive(at, 'top', [textEntry('noise', noise)], 5000, forever)
    const parts = readdirSync(at).filter((name) => name.startsWith('top.tar.gz.'))
    expect(parts.length).toBeGreaterThan(2)
    const unpack = (to: string) => spawnSync('sh', [join(at, 'unpack.sh'), join(folder, to)], { encoding: 'utf8' })
    expect(unpack('out')).toMatchObject({ status: 0 })
    expect(text(folder, 'out/top/noise')).toBe(noise)
    expect(unpack('out')).toMatchObject({ status: 1, stderr: expect.stringMatching(/is there already/) as string })

    const second = readFileSync(join(at, parts[1]!))
    writeFileSync(
      join(at, parts[1]!),
      second.map((byte, index) => (index === 100 ? byte ^ 1 : byte)),
    )
    expect(unpack('out2')).toMatchObject({ status: 1, stdout: expect.stringContaining(`${parts[1]!}: FAILED`) as string })
    rmSync(join(at, parts[1]!))
    expect(unpack('out3')).toMatchObject({ status: 1, stderr: expect.stringContaining(parts[1]!) as string })
    expect(existsSync(join(folder, 'out2/top'))).toBe(false)
  })

  it('leaves nothing behind when it is stopped', async () => {
    const at = join(folder, 'stopped')
    await expect(writeArchive(at, 'top', entries, 5000, AbortSignal.abort())).rejects.toMatchObject({ code: 'engine/cancelled' })
    expect(readdirSync(folder).filter((name) => name.startsWith('stopped'))).toEqual([])
  })
})

describe.runIf(LONG)('a bundle', { timeout: 600_000 }, () => {
  let machine: EmptyMachine
  let contents: Contents
  let dist: string
  /** The bundle on the empty machine. */
  let bundle: string
  let made: readonly string[]

  beforeAll(async () => {
    dist = compiled(join(folder, 'dist'))
    contents = await bundleContents({ root: ROOT, dist, gpu: 'cpu', models: [] })
    machine = new EmptyMachine()
    bundle = join(machine.folder, 'kvfold')
    await writeFolder(bundle, contents.entries, forever)
    made = filesOf(bundle)
  }, 600_000)

  // There are thousands of files to remove.
  afterAll(() => {
    machine.remove()
  }, 600_000)

  it('holds everything that runs, in order, with licences, and nothing of the build machine or of development', () => {
    const files = [...made]
    const listed = text(bundle, 'SHA256SUMS')
      .trimEnd()
      .split('\n')
      .map((line) => line.slice(66))
    expect([...listed, 'SHA256SUMS'].sort()).toEqual(files)
    expect(listed).toEqual([...listed].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))))
    for (const file of ['node', 'kvfold', 'README.md', 'lib/libstdc++.so.6', 'LICENSES/INDEX.txt', 'LICENSES/node.txt'])
      expect(files).toContain(file)
    const strange =
      /(^|\/)(\.git|\.bin|typescript|vitest|tsx|playwright-core)(\/|$)|\.d\.ts$|\.map$|@node-llama-cpp\/linux-[^/]*-/
    expect(files.filter((file) => strange.test(file))).toEqual([])
    const index = text(bundle, 'LICENSES/INDEX.txt')
    for (const name of ['fastify', 'libsql', 'node-llama-cpp']) expect(index).toMatch(new RegExp(`^${name} \\d`, 'm'))
    for (const file of files) expect(readFileSync(join(bundle, file)).includes(`${ROOT}/`), file).toBe(false)
    expect(text(bundle, 'README.md')).toContain(`glibc ${contents.requirements.glibcForOurs} or later`)
  })

  it('runs with only a C library and a shell', async () => {
    const { version } = JSON.parse(text(ROOT, 'package.json')) as { version: string }
    expect(await machine.run('kvfold/kvfold', ['--version'])).toMatchObject({ code: 0, stdout: `${version}\n`, stderr: '' })
    const { code, stdout, stderr } = await machine.run('kvfold/kvfold', [
      'run',
      '--prompt',
      'Hello',
      '--max-tokens',
      '2',
      '--json',
    ])
    expect(code, stderr).toBe(0)
    expect(JSON.parse(stdout)).toMatchObject({ finish: 'length', timing: { generatedTokens: 2 } })
  })

  it('has a Dockerfile and a service file that name its place and only existing files', async () => {
    const [image, unit] = [text(bundle, 'Dockerfile'), text(bundle, 'kvfold.service')]
    const named = [...`${image}${unit}`.matchAll(/\/opt\/kvfold\/([\w.]+)/g)].map(([, name]) => name)
    expect([...new Set(named)].sort()).toEqual(['README.md', 'kvfold', 'node'])
    for (const name of named) expect(made).toContain(name)
    // XDG_STATE_HOME and StateDirectory must name the same folder.
    const [, states] = /XDG_STATE_HOME=(\S+)/.exec(unit) ?? []
    expect([states, /^StateDirectory=(.*)$/m.exec(unit)?.[1]]).toEqual(['/var/lib', 'kvfold'])
    const entry = JSON.parse(/^ENTRYPOINT (.*)$/m.exec(image)?.[1] ?? '[]') as string[]
    const started = /^ExecStart=\S+ (.*) \$KVFOLD_OPTIONS$/m.exec(unit)?.[1]?.split(' ') ?? []
    for (const words of [entry.slice(1), started]) {
      expect(words[0]).toBe('serve')
      expect(await machine.run('kvfold/kvfold', [...words, '--help'])).toMatchObject({ code: 0 })
    }
    const health = JSON.parse(/^HEALTHCHECK .*? CMD (.*)$/m.exec(image)?.[1] ?? '[]') as string[]
    // Nothing listens here, so the test only reads the health check.
    expect(health.slice(1, 2)).toEqual(['-e'])
    expect(health[2]).toContain('/health')
  })

  it.skipIf(spawnSync('systemd-analyze', ['--version']).status !== 0)('has a unit that systemd accepts', () => {
    const at = join(folder, 'kvfold.service')
    writeFileSync(at, text(bundle, 'kvfold.service').replaceAll('/opt/kvfold', bundle))
    // systemd may also report faults in other units of this machine.
    const { stderr } = spawnSync('systemd-analyze', ['verify', at], { encoding: 'utf8' })
    expect(stderr).not.toContain('kvfold')
  })

  it('serves on the empty machine, with its store and its page', async () => {
    const words = ['serve', '--unix-socket', machine.path('tmp/s'), '--store', machine.path('tmp/store'), '--log-level', 'warn']
    const server = machine.start('kvfold/kvfold', words)
    const ended = new Promise<number | null>((resolve) => server.once('close', resolve))
    let errors = ''
    server.stderr?.on('data', (piece: Buffer) => (errors += piece.toString()))
    try {
      const ready = new Promise<void>((resolve) => {
        server.stdout?.on('data', (piece: Buffer) => {
          if (piece.toString().includes('kvfold serves')) resolve()
        })
      })
      const failed = ended.then(() => {
        throw new Error(errors)
      })
      await Promise.race([ready, failed])
      const answer = await ask(join(machine.folder, 'tmp/s'), '/v1/chat/completions', {
        messages: [{ role: 'user', content: 'Hello' }],
        max_tokens: 4,
        // Without this grammar the answer could end earlier.
        kvfold: { grammar: 'root ::= [a-z ] root' },
      })
      expect(answer.status).toBe(200)
      expect(JSON.parse(answer.body)).toMatchObject({ usage: { completion_tokens: 4 } })
      const page = await ask(join(machine.folder, 'tmp/s'), '/', null)
      expect(page).toEqual({ status: 200, body: text(bundle, 'app/dist/dashboard/index.html') })
      expect(readdirSync(join(machine.folder, 'tmp/store'))).toContain('threads.db')
    } finally {
      server.kill('SIGTERM')
      await ended
    }
  })

  it('is unchanged after all that, and its checksums name a damaged file', () => {
    expect(check(bundle)).toMatchObject({ status: 0, stdout: '' })
    expect(filesOf(bundle)).toEqual(made)
    const victim = 'app/build/kvfold.node'
    const bytes = readFileSync(join(bundle, victim))
    const damaged = Buffer.from(bytes)
    damaged[damaged.length >> 1]! ^= 1
    writeFileSync(join(bundle, victim), damaged)
    expect(check(bundle)).toMatchObject({ status: 1, stdout: `${victim}: FAILED\n` })
    writeFileSync(join(bundle, victim), bytes)
  })

  it('starts through links, from other folders, and makes itself again, byte for byte', () => {
    mkdirSync(join(folder, 'bin'))
    symlinkSync(relative(join(folder, 'bin'), join(bundle, 'kvfold')), join(folder, 'bin/one'))
    symlinkSync(join(folder, 'bin/one'), join(folder, 'bin/two'))
    const run = (...words: string[]) =>
      spawnSync(join(folder, 'bin/two'), words, { cwd: '/', env: { PATH: process.env['PATH'] }, encoding: 'utf8' })
    const again = run('bundle', join(folder, 'again'), '--archive', '--split', '16M')
    expect(again.status, again.stderr).toBe(0)
    expect(again.stdout).toMatch(/glibc \d/)
    const parts = readdirSync(join(folder, 'again')).filter((name) => name.includes('.tar.gz.'))
    expect(parts.length).toBeGreaterThan(2)
    const unpacked = spawnSync('sh', ['again/unpack.sh', 'twice'], { cwd: folder, encoding: 'utf8' })
    expect(unpacked.status, unpacked.stderr).toBe(0)
    expect(text(folder, 'twice', contents.name, 'SHA256SUMS')).toBe(text(bundle, 'SHA256SUMS'))
  })

  it('includes all parts of a model, and refuses models of the same name', async () => {
    const gguf = join(ROOT, 'native-models/builtin/kvfold-tiny.gguf')
    const [one, two] = ['big-00001-of-00002.gguf', 'big-00002-of-00002.gguf'].map((name) => join(folder, name))
    for (const file of [one!, two!]) cpSync(gguf, file)
    const options = { root: ROOT, dist, gpu: 'cpu' } as const
    const { entries } = await bundleContents({ ...options, models: [one!, gguf] })
    const models = entries.map(({ path }) => path).filter((path) => path.startsWith('models/'))
    expect(models).toEqual(['models/big-00001-of-00002.gguf', 'models/big-00002-of-00002.gguf', 'models/kvfold-tiny.gguf'])
    mkdirSync(join(folder, 'other'))
    cpSync(gguf, join(folder, 'other/kvfold-tiny.gguf'))
    const twice = bundleContents({ ...options, models: [gguf, join(folder, 'other/kvfold-tiny.gguf')] })
    await expect(twice).rejects.toMatchObject({ code: 'cli/bad-usage' })
    rmSync(two!)
    await expect(bundleContents({ ...options, models: [one!] })).rejects.toMatchObject({ code: 'model/not-found' })
  })

  it('does not overwrite, and says so', async () => {
    await expect(writeFolder(bundle, [], forever)).rejects.toMatchObject({ code: 'cli/bad-usage' })
    await expect(writeFolder(join(bundle, 'node'), [], forever)).rejects.toMatchObject({ code: 'cli/bad-usage' })
    const { code, stderr } = await kvfold(['bundle', join(folder, 'never'), '--split', '700M'])
    expect(stderr).toMatch(/--split needs --archive/)
    expect(code).toBe(2)
  })
})

function ask(socketPath: string, path: string, body: unknown): Promise<{ status: number | undefined; body: string }> {
  return new Promise((resolve, reject) => {
    const method = body === null ? 'GET' : 'POST'
    const asked = request({ socketPath, path, method, headers: { 'content-type': 'application/json' } }, (answer) => {
      let got = ''
      answer.setEncoding('utf8').on('data', (piece: string) => (got += piece))
      answer.on('end', () => {
        resolve({ status: answer.statusCode, body: got })
      })
    })
    asked.on('error', reject)
    asked.end(body === null ? undefined : JSON.stringify(body))
  })
}
