/** The library's syntax tree as far as we read it, and nodes that hand it values we have computed. */
import type { Node, Value } from './library.js'
import { isString } from './values.js'

/** The template variable that asks for a generation prompt. */
export const PROMPT = 'add_generation_prompt'

/** The fields of the nodes we look into. */
export interface Fields extends Node {
  readonly operator?: { readonly value: string }
  readonly left?: Node
  readonly right?: Node
  readonly operand?: Node
  readonly filter?: Fields
  readonly callee?: Node
  readonly args?: readonly Node[]
  readonly object?: Node
  readonly property?: Fields
  readonly computed?: boolean
  readonly start?: Node
  readonly stop?: Node
  readonly step?: Node
  readonly test?: Node
  readonly body?: readonly Node[]
  readonly iterable?: Node
  readonly condition?: Node
}

export interface LoopNode extends Node {
  readonly loopvar: Node
  readonly iterable: Node
  readonly body: readonly Node[]
  readonly defaultBlock: readonly Node[]
}

/** A node that stands for a value already computed, so that the library can go on with it. */
export const constant = (value: Value): Node => ({ type: 'Constant', value })
/** A copy of a node with some fields replaced. */
export const changed = (fields: Partial<Fields>): Node => fields as Node
/** The same for an argument; some filters insist on string literals. */
export const argument = (value: Value): Node =>
  isString(value) ? { type: 'StringLiteral', value: value.value } : constant(value)
/** Keyword arguments, already computed. */
export const namedArguments = (named: Map<string, Value>): Node[] =>
  [...named].map(([key, value]) => ({
    type: 'KeywordArgumentExpression',
    key: { type: 'Identifier', value: key },
    value: constant(value),
  }))

/** True when the condition holds only with the generation prompt: the variable itself, or a conjunction with it. */
export function mentionsPrompt(test: Node | undefined): boolean {
  if (test === undefined) return false
  const fields = test as Fields
  if (fields.type === 'Identifier') return fields.value === PROMPT
  if (fields.type === 'BinaryExpression' && fields.operator?.value === 'and')
    return mentionsPrompt(fields.left) || mentionsPrompt(fields.right)
  if (fields.type === 'TestExpression') return mentionsPrompt(fields.operand)
  return false
}
