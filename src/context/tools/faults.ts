/** Owns saying what is wrong with a call's arguments in words a model can act on. */
import type { z } from 'zod'

/** One sentence a fault, in the order of the schema. */
export function faults(error: z.ZodError, args: Readonly<Record<string, unknown>>, known: readonly string[]): string {
  return error.issues.map((issue) => `${sentence(issue, args, known)}.`).join(' ')
}

function sentence(issue: z.core.$ZodIssue, args: Readonly<Record<string, unknown>>, known: readonly string[]): string {
  const name = String(issue.path[0] ?? '')
  const given = JSON.stringify(args[name])
  switch (issue.code) {
    case 'unrecognized_keys':
      return `${issue.keys.join(' and ')} ${issue.keys.length === 1 ? 'is' : 'are'} not known here; the arguments are ${known.join(', ')}`
    case 'invalid_type':
      if (!(name in args)) return `${name} is missing`
      return `${name} must be ${issue.expected === 'string' ? 'a string' : 'a whole number'}, not ${given}`
    case 'too_small':
      return `${name} must be at least ${issue.minimum}, not ${given}`
    case 'too_big':
      return `${name} must be at most ${issue.maximum}, not ${given}`
    case 'invalid_value':
      return `${name} must be one of ${issue.values.map((value) => JSON.stringify(value)).join(', ')}, not ${given}`
    case 'invalid_format':
    case 'not_multiple_of':
    case 'invalid_union':
    case 'invalid_key':
    case 'invalid_element':
    case 'custom':
      return `${name}: ${issue.message}`
  }
}
