/** Runs dialogues on an engine that computes nothing; its ledger is that of a prefix cache over words. */
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Dialogue, runService, type ServiceRunOptions } from '../../../../src/lab/service/run.js'
import { ScriptedEngine } from '../../../support/scripted.js'

/** The model itself says nothing. */
export const scriptedEngine = () => new ScriptedEngine(() => ({ content: '' }), { context: 20_000 })

/** Plays the scenarios on a new engine. `more` replaces the usual options. */
export async function scriptedRun(
  scenarios: ServiceRunOptions['scenarios'],
  more: Partial<ServiceRunOptions> = {},
): Promise<readonly Dialogue[]> {
  return runService({
    ...{
      engine: scriptedEngine(),
      weights: [null],
      frameworks: ['react'],
      scenarios,
      window: 20_000,
    },
    ...{ contract: 'splice', temperature: 0, maxTokens: 512, fold: { foldFrom: 300 }, command: 'test' },
    signal: new AbortController().signal,
    ...more,
    log: more.log ?? (await mkdtemp(join(tmpdir(), 'service-'))),
  })
}
