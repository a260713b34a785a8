/** Says which files the published package has. */
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const platform = `${process.platform}-${process.arch}`

/** The files allowed in the package, and whether each is required. */
const CONTENT = [
  { name: /^package\.json$|^README\.md$|^LICENSE$|^scripts\/build-native\.mjs$|^src\/lab\/words\.json$/, least: 5 },
  { name: /^dist\/(?!dashboard\/).*\.(js|js\.map|d\.ts)$/, least: 600 },
  { name: /^dist\/typebox\/LICENSE$/, least: 1 },
  { name: /^dist\/dashboard\/(index\.html|assets\/[\w-]+\.(js|css|svg|txt))$/, least: 3 },
  { name: /^src\/runtime\/native\/[\w-]+\.(cc|h)$/, least: 12 },
  { name: /^native-models\/builtin\/(kvfold-tiny\.gguf|manifest\.json|golden\.json)$/, least: 3 },
  { name: /^native-models\/acm\/(acm\.gguf|README\.md)$/, least: 2 },
  { name: new RegExp(`^prebuilds/${platform}/kvfold\\.(node|json)$`), least: 2 },
]
/** The largest allowed package in bytes; a larger one is a mistake. */
const LARGEST = 12_000_000

export class Wrong extends Error {}

/**
 * Checks the package's files.
 * @throws Wrong with every file that is not allowed and every required file that is missing
 */
export function check({ files, size, version }) {
  const names = files.map(({ path }) => path)
  const strange = names.filter((path) => !CONTENT.some(({ name }) => name.test(path)))
  // Files compiled from sources that no longer exist. The files of typebox are made from its package.
  const orphans = names.filter((path) => {
    const source = /^dist\/(?!dashboard\/|typebox\/)(.*?)(\.js|\.js\.map|\.d\.ts)$/.exec(path)?.[1]
    return source !== undefined && !existsSync(join(root, 'src', `${source}.ts`))
  })
  const missing = CONTENT.filter(({ name, least }) => names.filter((path) => name.test(path)).length < least)
  const wrong = [
    ...[...strange, ...orphans].map((path) => `${path} has no place in the package`),
    ...missing.map(({ name, least }) => `there are fewer than ${least} files like ${name.source}`),
    ...(size > LARGEST ? [`it has ${size} bytes, more than ${LARGEST}`] : []),
    ...(readFileSync(join(root, 'CHANGELOG.md'), 'utf8').match(/^## (\S+)/m)?.[1] === version
      ? []
      : [`the newest heading of CHANGELOG.md is not ${version}`]),
  ]
  if (wrong.length > 0) throw new Wrong(`the package is not as it should be:\n${wrong.join('\n')}`)
}
