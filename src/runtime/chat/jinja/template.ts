/** A parsed chat template. It renders messages to text in which every character has an origin. */
import { KvfoldError } from '../../core/errors.js'
import { atOnce, type Steps } from '../../core/turns.js'
import { Tracked } from '../tracked.js'
import { TrackingInterpreter } from './interpreter.js'
import { plainJson, strftime, trackedJson } from './filters.js'
import {
  ArrayValue,
  Environment,
  FunctionValue,
  isArray,
  MappingValue,
  type Node,
  parse,
  type TemplateScope,
  tokenize,
  trackedOf,
  TrackedString,
  type Value,
} from './values.js'

/** A message as the template sees it, with the index of the original message. */
export interface TemplateMessage {
  readonly index: number
  readonly value: Value
}

export interface TemplateInput {
  readonly messages: readonly TemplateMessage[]
  /** The value of the template variable `tools`. Null: the variable is undefined. */
  readonly tools: Value | null
  readonly generationPrompt: boolean
  /** Values of further template variables. Only names that `reads` accepts have an effect. */
  readonly variables?: readonly (readonly [string, Value])[]
}

/** Variables that kvfold itself gives every template. Callers cannot set them. */
const RESERVED = new Set([
  ...['messages', 'tools', 'functions', 'add_generation_prompt', 'bos_token', 'eos_token', 'datetime', 'strftime_now'],
  ...['raise_exception', 'namespace', 'range', 'dict', 'loop', 'true', 'True', 'false', 'False', 'none', 'None'],
])

export interface TemplateOptions {
  readonly bosText: string
  readonly eosText: string
  readonly now: () => Date
}

export class Template {
  readonly #program: Node
  readonly #names: ReadonlySet<string>

  /** Parses a template's source. @throws KvfoldError chat/template-failed when it does not parse */
  constructor(
    readonly source: string,
    private readonly options: TemplateOptions,
  ) {
    try {
      this.#program = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }))
      this.#names = new Set(namesIn(this.#program))
    } catch (error) {
      throw new KvfoldError(
        'chat/template-failed',
        `The chat template does not parse${where(source)}: ${reason(error)}. Pass a corrected one with --chat-template.`,
        {
          cause: error,
        },
      )
    }
  }

  /**
   * Renders messages to text. @throws KvfoldError chat/template-failed when the template refuses the messages or needs an unsupported
   * feature
   */
  render(input: TemplateInput): Tracked {
    return atOnce(this.steps(input))
  }

  /** Like `render`, but a generator that yields to the event loop after each iteration of a template loop, so about once per message. */
  *steps({ messages, tools, generationPrompt, variables = [] }: TemplateInput): Steps<Tracked> {
    const environment = new Environment()
    for (const [name, value] of variables) environment.setVariable(name, value)
    const indices = new Map<Value, number>(messages.map(({ index, value }) => [value, index]))
    this.#globals(environment)
    environment.setVariable('messages', new ArrayValue(messages.map(({ value }) => value)))
    environment.set('add_generation_prompt', generationPrompt)
    if (tools !== null) environment.setVariable('tools', tools)
    // `functions` is a long text, so only the few templates that read it get it.
    const isRead = this.#names.has('functions') && tools !== null && isArray(tools)
    const functions = isRead ? trackedJson(tools, { ...plainJson, indent: 2 }) : Tracked.empty
    environment.setVariable('functions', new TrackedString(functions))
    try {
      const interpreter = new TrackingInterpreter(environment, (value) => indices.get(value) ?? null)
      return trackedOf(yield* interpreter.program(this.#program, environment))
    } catch (error) {
      throw new KvfoldError('chat/template-failed', `The chat template failed: ${reason(error)}.`, { cause: error })
    }
  }

  /** Whether a caller's variable of this name has an effect: the template reads it, and it is not reserved. */
  reads(name: string): boolean {
    return this.#names.has(name) && !RESERVED.has(name)
  }

  #globals(environment: TemplateScope): void {
    for (const [names, value] of [
      ['true True', true],
      ['false False', false],
      ['none None', null],
    ] as const)
      for (const name of names.split(' ')) environment.set(name, value)
    const { bosText, eosText, now } = this.options
    environment.setVariable('bos_token', new TrackedString(Tracked.of(bosText, 'template')))
    environment.setVariable('eos_token', new TrackedString(Tracked.of(eosText, 'template')))
    environment.set('raise_exception', (message: string) => {
      throw new Error(message)
    })
    environment.set('strftime_now', (format: string) => strftime(now(), format))
    environment.setVariable('datetime', new TrackedString(Tracked.of(strftime(now(), '%b %d %Y %H:%M:%S'), 'template')))
    environment.set('range', range)
    environment.setVariable(
      'dict',
      new FunctionValue(
        ([named]) => new MappingValue(new Map(named !== undefined && named instanceof MappingValue ? named.value : [])),
      ),
    )
  }
}

/**
 * For each node type, the field whose identifier is not a variable read: names of filters, tests and keyword arguments, and names that the
 * template itself sets.
 */
const NAMED: Readonly<Record<string, string>> = {
  FilterExpression: 'filter',
  FilterStatement: 'filter',
  For: 'loopvar',
  KeywordArgumentExpression: 'key',
  Macro: 'name',
  Set: 'assignee',
  TestExpression: 'test',
}

/** Yields the names of variables that the syntax tree may read. */
function* namesIn(node: unknown): Generator<string> {
  if (node instanceof Map) yield* namesIn([...node].flat())
  else if (Array.isArray(node)) for (const each of node) yield* namesIn(each)
  else if (typeof node === 'object' && node !== null && 'type' in node) {
    const { type } = node as Node
    if (type === 'Identifier') yield String((node as Node).value)
    const skipped = type === 'MemberExpression' && !('computed' in node && node.computed === true) ? 'property' : NAMED[type]
    for (const [key, inner] of Object.entries(node)) if (key !== skipped || !isName(inner)) yield* namesIn(inner)
  }
}

const isName = (node: unknown): boolean => typeof node === 'object' && node !== null && (node as Node).type === 'Identifier'

function range(start: number, stop?: number, step = 1): number[] {
  const [first, end] = stop === undefined ? [0, start] : [start, stop]
  if (step === 0) throw new Error('range() needs a step other than zero')
  return Array.from({ length: Math.max(0, Math.ceil((end - first) / step)) }, (_, index) => first + index * step)
}

const reason = (error: unknown): string => (error instanceof Error ? error.message : String(error)).replace(/\.$/, '')

/**
 * Returns the line with the error, because the library reports no positions: the first line up to which the template fails in the same way.
 */
function where(source: string): string {
  const failure = (text: string): string | null => {
    try {
      parse(tokenize(text, { lstrip_blocks: true, trim_blocks: true }))
      return null
    } catch (error) {
      return reason(error)
    }
  }
  const whole = failure(source)
  const lines = source.split('\n')
  for (let count = 1; count < lines.length; count++)
    if (failure(lines.slice(0, count).join('\n')) === whole) return ` (line ${count})`
  return ` (line ${lines.length})`
}
