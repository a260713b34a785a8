/**
 * What a fold leaves behind of the text it hides. A secret stands in the folded text, and text after it has read the secret. The bench
 * measures how likely the model still says it, for each way of folding, compared with a secret that was never mentioned. It prints a table;
 * with --write it also writes a record.
 * `npm run --silent bench -- leak [--streams 16] [--seed 2026] [--words file] [--keys 46] [--model path]
 * [--chat-template file] [--settings 1,3] [--json] [--write name]`. `--settings`: numbers of those below, from 1; default: all.
 */
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { ownWords, wordsFrom } from '../../src/lab/pi-llm.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal, type Table } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { SETTINGS, Stage } from '../lab/contracts/stage.js'
import { Watch } from '../lab/contracts/watch.js'
import type { Setting } from './leak/material.js'
import { measureLeaks, rowsOf, type LeakRow } from './leak/measure.js'
import { beginRecord, keep, OPTIONS, SEED } from '../record.js'

const setting = (kept: number, later: number, asked: Setting['asked'], again: Setting['again'] = 'never'): Setting => ({
  name: [
    again === 'never' ? 'secret' : again === 'kept' ? 'overwritten' : 'secret, erratum',
    `${kept} updates have read it`,
    ...(later === 0 ? [] : [`${later} after the fold`]),
    ...(asked === 'before' ? ['question, too'] : []),
  ].join('; '),
  ...{ kept, later, asked, again },
})

const SETTINGS_OF_LEAK: readonly Setting[] = [
  ...[0, 8, 32, 128].map((kept) => setting(kept, 0, 'after')),
  ...[8, 32, 128].map((later) => setting(32, later, 'after')),
  ...[0, 32, 128].map((kept) => setting(kept, 0, 'before')),
  setting(32, 0, 'after', 'kept'),
  setting(32, 0, 'before', 'kept'),
  setting(32, 0, 'after', 'erratum'),
]
const CELLS = 8192

export async function leak(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      ...SEED,
      streams: { type: 'string', default: '16' },
      words: { type: 'string' },
      keys: { type: 'string' },
      settings: { type: 'string' },
      'chat-template': { type: 'string' },
    },
  })
  const { model } = values
  const watch = new Watch()
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['leak', ...args], model, native.backend.release, SETTINGS.threads)
  const template = values['chat-template']
  const stage = await Stage.open(native, model, CELLS, template === undefined ? undefined : readFileSync(template, 'utf8'))
  const chosen = values.settings?.split(',').map((number) => {
    const found = SETTINGS_OF_LEAK[Number(number) - 1]
    if (found === undefined) throw new Error(`there is no setting ${number}; there are 1 to ${SETTINGS_OF_LEAK.length}`)
    return found
  })
  const options = { settings: chosen ?? SETTINGS_OF_LEAK, streams: Number(values.streams), seed: Number(values.seed) }
  const all = values.words === undefined ? ownWords() : wordsFrom(values.words)
  const words = values.keys === undefined ? all : { ...all, keys: all.keys.slice(0, Number(values.keys)) }
  const leaks = await measureLeaks(stage, words, options, watch)
  watch.end()
  await stage.engine.dispose()
  const result = {
    ...origin(),
    seconds: Math.round(watch.seconds),
    interrupted: watch.over(),
    seed: options.seed,
    rows: rowsOf(leaks),
  }
  await keep(values.write, result)
  console.log(values.json ? JSON.stringify(result) : terminal(tableOf(result.rows)).join('\n'))
}

const nats = (value: number): string => `${value < 0 ? '-' : '+'}${Math.abs(value).toFixed(2)}`

function tableOf(rows: readonly LeakRow[]): Table {
  const share = (value: number | null): string => (value === null ? '' : percent(value, 0))
  const columns = [
    ...[left('setting'), left('folded')],
    ...[
      'told',
      'likely',
      'never mentioned',
      'excess, nats (95 %)',
      'picked',
      'as exact',
      'open value right',
      'later value right',
    ].map(right),
  ]
  const texts = rows.map(({ setting: name, way, told, logprob, control, excess, picked, same, shown, current }) => [
    ...[name, way, percent(told, 0), Math.exp(logprob).toPrecision(2), Math.exp(control).toPrecision(2)],
    `${nats(excess.value)} (${excess.interval.map(nats).join(' to ')})`,
    ...[percent(picked, 0), percent(same, 0), share(shown), share(current)],
  ])
  return table(columns, texts, { opens: (row, before) => row[0] !== before[0] })
}
