/** The template library as we use it. Its declarations do not resolve under NodeNext, so what we rely on is declared here, once. */
import * as library from '@huggingface/jinja'

/** A run-time value; `value` is what JavaScript would hold. */
export interface Value {
  readonly type: string
  readonly value: unknown
  readonly builtins: ReadonlyMap<string, Value>
  __bool__(): { readonly value: boolean }
  toString(): string
}

export interface Scope {
  /** Converts a JavaScript value and declares it. */
  set(name: string, value: unknown): Value
  setVariable(name: string, value: Value): Value
  lookupVariable(name: string): Value
}

/** A syntax tree node; which fields it has depends on `type`. */
export interface Node {
  readonly type: string
  readonly value?: unknown
}

/** What the interpreter calls on itself; some of it is private in its own declarations, which is why the release is pinned. */
export interface Evaluator {
  evaluate(node: Node | undefined, environment: Scope): Value
  evaluateBlock(nodes: readonly Node[], environment: Scope): Value
  evaluateArguments(args: readonly Node[], environment: Scope): [Value[], Map<string, Value>]
}

interface Library {
  readonly Environment: new () => Scope
  readonly Interpreter: new (environment: Scope) => Evaluator
  readonly tokenize: (source: string, options: { readonly lstrip_blocks: boolean; readonly trim_blocks: boolean }) => unknown
  readonly parse: (tokens: unknown) => Node
}

export const { Environment, Interpreter, tokenize, parse } = library as unknown as Library
