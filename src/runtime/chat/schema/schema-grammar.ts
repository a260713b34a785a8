/** Converts a JSON schema to GBNF. Every text that the grammar accepts satisfies the schema, except for keywords that were left out. */
import { writtenEntries } from '../../core/written-json.js'
import { refuseOverlap } from './apart.js'
import {
  alternatives,
  canonical,
  check,
  isSchema,
  itemsOf,
  listed,
  refuse,
  resolve,
  satisfies,
  satisfying,
  typesOf,
  type AnySchema,
  type LeaveOut,
  type Plain,
  type Schema,
  type SchemaRoot,
  type TypeName,
  Work,
} from './merge.js'
import { multiplesOf } from './multiples.js'
import { FORMATS, numbersOf, rawTexts, texts } from './scalars.js'
import { exactSchema } from './exact.js'
import { repeated } from './pattern.js'
import { otherKeys, sequenceOf, type PropertyRule } from './properties.js'
import { type GrammarRules, literal, writtenOut } from './rules.js'

export interface SchemaOptions {
  /** The names of all rules for this schema begin with this. */
  readonly prefix: string
  /**
   * Called with the position of each keyword that the grammar cannot express. It is left out, and the grammar accepts more than the schema.
   * Default: such a schema is refused with an error that names the keyword.
   */
  readonly leaveOut?: LeaveOut
  /** Lengths and counts above this number are left out as well. Default: no limit. */
  readonly most?: number
  /** The limit on steps of work. Default: that of one schema (`MOST_WORK`). */
  readonly work?: Work
}

/**
 * Writes GBNF for one property; null when that is impossible. `value`: the rule for its value. `name`: the property's name, and `other` the
 * schema of its value. For additional properties, `name` is null and `other` is the rule for the key.
 */
export type WriteProperty = (name: string | null, value: string, other: AnySchema | string) => string | null

interface ObjectSchema {
  readonly properties?: Schema
  readonly required?: readonly string[]
  readonly additionalProperties?: AnySchema
  readonly propertyNames?: AnySchema
  readonly minProperties?: number
  readonly maxProperties?: number
}

const KEYWORDS: Readonly<Partial<Record<TypeName, readonly string[]>>> = {
  object: ['properties', 'required', 'additionalProperties', 'propertyNames', 'minProperties', 'maxProperties'],
  array: ['items', 'prefixItems', 'minItems', 'maxItems'],
  string: ['pattern', 'format', 'minLength', 'maxLength'],
  number: ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'],
}
const BOUNDS = ['minItems', 'maxItems', 'minLength', 'maxLength', 'minProperties', 'maxProperties']
const MANY = 100
/** The deepest nesting of schemas with references. */
const DEEPEST = 100

export class SchemaWriter {
  readonly #references = new Map<string, string | null>()
  /** References that are being written and have not produced any text yet. Reaching one of them again would be left recursion. */
  #unguarded = new Set<string>()
  readonly #finite = new Set<string>()
  readonly #schema: AnySchema
  readonly #root: SchemaRoot
  readonly #leaveOut: LeaveOut | null
  readonly #isLinked: boolean
  /** For each schema: whether it contains references. `#texts`: its JSON with sorted keys. */
  readonly #links = new WeakMap<object, boolean>()
  readonly #texts = new WeakMap<object, string>()
  /** Schemas that are known to have a value of finite size. */
  readonly #ended = new WeakSet<object>()
  /** Schemas with references that are being written. A schema that refers to itself becomes a rule called `name`. */
  readonly #writing = new Map<string, { name?: string }>()
  #count = 0

  /**
   * Checks a schema and prepares to write its grammar.
   * @throws KvfoldError engine/bad-grammar for an invalid schema. Without `leaveOut`, also for a schema that a grammar cannot express
   */
  constructor(
    private readonly rules: GrammarRules,
    schema: AnySchema,
    private readonly options: SchemaOptions,
  ) {
    const { leaveOut = null } = options
    this.#leaveOut = leaveOut
    this.#schema = exactSchema(schema)
    this.#root = { schema: this.#schema, work: options.work ?? new Work(), plains: new WeakMap() }
    this.#isLinked = this.#hasLinks(this.#schema)
    check(this.#root, leaveOut, (inner, path, isPart) => {
      if (leaveOut === null) refuseOverlap(this.#root, inner, path, isPart)
    })
  }

