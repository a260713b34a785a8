/**
 * Runs two fronts, one PostgreSQL, three engines and sixteen clients, while machines die, freeze and are cut off from one another. Each is
 * in its own network namespace (as root, on Linux): `node --import tsx test/fleet/simulated/main.ts [--seed 2026] [--seconds 300] [--faults
 * 50] [--clients 16] [--engines 3] [--network namespaces | loopback] [--series <faults as JSON>] [--write <file>] [--beside <file>]`.
 * Reports what is wrong afterwards, and exits with 1 if anything is. `--beside`: the record of an equally long run without faults
 * (`--faults 0 --write`), which becomes part of this run's record.
 */
import { spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { beginRecord, written } from '../../../bench/record.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Fault } from './faults.js'
import { kindsOf, type Report, run } from './run.js'

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '2026' },
    seconds: { type: 'string', default: '300' },
    faults: { type: 'string', default: '50' },
    clients: { type: 'string', default: '16' },
    engines: { type: 'string', default: '3' },
    network: { type: 'string', default: 'namespaces' },
    series: { type: 'string' },
    write: { type: 'string' },
    beside: { type: 'string' },
    inside: { type: 'boolean', default: false },
  },
})

if (values.network === 'namespaces' && !values.inside) {
  // The namespaces and everything in them end with the process that they were made for, even if this one is killed.
  const own = ['--net', '--mount', '--pid', '--fork', '--kill-child', '--mount-proc', process.execPath, ...process.execArgv]
  const child = spawn('unshare', [...own, fileURLToPath(import.meta.url), ...process.argv.slice(2), '--inside'], {
    stdio: 'inherit',
  })
  child.once('exit', (code) => process.exit(code ?? 1))
} else {
  const origin = beginRecord(process.argv.slice(2), builtinModel(), (await openNative({ gpu: 'cpu' })).backend.release, 1)
  const report = await run({
    seed: Number(values.seed),
    seconds: Number(values.seconds),
    faults: Number(values.faults),
    clients: Number(values.clients),
    engines: Number(values.engines),
    network: values.network === 'loopback' ? 'loopback' : 'namespaces',
    ...(values.series === undefined ? {} : { series: JSON.parse(values.series) as Fault[] }),
    say: (line) => {
      console.error(line)
    },
  })
  const words = process.argv.slice(2).filter((word) => word !== '--inside')
  const control = values.beside === undefined ? null : (JSON.parse(readFileSync(values.beside, 'utf8')) as Report)
  const record = {
    ...{ ...origin(), command: `node --import tsx test/fleet/simulated/main.ts ${words.join(' ')}`.trim(), ...report },
    kinds: kindsOf(report.felt, control?.bySecond ?? null),
    control,
  }
  if (values.write === undefined) console.log(JSON.stringify(record, null, 1))
  else writeFileSync(values.write, await written(record))
  process.exit(report.wrong.length === 0 ? 0 : 1)
}
