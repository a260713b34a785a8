/** Tests the hint that tells a model when the order of its folds costs more than necessary. */
import { describe, expect, it } from 'vitest'
import { type CallReport, foldOrderHint } from '../../../src/runtime/agents/tool-loop.js'
import { fragmentId } from '../../../src/runtime/core/ids.js'

const FRAGMENTS = ['f00001', 'f00002', 'f00003'].map((id) => ({ id: fragmentId(id) }))

const fold = (id: string, failed = false): CallReport => ({
  call: { id: 'call_1', name: 'fold_fragment', arguments: { fragment_id: id } },
  text: '',
  modifies: !failed,
  failed,
})

const search: CallReport = {
  call: { id: 'call_1', name: 'search_context', arguments: { query: 'x' } },
  text: '',
  modifies: false,
  failed: false,
}

describe('the hint on the order of folds', () => {
  it('comes when one fold follows another from first to last', () => {
    expect(foldOrderHint(FRAGMENTS, [fold('f00001')], [fold('f00002')])).toMatch(/^Hint: /)
  })

  it.each([
    ['from last to first', [fold('f00003')], [fold('f00002')]],
    ['all in one step', [fold('f00001')], [fold('f00002'), fold('f00003')]],
    ['after something else', [search], [fold('f00002')]],
    ['after nothing', [], [fold('f00002')]],
    ['after a fold that failed', [fold('f00001', true)], [fold('f00002')]],
    ['when it failed itself', [fold('f00001')], [fold('f00002', true)]],
  ] as const)('does not come %s', (_name, before, now) => {
    expect(foldOrderHint(FRAGMENTS, before, now)).toBeNull()
  })
})
