/** Owns how the form that an answer must have is asked of an engine. */
import { anyObject } from '../../chat/grammar.js'
import type { AnswerFormat } from '../ask.js'

export function formIn(format: AnswerFormat | undefined): { readonly grammar?: string; readonly schema?: unknown } {
  switch (format?.kind) {
    case undefined:
      return {}
    case 'json':
      return { grammar: anyObject }
    case 'grammar':
      return { grammar: format.grammar }
    case 'schema':
      return { schema: format.schema }
  }
}
