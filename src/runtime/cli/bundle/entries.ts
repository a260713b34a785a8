/**
 * The entries of a bundle: for each file its path, its permissions and where its bytes come from. Also the files that are generated: shell
 * scripts (POSIX sh) and the README.
 */
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import type { Requirements } from './requirements.js'

export type EntryContent =
  { readonly kind: 'file'; readonly file: string; readonly size: number } | { readonly kind: 'text'; readonly text: string }

export interface BundleEntry {
  /** Path within the bundle, with `/` between folders. */
  readonly path: string
  readonly executable: boolean
  readonly source: EntryContent
}

/** The name of the file of checksums, in the format of `sha256sum -c`. */
export const CHECKSUMS = 'SHA256SUMS'

export const textEntry = (path: string, text: string, executable = false): BundleEntry => ({
  path,
  executable,
  source: { kind: 'text', text },
})

export async function fileEntry(path: string, file: string, executable = false): Promise<BundleEntry> {
  return { path, executable, source: { kind: 'file', file, size: (await stat(file)).size } }
}

/** Lists the files below `folder` whose relative path `wanted` accepts, as entries below `path`. A link to a file becomes a file. */
export async function folderEntries(path: string, folder: string, wanted: (within: string) => boolean): Promise<BundleEntry[]> {
  const found: BundleEntry[] = []
  const walk = async (within: string): Promise<void> => {
    for (const item of await readdir(join(folder, within), { withFileTypes: true })) {
      const name = within === '' ? item.name : `${within}/${item.name}`
      if (!wanted(name)) continue
      if (item.isDirectory()) await walk(name)
      else if (item.isFile() || (item.isSymbolicLink() && (await stat(join(folder, name))).isFile()))
        found.push(await fileEntry(`${path}/${name}`, join(folder, name)))
    }
  }
  await walk('')
  return found
}

export const sizeOf = ({ source }: BundleEntry): number => (source.kind === 'file' ? source.size : Buffer.byteLength(source.text))

/** Sorts entries by the bytes of their paths, so that each machine writes them in the same order. */
export const inOrder = (entries: readonly BundleEntry[]): BundleEntry[] =>
  [...entries].sort((a, b) => Buffer.compare(Buffer.from(a.path), Buffer.from(b.path)))

/**
 * Yields the bytes of an entry. At the end, adds its checksum to `sums`. @throws KvfoldError when the size of the file has changed
 * meanwhile
 */
export async function* contents(entry: BundleEntry, sums: Map<string, string>): AsyncGenerator<Buffer> {
  const { source } = entry
  const hash = createHash('sha256')
  let length = 0
  const pieces = source.kind === 'text' ? [Buffer.from(source.text)] : createReadStream(source.file, { highWaterMark: 1 << 20 })
  for await (const piece of pieces as AsyncIterable<Buffer> | Buffer[]) {
    hash.update(piece)
    length += piece.length
    yield piece
  }
  if (length !== sizeOf(entry)) throw new KvfoldError('bundle/unsuitable', `${entry.path} changed while it was read; try again.`)
  sums.set(entry.path, hash.digest('hex'))
}

/** Makes the file of checksums, the last file of a bundle. */
export const checksumEntry = (sums: ReadonlyMap<string, string>): BundleEntry =>
  textEntry(CHECKSUMS, [...sums].map(([path, sum]) => `${sum}  ${path}\n`).join(''))

// The generated files of a bundle.

// The shell scripts: one starts kvfold, the other unpacks an archive. POSIX sh only.

/**
 * The script that starts the Node beside it, from any folder and through links. It uses the machine's C++ library if that is new enough
 * (6.0.`minor`), because a driver may need that one; if not, the bundle's own. It needs only a shell, and readlink when called through a
 * link.
 */
