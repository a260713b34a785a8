/**
 * Tests that readers can follow the pages: links, paths, commands with their options, tests by name. The changelog's commands belong to
 * their releases, so only its links are checked.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { Command } from 'commander'
import { describe, expect, it } from 'vitest'

/** The pages that users read. */
const GUIDES = [
  'README.md',
  ...readdirSync('docs', { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
]
const PAGES = [
  ...GUIDES,
  'AGENTS.md',
  'CONTRIBUTING.md',
  'native-models/README.md',
  'native-models/acm/README.md',
  'bench/results/README.md',
]
const read = (path: string) => readFileSync(path, 'utf8')

/** Prefixes each finding with its page. */
const among = (pages: readonly string[], of: (text: string, page: string) => readonly string[]): string[] =>
  pages.flatMap((page) => of(read(page), page).map((what) => `${page}: ${what}`))

const all = (text: string, pattern: RegExp): string[] => [...text.matchAll(pattern)].map((match) => match[1]!)

/** Returns the code in a page, line by line: spans, and the lines of blocks without their comments. */
function codeIn(text: string): string[] {
  const blocks = all(text, /^```\w*\n([^]*?)^```/gm)
  const lines = blocks.flatMap((block) => block.replaceAll('\\\n', ' ').split('\n'))
  const spans = all(text.replaceAll(/^```\w*\n[^]*?^```/gm, ''), /(?<!`)`([^`]+)`/g)
  return [...lines, ...spans].map((code) => code.replaceAll(/\s+/g, ' ').replace(/ #.*/, ''))
}

/** Returns the anchor that GitHub makes of a heading. */
const anchor = (heading: string): string =>
  heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-')
const anchorsOf = (page: string): string[] => all(read(page), /^#+ (.*)$/gm).map(anchor)

/**
 * The sentences of a page; a heading, an item of a list and a cell of a table end one, too. Blocks of code are left out, and a span of code
 * counts as one word.
 */
function sentencesIn(text: string): string[] {
  const prose = text
    .replaceAll(/^( *)(```+)[^]*?^ *\2$/gm, '')
    .replaceAll(/!?\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replaceAll(/`[^`]+`/g, 'code')
  return prose
    .split(/\n\s*\n|\n(?= *(?:[-*]|\d+\.|#+|>) )|(?<=^#.*)\n/m)
    .flatMap((block) => (block.trimStart().startsWith('|') ? block.split('|') : [block]))
    .flatMap((block) => block.replaceAll(/\s+/g, ' ').split(/(?<=[.!?][)"*]*) /))
}
const wordsIn = (sentence: string): number => sentence.split(' ').filter((word) => /[\p{L}\d]/u.test(word)).length

const optionsIn = (code: string): string[] => all(code, /(?<=[ [])(--[a-z][\w-]*)/g)

const program = new Command('kvfold').version('')
for (const name of ['runtime', 'lab'].flatMap((part) =>
  readdirSync(`src/${part}/cli/commands`).map((each) => `${part}/cli/commands/${each}`),
)) {
  const file = new URL(`../src/${name}`, import.meta.url).href
  const module = (await import(/* @vite-ignore */ file)) as Record<string, unknown>
  for (const [key, add] of Object.entries(module))
    if (key.startsWith('add')) (add as (to: Command, shell: object, version: string) => void)(program, {}, '')
}

/** Returns the commands and options in a line that `kvfold` does not have. */
function strangers(code: string): string[] {
  const words = /^(?:npx )?kvfold (.*)/.exec(code)?.[1]?.split(' ') ?? []
  if (!/^[a-z]/.test(words[0] ?? '')) return []
  let command = program
  for (const word of words) command = command.commands.find((each) => each.name() === word) ?? command
  if (command === program) return words.length === 1 ? [] : [code]
  const known = ['--help', ...command.options.flatMap(({ long }) => long ?? [])]
  return optionsIn(code.split(/ [|&>]|;/)[0]!).flatMap((option) => (known.includes(option) ? [] : [`${option} in ${code}`]))
}

const scripts = (JSON.parse(read('package.json')) as { scripts: Record<string, string> }).scripts
const benches = read('bench/main.ts')
const tests = readdirSync('test', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'))

describe('pages', () => {
  it('link to existing files and headings', () => {
    const broken = among([...PAGES, 'CHANGELOG.md', 'bench/results/NOTES.md'], (text, page) =>
      all(text, /\]\(([^)\s]+)\)/g).filter((target) => {
        if (/^[a-z]+:/.test(target)) return false
        const [path = '', heading] = target.split('#')
        const file = path === '' ? page : join(dirname(page), path)
        return !existsSync(file) || (heading !== undefined && !anchorsOf(file).includes(heading))
      }),
    )
    expect(broken).toEqual([])
  })

  it('name existing paths', () => {
    const missing = among(PAGES, (text) =>
      codeIn(text)
        .flatMap((code) =>
          all(code, /(?:^|[ (])((?:src|test|bench|docs|scripts|examples|native-models)\/[\w./-]*\w)(?=$|[ ,:)])/g),
        )
        .filter((path) => !existsSync(path) && !tests.some((name) => `test/${name}`.startsWith(path))),
    )
    expect(missing).toEqual([])
  })

  it('give existing commands, with options that they accept', () => {
    const unknown = among([...PAGES, 'bench/results/NOTES.md'], (text) =>
      codeIn(text).flatMap((code) => {
        const [, script, rest = ''] =
          /npm (?:run )?(?:--silent )?(?:run )?(?:--silent )?([a-z][\w:-]*)(?: -- (.*))?$/.exec(code) ?? []
        if (/^npm (run|test|start)/.test(code) && script !== undefined && !(script in scripts)) return [code]
        const name = script === 'bench' ? /^[a-z][\w-]*/.exec(rest)?.[0] : undefined
        if (name === undefined) return strangers(code)
        // This bench runs a command of `kvfold`.
        if (name === 'kvfold') return strangers(rest.replace(/ --write.*/, ''))
        const source = [
          ...['runtime', 'fleet', 'lab'].map((part) => `bench/${part}/${name}.ts`),
          ...(name === 'serve' ? ['bench/runtime/serve/load.ts'] : []),
        ]
          .filter(existsSync)
          .map(read)
          .join('\n')
        if (!new RegExp(`^  '?${name}'?[:,]`, 'm').test(benches)) return [code]
        const strange = optionsIn(` ${rest}`).filter(
          (option) => source !== '' && !/\.\.\.OPTIONS|--json|--write/.test(option) && !source.includes(option.slice(2)),
        )
        return strange.map((option) => `${option} in ${code}`)
      }),
    )
    expect(unknown).toEqual([])
  })

  it('name every option of the commands that talk to a model', () => {
    const named = new Set(GUIDES.flatMap((page) => codeIn(read(page)).flatMap((code) => optionsIn(` ${code}`))))
    const missing = ['chat', 'run'].flatMap((name) => {
      const { options = [] } = program.commands.find((each) => each.name() === name) ?? {}
      expect(options.length, name).toBeGreaterThan(20)
      return options.flatMap(({ long, hidden }) => (hidden || named.has(long ?? '') ? [] : [`${name} ${long}`]))
    })
    expect(missing).toEqual([])
  })

  it('name the contract in commands of sessions whose records have another one than the default', () => {
    const unnamed = among(PAGES, (text, page) => {
      const records = all(text, /\]\(([^)\s]*service[\w-]*\.json)\)/g).map((target) => read(join(dirname(page), target)))
      const contracts = records.flatMap((record) => (JSON.parse(record) as { contract?: string }).contract ?? [])
      return contracts.every((contract) => contract === 'exact')
        ? []
        : codeIn(text).filter((code) => /eval service .*--/.test(code) && !code.includes(' --contract '))
    })
    expect(unnamed).toEqual([])
  })

  it('name errors that occur outside their table', () => {
    const sources = readdirSync('src', { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts') && !name.endsWith('core/errors.ts'))
      .map((name) => read(`src/${name}`))
    const codes = all(read('docs/errors.md'), /`([a-z]+\/[a-z-]+)`/g)
    expect(codes.length).toBeGreaterThan(40)
    expect(codes.filter((code) => !sources.some((source) => source.includes(code)))).toEqual([])
  })

  it('have short sentences', () => {
    const long = among(GUIDES, (text) => sentencesIn(text).filter((sentence) => wordsIn(sentence) > 30))
    expect(long).toEqual([])
  })

  it('are short', () => {
    const long = among(GUIDES, (text, page) => {
      const lines = text.trimEnd().split('\n').length
      return lines > (page === 'README.md' ? 100 : 200) ? [`${lines} lines`] : []
    })
    expect(long).toEqual([])
  })

  it('name tests and settings of the environment that are there', () => {
    const texts = tests.map((name) => [`test/${name}`, read(`test/${name}`)] as const)
    const sources = ['src', 'scripts', 'bench', 'native-models/train']
      .flatMap((folder) => readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((name) => `${folder}/${name}`))
      .filter((path) => /\.(ts|mts|mjs|cc|h|py|sh)$/.test(path))
    const settings = [...sources.map(read), ...texts.map(([, text]) => text)].join('\n')
    const gone = among(PAGES, (text) =>
      codeIn(text).flatMap((code) => {
        const [, rest, name] = /vitest run ([^"']*)(?:-t ["'](.*)["'])?/.exec(code) ?? []
        const paths = rest?.split(' ').filter((word) => /^\w.*\//.test(word)) ?? []
        const chosen = texts.filter(([path]) => paths.some((each) => path.includes(each)))
        return [
          ...paths.filter((path) => !texts.some(([each]) => each.includes(path))),
          ...(name === undefined || chosen.some(([, each]) => each.includes(name)) ? [] : [name]),
          ...all(code, /\b(KVFOLD_\w+)/g).filter((setting) => !settings.includes(setting)),
        ]
      }),
    )
    expect(gone).toEqual([])
  })
})
