/** Tests that the check of `npm run release` accepts the package that this checkout makes, and no other file in it. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

interface Packed {
  readonly files: readonly { readonly path: string }[]
  readonly size: number
  readonly version: string
}

const SCRIPT: string = '../../scripts/package-content.mjs'
const { check } = (await import(SCRIPT)) as { readonly check: (packed: Packed) => void }

describe('npm run release', () => {
  const root = join(import.meta.dirname, '../..')
  const said = execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: root, encoding: 'utf8' })
  const [packed] = JSON.parse(said) as [Packed]
  // The release puts the addon there first.
  const addon = ['node', 'json'].map((end) => ({ path: `prebuilds/${process.platform}-${process.arch}/kvfold.${end}` }))
  const files = [...packed.files, ...addon]

  it('accepts its own package', () => {
    check({ ...packed, files })
  })

  it.each(['dist/typebox/notes.md', 'dist/gone.js', 'native-models/acm/acm.json'])('refuses %s', (path) => {
    expect(() => {
      check({ ...packed, files: [...files, { path }] })
    }).toThrow(`${path} has no place in the package`)
  })
})
