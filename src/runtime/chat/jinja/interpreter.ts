/**
 * Runs a parsed template so that each character of the result knows which message it shows. Extends the library's interpreter: every
 * operation that makes text keeps track of origins.
 */
import { atOnce, type Steps } from '../../core/turns.js'
import { type Owner, Tracked } from '../tracked.js'
import { applyFilter, listMethod, textOf } from './filters.js'
import {
  areEqual,
  ArrayValue,
  BreakControl,
  ContinueControl,
  Environment,
  IntegerValue,
  Interpreter,
  isArray,
  isMapping,
  isNothing,
  isString,
  MappingValue,
  type Node,
  NullValue,
  type TemplateScope,
  trackedOf,
  TrackedString,
  TruthValue,
  UndefinedValue,
  type Value,
} from './values.js'

/** A loop that is running, with the text of each iteration so far. */
interface LoopFrame {
  readonly body: readonly Node[]
  readonly otherwise: readonly Node[]
  readonly rounds: Tracked[]
  readonly variable: string | null
  /**
   * The message that the current iteration belongs to, or the generation prompt. Literals evaluated in the iteration belong to the owner,
   * even if the template first stores them in a variable.
   */
  owner: Owner | null
}

/** Statements that print nothing. Their value is none too, but an expression whose value is none prints `None`. */
const SILENT = new Set(['Set', 'Macro', 'Comment', 'CallStatement'])
/** Methods of mappings that templates call. */
const METHODS = new Set(['get', 'items', 'keys', 'values'])
/** Converts a value to a mapping key. Keys are strings, so a number becomes a string. */
const keyOf = (value: Value): string => (isString(value) ? value.value : value.toString())

export class TrackingInterpreter extends Interpreter {
  readonly #loops: LoopFrame[] = []
  /** Text that blocks had written when `break` or `continue` left them, innermost block first. The loop adds it to its iteration. */
  #abandoned: Tracked[] = []

  /** `messageOf` returns the index of the message that a value represents; null for other values. */
  constructor(
    environment: TemplateScope,
    private readonly messageOf: (value: Value) => number | null,
  ) {
    super(environment)
  }

  /** Runs a whole template. A generator that yields to the event loop after each iteration of a loop. */
  program(node: Node, environment: TemplateScope): Steps<Value> {
    return this.#block((node as NodeFields).body ?? [], environment)
  }

