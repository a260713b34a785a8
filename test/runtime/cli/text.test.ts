/** Tests tables, figures, the width of coloured text, and error lines. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { fit, printable, visibleLength, wrap } from '../../../src/runtime/cli/terminal.js'
import { describe as describeError, exitCode } from '../../../src/runtime/cli/shell.js'
import { bytes, count, duration, magnitude, percent, plural } from '../../../src/runtime/figures/numbers.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'

const red = (text: string) => `\u001b[31m${text}\u001b[39m`

describe('fit', () => {
  it('counts visible characters', () => {
    expect(visibleLength(red('abc'))).toBe(3)
    expect(visibleLength('a🦊b')).toBe(3)
  })

  it('cuts coloured text and closes the colour', () => {
    expect(fit('abcdef', 4)).toBe('abc…')
    expect(fit(red('abcdef'), 4)).toBe('\u001b[31mabc…\u001b[0m')
    expect(fit(red('abc'), 3)).toBe(red('abc'))
    expect(fit('abc', 0)).toBe('')
  })

  it('never exceeds the width', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), fc.nat(40), (text, width) => {
        expect(visibleLength(fit(text, width))).toBeLessThanOrEqual(width)
      }),
    )
  })
})

describe('wrap', () => {
  it('breaks between words, counting visible characters', () => {
    expect(wrap('one two three', 7)).toEqual(['one two', 'three'])
    expect(wrap(`${red('one')} two three`, 7)).toEqual([`${red('one')} two`, 'three'])
    expect(wrap('incomprehensibilities are long', 10)).toEqual(['incomprehensibilities', 'are long'])
  })

  it('keeps every word', () => {
    fc.assert(
      fc.property(
        fc.array(fc.stringMatching(/^[a-z]{1,12}$/), { minLength: 1 }),
        fc.integer({ min: 1, max: 40 }),
        (words, width) => {
          expect(wrap(words.join(' '), width).join(' ')).toBe(words.join(' '))
        },
      ),
    )
  })
})

describe('printable', () => {
  it('leaves no control characters except newline and tab', () => {
    expect(printable('a\u001b[31mb\r\n\tc\u0007\u007f\u009b')).toBe('a␛[31mb␍\n\tc␇␡\ufffd')
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        // eslint-disable-next-line no-control-regex -- exactly these must be gone
        expect(printable(text)).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/)
      }),
    )
  })
})

describe('figures', () => {
  it('writes counts, shares, times and sizes', () => {
    expect(count(1234567.6)).toBe('1,234,568')
    expect(plural(1, 'token')).toBe('1 token')
    expect(plural(0, 'reply', 'replies')).toBe('0 replies')
    expect(percent(0.978)).toBe('97.8 %')
    expect([duration(0.4), duration(994.9), duration(995), duration(59_949), duration(59_950), duration(72_400)]).toEqual([
      '0 ms',
      '995 ms',
      '1.0 s',
      '59.9 s',
      '1 min 0 s',
      '1 min 12 s',
    ])
    expect([bytes(0), bytes(1023), bytes(1024), bytes(10 * 1024 * 1024)]).toEqual(['0 B', '1023 B', '1.00 KiB', '10.0 MiB'])
    expect([magnitude(999), magnitude(1_250_000), magnitude(13_015_864_320)]).toEqual(['999', '1.25 M', '13.0 B'])
  })
})

describe('errors', () => {
  it('are one line with the code, and a stack only on request', () => {
    const error = new KvfoldError('model/bad-file', 'notes.txt is not a GGUF file:\n  it begins with "hello".', {
      cause: new Error('magic'),
    })
    expect(describeError(error, false)).toBe('kvfold: notes.txt is not a GGUF file: it begins with "hello". [model/bad-file]')
    expect(describeError(error, true)).toMatch(/\n.*at .*text\.test\.ts[\s\S]*caused by: Error: magic/)
    expect(describeError(new TypeError('x is undefined'), false)).toBe(
      'kvfold: x is undefined [unexpected; KVFOLD_DEBUG=1 shows where]',
    )
    expect(describeError('just text', false)).toContain('kvfold: just text [unexpected')
  })

  it('exit with 2 for usage and 1 for everything else', () => {
    expect(exitCode(new KvfoldError('cli/bad-usage', 'no'))).toBe(2)
    expect(exitCode(new KvfoldError('context/full', 'no'))).toBe(1)
    expect(exitCode(new Error('no'))).toBe(1)
  })
})