export const launcher = (main: string, triplet: string, minor: number): string => `#!/bin/sh
# Runs kvfold on the Node beside this script.
self=$0
case $self in */*) ;; *) self=./$self ;; esac
while [ -L "$self" ]; do
  target=$(readlink "$self") || exit 1
  case $target in
    /*) self=$target ;;
    *) self=\${self%/*}/$target ;;
  esac
done
here=$(CDPATH= cd -- "\${self%/*}/" && pwd -P) || exit 1

# The machine's C++ library if it is new enough, else ours.
lib=$here/lib
for file in /usr/lib/${triplet}/libstdc++.so.6.0.* /lib/${triplet}/libstdc++.so.6.0.* /usr/lib64/libstdc++.so.6.0.*; do
  minor=\${file##*.so.6.0.}
  case $minor in
    *[!0-9]*) ;;
    *) if [ "$minor" -ge ${minor} ]; then lib=; fi ;;
  esac
done
if [ -n "$lib" ]; then
  LD_LIBRARY_PATH=$lib\${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
fi
# Node needs a home folder, and stops when it finds none.
if [ -z "\${HOME-}" ] && [ ! -e /etc/passwd ]; then
  HOME=/
  export HOME
fi

exec "$here/node" "$here/${main}" "$@"
`

/** The script that checks the parts of an archive, joins and unpacks them, and checks the result. */
export const unpacker = (name: string, sums: string, inside: string): string => `#!/bin/sh
# Checks, joins and unpacks the parts beside this script: sh unpack.sh [folder]
set -eu
fail() {
  echo "unpack: $1" >&2
  exit 1
}
for tool in sha256sum tar gzip; do
  command -v "$tool" >/dev/null || fail "$tool was not found"
done
case $0 in */*) here=\${0%/*}/ ;; *) here=./ ;; esac
mkdir -p -- "\${1:-.}"
to=$(CDPATH= cd -- "\${1:-.}/" && pwd -P)
[ ! -e "$to/${name}" ] || fail "$to/${name} is there already"
CDPATH= cd -- "$here"
sha256sum --quiet -c ${sums} || fail 'a part is missing or damaged; copy it again'
while read -r _ part; do cat "$part"; done <${sums} | gzip -dc | tar -xf - -C "$to" || fail "cannot unpack to $to"
cd -- "$to/${name}"
sha256sum --quiet -c ${inside} || fail 'some files did not come out right; is the disk full?'
echo "unpacked and checked: $to/${name}"
`

// Running a bundle as a service, in a container or under systemd. Both have the bundle at `SERVICE_HOME`.

const SERVICE_HOME = '/opt/kvfold'
const SERVICE_PORT = 8080

/**
 * The Dockerfile of a bundle. `BASE` may be any image with the C library that the bundle needs. For a GPU, it must also contain the
 * driver's libraries.
 */
export const dockerfile = (): string => `# docker build -t kvfold .
# docker run --rm -p 127.0.0.1:${SERVICE_PORT}:${SERVICE_PORT} -v kvfold:/data -v "$PWD/models:/models:ro" kvfold --model /models/model.gguf
# Give API keys before you let other machines in: --api-keys-file /data/keys
ARG BASE=debian:stable-slim
FROM \${BASE}
COPY . ${SERVICE_HOME}
RUN useradd --system --uid 10001 --home-dir /data kvfold && install -d -m 0700 -o kvfold /data
USER kvfold
# Conversations, and data about models.
ENV HOME=/data XDG_STATE_HOME=/data XDG_CACHE_HOME=/data/cache
VOLUME /data
EXPOSE ${SERVICE_PORT}
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["${SERVICE_HOME}/node", "-e", "fetch('http://127.0.0.1:${SERVICE_PORT}/health').then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
ENTRYPOINT ["${SERVICE_HOME}/kvfold", "serve", "--host", "0.0.0.0", "--port", "${SERVICE_PORT}"]
`

/**
 * The systemd unit of a bundle. systemd creates its user at the start. Conversations go to /var/lib/kvfold, cached data about models to
 * /var/cache/kvfold.
 */
