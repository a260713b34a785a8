import { describe, expect, it } from 'vitest'
import { Terminal } from '../../../src/runtime/cli/terminal.js'

function output(isTTY: boolean, columns = 30) {
  const written: string[] = []
  return { isTTY, columns, written, write: (text: string) => written.push(text), text: () => written.join('') }
}
const utf8 = { TERM: 'xterm', LANG: 'C.UTF-8' }

describe('a terminal', () => {
  it('redraws its frame in place, prints above it, and gives the cursor back', () => {
    const out = output(true)
    const terminal = new Terminal(out, utf8)
    terminal.frame(['one', 'two'], true)
    terminal.frame(['three'], true)
    terminal.print('stays')
    terminal.frame(['four'], true)
    terminal.close()
    expect(out.written).toEqual([
      '\u001b[?25lone\ntwo\n',
      '\u001b[2A\r\u001b[0Jthree\n',
      '\u001b[1A\r\u001b[0Jstays\n',
      'four\n',
      '\u001b[1A\r\u001b[0J',
      '\u001b[?25h',
    ])
  })

  it('cuts lines so that none wraps', () => {
    const out = output(true, 24)
    new Terminal(out, utf8).frame(['x'.repeat(50)], true)
    expect(out.text()).toBe(`\u001b[?25l${'x'.repeat(22)}…\n`)
  })

  it('drops frames that follow too fast, unless forced', () => {
    const out = output(true)
    let now = 1000
    const terminal = new Terminal(out, utf8, () => now)
    terminal.frame(['a'])
    now += 10
    terminal.frame(['b'])
    expect(out.text()).not.toContain('b')
    terminal.frame(['c'], true)
    now += 60
    terminal.frame(['d'])
    expect(out.text()).toMatch(/c[\s\S]*d/)
  })

  it('has colour unless NO_COLOR is set', () => {
    expect(new Terminal(output(true), utf8).colours.red('x')).toBe('\u001b[31mx\u001b[39m')
    expect(new Terminal(output(true), { ...utf8, NO_COLOR: '1' }).colours.red('x')).toBe('x')
    expect(new Terminal(output(true), { ...utf8, NO_COLOR: '' }).colours.red('x')).toBe('\u001b[31mx\u001b[39m')
  })

  it('knows which characters its locale can write', () => {
    expect(new Terminal(output(true), { TERM: 'xterm', LANG: 'en_US.UTF-8' }).unicode).toBe(true)
    if (process.platform !== 'darwin') expect(new Terminal(output(true), { TERM: 'xterm', LANG: 'C' }).unicode).toBe(false)
    expect(new Terminal(output(false), {}).unicode).toBe(true)
  })
})

describe('without a terminal', () => {
  it('writes plain lines only', () => {
    for (const terminal of [output(false), { ...output(true) }]) {
      const environment = terminal.isTTY ? { ...utf8, TERM: 'dumb' } : utf8
      const kvfold = new Terminal(terminal, environment)
      kvfold.frame(['drawn'], true)
      kvfold.print(kvfold.colours.green('line'))
      kvfold.close()
      expect(terminal.text()).toBe('line\n')
    }
  })

  it('assumes 80 columns and never goes below 20', () => {
    expect(new Terminal({ write: () => true }, {}).columns).toBe(80)
    expect(new Terminal(output(true, 5), utf8).columns).toBe(20)
  })
})
