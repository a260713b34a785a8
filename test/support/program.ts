/** Chooses the modules for processes that tests start: `dist` if it was compiled from these sources, otherwise the sources. */
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = join(import.meta.dirname, '../..')

const changed = (path: string): number => statSync(join(ROOT, path), { throwIfNoEntry: false })?.mtimeMs ?? -Infinity

/** Whether no source of the program is newer than its compiled files. */
function isCompiled(): boolean {
  const compiled = changed('dist/cli/main.js')
  return readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' }).every(
    (name) => !name.endsWith('.ts') || name.startsWith('runtime/dashboard/') || changed(`src/${name}`) < compiled,
  )
}

/** The folder of the project whose modules run. */
export const RUN = isCompiled() ? 'dist' : 'src'

/** Arguments of node for those modules. Sources have to be translated, so such a process starts a second later. */
export const LOADER: readonly string[] = RUN === 'dist' ? [] : ['--import', 'tsx']

/** Returns the path of a module in the project, e.g. of `cli/main`. */
export const moduleOf = (name: string): string => `${RUN}/${name}.${RUN === 'dist' ? 'js' : 'ts'}`