export const systemdUnit =
  (): string => `# Unpack to ${SERVICE_HOME}, copy this file to /etc/systemd/system, then: systemctl enable --now kvfold
[Unit]
Description=kvfold, a local LLM server
Documentation=file://${SERVICE_HOME}/README.md
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
# The options of kvfold serve: KVFOLD_OPTIONS=--model /srv/models/model.gguf --host 0.0.0.0 --api-keys-file /etc/kvfold.keys
EnvironmentFile=-/etc/kvfold.env
Environment=HOME=/var/lib/kvfold XDG_STATE_HOME=/var/lib XDG_CACHE_HOME=/var/cache
ExecStart=${SERVICE_HOME}/kvfold serve --port ${SERVICE_PORT} $KVFOLD_OPTIONS
DynamicUser=yes
StateDirectory=kvfold
StateDirectoryMode=0700
CacheDirectory=kvfold
KillMode=mixed
# Running answers have 30 s (--grace).
TimeoutStopSec=45
Restart=on-failure

[Install]
WantedBy=multi-user.target
`

// The README of a bundle: what it needs, and how to check it.

export interface ReadmeFacts {
  readonly version: string
  readonly nodeVersion: string
  readonly gpu: string
  readonly requirements: Requirements
  /** The paths of the models within the bundle. */
  readonly models: readonly string[]
}

/**
 * Says which C libraries a machine needs: a glibc, and either a new enough C++ library or a glibc that the bundle's own C++ library runs
 * on.
 */
export function baseOf({ glibc, glibcForOurs, cppMinor }: Requirements): string {
  if (glibcForOurs === glibc) return `glibc ${glibc} or later`
  return `glibc ${glibcForOurs} or later (${glibc} is enough where libstdc++ is 6.0.${cppMinor} or later)`
}

export function readme({ version, nodeVersion, gpu, requirements, models }: ReadmeFacts): string {
  const { missing } = requirements
  const needs = [
    `- Linux on ${process.arch}, with ${baseOf(requirements)}. \`ldd --version\` says which glibc it has; Alpine has none.`,
    '- It needs no network, no compiler and no Node.',
    ...[...missing].map(
      ([library, users]) =>
        `- \`${library}\`, for ${users.map((path) => `\`${path.split('/').slice(-2).join('/')}\``).join(', ')}.`,
    ),
  ]
  if (gpu === 'cuda')
    needs.push('- The list has libraries of two CUDA generations (`.so.12`, `.so.13`); one generation is enough.')
  const withoutGpu =
    missing.size === 0
      ? ''
      : '\nWithout these libraries kvfold still runs on the CPU (`--gpu cpu`, or `auto`, which tries the GPU first).\n'
  return `# kvfold ${version} for linux-${process.arch} (${gpu})

This folder has everything that kvfold needs: Node ${nodeVersion}, kvfold, its native addon, llama.cpp's libraries and the built-in model.

    ./kvfold --help
    ./kvfold demo
    ./kvfold serve --model <file.gguf>

The folder may lie anywhere and be read-only, because kvfold writes nothing into it. A link to \`kvfold\` works too.
To run kvfold as a service, use \`Dockerfile\`, which makes an image of this folder, or \`kvfold.service\` for systemd. The first lines of
both files say how.
${models.length === 0 ? '' : `\nModels inside, for \`--model\`:\n\n${models.map((path) => `- \`${path}\`\n`).join('')}`}
## Requirements of the machine

${needs.join('\n')}
${withoutGpu}
## Checking

    sha256sum --quiet -c ${CHECKSUMS}

names every changed file, and prints nothing if no file was changed.

## Licences

\`LICENSES/INDEX.txt\` lists the parts of the bundle and the place of each licence. If you pass the bundle on, leave that folder in it.
The sources of GCC's libraries in \`lib\` are at gcc.gnu.org.
`
}
