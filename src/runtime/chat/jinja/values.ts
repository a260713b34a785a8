/** What we use of the template library: types of its run-time values, and a string value that keeps the origin of its characters. */
import * as library from '@huggingface/jinja'
import { Tracked } from '../tracked.js'

// The library's type declarations do not resolve under NodeNext, so this file declares what we use.

/** A run-time value of the template library. Its field `value` is the JavaScript value. */
export interface Value {
  readonly type: string
  readonly value: unknown
  readonly builtins: ReadonlyMap<string, Value>
  __bool__(): { readonly value: boolean }
  toString(): string
}

export interface TemplateScope {
  /** Converts a JavaScript value and sets a variable to it. */
  set(name: string, value: unknown): Value
  setVariable(name: string, value: Value): Value
  lookupVariable(name: string): Value
}

/** A node of the syntax tree. Which fields it has depends on `type`. */
export interface Node {
  readonly type: string
  readonly value?: unknown
}

/**
 * Methods that the interpreter calls on itself, so that we can override them. Some are private in the library, hence its release is pinned.
 */
export interface Evaluator {
  evaluate(node: Node | undefined, environment: TemplateScope): Value
  evaluateBlock(nodes: readonly Node[], environment: TemplateScope): Value
  evaluateArguments(args: readonly Node[], environment: TemplateScope): [Value[], Map<string, Value>]
}

interface Library {
  readonly Environment: new (parent?: TemplateScope) => TemplateScope
  readonly Interpreter: new (environment: TemplateScope) => Evaluator
  readonly tokenize: (source: string, options: { readonly lstrip_blocks: boolean; readonly trim_blocks: boolean }) => unknown
  readonly parse: (tokens: unknown) => Node
}

export const { Environment, Interpreter, tokenize, parse } = library as unknown as Library

// The library's value classes, and our own string class.

type Holding<T> = Value & { readonly value: T }
type Constructor<T, Args extends unknown[]> = new (...args: Args) => Holding<T>
type Body = (args: readonly Value[], scope: TemplateScope) => Value

/** Returns the class of a library value. The library does not export these classes, so we take them from values that it makes. */
function classOf<T, Args extends unknown[] = [T]>(example: unknown): Constructor<T, Args> {
  return new Environment().set('example', example).constructor as Constructor<T, Args>
}

const StringValue = classOf<string>('')
export const FunctionValue = classOf<Body>(() => null)
export const ArrayValue = classOf<readonly Value[]>([])
export const MappingValue = classOf<ReadonlyMap<string, Value>>({})
export const IntegerValue = classOf<number>(1)
export const FloatValue = classOf<number>(1.5)
export const TruthValue = classOf<boolean>(true)
export const NullValue = classOf<null, []>(null)
export const UndefinedValue = classOf<undefined, []>(undefined)

/** Makes a number value. `text`: how the template prints it, if not as JavaScript would. */
export function numberValue(value: number, text?: string): Value {
  const isWhole = text === undefined ? Number.isInteger(value) : !/[.eE]/.test(text)
  const number = isWhole ? new IntegerValue(value) : new FloatValue(value)
  return text === undefined ? number : Object.assign(number, { toString: () => text })
}

/** Returns the error class that the library throws for `break` or `continue`. It is not exported, so we take it from a thrown error. */
function thrownFor(type: string): abstract new () => Error {
  const environment = new Environment()
  try {
    new Interpreter(environment).evaluate({ type }, environment)
  } catch (error) {
    return (error as Error).constructor as abstract new () => Error
  }
  throw new Error(`the template library does not support the statement ${type}`)
}

export const BreakControl = thrownFor('Break')
export const ContinueControl = thrownFor('Continue')

export const isString = (value: Value): value is Holding<string> => value instanceof StringValue
export const isArray = (value: Value): value is Holding<readonly Value[]> => value instanceof ArrayValue
export const isMapping = (value: Value): value is Holding<ReadonlyMap<string, Value>> => value instanceof MappingValue
/** Whether a value is undefined or none. */
export const isNothing = (value: Value): boolean => value instanceof NullValue || value instanceof UndefinedValue

/** Python's `==`: lists and mappings are equal when their items are. */
export function areEqual(a: Value, b: Value): boolean {
  if (isNothing(a) || isNothing(b)) return a.type === b.type
  if (isArray(a) && isArray(b))
    return a.value.length === b.value.length && a.value.every((item, at) => areEqual(item, b.value[at]!))
  if (isMapping(a) && isMapping(b)) {
    const others = b.value
    return (
      a.value.size === others.size && [...a.value].every(([key, item]) => others.has(key) && areEqual(item, others.get(key)!))
    )
  }
  const plain = ({ value }: Value) => (typeof value === 'boolean' ? Number(value) : value)
  return plain(a) === plain(b)
}

/** A string value whose characters keep their origins through all methods that templates call. */
export class TrackedString extends StringValue {
  #methods: Map<string, Value> | null = null

  constructor(readonly tracked: Tracked) {
    super(tracked.value)
  }

