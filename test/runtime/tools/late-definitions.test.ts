import { beforeEach, expect, test } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LateDefinitions, lineOf } from '../../../src/runtime/tools/late-definitions.js'
import { granted } from '../../support/results.js'

const tool = (name: string): ToolDefinition => ({ name, description: `What ${name} does`, parameters: { type: 'object' } })
const weather = tool('weather')
const price = tool('price')
const RESULT = `2 tools added.\n${lineOf(weather)}\n${lineOf(price)}`

let conversation: Conversation
let late: LateDefinitions

beforeEach(() => {
  conversation = new Conversation(conversationId('late'))
  conversation.add({ role: 'tool', name: 'search_tools', content: RESULT })
  late = new LateDefinitions(conversation, { restores: true })
})

const cut = (length: number, start = 0) =>
  granted(conversation.cut([{ message: 0, span: { start, end: start + length } }], 1)).fragments[0]!.id

test('a definition that was folded away is restored at its old place, also when its tool was called', () => {
  conversation.add({ role: 'assistant', content: '', toolCalls: [{ id: '1', name: 'price', arguments: {} }] })
  late.hide([weather, price])
  expect(conversation.shown(0)).toBe('2 tools added.\n(removed)\n(price removed)')
  expect(late.show([price])).toEqual([])
  expect(conversation.shown(0)).toBe(`2 tools added.\n(removed)\n${lineOf(price)}`)
  expect(late.show([weather])).toEqual([])
  expect(conversation.shown(0)).toBe(RESULT)
})

test.each([false, true])("another's fold of the whole result stays, and the tool is shown anew (forget: %s)", (forget) => {
  granted(conversation.fold(cut(RESULT.length), { forget }))
  const { fragments } = conversation
  expect(late.show([weather])).toEqual([weather])
  expect(conversation.fragments).toEqual(fragments)
})

test('a forgotten definition stays forgotten when its tool is removed and shown', () => {
  const line = lineOf(weather)
  granted(conversation.fold(cut(line.length, RESULT.indexOf(line)), { forget: true }))
  const { fragments } = conversation
  late.hide([weather])
  expect(late.show([weather])).toEqual([weather])
  expect(conversation.fragments).toEqual(fragments)
})
