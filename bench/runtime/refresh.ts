/**
 * Lists where each record comes from, which pages show it, and which records are old. A record is old if its built-in model is not the
 * shipped one, if it has no origin or does not say who computed its samples, if its commit is not in the history, or if it was made with
 * uncommitted changes.
 * `npm run bench -- refresh [--run name,...]`: `--run` measures the named records again, by the commands in them; `--run old` all old ones
 * that are of `bench` and of the built-in or a synthetic model. The tables in the pages are then updated by hand.
 */
import { execSync, spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { left, table, terminal } from '../../src/runtime/figures/table.js'
import { lacking, modelNow, RESULTS, valuesOf } from '../record.js'

const PAGES = [
  'README.md',
  'native-models/README.md',
  ...readdirSync(new URL('../../docs', import.meta.url)).map((name) => `docs/${name}`),
]

interface Recorded {
  readonly command?: string
  readonly commit?: string
  readonly date?: string
  readonly model?: { readonly name?: string; readonly sha256?: string }
}

function isInHistory(commit: string): boolean {
  const asked = ['merge-base', '--is-ancestor', commit.replace('+changes', ''), 'HEAD']
  return spawnSync('git', asked, { stdio: 'ignore' }).status === 0
}

export function refresh(args: readonly string[]): void {
  const { values } = parseArgs({ args: [...args], options: { run: { type: 'string' } } })
  const shipped = modelNow(builtinModel())
  const pages = PAGES.filter((name) => name.endsWith('.md')).map((name) => ({
    name,
    text: readFileSync(new URL(`../../${name}`, import.meta.url), 'utf8'),
  }))
  const records = readdirSync(RESULTS)
    .filter((file) => file.endsWith('.json'))
    .map((file) => {
      const record = JSON.parse(readFileSync(new URL(file, RESULTS), 'utf8')) as Recorded
      const { model: { name, sha256 } = {} } = record
      const lacks = lacking(record)
      const isOther = name === shipped.name && sha256 !== undefined && sha256 !== shipped.sha256
      const named = valuesOf(record, 'commit')
      const commits = named.filter((commit) => commit !== null).map(String)
      const why = [
        ...(isOther ? ['other weights'] : []),
        ...(lacks.length === 0 ? [] : [`does not say ${lacks.join(', ')}`]),
        ...(named.includes(null) ? ['does not say which commits computed its samples'] : []),
        ...(commits.every(isInHistory) ? [] : ['its commit is not in the history']),
        ...(commits.some((commit) => commit.endsWith('+changes')) ? ['made beside changes that were not committed'] : []),
      ]
      return {
        name: file.replace(/\.json$/, ''),
        ...{ record, old: why.join('; '), isReal: /^(gemma|qwen2|smollm)/.test(name ?? '') },
        shownIn: pages.filter(({ text }) => text.includes(`results/${file}`)).map((page) => page.name),
      }
    })
  const columns = ['record', 'shown in', 'commit', 'date', 'old because', 'command'].map(left)
  const rows = records.map(({ name, record: { commit = '', date = '', command = '' }, old, shownIn }) => [
    ...[name, shownIn.join(' '), commit.slice(0, 7), date.slice(0, 10), old, command],
  ])
  console.log(terminal(table(columns, rows)).join('\n'))
  const wanted = values.run?.split(',')
  if (wanted === undefined) return
  for (const { name, record, old, isReal } of records) {
    const isMeant = wanted.includes(name) || (wanted.includes('old') && old !== '' && !isReal)
    if (!isMeant || record.command?.startsWith('npm run --silent bench -- ') !== true) continue
    console.error(`\n${name}: ${record.command}`)
    execSync(record.command, { stdio: 'inherit', shell: '/bin/bash' })
  }
}