  override evaluate(node: Node | undefined, environment: TemplateScope): Value {
    if (node === undefined) return super.evaluate(node, environment)
    const fields = node as NodeFields
    switch (fields.type) {
      case 'Constant':
        return fields.value as Value
      case 'StringLiteral':
        return this.#literal(fields.value as string)
      case 'TupleLiteral':
        return new ArrayValue((fields.value as readonly Node[]).map((item) => this.evaluate(item, environment)))
      case 'ObjectLiteral':
        return new MappingValue(
          new Map(
            [...(fields.value as ReadonlyMap<Node, Node>)].map(([key, value]) => [
              keyOf(this.evaluate(key, environment)),
              this.evaluate(value, environment),
            ]),
          ),
        )
      case 'BinaryExpression':
        return this.#binary(fields, node, environment)
      case 'FilterExpression':
        return this.#filter(this.evaluate(fields.operand, environment), fields, environment)
      case 'FilterStatement':
        return this.#filter(this.evaluateBlock(fields.body ?? [], environment), fields, environment)
      case 'MemberExpression':
        return this.#member(fields, environment)
      case 'For':
      case 'If':
        return atOnce(this.#statement(node, environment))
      case 'SelectExpression':
      case 'Ternary':
        return atOnce(this.#conditional(node, fields.test ?? fields.condition, environment))
      default:
        return super.evaluate(node, environment)
    }
  }

  override evaluateBlock(nodes: readonly Node[], environment: TemplateScope): Value {
    return atOnce(this.#block(nodes, environment))
  }

  *#statement(node: Node, environment: TemplateScope): Steps<Value> {
    if (node.type === 'For') return yield* this.#loop(node as Node & LoopNode, environment)
    if (node.type === 'If') return yield* this.#conditional(node, (node as NodeFields).test, environment)
    return this.evaluate(node, environment)
  }

  *#block(nodes: readonly Node[], environment: TemplateScope): Steps<Value> {
    const frame = this.#loops.at(-1)
    const looped = frame !== undefined && (frame.body === nodes || frame.otherwise === nodes)
    const parts: Tracked[] = []
    if (looped && frame.variable !== null) frame.owner = this.messageOf(environment.lookupVariable(frame.variable))
    try {
      for (const node of nodes) {
        const value = yield* this.#statement(node, environment)
        if (value instanceof NullValue && SILENT.has(node.type)) continue
        parts.push(textOf(value))
      }
    } catch (error) {
      parts.push(...this.#abandoned)
      this.#abandoned = parts
      if (looped) frame.rounds.push(this.#round(frame, this.#takeAbandoned(), environment))
      throw error
    }
    const made = Tracked.join(parts)
    if (looped) frame.rounds.push(frame.body === nodes ? this.#round(frame, made, environment) : made)
    return new TrackedString(made)
  }

  #takeAbandoned(): Tracked {
    const made = Tracked.join(this.#abandoned)
    this.#abandoned = []
    return made
  }

  #binary(fields: NodeFields, node: Node, environment: TemplateScope): Value {
    const operator = fields.operator?.value ?? ''
    if (operator === 'and' || operator === 'or') return super.evaluate(node, environment)
    const left = this.evaluate(fields.left, environment)
    const right = this.evaluate(fields.right, environment)
    const strings = Number(isString(left)) + Number(isString(right))
    if (operator === '~') return new TrackedString(Tracked.join([textOf(left), textOf(right)]))
    if ((operator === 'in' || operator === 'not in') && (isArray(right) || isMapping(right)))
      return new TruthValue(isIn(left, right) === (operator === 'in'))
    if (operator === '+' && strings === 2) return new TrackedString(Tracked.join([trackedOf(left), trackedOf(right)]))
    if (operator === '+' && strings === 1)
      throw new Error(`a string and a ${(isString(left) ? right : left).type} cannot be added`)
    if (operator === '*' && strings === 1) {
      const [text, count] = isString(left) ? [left, right] : [right, left]
      if (typeof count.value === 'number')
        return new TrackedString(Tracked.join(Array.from({ length: Math.max(0, count.value) }, () => trackedOf(text))))
    }
    return super.evaluate(changed({ ...fields, left: constant(left), right: constant(right) }), environment)
  }

  #filter(operand: Value, fields: NodeFields, environment: TemplateScope): Value {
    const filter = fields.filter as NodeFields
    const called = filter.type === 'CallExpression'
    const name = String(((called ? filter.callee : filter) as NodeFields).value)
    const [args, named] = called ? this.evaluateArguments(filter.args ?? [], environment) : [[], new Map<string, Value>()]
    const made = applyFilter(name, operand, args, named)
    if (made !== null) return made
    const call = called ? changed({ ...filter, args: [...args.map(argument), ...namedArguments(named)] }) : filter
    return super.evaluate(changed({ type: 'FilterExpression', operand: constant(operand), filter: call }), environment)
  }

  #member(fields: NodeFields, environment: TemplateScope): Value {
    const object = this.evaluate(fields.object, environment)
    const property = fields.property as NodeFields
    if (isString(object) && fields.computed === true) {
      const text = trackedOf(object)
      if (property.type === 'SliceExpression') {
        const [start, stop, step] = [property.start, property.stop, property.step].map((part) => this.evaluate(part, environment))
        if (step === undefined || isNothing(step) || step.value === 1) return new TrackedString(slice(text, start, stop))
      } else {
        const index = this.evaluate(fields.property, environment)
        if (typeof index.value === 'number') {
          const at = index.value < 0 ? text.length + index.value : index.value
          return at >= 0 && at < text.length ? new TrackedString(text.slice(at, at + 1)) : new UndefinedValue()
        }
      }
    }
    if (isMapping(object) && fields.computed === true && property.type !== 'StringLiteral') {
      const key = this.evaluate(property, environment)
      if (typeof key.value === 'number') return object.value.get(String(key.value)) ?? new UndefinedValue()
      if (!isString(key)) return new UndefinedValue()
    }
    // In Python, `mapping.items` is the method even if the mapping has a key `items`.
    if (isMapping(object) && fields.computed !== true && METHODS.has(String(property.value)))
      return object.builtins.get(String(property.value))!
    if (isArray(object) && fields.computed === true && property.type === 'Identifier')
      this.#indexed(object.value, property, environment)
    if (isArray(object) && fields.computed !== true) {
      const method = listMethod(object.value as Value[], String(property.value))
      if (method !== null) return method
    }
    return super.evaluate(changed({ ...fields, object: constant(object) }), environment)
  }

  /** In a loop over indices, sets the owner of the iteration to the message that the template looks up with the loop variable. */
  #indexed(items: readonly Value[], variable: Node, environment: TemplateScope): void {
    const frame = this.#loops.findLast(({ variable: name }) => name === variable.value)
    const index = environment.lookupVariable(String(variable.value)).value
    const item = typeof index === 'number' ? items[index] : undefined
    if (frame !== undefined && item !== undefined) frame.owner = this.messageOf(item) ?? frame.owner
  }