  /** Returns GBNF for the schema's values. @throws KvfoldError engine/bad-grammar when the schema allows no value */
  whole(): string {
    return this.#counted(this.value(this.#schema, '#') ?? refuse('allows no value', '#'), '#')
  }

  /** Counts a rule body's size as work, and returns the body. */
  #counted(body: string, path: string): string {
    this.#root.work.spend(writtenOut(body), path)
    return body
  }

  /** Writes GBNF for a schema's values. Returns null when it allows none. */
  value(schema: AnySchema, path: string): string | null {
    if (!this.#isLinked || typeof schema === 'boolean' || !this.#hasLinks(schema)) return this.#options(schema, path)
    // A schema that has references beside other keywords may refer to itself. If so, it becomes a rule.
    const key = this.#text(schema, path)
    const known = this.#writing.get(key)
    if (this.#unguarded.has(key)) refuse('refers to itself without end', path)
    if (known !== undefined) return (known.name ??= `${this.options.prefix}-self-${this.#count++}`)
    if (this.#writing.size > DEEPEST) refuse('refers to itself through ever new schemas', path)
    const entry: { name?: string } = {}
    this.#writing.set(key, entry)
    this.#unguarded.add(key)
    const written = this.#options(schema, path)
    this.#writing.delete(key)
    this.#unguarded.delete(key)
    if (entry.name === undefined) return written
    if (written === null) refuse('allows no value', path)
    this.rules.add(entry.name, this.#counted(written, path))
    return entry.name
  }

  #hasLinks(schema: AnySchema): boolean {
    if (!isSchema(schema)) return false
    let known = this.#links.get(schema)
    if (known === undefined) this.#links.set(schema, (known = JSON.stringify(schema).includes('"$ref"')))
    return known
  }

  #text(schema: AnySchema, path: string): string {
    if (typeof schema === 'boolean') return String(schema)
    let known = this.#texts.get(schema)
    if (known === undefined) {
      this.#texts.set(schema, (known = canonical(schema)))
      this.#root.work.spend(known.length / 64, path)
    }
    return known
  }

  #options(schema: AnySchema, path: string): string | null {
    const options = alternatives(this.#root, schema, path).map((each) => this.#plain(each, path))
    const written = [...new Set(options.filter((each) => each !== null))]
    this.#root.work.spend(written.reduce((sum, each) => sum + each.length, 0) / 64, path)
    if (written.length === 0) return null
    return written.length === 1 ? written[0]! : `( ${written.join(' | ')} )`
  }

  /**
   * Writes the text between the brackets of the outermost object (see `pairs`). @throws KvfoldError engine/bad-grammar when no object is
   * allowed
   */
  arguments(comma: string, write: WriteProperty): string {
    const options = this.#resolved(this.#schema).flatMap((each) => {
      const isObject = this.#typesIn(each).some((type) => type === 'object' || type === 'any') && listed(each) === null
      return isObject ? (this.#guarded(() => this.pairs(each, '#', comma, write)) ?? []) : []
    })
    if (options.length === 0) refuse('allows no object', '#')
    if (options.includes('any')) return 'any'
    return this.#counted(options.length === 1 ? options[0]! : `( ${options.map((each) => each || '""').join(' | ')} )`, '#')
  }

  /**
   * Writes a schema's values with strings raw, without JSON's quotes and escapes. `text`: the rule for any text. Returns null when no value
   * is a string.
   */
  rawValue(schema: AnySchema, text: string, path: string): string | null {
    const options = this.#resolved(schema)
    const isText = (each: Plain) =>
      listed(each)?.some((value) => typeof value === 'string') ??
      this.#typesIn(each).some((type) => type === 'string' || type === 'any')
    if (!options.some(isText)) return null
    const written = options.flatMap((each) => {
      const values = listed(each)
      if (values !== null)
        return this.#right(values, each, path).map((value) =>
          typeof value === 'string' ? literal(value) : this.rules.constant(value),
        )
      const others = this.#typesIn(each).filter((type) => type !== 'string' && type !== 'any')
      const rest = others.flatMap((type) => this.#typed(type, each, path) ?? [])
      return isText(each) ? [...rest, rawTexts(this.#bounded(each, path), text, path, this.#leaveOut) ?? []].flat() : rest
    })
    return written.length === 0 ? null : `( ${[...new Set(written)].join(' | ')} )`
  }

  #resolved(schema: AnySchema, depth = 0): readonly Plain[] {
    return alternatives(this.#root, schema, '#').flatMap((each) =>
      each['$ref'] === undefined
        ? [each]
        : depth > 50
          ? []
          : this.#resolved(resolve(this.#root, each['$ref'] as string, '#'), depth + 1),
    )
  }

  #plain(given: Plain, path: string): string | null {
    const schema = this.#bounded(given, path)
    if (schema['$ref'] !== undefined) return this.#reference(schema['$ref'] as string, path)
    const values = listed(schema)
    if (values !== null) return this.#listed(values, schema, path)
    const written = this.#typesIn(schema).flatMap((type) => this.#typed(type, schema, path) ?? [])
    if (written.length === 0) return null
    return written.length === 1 ? written[0]! : `( ${written.join(' | ')} )`
  }

  /** Returns the schema's types. Without `type`, returns the types that its keywords are about, or `any`. */
  #typesIn(schema: Plain): readonly (TypeName | 'any')[] {
    const types = typesOf(schema)
    if (types !== null) return types.includes('number') ? types.filter((type) => type !== 'integer') : types
    const meant = (Object.keys(KEYWORDS) as TypeName[]).filter((type) => KEYWORDS[type]!.some((name) => name in schema))
    return meant.length === 0 ? ['any'] : meant
  }

  #listed(values: readonly unknown[], schema: Plain, path: string): string | null {
    const right = this.#right(values, schema, path)
    return right.length === 0 ? null : `( ${right.map((value) => this.rules.constant(value)).join(' | ')} )`
  }

  /** Returns the values of `const` or `enum` that also satisfy the schema's other keywords. */
  #right(values: readonly unknown[], { const: _, enum: __, format, ...rest }: Plain, path: string): readonly unknown[] {
    const known = typeof format === 'string' && Object.hasOwn(FORMATS, format) ? FORMATS[format] : undefined
    const isFormed = (value: unknown) =>
      typeof known !== 'string' ||
      typeof value !== 'string' ||
      new RegExp(`^(?:${known})$`, 'u').test(value) ||
      (format !== 'byte' && satisfies({ format }, value))
    return satisfying(rest, values, path).filter(isFormed)
  }

  #typed(type: TypeName | 'any', schema: Plain, path: string): string | null {
    switch (type) {
      case 'object':
        return this.#guarded(() => this.#object(schema, path))
      case 'array':
        return this.#guarded(() => this.#array(schema, path))
      case 'string':
        return texts(schema, path, this.#leaveOut)
      case 'integer':
      case 'number':
        return this.#numbers(type, schema, path)
      case 'any':
        return 'value'
      case 'boolean':
      case 'null':
        return type
    }
  }

  #numbers(type: 'integer' | 'number', schema: Plain, path: string): string | null {
    if (schema['multipleOf'] === undefined || schema['multipleOf'] === 1) return numbersOf(type, schema)
    const written = multiplesOf(type, schema, (body) => this.#rule(body, path))
    if (written !== undefined) return written
    this.#beyond(`${path}/multipleOf`, 'is a number whose multiples a grammar cannot express')
    return numbersOf(type, schema)
  }

  /** Returns the schema without lengths and counts above `options.most`. */
  #bounded(schema: Plain, path: string): Plain {
    const { most = Infinity, leaveOut } = this.options
    const large = BOUNDS.filter((name) => typeof schema[name] === 'number' && schema[name] > most)
    if (large.length === 0) return schema
    for (const name of large) leaveOut?.(`${path}/${name}`)
    return Object.fromEntries(Object.entries(schema).filter(([name]) => !large.includes(name)))
  }

  #guarded<T>(write: () => T): T {
    const before = this.#unguarded
    this.#unguarded = new Set()
    try {
      return write()
    } finally {
      this.#unguarded = before
    }
  }

  #reference(reference: string, path: string): string | null {
    if (this.#unguarded.has(reference)) refuse(`refers to itself without end (${reference})`, path)
    const known = this.#references.get(reference)
    if (known !== undefined) return known
    const target = resolve(this.#root, reference, path)
    if (!this.#isFinite(target, new Set([reference]))) {
      this.#references.set(reference, null)
      return null
    }
    const name = `${this.options.prefix}-ref-${this.#references.size}`
    this.#references.set(reference, name)
    this.#unguarded.add(reference)
    const body = this.value(target, reference)
    this.#unguarded.delete(reference)
    if (body === null) refuse('allows no value', reference)
    this.rules.add(name, this.#counted(body, reference))
    return name
  }

  /** Whether the schema has a value of finite size. A schema that requires itself has none. */
  #isFinite(schema: AnySchema, before: ReadonlySet<string>): boolean {
    if (!this.#isLinked) return schema !== false
    if (typeof schema === 'object' && this.#ended.has(schema)) return true
    const key = this.#text(schema, '#')
    if (before.has(key)) return false
    this.#root.work.spend(1 + before.size / 16, '#')
    const open = new Set([...before, key])
    const isFinite = alternatives(this.#root, schema, '#').some((each) => {
      const reference = each['$ref'] as string | undefined
      if (reference !== undefined) {
        if (open.has(reference)) return false
        if (this.#finite.has(reference)) return true
        const isFinite = this.#isFinite(resolve(this.#root, reference, '#'), new Set([...open, reference]))
        if (isFinite) this.#finite.add(reference)
        return isFinite
      }
      if (listed(each) !== null) return true
      return this.#typesIn(each).some((type) => {
        if (type === 'object') {
          const { properties = {}, required = [], additionalProperties = true, minProperties = 0 } = each as ObjectSchema
          const isKnown = (name: string) => Object.hasOwn(properties, name)
          const fine = Object.values(properties).filter((inner) => this.#isFinite(inner as AnySchema, open)).length
          const more = minProperties > fine && this.#isFinite(additionalProperties, open) ? 1 : 0
          if (minProperties > fine + more + required.filter((name) => !isKnown(name)).length) return false
          return required.every((name) =>
            this.#isFinite((isKnown(name) ? properties[name] : additionalProperties) as AnySchema, open),
          )
        }
        if (type !== 'array') return true
        const { first, rest = true } = itemsOf(each)
        const least = (each['minItems'] as number | undefined) ?? 0
        return (
          first.slice(0, least).every((item) => this.#isFinite(item, open)) &&
          (least <= first.length || this.#isFinite(rest, open))
        )
      })
    })
    if (isFinite && typeof schema === 'object') this.#ended.add(schema)
    return isFinite
  }

  #array(schema: Plain, path: string): string | null {
    const { minItems = 0, maxItems = Infinity } = schema as { minItems?: number; maxItems?: number }
    const { first, rest = true } = itemsOf(schema)
    if (minItems > maxItems) return null
    const heads = first.slice(0, maxItems).map((item, at) => this.value(item, `${path}/prefixItems/${at}`))
    const end = heads.indexOf(null)
    const open = end === -1 ? heads : heads.slice(0, end)
    const each = end !== -1 || maxItems <= open.length ? null : this.value(rest, `${path}/items`)
    // A rule, because each repetition would contain the item's text again.
    const further = each !== null && maxItems > MANY && maxItems < Infinity ? this.#rule(each, path) : each
    const least = Math.max(minItems, 0)
    if (open.length < least && further === null) return null
    const { comma } = this.rules.style
    // The items after the first ones. The code below puts the first ones before this text, from the last to the first.
    const tail =
      further === null
        ? ''
        : ` ${repeated(`( ${comma} ${further} )`, Math.max(least - Math.max(open.length, 1), 0), maxItems - Math.max(open.length, 1))}`
    let inside: string
    if (open.length === 0) inside = further === null ? '' : `${further}${tail}`
    else
      inside = open.reduceRight<string>((after, item, at) => {
        const before = at === 0 ? '' : `${comma} `
        const one = `${before}${item}${after}`
        return at === 0 ? one : at < least ? ` ${one}` : ` ( ${one} )?`
      }, tail)
    const { openList, closeList } = this.rules.style
    if (inside === '') return '"[]"'
    return this.#rule(least === 0 ? `"[]" | ${openList} ${inside} ${closeList}` : `${openList} ${inside} ${closeList}`, path)
  }

  #object(schema: Plain, path: string): string | null {
    const { openObject, closeObject, comma, colon } = this.rules.style
    const body = this.pairs(
      schema,
      path,
      comma,
      (key, value, other) => `${key === null ? (other as string) : literal(JSON.stringify(key))} ${colon} ${value}`,
    )
    if (body === null) return null
    if (body === 'any') return 'object'
    return body === '' ? '"{}"' : this.#rule(`${openObject} ${body} ${closeObject}`, path)
  }

  /**
   * Writes the text between an object's brackets: its properties in the schema's order, each at most once, then additional properties if
   * allowed. Returns `any` when every object is allowed, null when none is.
   */
  pairs(given: Plain, path: string, comma: string, write: WriteProperty): string | null {
    const schema = this.#bounded(given, path)
    const {
      properties = {},
      required = [],
      additionalProperties: additional,
      propertyNames,
      minProperties: least = 0,
      maxProperties: most = Infinity,
    } = schema as ObjectSchema
    const key = this.#keys(propertyNames, [...Object.keys(properties), ...required], path)
    const unnamed = required.filter((name) => !Object.hasOwn(properties, name))
    const named = [
      ...writtenEntries(properties).map(({ key, value }) => [key, value] as const),
      ...unnamed.map((name) => [name, additional ?? true] as const),
    ]
    const isPlain = additional === undefined && key.rule === null && least === 0 && most === Infinity
    if (named.length === 0 && isPlain && schema['properties'] === undefined) return 'any'
    const entries: PropertyRule[] = []
    for (const [name, inner] of named) {
      const isNeeded = required.includes(name)
      const isPossible = key.allows(name) && this.#isFinite(inner as AnySchema, new Set())
      const value = isPossible ? this.value(inner as AnySchema, `${path}/properties/${name}`) : null
      const pair = value === null ? null : write(name, value, inner as AnySchema)
      if (pair !== null) entries.push({ pair, isNeeded })
      else if (isNeeded) return null
    }
    // With a rule for property names, an additional property could repeat a name that has its own schema. So the grammar then allows no
    // additional properties.
    const isMixed = key.rule !== null && named.some(([name]) => key.allows(name))
    const isOpen = isMixed ? false : additional === undefined ? schema['properties'] === undefined : additional !== false
    const value =
      isOpen && this.#isFinite(additional ?? true, new Set())
        ? this.value(additional ?? true, `${path}/additionalProperties`)
        : null
    const other =
      value === null
        ? null
        : write(
            null,
            value,
            key.rule ??
              otherKeys(
                (body) => this.#rule(body, path),
                named.map(([name]) => name),
              ),
          )
    if (least > entries.length + 1 && other !== null)
      this.#beyond(`${path}/minProperties`, 'asks for several additional properties with different names')
    return sequenceOf((body) => this.#rule(body, path), entries, other, comma, Math.min(least, entries.length + 1), most)
  }

  /**
   * Returns the rule for property names (null: any name), and a test whether a name is allowed. The test works only for names in `known`.
   */
  #keys(
    names: AnySchema | undefined,
    known: readonly string[],
    path: string,
  ): { readonly rule: string | null; readonly allows: (key: string) => boolean } {
    if (names === undefined || names === true) return { rule: null, allows: () => true }
    const plain = isSchema(names) ? names : { enum: [] }
    if (Object.keys(plain).every((name) => ['type', 'title', 'description'].includes(name)))
      return { rule: null, allows: () => true }
    const allowed = new Set(satisfying(plain, known, `${path}/propertyNames`))
    return {
      rule: this.value({ allOf: [{ type: 'string' }, names] }, `${path}/propertyNames`),
      allows: (key) => allowed.has(key),
    }
  }

  #beyond(path: string, what: string): void {
    if (this.#leaveOut === null) refuse(`${what}, which is not supported`, path)
    this.#leaveOut(path)
  }

  #rule(body: string, path: string): string {
    const name = `${this.options.prefix}-${this.#count++}`
    this.rules.add(name, this.#counted(body, path))
    return name
  }
}
