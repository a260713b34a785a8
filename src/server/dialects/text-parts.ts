/** Owns content that is text or a list of parts: text comes out, whatever is not text is refused by name. */
import { FieldError, unsupported } from '../field-error.js'
import { isRecord } from '../json-body.js'

/**
 * The text of a content field, parts on lines of their own.
 * @param types the part types that are text, with the key of their text
 * @throws FieldError server/bad-request, server/unsupported
 */
export function textOf(content: unknown, param: string, types: Readonly<Record<string, string>>): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) throw new FieldError(param, `${param} must be a string or a list of parts.`)
  return content
    .map((part: unknown, index) => {
      const place = `${param}[${index}]`
      if (!isRecord(part) || typeof part['type'] !== 'string')
        throw new FieldError(place, `${place} must be an object with a type.`)
      const key = Object.hasOwn(types, part['type']) ? types[part['type']] : undefined
      if (key === undefined)
        throw unsupported(
          `${place}.type`,
          `${place} is of type ${JSON.stringify(part['type'].slice(0, 40))}; this server takes text only.`,
        )
      const text = part[key]
      if (typeof text !== 'string') throw new FieldError(`${place}.${key}`, `${place}.${key} must be a string.`)
      return text
    })
    .join('\n')
}
