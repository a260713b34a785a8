/** Tests the syntax of slash commands, and Ctrl-C at the prompt. */
import { PassThrough } from 'node:stream'
import fc from 'fast-check'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { chatHelp, messageOf, parseCommand, TypedLines } from '../../../../src/runtime/cli/chat/input.js'
import type { Shell } from '../../../../src/runtime/cli/shell.js'

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

describe('Ctrl-C at the prompt', () => {
  const CTRL_C = '\x03'

  /** Types these keys at a terminal, and returns how often Ctrl-C left and the line that came of the rest. */
  async function typed(...keys: readonly string[]): Promise<{ readonly left: number; readonly line: string | null }> {
    vi.spyOn(process.stdout, 'write').mockReturnValue(true)
    const input = Object.assign(new PassThrough(), { isTTY: true, setRawMode: () => input })
    const out = { live: true, colours: { dim: String }, write: () => undefined, print: () => undefined }
    const trigger = vi.fn()
    const interrupt = { signal: new AbortController().signal, trigger }
    const lines = new TypedLines({ input, out, interrupt } as unknown as Shell)
    const line = lines.next()
    for (const each of [...keys, '\r']) {
      input.write(each)
      await new Promise((resolve) => setImmediate(resolve))
    }
    const read = await line
    lines.close()
    return { left: trigger.mock.calls.length, line: read }
  }
  afterEach(() => {
    vi.restoreAllMocks()
  })

  it('leaves only at the second one on an empty line', async () => {
    expect(await typed(CTRL_C)).toEqual({ left: 0, line: '' })
    expect(await typed(CTRL_C, CTRL_C)).toEqual({ left: 1, line: '' })
  })

  it('drops what is typed, also after a first one on an empty line', async () => {
    expect(await typed('abc', CTRL_C, 'de')).toEqual({ left: 0, line: 'de' })
    expect(await typed(CTRL_C, 'abc', CTRL_C, 'de')).toEqual({ left: 0, line: 'de' })
    expect(await typed(CTRL_C, 'abc', CTRL_C, CTRL_C)).toEqual({ left: 0, line: '' })
  })
})
