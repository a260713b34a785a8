/** Runs kvfold on the long-term releases of Node, which npm fetches: build, demo, folds in a program and over HTTP. */
import { spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { LONG } from '../../support/long.js'

const ROOT = join(import.meta.dirname, '../../..')
const IN_A_COPY = ['src', 'scripts', 'examples', 'native-models/builtin', 'package.json', 'tsconfig.json', 'tsconfig.build.json']

// Each one builds from scratch in a copy, because other tests run the build of this folder.
describe.runIf(LONG)('on other releases of Node', { timeout: 1_200_000 }, () => {
  it.each(['22', '24', '26'])('%s', (version) => {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-smoke-'))
    try {
      for (const name of IN_A_COPY) cpSync(join(ROOT, name), join(folder, name), { recursive: true })
      symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
      const { status, stdout, stderr } = spawnSync(process.execPath, ['scripts/smoke.mjs', version], {
        cwd: folder,
        encoding: 'utf8',
      })
      expect(status, stderr).toBe(0)
      expect(stdout).toMatch(new RegExp(`^Node v${version}\\.[\\s\\S]*a fold over HTTP`))
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  })
})