  *#loop(node: Node & LoopNode, environment: TemplateScope): Steps<Value> {
    const variable = node.loopvar.type === 'Identifier' ? String(node.loopvar.value) : null
    const frame: LoopFrame = { body: node.body, otherwise: node.defaultBlock, rounds: [], variable, owner: null }
    const iterable = (node.iterable as NodeFields).type === 'SelectExpression' ? null : this.evaluate(node.iterable, environment)
    this.#loops.push(frame)
    try {
      const items = iterable === null ? null : itemsOf(iterableOf(iterable))
      if (variable !== null && items !== null) yield* this.#rounds(node, variable, items, environment)
      else {
        const over = iterable === null ? node.iterable : constant(iterableOf(iterable))
        super.evaluate(changed({ ...node, iterable: over }), environment)
      }
    } finally {
      this.#loops.pop()
    }
    return new TrackedString(Tracked.join(frame.rounds))
  }

  /**
   * Runs the iterations like the library's interpreter. If `continue` ends all of them, the loop counts as empty and its `else` block runs.
   */
  *#rounds(node: LoopNode, variable: string, items: readonly Value[], environment: TemplateScope): Steps<undefined> {
    const scope = new Environment(environment)
    let isEmpty = true
    for (const [index, item] of items.entries()) {
      scope.setVariable('loop', loopValue(items, index))
      scope.setVariable(variable, item)
      try {
        yield* this.#block(node.body, scope)
        isEmpty = false
      } catch (error) {
        if (error instanceof BreakControl) break
        if (!(error instanceof ContinueControl)) throw error
      }
      yield
    }
    if (isEmpty) yield* this.#block(node.defaultBlock, scope)
  }

  /**
   * Gives an iteration's text to the message that the loop variable is. If it is none, to the message whose text the iteration shows, if
   * there is only one.
   */
  #round(frame: LoopFrame, made: Tracked, environment: TemplateScope): Tracked {
    const item = frame.variable === null ? null : environment.lookupVariable(frame.variable)
    const owner = (item === null ? null : this.messageOf(item)) ?? soleSource(made)
    return owner === null ? made : made.owned(owner)
  }

  /** Runs an `if`. If its test asks for the generation prompt, the text of the branch belongs to the generation prompt. */
  *#conditional(node: Node, test: Node | undefined, environment: TemplateScope): Steps<Value> {
    const prompted =
      mentionsPrompt(test) &&
      environment.lookupVariable(PROMPT).value === true &&
      this.evaluate(test, environment).__bool__().value
    if (!prompted) return yield* this.#branch(node, environment)
    this.#loops.push({ body: [], otherwise: [], rounds: [], variable: null, owner: 'prompt' })
    try {
      const made = yield* this.#branch(node, environment)
      return isString(made) ? new TrackedString(trackedOf(made).owned('prompt')) : made
    } finally {
      this.#loops.pop()
    }
  }

  *#branch(node: Node, environment: TemplateScope): Steps<Value> {
    if (node.type !== 'If') return super.evaluate(node, environment)
    const { test, body = [], alternate = [] } = node as NodeFields
    return yield* this.#block(this.evaluate(test, environment).__bool__().value ? body : alternate, environment)
  }

  #literal(text: string): Value {
    const made = Tracked.of(text, 'template')
    const owner = this.#loops.findLast((frame) => frame.owner !== null)?.owner ?? null
    return new TrackedString(owner === null ? made : made.owned(owner))
  }
}

/**
 * Returns the items that a loop iterates over. Returns null for a value that is neither list nor mapping; the library then reports the
 * error.
 */
function itemsOf(value: Value): readonly Value[] | null {
  if (isArray(value)) return value.value
  return isMapping(value) ? [...value.value.keys()].map((key) => new TrackedString(Tracked.of(key, 'unknown'))) : null
}

