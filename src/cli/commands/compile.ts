/** `kvfold compile`: llama.cpp's code for this processor, made by this machine's compiler. */
import { rm } from 'node:fs/promises'
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { percent } from '../../figures/numbers.js'
import { compileCpuLibrary } from '../../native/cpu-library.js'
import { nativeLibrary } from '../runtime.js'
import type { Shell } from '../shell.js'
import { printable } from '../terminal.js'

export function addCompile(program: Command, shell: Shell): void {
  program
    .command('compile')
    .description(
      'compile the library that computes on the CPU with the compiler of this machine: about a minute, needs git, cmake and a C++ ' +
        'compiler, downloads nothing. Every command uses it from then on; KVFOLD_CPU_LIBRARY=shipped: not this one',
    )
    .option('--remove', 'delete it: the one that was shipped computes again')
    .action((flags: { remove?: true }) => run(flags, shell))
}

async function run({ remove }: { remove?: true }, { out, notes, interrupt }: Shell): Promise<void> {
  const { cpuLibrary } = (await nativeLibrary('cpu')).backend
  if (cpuLibrary === null)
    throw new KvfoldError(
      'native/unsupported',
      'On this system the library that computes on the CPU is no file of its own, so there is nothing to compile.',
    )
  const { shipped, compiled: path } = cpuLibrary
  if (remove === true) {
    await rm(path, { force: true })
    out.print(printable(`From now on ${shipped} computes.`))
    return
  }
  await compileCpuLibrary({
    shipped,
    path,
    signal: interrupt.signal,
    onProgress: (share) => {
      notes.frame([`Compiling, ${percent(share, 0)}`])
    },
  }).finally(() => {
    notes.close()
  })
  out.print(printable(`From now on ${path} computes.`))
}
