import { expect, it } from 'vitest'
import { Terminal } from '../../../src/runtime/cli/terminal.js'
import { TurnView } from '../../../src/runtime/cli/turn-view.js'

it('shows a call while it runs, and then its result in the same place', () => {
  const written: string[] = []
  const out = { isTTY: true, columns: 80, write: (text: string) => written.push(text) }
  const terminal = new Terminal(out, { TERM: 'xterm', LANG: 'C.UTF-8', NO_COLOR: '1' })
  const view = new TurnView({ answer: terminal, remarks: terminal })
  const call = { id: 'c', name: 'weather', arguments: { place: 'Rome' } }
  view.onEvent({ type: 'engine', step: 0, event: { type: 'text', text: 'I look.' } })
  view.onEvent({ type: 'call', step: 0, call })
  expect(written.join('')).toMatch(/I look\.\n.*· weather\(Rome\) \.\.\.\n$/u)
  view.onEvent({ type: 'result', step: 0, call, text: 'Sunny.', failed: false, modifies: false })
  view.end()
  expect(written.join('').split('\u001b[0J').at(-1)).toContain('· weather(Rome) → Sunny.\n')
})
