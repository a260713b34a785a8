/** Coding agents: how each is installed, asked and kept away from other machines, and configured as docs/clients.md says. */
import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'

export interface Agent {
  /** The name in docs/clients.md. */
  readonly name: string
  readonly command: string
  /** The package and its version, which docs/clients.md also names. */
  readonly package: readonly [name: string, version: string]
  /**
   * Returns arguments besides those of docs/clients.md.
   * @param again Whether the prompt continues the last session.
   */
  readonly ask: (prompt: string, again: boolean) => readonly string[]
  /** Variables that turn off telemetry and update checks. */
  readonly env: Readonly<Record<string, string>>
  /** Files with such settings, for agents without variables for them: by path from home. */
  readonly quiet?: Readonly<Record<string, string>>
  /** Matches the agent's message about a prompt that does not fit. */
  readonly full: RegExp
}

export const AGENTS: readonly Agent[] = [
  {
    name: 'Codex',
    command: 'codex',
    package: ['@openai/codex', '0.169.0'],
    ask: (prompt, again) => [
      ...[
        'exec',
        ...(again ? ['resume', '--last'] : []),
        '-c',
        'analytics.enabled=false',
        '-c',
        'check_for_update_on_startup=false',
      ],
      ...['--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', prompt],
    ],
    env: {},
    full: /ran out of room in the model's context window/,
  },
  {
    name: 'Claude Code',
    command: 'claude',
    package: ['@anthropic-ai/claude-code', '2.1.197'],
    ask: (prompt, again) => ['--allowedTools=Bash', ...(again ? ['--continue'] : []), '-p', prompt],
    env: { CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_AUTOUPDATER: '1', DISABLE_TELEMETRY: '1' },
    full: /^Prompt is too long.*\(limit 2047\)/,
  },
  {
    name: 'opencode',
    command: 'opencode',
    package: ['opencode-ai', '1.18.33'],
    ask: (prompt, again) => ['run', ...(again ? ['--continue'] : []), prompt],
    env: { OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_LSP_DOWNLOAD: '1' },
    full: /maximum context length is 2048 tokens/,
  },
  {
    name: 'pi',
    command: 'pi',
    package: ['@mariozechner/pi-coding-agent', '0.73.1'],
    ask: (prompt, again) => [...(again ? ['--continue'] : []), '-p', prompt],
    env: { PI_OFFLINE: '1', PI_TELEMETRY: '0' },
    // This agent compacts the conversation, asks once more, and ends without a message.
    full: /^$/,
  },
  {
    name: 'Qwen Code',
    command: 'qwen',
    package: ['@qwen-code/qwen-code', '0.15.10'],
    ask: (prompt, again) => ['--yolo', ...(again ? ['--continue'] : []), '-p', prompt],
    // This agent would use a proxy even for this machine.
    env: { QWEN_TELEMETRY_ENABLED: 'false', HTTP_PROXY: '', HTTPS_PROXY: '' },
    quiet: {
      '.qwen/settings.json': '{ "privacy": { "usageStatisticsEnabled": false }, "general": { "enableAutoUpdate": false } }',
    },
    full: /maximum context length is 2048 tokens/,
  },
  {
    name: 'Continue',
    command: 'cn',
    package: ['@continuedev/cli', '1.5.47'],
    ask: (prompt, again) => ['--auto', ...(again ? ['--resume'] : []), '-p', prompt],
    env: { CONTINUE_TELEMETRY_ENABLED: '0' },
    full: /maximum context length is 2048 tokens/,
  },
]

/** An address where nothing listens, so that requests to other machines fail at once. */
const NOWHERE = 'http://127.0.0.1:9'

const CLIENTS = readFileSync(join(import.meta.dirname, '../../../../docs/clients.md'), 'utf8')

