/** Owns what a bundle says about the licences of what is inside. */
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { textEntry, type Entry } from './entry.js'
import type { NodeProgram } from './node-program.js'
import type { Package } from './packages.js'

const FOLDER = 'LICENSES'
const NODE_TEXT = 'node.txt'
const GCC_TEXT = 'gcc.txt'

/** Whose code is compiled into the libraries of @node-llama-cpp, whose packages name only node-llama-cpp's own author; all under MIT. */
const WITHIN_LLAMA = [
  'llama.cpp and ggml: Copyright (c) 2023-2026 The ggml authors',
  'JSON for Modern C++: Copyright (c) 2013-2025 Niels Lohmann',
  'cpp-httplib: Copyright (c) 2017 yhirose',
]

export interface PlacedPackage extends Package {
  /** In the bundle. */
  readonly path: string
}

/** An index of everything inside, and the texts that do not lie in the packages' own folders. `own` is kvfold's licence, which is MIT. */
export async function licenceEntries(
  node: NodeProgram,
  packages: readonly PlacedPackage[],
  models: readonly string[],
  own: string,
): Promise<Entry[]> {
  const prefix = dirname(dirname(node.file))
  const nodeText = await firstOf([
    join(dirname(node.file), FOLDER, NODE_TEXT),
    join(prefix, 'LICENSE'),
    ...['LICENSE', 'copyright'].map((name) => join(prefix, 'share/doc/nodejs', name)),
    join(prefix, 'share/doc/node/LICENSE'),
  ])
  const gccText = await firstOf([
    join(dirname(node.file), FOLDER, GCC_TEXT),
    '/usr/share/doc/libstdc++6/copyright',
    '/usr/share/licenses/libstdc++/COPYING.RUNTIME',
  ])
  const mit = own.slice(own.indexOf('Permission is hereby granted'))
  const rows = [
    `node ${process.versions.node}: MIT, with parts under other licences: ${FOLDER}/${NODE_TEXT}`,
    `lib/libstdc++.so.6, lib/libgcc_s.so.1: GPL-3.0-or-later WITH GCC-exception-3.1: ${FOLDER}/${GCC_TEXT}`,
    `llama.cpp, inside the packages @node-llama-cpp/*: MIT: ${FOLDER}/llama.cpp.txt`,
    ...packages.map(({ name, version, license, path }) => `${name} ${version}: ${license}: ${path}`),
    ...models.map((path) => `${path}: as whoever made the model says`),
  ]
  return [
    textEntry(`${FOLDER}/INDEX.txt`, rows.map((row) => `${row}\n`).join('')),
    textEntry(
      `${FOLDER}/${NODE_TEXT}`,
      nodeText ??
        `The licence of Node ${process.versions.node}: https://github.com/nodejs/node/blob/v${process.versions.node}/LICENSE\n`,
    ),
    textEntry(
      `${FOLDER}/${GCC_TEXT}`,
      gccText ??
        'GNU General Public License, version 3 or later (https://www.gnu.org/licenses/gpl-3.0.txt), with the GCC Runtime Library\nException, version 3.1 (https://www.gnu.org/licenses/gcc-exception-3.1.html). Sources: https://gcc.gnu.org/\n',
    ),
    textEntry(`${FOLDER}/llama.cpp.txt`, `MIT License\n\n${WITHIN_LLAMA.join('\n')}\n\n${mit}`),
  ]
}

async function firstOf(files: readonly string[]): Promise<string | null> {
  const found = files.find((file) => existsSync(file))
  return found === undefined ? null : readFile(found, 'utf8')
}
