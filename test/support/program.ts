/** Owns what the processes that tests start run: `dist` where it was compiled from these sources, else the sources themselves. */
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = join(import.meta.dirname, '../..')

const changed = (path: string): number => statSync(join(ROOT, path), { throwIfNoEntry: false })?.mtimeMs ?? -Infinity

/** No source of the program is younger than what was compiled from them. */
function isCompiled(): boolean {
  const compiled = changed('dist/cli/main.js')
  return readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' }).every(
    (name) => !name.endsWith('.ts') || name.startsWith('runtime/dashboard/') || changed(`src/${name}`) < compiled,
  )
}

/** The folder of the project whose modules are run. */
export const RUN = isCompiled() ? 'dist' : 'src'

/** Arguments of node that let it run those modules; sources have to be translated, so a process starts a second later. */
export const LOADER: readonly string[] = RUN === 'dist' ? [] : ['--import', 'tsx']

/** The file of a module within the project, e.g. of `cli/main`. */
export const moduleOf = (name: string): string => `${RUN}/${name}.${RUN === 'dist' ? 'js' : 'ts'}`