  override get builtins(): Map<string, Value> {
    return (this.#methods ??= stringMethods(this.tracked, super.builtins))
  }
}

/** Returns a value's text with its origins. Text that the library made without tracking gets the origin `unknown`. */
export function trackedOf(value: Value): Tracked {
  if (value instanceof TrackedString) return value.tracked
  return Tracked.of(isString(value) ? value.value : value.toString(), 'unknown')
}

const WHITESPACE = /\s/u

/** Python's strip, lstrip and rstrip: removes the characters of `set` at the ends of a text; white space without `set`. */
export function strip(text: Tracked, side: 'both' | 'left' | 'right', set?: string): Tracked {
  const { value } = text
  const drop = (char: string | undefined) =>
    char !== undefined && (set === undefined ? WHITESPACE.test(char) : set.includes(char))
  let start = 0
  let end = value.length
  if (side !== 'right') while (start < end && drop(value[start])) start++
  if (side !== 'left') while (end > start && drop(value[end - 1])) end--
  return text.slice(start, end)
}

/** Returns a string's methods: tracked versions where we have them, else the library's. */
function stringMethods(text: Tracked, plain: ReadonlyMap<string, Value>): Map<string, Value> {
  const method = (body: (args: readonly Value[]) => Value) => new FunctionValue((args) => body(args))
  const string = (made: Tracked) => new TrackedString(made)
  const stripping = (side: 'both' | 'left' | 'right') =>
    method(([set]) => string(strip(text, side, set !== undefined && isString(set) ? set.value : undefined)))
  const methods = new Map(plain)
  methods.set('strip', stripping('both'))
  methods.set('lstrip', stripping('left'))
  methods.set('rstrip', stripping('right'))
  methods.set(
    'upper',
    method(() => string(text.mapCase((part) => part.toUpperCase()))),
  )
  methods.set(
    'lower',
    method(() => string(text.mapCase((part) => part.toLowerCase()))),
  )
  methods.set(
    'title',
    method(() => string(title(text))),
  )
  methods.set(
    'capitalize',
    method(() => string(capitalize(text))),
  )
  methods.set(
    'split',
    method((args) => new ArrayValue(split(text, args).map(string))),
  )
  methods.set(
    'replace',
    method((args) => string(replace(text, args))),
  )
  methods.set(
    'format',
    method((args) => string(format(text, args))),
  )
  methods.set(
    'removeprefix',
    method(([cut]) =>
      string(cut !== undefined && isString(cut) && text.value.startsWith(cut.value) ? text.slice(cut.value.length) : text),
    ),
  )
  methods.set(
    'removesuffix',
    method(([cut]) =>
      string(
        cut !== undefined && isString(cut) && cut.value !== '' && text.value.endsWith(cut.value)
          ? text.slice(0, text.length - cut.value.length)
          : text,
      ),
    ),
  )
  methods.set(
    'find',
    method(([part]) => new IntegerValue(part !== undefined && isString(part) ? text.value.indexOf(part.value) : -1)),
  )
  methods.set(
    'rfind',
    method(([part]) => new IntegerValue(part !== undefined && isString(part) ? text.value.lastIndexOf(part.value) : -1)),
  )
  methods.set(
    'join',
    method(([items]) => string(join(text, items))),
  )
  return methods
}

export function capitalize(text: Tracked): Tracked {
  return Tracked.join([
    text.slice(0, 1).mapCase((char) => char.toUpperCase()),
    text.slice(1).mapCase((rest) => rest.toLowerCase()),
  ])
}

export const title = (text: Tracked): Tracked => text.replace(/\b\w/g, (char) => char.toUpperCase())

/** Python's `separator.join(items)`. */
export function join(separator: Tracked, items: Value | undefined): Tracked {
  if (items === undefined || !isArray(items)) throw new Error('join() needs a list')
  return Tracked.join(items.value.flatMap((item, index) => (index === 0 ? [trackedOf(item)] : [separator, trackedOf(item)])))
}

function split(text: Tracked, [separator, most]: readonly Value[]): Tracked[] {
  const limit = most instanceof IntegerValue && most.value >= 0 ? most.value : Infinity
  if (separator !== undefined && isString(separator)) {
    if (separator.value === '') throw new Error('split() needs a separator that is not empty')
    return text.split(separator.value, limit)
  }
  const parts: Tracked[] = []
  for (const { 0: word, index } of text.value.matchAll(/\S+/g)) {
    if (parts.length === limit) return [...parts, text.slice(index)]
    parts.push(text.slice(index, index + word.length))
  }
  return parts
}

export function replace(text: Tracked, [from, to, count]: readonly (Value | undefined)[]): Tracked {
  if (from === undefined || to === undefined || !isString(from) || !isString(to)) throw new Error('replace() needs two strings')
  const given = count !== undefined && isMapping(count) ? count.value.get('count') : count
  let left = given instanceof IntegerValue && given.value >= 0 ? given.value : Infinity
  const pattern = new RegExp(from.value === '' ? '(?=)' : from.value.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'gu')
  return text.replace(pattern, (match) => {
    if (left === 0) return match
    left--
    return match === '' ? trackedOf(to) : to.value
  })
}

/** Python's `'{} {}'.format(a, b)`, but only with `{}` and `{0}` fields. */
function format(text: Tracked, args: readonly Value[]): Tracked {
  let next = 0
  return text.replace(/\{(\d*)\}/g, (field) => {
    const value = args[field === '{}' ? next++ : Number(field.slice(1, -1))]
    if (value === undefined) throw new Error('format() has fewer arguments than fields')
    return trackedOf(value)
  })
}
