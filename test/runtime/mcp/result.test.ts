import { expect, test } from 'vitest'
import { resultText } from '../../../src/runtime/mcp/connection.js'

type Content = Parameters<typeof resultText>[0]['content']
const shown = (content: Content, limit = 1000) => resultText({ content }, limit)

test('content other than text is named with its size', () => {
  expect(
    shown([
      { type: 'text', text: 'a' },
      { type: 'image', data: 'AAAA', mimeType: 'image/png' },
      { type: 'resource_link', name: 'log', uri: 'file:///log' },
      { type: 'resource', resource: { uri: 'file:///a.txt', text: 'inside' } },
      { type: 'resource', resource: { uri: 'file:///a.gz', blob: 'AAAAAAAA', mimeType: 'application/gzip' } },
    ]),
  ).toBe(
    'a\n(image, image/png, 3 bytes: left out, only text can be shown)\nlog: file:///log\nfile:///a.txt:\ninside\n' +
      '(file:///a.gz, application/gzip, 6 bytes: left out, only text can be shown)',
  )
  expect(shown([])).toBe('(no output)')
  expect(resultText({ content: [], structuredContent: { b: 7 } }, 1000)).toBe('{"b":7}')
})

test('a cut result says so, and is never cut inside a character', () => {
  expect(shown([{ type: 'text', text: '😀😀' }], 4)).toBe('😀😀')
  expect(shown([{ type: 'text', text: '😀😀' }], 3)).toMatch(/^😀\n\[Cut here: these are the first 2 of 4 characters\./)
})
