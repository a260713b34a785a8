/** GBNF building blocks: named rules, literals, and JSON's punctuation and words (true, false, null). */
import { KvfoldError } from '../../core/errors.js'
import { writtenEntries } from '../../core/written-json.js'
import { ExactNumber } from './exact.js'

/** Writes a text as a GBNF literal. */
export function literal(text: string): string {
  return `"${text.replace(/[\\"]/g, '\\$&').replace(/\n/g, '\\n').replace(/\r/g, '\\r').replace(/\t/g, '\\t')}"`
}

/** Writes a character for use in a character class, but not as its first character: GBNF has no escape for `^`. */
export const classChar = (char: string): string => (/[[\]\\-]/.test(char) ? `\\${char}` : char)

/** GBNF expressions for JSON's punctuation. */
export interface JsonPunctuation {
  readonly comma: string
  readonly colon: string
  readonly openObject: string
  readonly closeObject: string
  readonly openList: string
  readonly closeList: string
  readonly words: { readonly true: string; readonly false: string; readonly null: string }
  /** The characters that may follow a backslash, except `u`. */
  readonly escapes: string
}

const JSON_ESCAPES = '["\\\\/bfnrt]'
const JSON_WORDS = { true: 'true', false: 'false', null: 'null' }

/** JSON as Python's json.dumps writes it: one space after each comma and colon. */
export const PYTHON_JSON: JsonPunctuation = {
  ...{ comma: '", "', colon: '": "', openObject: '"{"', closeObject: '"}"', openList: '"["', closeList: '"]"' },
  words: JSON_WORDS,
  escapes: JSON_ESCAPES,
}

/** JSON with a little white space where JSON allows it. */
export const FREE_JSON: JsonPunctuation = {
  comma: '"," gap',
  colon: '":" " "?',
  openObject: '"{" gap',
  closeObject: 'gap "}"',
  openList: '"[" gap',
  closeList: 'gap "]"',
  words: JSON_WORDS,
  escapes: JSON_ESCAPES,
}

/** Python literals: True, False and None instead of JSON's words. */
export const PYTHON_LITERALS: JsonPunctuation = {
  ...PYTHON_JSON,
  words: { true: 'True', false: 'False', null: 'None' },
  escapes: '["\\\\nrt]',
}

/** Estimates how long a GBNF rule body is once `{m,n}` repetitions are written out. The unit is the one that `Work` limits. */
export function writtenOut(body: string): number {
  let parts = body.length
  for (const [, least = '0', most = least] of body
    .replace(/"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]/g, '')
    .matchAll(/\{(\d+),?(\d*)\}/g))
    parts += Math.max(Number(least), Number(most)) * 4
  return parts / 4
}

export class GrammarRules {
  readonly #rules = new Map<string, string>()

  constructor(readonly style: JsonPunctuation) {}

  add(name: string, body: string): void {
    this.#rules.set(name, body)
  }

  /**
   * Runs `write`, which may add rules under new names. If it throws a KvfoldError, removes those rules and returns the result of
   * `otherwise`.
   */
  attempt<T>(write: () => T, otherwise: (error: KvfoldError) => T): T {
    const before = this.#rules.size
    try {
      return write()
    } catch (error) {
      if (!(error instanceof KvfoldError)) throw error
      for (const name of [...this.#rules.keys()].slice(before)) this.#rules.delete(name)
      return otherwise(error)
    }
  }

  /** Writes GBNF for one constant value. */
  constant(value: unknown): string {
    const { comma, colon, openObject, closeObject, openList, closeList, words } = this.style
    if (value === true || value === false || value === null || value === undefined)
      return literal(words[String(value ?? null) as keyof typeof words])
    if (value instanceof ExactNumber) return literal(value.text)
    if (typeof value !== 'object') return literal(JSON.stringify(value))
    const items = Array.isArray(value)
      ? value.map((item) => this.constant(item))
      : writtenEntries(value).map(({ key, value: item }) => `${literal(JSON.stringify(key))} ${colon} ${this.constant(item)}`)
    if (items.length === 0) return Array.isArray(value) ? '"[]"' : '"{}"'
    const [open, close] = Array.isArray(value) ? [openList, closeList] : [openObject, closeObject]
    return `${open} ${items.join(` ${comma} `)} ${close}`
  }

  /** Returns the whole grammar: `root` first, then all other rules, then the rules of JSON. */
  text(): string {
    const root = this.#rules.get('root') ?? ''
    const { comma, colon, openObject, closeObject, openList, closeList, words, escapes } = this.style
    const pair = `string ${colon} value`
    const lines = [
      `root ::= ${root}`,
      ...[...this.#rules].filter(([name]) => name !== 'root').map(([name, body]) => `${name} ::= ${body}`),
      // A `char` is always a whole code point: an escaped surrogate comes with its other half. So counting `char` counts characters.
      String.raw`char ::= [\x20-\x21\x23-\x5b\x5d-\ud7ff\ue000-\U0010ffff] | "\\" ( ${escapes} | "u" ( [0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] ( [0-7] [0-9a-fA-F]{2} | [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2} ) ) )`,
      String.raw`string ::= "\"" char* "\""`,
      'integer ::= "-"? ( "0" | [1-9] [0-9]{0,19} )',
      'number ::= integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?',
      `boolean ::= "${words.true}" | "${words.false}"`,
      `null ::= "${words.null}"`,
      `object ::= "{}" | ${openObject} ${pair} ( ${comma} ${pair} )* ${closeObject}`,
      `array ::= "[]" | ${openList} value ( ${comma} value )* ${closeList}`,
      'value ::= object | array | string | number | boolean | null',
      String.raw`gap ::= ( " " | "\n" [ \t]{0,20} )?`,
    ]
    return lines.join('\n')
  }
}

/**
 * Adds rules for any text, empty or not, that does not contain `end`. Returns the name of the first rule. Precondition: `end` is not empty.
 */
export function textWithout(rules: GrammarRules, name: string, end: string): string {
  const chars = Array.from(end)
  const letters = [...new Set(chars)]
  chars.forEach((_, at) => {
    // State `at`: the text so far ends with the first `at` characters of `end`. Each letter leads to the state of the longest such match.
    const next = letters.map((letter) => {
      const text = [...chars.slice(0, at), letter]
      let length = text.length
      while (length > 0 && text.slice(text.length - length).join('') !== chars.slice(0, length).join('')) length--
      return { letter, length }
    })
    const going = next.filter(({ length }) => length > 0 && length < chars.length)
    const others = `[^${letters
      .filter((letter) => next.some((each) => each.letter === letter && each.length > 0))
      .map(classChar)
      .join('')}] ${name}-0`
    rules.add(
      `${name}-${at}`,
      `( ${[others, ...going.map(({ letter, length }) => `${literal(letter)} ${name}-${length}`)].join(' | ')} )?`,
    )
  })
  return `${name}-0`
}
