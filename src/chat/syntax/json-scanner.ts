/** Finds where a JSON value ends in text that is still coming, in one pass over it. */

type Outcome =
  { readonly state: 'complete'; readonly end: number } | { readonly state: 'incomplete' } | { readonly state: 'invalid' }

/** What may come next inside the innermost container. */
type Expect = 'value' | 'value-or-end' | 'key-or-end' | 'key' | 'colon' | 'comma-or-end'

const SCALAR = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/
const ESCAPES = new Set('"\\/bfnrtu')

/** Scans one value from `start` on. `scan` is called with the same text, longer each time. */
export class JsonScanner {
  #at: number
  #expect: Expect = 'value'
  readonly #open: ('[' | '{')[] = []
  /** Where the string or scalar being read began. */
  #from: number | null = null
  #escape = false
  #invalid = false
  #end: number | null = null

  constructor(start: number) {
    this.#at = start
  }

  scan(text: string, final = false): Outcome {
    while (this.#end === null && !this.#invalid && this.#at < text.length) this.#step(text)
    if (final && this.#end === null && !this.#invalid) this.#finishScalar(text)
    if (this.#end !== null) return { state: 'complete', end: this.#end }
    return { state: this.#invalid ? 'invalid' : 'incomplete' }
  }

  #step(text: string): void {
    const char = text.charAt(this.#at)
    if (this.#from !== null) {
      if (text.charAt(this.#from) === '"') this.#inString(char)
      else if (/[\s,\]}]/.test(char)) this.#finishScalar(text)
      else this.#at++
      return
    }
    this.#at++
    if (char === ' ' || char === '\n' || char === '\t' || char === '\r') return
    const valueExpected = this.#expect === 'value' || this.#expect === 'value-or-end'
    if (char === '"' && (valueExpected || this.#expect === 'key' || this.#expect === 'key-or-end')) this.#from = this.#at - 1
    else if ((char === '{' || char === '[') && valueExpected) {
      this.#open.push(char)
      this.#expect = char === '{' ? 'key-or-end' : 'value-or-end'
    } else if (char === '}' || char === ']') this.#close(char)
    else if (char === ':' && this.#expect === 'colon') this.#expect = 'value'
    else if (char === ',' && this.#expect === 'comma-or-end') this.#expect = this.#open.at(-1) === '{' ? 'key' : 'value'
    else if (valueExpected && /[-\dtfn]/.test(char)) this.#from = this.#at - 1
    else this.#invalid = true
  }

  #inString(char: string): void {
    this.#at++
    if (this.#escape) {
      this.#escape = false
      if (!ESCAPES.has(char)) this.#invalid = true
    } else if (char === '\\') this.#escape = true
    else if (char < ' ') this.#invalid = true
    else if (char === '"') {
      this.#from = null
      const key = this.#expect === 'key' || this.#expect === 'key-or-end'
      if (key) this.#expect = 'colon'
      else this.#valueEnded()
    }
  }

  #finishScalar(text: string): void {
    if (this.#from === null || text.charAt(this.#from) === '"') return
    if (SCALAR.test(text.slice(this.#from, this.#at))) {
      this.#from = null
      this.#valueEnded()
    } else this.#invalid = true
  }

  #close(char: '}' | ']'): void {
    const matches = this.#open.at(-1) === (char === '}' ? '{' : '[')
    const allowed = this.#expect === 'comma-or-end' || this.#expect === (char === '}' ? 'key-or-end' : 'value-or-end')
    if (!matches || !allowed) {
      this.#invalid = true
      return
    }
    this.#open.pop()
    this.#valueEnded()
  }

  #valueEnded(): void {
    if (this.#open.length === 0) this.#end = this.#at
    else this.#expect = 'comma-or-end'
  }
}
