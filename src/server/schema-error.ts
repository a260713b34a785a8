/** Owns the sentence that says which field of a request its schema refuses, and why. */
import type { FastifySchemaValidationError } from 'fastify/types/schema.js'
import { FieldError } from './field-error.js'

/** The error to show of those a validator found: the one furthest inside, for branches of a union fail together. */
export function schemaError(errors: readonly FastifySchemaValidationError[], where: string): FieldError {
  const depth = ({ instancePath }: FastifySchemaValidationError) => instancePath.split('/').length
  const [error] = [...errors].sort((a, b) => depth(b) - depth(a))
  if (error === undefined) return new FieldError(where, `The ${where} is not what this route expects.`)
  const missing = error.keyword === 'required' ? error.params['missingProperty'] : undefined
  const extra = error.keyword === 'additionalProperties' ? error.params['additionalProperty'] : undefined
  const path = fieldPath(error.instancePath, missing ?? extra)
  const param = path === '' ? where : path
  if (missing !== undefined) return new FieldError(param, `${param} is missing.`)
  if (extra !== undefined) return new FieldError(param, `${param} is not a field that is known here.`)
  return new FieldError(param, `${param} ${reason(error)}.`)
}

function reason({ keyword, params, message = 'is not what is expected here' }: FastifySchemaValidationError): string {
  const allowed = params['allowedValues']
  if (keyword === 'enum' && Array.isArray(allowed))
    return `must be one of ${allowed.map((value) => JSON.stringify(value)).join(', ')}`
  if (keyword === 'const') return `must be ${JSON.stringify(params['allowedValue'])}`
  if (keyword === 'type') return `must be ${[params['type']].flat().map(named).join(' or ')}`
  return message
}

const NAMES: Readonly<Record<string, string>> = {
  array: 'a list',
  object: 'an object',
  string: 'a string',
  number: 'a number',
  integer: 'a whole number',
  boolean: 'true or false',
}

const named = (type: unknown): string => NAMES[String(type)] ?? String(type)

/** `/messages/0/content` and `text`: `messages[0].content.text`. */
function fieldPath(pointer: string, last: unknown): string {
  const steps = pointer.split('/').slice(1)
  if (typeof last === 'string') steps.push(last)
  return steps
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
    .reduce((path, step) => (/^\d+$/.test(step) ? `${path}[${step}]` : path === '' ? step : `${path}.${step}`), '')
}