/** Returns the value of the variable `loop` in one iteration; `index` counts from 0. */
const loopValue = (items: readonly Value[], index: number): Value =>
  new MappingValue(
    new Map<string, Value>([
      ['index', new IntegerValue(index + 1)],
      ['index0', new IntegerValue(index)],
      ['revindex', new IntegerValue(items.length - index)],
      ['revindex0', new IntegerValue(items.length - index - 1)],
      ['first', new TruthValue(index === 0)],
      ['last', new TruthValue(index === items.length - 1)],
      ['length', new IntegerValue(items.length)],
      ['previtem', items[index - 1] ?? new UndefinedValue()],
      ['nextitem', items[index + 1] ?? new UndefinedValue()],
    ]),
  )

/** Python's `in`: whether a list has an equal item, or a mapping has the key. */
function isIn(value: Value, container: Value): boolean {
  if (isArray(container)) return container.value.some((item) => areEqual(item, value))
  const isKey = isString(value) || typeof value.value === 'number'
  return isMapping(container) && isKey && container.value.has(keyOf(value))
}

/** Converts a value as Python's Jinja does for a loop: a string to its characters, undefined to an empty list. */
function iterableOf(value: Value): Value {
  if (value instanceof UndefinedValue) return new ArrayValue([])
  if (!isString(value)) return value
  const text = trackedOf(value)
  const chars: Value[] = []
  for (const { 0: char, index } of text.value.matchAll(/[^]/gu))
    chars.push(new TrackedString(text.slice(index, index + char.length)))
  return new ArrayValue(chars)
}

/** Python's `text[start:stop]`. */
function slice(text: Tracked, start: Value | undefined, stop: Value | undefined): Tracked {
  const bound = (value: Value | undefined, otherwise: number) => {
    if (value === undefined || isNothing(value)) return otherwise
    if (typeof value.value !== 'number') throw new Error('slice bounds must be whole numbers')
    return value.value < 0 ? Math.max(0, text.length + value.value) : Math.min(value.value, text.length)
  }
  return text.slice(bound(start, 0), bound(stop, text.length))
}

function soleSource(made: Tracked): Owner | null {
  let sole: number | null = null
  for (const { origin } of made.pieces) {
    if (typeof origin === 'string' || origin.field === 'tool') continue
    if (sole !== null && sole !== origin.message) return null
    sole = origin.message
  }
  return sole
}

// Access to the library's syntax tree: the fields that we read, and nodes made from values that we computed ourselves.

/** The template variable that says whether to write a generation prompt. */
export const PROMPT = 'add_generation_prompt'

/** The fields of syntax tree nodes that we read. */
export interface NodeFields extends Node {
  readonly operator?: { readonly value: string }
  readonly left?: Node
  readonly right?: Node
  readonly operand?: Node
  readonly filter?: NodeFields
  readonly callee?: Node
  readonly args?: readonly Node[]
  readonly object?: Node
  readonly property?: NodeFields
  readonly computed?: boolean
  readonly start?: Node
  readonly stop?: Node
  readonly step?: Node
  readonly test?: Node
  readonly body?: readonly Node[]
  readonly alternate?: readonly Node[]
  readonly iterable?: Node
  readonly condition?: Node
}

export interface LoopNode extends Node {
  readonly loopvar: Node
  readonly iterable: Node
  readonly body: readonly Node[]
  readonly defaultBlock: readonly Node[]
}

/** Makes a node with a computed value, for handing it back to the library. */
export const constant = (value: Value): Node => ({ type: 'Constant', value })
/** Makes a node from fields: usually those of another node, some of them replaced. */
export const changed = (fields: Partial<NodeFields>): Node => fields as Node
/** Makes a node for an argument of a filter. A string becomes a literal, because some library filters accept only literals. */
export const argument = (value: Value): Node =>
  isString(value) ? { type: 'StringLiteral', value: value.value } : constant(value)
/** Makes nodes for keyword arguments with computed values. */
export const namedArguments = (named: Map<string, Value>): Node[] =>
  [...named].map(([key, value]) => ({
    type: 'KeywordArgumentExpression',
    key: { type: 'Identifier', value: key },
    value: constant(value),
  }))

/** Whether a test can only be true with a generation prompt: it is `add_generation_prompt` itself, or an `and` that contains it. */
export function mentionsPrompt(test: Node | undefined): boolean {
  if (test === undefined) return false
  const fields = test as NodeFields
  if (fields.type === 'Identifier') return fields.value === PROMPT
  if (fields.type === 'BinaryExpression' && fields.operator?.value === 'and')
    return mentionsPrompt(fields.left) || mentionsPrompt(fields.right)
  if (fields.type === 'TestExpression') return mentionsPrompt(fields.operand)
  return false
}
