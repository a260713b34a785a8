/** Owns what becomes of a tool's result on its way into the conversation: text within a limit, and a word for what is no text. */
import type { CallToolResult } from '@modelcontextprotocol/client'

type Part = CallToolResult['content'][number]

/** The result as the model is shown it, at most `limit` characters of it; what is left out is told. */
export function resultText({ content, structuredContent }: CallToolResult, limit: number): string {
  const parts = content.map(partText)
  const text = parts.length === 0 && structuredContent !== undefined ? JSON.stringify(structuredContent) : parts.join('\n')
  return text === '' ? '(no output)' : within(text, limit)
}

function partText(part: Part): string {
  switch (part.type) {
    case 'text':
      return part.text
    case 'image':
    case 'audio':
      return `(${part.type}, ${part.mimeType}, ${size(part.data)}: left out, only text can be shown)`
    case 'resource_link':
      return [`${part.name}: ${part.uri}`, part.description ?? []].flat().join(', ')
    case 'resource': {
      const { resource } = part
      if ('text' in resource) return `${resource.uri}:\n${resource.text}`
      return `(${resource.uri}, ${resource.mimeType ?? 'data'}, ${size(resource.blob)}: left out, only text can be shown)`
    }
  }
}

/** Of base64. */
const size = (data: string): string => `${Math.floor((data.length * 3) / 4)} bytes`

function within(text: string, limit: number): string {
  if (text.length <= limit) return text
  // Half of a surrogate pair is no character.
  const end = /[\uD800-\uDBFF]/.test(text[limit - 1]!) ? limit - 1 : limit
  return (
    `${text.slice(0, end)}\n[Cut here: these are the first ${end} of ${text.length} characters. The rest is kept nowhere and no search finds it; ` +
    'call the tool again for a smaller part, if it can give one.]'
  )
}