/** Returns the settings and the command that docs/clients.md gives its readers, with the server at `url`. */
export function documented({ name, command }: Agent, url: string) {
  const page = CLIENTS.replaceAll('http://127.0.0.1:8080', url)
  const [, section] = new RegExp(`\\n\\*\\*${name}\\*\\*([^]*?)\\n(?:\\*\\*|## )`).exec(page)!
  const [file] = /(?<=`)(~\/)?[\w./]+\.(toml|json|yaml)(?=`)/.exec(section!) ?? [null]
  const [, text] = /```(?:toml|json|yaml)\n([^]*?)```/.exec(section!) ?? []
  const typed = new RegExp(`[\`\\n]((?:[A-Z_]+=\\S+ )*)${command}((?: [^\`\\n]+)?)[\`\\n]`).exec(section!)
  const [, variables, words] = typed ?? ['', '', '']
  return {
    file: file === null ? null : { path: file, text: text! },
    env: Object.fromEntries([...variables.matchAll(/(\w+)=(\S+)/g)].map(([, name, value]) => [name!, value!])),
    words: words.split(' ').filter((word) => word !== ''),
  }
}

/** Returns the version that was tested according to docs/clients.md. */
export const versionRun = ({ name }: Agent) => new RegExp(`\\n\\| ${name}\\b[^|]*\\| ([^|]+) \\|`).exec(CLIENTS)?.[1]

/** The agents, installed from npm in a folder. */
export class Agents {
  readonly #running = new Set<ChildProcess>()

  private constructor(private readonly folder: string) {}

  static async install(folder: string): Promise<Agents> {
    const dependencies = Object.fromEntries(AGENTS.map((agent) => agent.package))
    writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, dependencies }))
    const npm = (...words: string[]) => promisify(execFile)('npm', words, { cwd: folder })
    await npm('install', '--no-audit', '--no-fund', '--ignore-scripts')
    // The install scripts of these two create their programs.
    await npm('rebuild', '@anthropic-ai/claude-code', 'opencode-ai')
    return new Agents(folder)
  }

  /**
   * Starts the agent in its own process group, so that a signal to the group acts like a key press. It gets its own home and working
   * folder.
   */
  start(agent: Agent, url: string, ...asked: Parameters<Agent['ask']>) {
    const [home, work] = [join(this.folder, agent.command, 'home'), join(this.folder, agent.command, 'work')]
    const { file, env, words } = documented(agent, url)
    const files = Object.entries(agent.quiet ?? {}).map(([path, text]) => [join(home, path), text] as const)
    if (file !== null)
      files.push([file.path.startsWith('~/') ? join(home, file.path.slice(2)) : join(work, file.path), file.text])
    for (const [path, text] of [...files, [join(work, 'README.md'), 'Nothing.\n'] as const]) {
      mkdirSync(dirname(path), { recursive: true })
      writeFileSync(path, text)
    }
    const child = spawn(join(this.folder, 'node_modules/.bin', agent.command), [...words, ...agent.ask(...asked)], {
      ...{ cwd: work, detached: true, stdio: ['ignore', 'pipe', 'pipe'] },
      env: {
        ...{ PATH: process.env['PATH'], HOME: home, SHELL: '/bin/bash', TMPDIR: tmpdir(), LANG: 'C.UTF-8' },
        ...{ HTTP_PROXY: NOWHERE, HTTPS_PROXY: NOWHERE, NO_PROXY: '127.0.0.1,localhost' },
        ...{ ...agent.env, ...env },
      },
    })
    this.#running.add(child)
    let output = ''
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => {
        output += text
      })
    const ended = new Promise<string>((resolve, reject) => {
      child.once('error', reject).once('close', () => {
        this.#running.delete(child)
        resolve(output)
      })
    })
    const interrupt = () => process.kill(-child.pid!, 'SIGINT')
    return { ended, interrupt }
  }

  /** Kills the agents that still run. */
  end(): void {
    for (const { pid } of this.#running) process.kill(-pid!, 'SIGKILL')
    this.#running.clear()
  }
}
