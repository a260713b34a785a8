/** Tests the syntax of slash commands. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { chatHelp, messageOf, parseCommand } from '../../../../src/runtime/cli/chat/input.js'

describe('slash commands', () => {
  it('are understood', () => {
    expect(parseCommand('/help')).toEqual({ name: 'help' })
    expect(parseCommand('/exit  ')).toEqual({ name: 'exit' })
    expect(parseCommand('/fold f1a2b3')).toEqual({ name: 'fold', id: 'f1a2b3' })
    expect(parseCommand('/summarize f1a2b3 what broke, and when')).toEqual({
      name: 'summarize',
      id: 'f1a2b3',
      focus: 'what broke, and when',
    })
    expect(parseCommand('/search  two words ')).toEqual({ name: 'search', text: 'two words' })
    expect(parseCommand('/fragment 2')).toEqual({ name: 'fragment', where: { message: 2 }, pieces: 5 })
    expect(parseCommand('/fragment 2 9')).toEqual({ name: 'fragment', where: { message: 2 }, pieces: 9 })
    expect(parseCommand('/fragment "Once \\"upon\\"" "end.\\n" 3')).toEqual({
      name: 'fragment',
      where: { start: 'Once "upon"', end: 'end.\n' },
      pieces: 3,
    })
    expect(parseCommand('/save notes of today.json')).toEqual({ name: 'save', file: 'notes of today.json' })
  })

  it('are explained when they are wrong', () => {
    expect(parseCommand('/fold')).toEqual({ name: 'wrong', reason: 'Write /fold <id> [exact|splice|blend].' })
    expect(parseCommand('/fold a b')).toEqual({ name: 'wrong', reason: 'Write /fold <id> [exact|splice|blend].' })
    expect(parseCommand('/fold a splice')).toEqual({ name: 'fold', id: 'a', contract: 'splice' })
    expect(parseCommand('/fold a splice b')).toMatchObject({ name: 'wrong' })
    expect(parseCommand('/summarize f1a2b3')).toMatchObject({ name: 'wrong' })
    expect(parseCommand('/fragment soon')).toEqual({
      name: 'wrong',
      reason: 'Write /fragment <message> [pieces] or /fragment "start" "end" [pieces].',
    })
    expect(parseCommand('/fragment 2 0')).toMatchObject({ name: 'wrong', reason: expect.stringContaining('from 1') as string })
    expect(parseCommand('/ledger now')).toMatchObject({ name: 'wrong' })
    expect(parseCommand('/flod f1a2b3')).toMatchObject({
      name: 'wrong',
      reason: expect.stringContaining('There is no command /flod') as string,
    })
  })

  it('are all in the help', () => {
    for (const [form] of chatHelp)
      expect(parseCommand(form.split(' ', 1)[0]!), form).not.toMatchObject({
        reason: expect.stringContaining('There is no') as string,
      })
  })

  it('leave every other line to the model', () => {
    fc.assert(
      fc.property(fc.string(), (text) => {
        fc.pre(!text.startsWith('/'))
        expect(parseCommand(text)).toBeNull()
        expect(messageOf(text)).toBe(text)
        expect(parseCommand(`//${text}`)).toBeNull()
        expect(messageOf(`//${text}`)).toBe(`/${text}`)
      }),
    )
  })
})
