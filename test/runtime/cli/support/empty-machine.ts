/** Runs programs as on a machine with only a C library and a shell: an empty root, no network, no environment. */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import type { Outcome } from './process.js'

/** The full names of programs for the administrator; a bare environment does not find them by short names. */
const ENV = '/usr/bin/env'
const CHROOT = '/usr/sbin/chroot'
const BARE = ['-i', 'PATH=/nonexistent']

export class EmptyMachine {
  /** The root folder that the programs see, or a plain folder if this system does not allow chroot. */
  readonly folder = mkdtempSync(join(tmpdir(), 'kvfold-empty-'))
  readonly isolated: boolean

  constructor() {
    mkdirSync(join(this.folder, 'tmp'))
    this.isolated = process.getuid?.() === 0 && this.#furnish()
  }

  /** Returns a path of the machine as its programs see it. */
  path(within: string): string {
    return this.isolated ? `/${within}` : join(this.folder, within)
  }

  start(program: string, words: readonly string[]): ChildProcess {
    const bare = [...BARE, ...this.#enclosed, this.path(program), ...words]
    return this.isolated ? spawn('unshare', [...this.#apart, ...bare]) : spawn(ENV, bare)
  }

  run(program: string, words: readonly string[]): Promise<Outcome> {
    const begun = performance.now()
    const child = this.start(program, words)
    let stdout = ''
    let stderr = ''
    child.stdout?.setEncoding('utf8').on('data', (text: string) => (stdout += text))
    child.stderr?.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    child.stdin?.end()
    return new Promise((resolve, reject) => {
      child.on('error', reject)
      child.on('close', (code) => {
        resolve({ code, stdout, stderr, milliseconds: performance.now() - begun })
      })
    })
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true })
  }

  /** Arguments for separate mounts and a separate network. The mounted /proc ends with the process. */
  get #apart(): string[] {
    const mount = 'mount -t proc proc "$1/proc" && shift && exec "$@"'
    return ['--mount', '--net', '/bin/sh', '-c', mount, 'sh', this.folder, ENV]
  }

  get #enclosed(): string[] {
    return this.isolated ? [CHROOT, this.folder] : []
  }

  /**
   * Copies a shell and the C library and makes /dev/null, laid out as distributions do. Returns false if this system does not allow that.
   */
  #furnish(): boolean {
    const shell = '/bin/sh'
    for (const folder of ['bin', 'dev', 'proc', 'usr/lib', 'lib64']) mkdirSync(join(this.folder, folder), { recursive: true })
    symlinkSync('usr/lib', join(this.folder, 'lib'))
    copyFileSync(shell, join(this.folder, shell))
    for (const library of cLibrary()) {
      // The loader looks for it in this place; `/lib` is a link.
      const place = join(this.folder, library.replace(/^\/lib\//, '/usr/lib/'))
      mkdirSync(dirname(place), { recursive: true })
      copyFileSync(library, place)
    }
    const made = spawnSync('mknod', ['-m', '666', join(this.folder, 'dev/null'), 'c', '1', '3'])
    if (made.status !== 0) return false
    writeFileSync(join(this.folder, 'probe'), '#!/bin/sh\necho inside\n', { mode: 0o755 })
    const probe = spawnSync('unshare', [...this.#apart, '-i', CHROOT, this.folder, '/probe'], { encoding: 'utf8' })
    rmSync(join(this.folder, 'probe'))
    return probe.stdout === 'inside\n'
  }
}

/** Returns glibc's files as this process uses them: the libraries of Node, except the C++ library. */
function cLibrary(): string[] {
  const { stdout } = spawnSync('ldd', [process.execPath], { encoding: 'utf8' })
  const files = [...stdout.matchAll(/(\/\S+) \(0x/g)].map(([, file = '']) => file)
  const found = files.filter((file) => /^(lib(c|m|dl|pthread)\.so|ld-linux)/.test(basename(file)))
  // llama.cpp's and SQLite's libraries need this one too.
  const folder = dirname(found.find((file) => basename(file).startsWith('libc.so')) ?? '/lib/libc.so.6')
  return [...found, join(folder, 'librt.so.1')]
}
