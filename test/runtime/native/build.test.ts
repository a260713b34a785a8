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
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'

const root = fileURLToPath(new URL('../../..', import.meta.url))
let folder: string
let tools: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-build-'))
  tools = join(folder, 'tools')
  mkdirSync(tools)
  cpSync(join(root, 'scripts'), join(folder, 'scripts'), { recursive: true })
  cpSync(join(root, 'src', 'runtime', 'native'), join(folder, 'src', 'runtime', 'native'), { recursive: true })
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
})
afterEach(() => {
  rmSync(folder, { recursive: true, force: true })
})

/** Puts a program on the path that prints `words` on standard error and exits with `code`. Asked for its version, it exits with 0. */
function fake(name: string, code: number, words = ''): void {
  writeFileSync(join(tools, name), `#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "${words}" >&2\nexit ${code}\n`, {
    mode: 0o755,
  })
}

function real(name: string): void {
  const { stdout } = spawnSync('/bin/sh', ['-c', `command -v ${name}`], { encoding: 'utf8' })
  symlinkSync(stdout.trim(), join(tools, name))
}

function build(): { status: number | null; stdout: string; stderr: string } {
  const env = { PATH: tools, HOME: process.env['HOME'] ?? '' }
  return spawnSync(process.execPath, [join(folder, 'scripts', 'build-native.mjs')], { env, encoding: 'utf8' })
}

/** Builds, and expects a failure with one sentence on standard error and no stack. */
function expectSentence(words: RegExp): void {
  const { status, stdout, stderr } = build()
  expect(status).toBe(1)
  expect(stdout).toBe('')
  expect(stderr).toMatch(words)
  expect(stderr.trim().split('\n')).toHaveLength(1)
  expect(stderr).not.toMatch(/\n\s+at /)
  expect(existsSync(join(folder, 'build', 'kvfold.node'))).toBe(false)
}

describe('building the addon', () => {
  test('without git', () => {
    fake('g++', 0)
    expectSentence(/git was not found.* install git/)
  })

  test('without a compiler', () => {
    real('git')
    expectSentence(/no C\+\+ compiler was found.* install g\+\+ or clang\+\+/)
  })

  test('without node-llama-cpp', () => {
    rmSync(join(folder, 'node_modules'))
    real('git')
    fake('g++', 0)
    expectSentence(/the package node-llama-cpp is not installed; run npm ci/)
  })

  test('on a full disk', () => {
    real('git')
    fake('g++', 1, 'fatal error: error writing to /tmp/x.s: No space left on device')
    expectSentence(/the disk is full; free some space/)
    expect(readdirSync(join(folder, 'build'))).toEqual(['llama.cpp'])
  })

  test('on a disk that is full before the headers are unpacked', () => {
    fake('git', 128, 'fatal: write error: No space left on device')
    fake('g++', 0)
    expectSentence(/the disk is full; free some space/)
    expect(readdirSync(join(folder, 'build'))).toEqual([])
  })

  test('with a compiler that fails', () => {
    real('git')
    fake('g++', 1, 'internal error')
    expectSentence(/g\+\+ failed \(exit code 1\): internal error/)
  })

  describe("with a package's addon", () => {
    const prebuilds = () => join(folder, 'prebuilds', `${process.platform}-${process.arch}`)

    beforeEach(() => {
      cpSync(join(root, 'dist'), join(folder, 'dist'), { recursive: true })
      // The compiled loader reads package.json, which a package has, too.
      cpSync(join(root, 'package.json'), join(folder, 'package.json'))
      mkdirSync(prebuilds(), { recursive: true })
      for (const name of ['kvfold.node', 'kvfold.json']) cpSync(join(root, 'build', name), join(prebuilds(), name))
    })

    test('made of the same sources: it is used, and neither git nor a compiler is needed', () => {
      const { status, stdout, stderr } = build()
      expect(stderr).toBe('')
      expect(stdout).toMatch(/uses the native addon of the package, made for llama\.cpp v/)
      expect(status).toBe(0)
      for (const name of ['kvfold.node', 'kvfold.json'])
        expect(readFileSync(join(folder, 'build', name)).equals(readFileSync(join(prebuilds(), name)))).toBe(true)
    })

    test('made of other sources: it builds', () => {
      writeFileSync(join(folder, 'src', 'runtime', 'native', 'addon.cc'), '// Other.\n')
      expectSentence(/git was not found/)
    })

    test('that does not load on this machine: it builds', () => {
      const whole = readFileSync(join(prebuilds(), 'kvfold.node'))
      writeFileSync(join(prebuilds(), 'kvfold.node'), whole.subarray(0, whole.length >> 1))
      const { status, stdout, stderr } = build()
      expect(status).toBe(1)
      expect(stdout).toMatch(
        /the addon of the package does not load here \((it ended with SIG|The addon does not fit).*so it is built/,
      )
      expect(stderr).toMatch(/git was not found/)
      expect(readdirSync(join(folder, 'build'))).toEqual([])
    })
  })
})
