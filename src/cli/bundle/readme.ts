/** Owns the text that tells whoever gets a bundle what it is, what it needs and how to check it. */
import { CHECKSUMS } from './entry.js'
import type { Requirements } from './requirements.js'

export interface ReadmeFacts {
  readonly version: string
  readonly nodeVersion: string
  readonly gpu: string
  readonly requirements: Requirements
  /** In the bundle. */
  readonly models: readonly string[]
}

/** What a machine must have below everything: glibc, and a C++ library or a glibc that is new enough for ours. */
export function baseOf({ glibc, glibcForOurs, cppMinor }: Requirements): string {
  if (glibcForOurs === glibc) return `glibc ${glibc} or later`
  return `glibc ${glibcForOurs} or later (${glibc} is enough where libstdc++ is 6.0.${cppMinor} or later)`
}

export function readme({ version, nodeVersion, gpu, requirements, models }: ReadmeFacts): string {
  const { missing } = requirements
  const needs = [
    `- Linux on ${process.arch}, with ${baseOf(requirements)}. \`ldd --version\` says which glibc it has; Alpine has none.`,
    '- No network, no compiler, no Node.',
    ...[...missing].map(
      ([library, users]) =>
        `- \`${library}\`, for ${users.map((path) => `\`${path.split('/').slice(-2).join('/')}\``).join(', ')}.`,
    ),
  ]
  if (gpu === 'cuda') needs.push('- Of the libraries of two CUDA generations (`.so.12`, `.so.13`), one generation is enough.')
  const withoutGpu =
    missing.size === 0
      ? ''
      : '\nWithout these libraries kvfold still runs on the CPU (`--gpu cpu`, or `auto`, which tries the GPU first).\n'
  return `# kvfold ${version} for linux-${process.arch} (${gpu})

Everything that kvfold needs to run: Node ${nodeVersion}, kvfold, its native addon, llama.cpp's libraries and the built-in model.

    ./kvfold --help
    ./kvfold demo
    ./kvfold serve --model <file.gguf>

The folder may lie anywhere and be read-only; \`kvfold\` may be called through a link. It writes nothing
into its folder.
${models.length === 0 ? '' : `\nModels inside, for \`--model\`:\n\n${models.map((path) => `- \`${path}\`\n`).join('')}`}
## What the machine must have

${needs.join('\n')}
${withoutGpu}
## Checking

    sha256sum --quiet -c ${CHECKSUMS}

names every file that is not as it was made, and prints nothing when all are.

## Licences

\`LICENSES/INDEX.txt\` lists what is inside and where each licence is. If you hand the bundle on, hand that folder on with it; GCC's
libraries in \`lib\` come from gcc.gnu.org, where their sources are.
`
}
