/** Draws texts from grammars in GBNF, as llama.cpp reads them. */

type Node =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'class'; readonly ranges: readonly (readonly [number, number])[]; readonly negated: boolean }
  | { readonly kind: 'rule'; readonly name: string }
  | { readonly kind: 'all'; readonly parts: readonly Node[] }
  | { readonly kind: 'any'; readonly parts: readonly Node[] }
  | { readonly kind: 'repeat'; readonly part: Node; readonly least: number; readonly most: number }

/** Characters that negated classes draw from: plain letters, characters that JSON escapes, and ones of more than two bytes. */
const SAMPLES = Array.from('abcxyz019 _-<>/{}[]():,;.\'"\\\n\té€漢😀').map((char) => char.codePointAt(0)!)
/** The most iterations of a repetition without an upper bound. */
const MANY = 4

export class Grammar {
  readonly #rules = new Map<string, Node>()
  readonly #costs = new Map<string, number>()

  constructor(source: string) {
    for (const line of source.split('\n')) {
      const [, name, body] = /^\s*([a-zA-Z0-9-]+)\s*::=\s*(.*)$/.exec(line) ?? []
      if (name === undefined || body === undefined) throw new Error(`no rule: ${line}`)
      if (this.#rules.has(name)) throw new Error(`two rules ${name}`)
      this.#rules.set(name, new Reader(body).read())
    }
    for (let isNew = true; isNew;) {
      isNew = false
      for (const [name, node] of this.#rules) {
        const cost = 1 + this.#cost(node)
        if (cost >= (this.#costs.get(name) ?? Infinity)) continue
        this.#costs.set(name, cost)
        isNew = true
      }
    }
  }

  /** Draws a text. `random` returns numbers from 0 to below 1. After `effort` rules the text ends as soon as it can. */
  draw(random: () => number, effort = 60): string {
    let left = effort
    const of = (node: Node): string => {
      switch (node.kind) {
        case 'text':
          return node.text
        case 'class': {
          const isIn = (code: number) => node.ranges.some(([from, to]) => code >= from && code <= to)
          if (node.negated) {
            const allowed = SAMPLES.filter((code) => !isIn(code))
            return String.fromCodePoint(allowed[Math.floor(random() * allowed.length)]!)
          }
          const [from, to] = node.ranges[Math.floor(random() * node.ranges.length)]!
          return String.fromCodePoint(from + Math.floor(random() * Math.min(to - from + 1, 0x4000)))
        }
        case 'rule': {
          left--
          const rule = this.#rules.get(node.name)
          if (rule === undefined) throw new Error(`no rule ${node.name}`)
          return of(rule)
        }
        case 'all':
          return node.parts.map(of).join('')
        case 'any': {
          const options = left > 0 ? node.parts.filter((part) => this.#cost(part) < Infinity) : [this.#cheapest(node.parts)]
          return of(options[Math.floor(random() * options.length)]!)
        }
        case 'repeat': {
          const most = left > 0 && this.#cost(node.part) < Infinity ? Math.min(node.most, node.least + MANY) : node.least
          const count = node.least + Math.floor(random() * (most - node.least + 1))
          return Array.from({ length: count }, () => of(node.part)).join('')
        }
      }
    }
    return of({ kind: 'rule', name: 'root' })
  }

  #cheapest(parts: readonly Node[]): Node {
    return parts.reduce((best, part) => (this.#cost(part) < this.#cost(best) ? part : best))
  }

  #cost(node: Node): number {
    switch (node.kind) {
      case 'text':
      case 'class':
        return 0
      case 'rule':
        return this.#costs.get(node.name) ?? Infinity
      case 'all':
        return node.parts.reduce((sum, part) => sum + this.#cost(part), 0)
      case 'any':
        return Math.min(...node.parts.map((part) => this.#cost(part)))
      case 'repeat':
        return node.least === 0 ? 0 : this.#cost(node.part)
    }
  }
}

class Reader {
  readonly #chars: readonly string[]
  #at = 0

  constructor(source: string) {
    this.#chars = Array.from(source)
  }

  read(): Node {
    const node = this.#choice()
    if (this.#at < this.#chars.length) throw new Error(`unread: ${this.#chars.slice(this.#at).join('')}`)
    return node
  }

  get #next(): string {
    while (this.#chars[this.#at] === ' ') this.#at++
    return this.#chars[this.#at] ?? ''
  }

  #choice(): Node {
    const parts = [this.#sequence()]
    while (this.#next === '|') {
      this.#at++
      parts.push(this.#sequence())
    }
    return parts.length === 1 ? parts[0]! : { kind: 'any', parts }
  }

  #sequence(): Node {
    const parts: Node[] = []
    while (!['', '|', ')'].includes(this.#next)) parts.push(this.#counted(this.#atom()))
    return { kind: 'all', parts }
  }

  #counted(part: Node): Node {
    const char = this.#next
    const bounds: Readonly<Record<string, readonly [number, number]>> = { '*': [0, Infinity], '+': [1, Infinity], '?': [0, 1] }
    const simple = bounds[char]
    if (simple !== undefined) {
      this.#at++
      return this.#counted({ kind: 'repeat', part, least: simple[0], most: simple[1] })
    }
    if (char !== '{') return part
    const end = this.#chars.indexOf('}', this.#at)
    const [least = '', most] = this.#chars
      .slice(this.#at + 1, end)
      .join('')
      .split(',')
    this.#at = end + 1
    return this.#counted({
      kind: 'repeat',
      part,
      least: Number(least),
      most: most === undefined ? Number(least) : most === '' ? Infinity : Number(most),
    })
  }

  #atom(): Node {
    const char = this.#next
    if (char === '(') {
      this.#at++
      const inside = this.#choice()
      if (this.#next !== ')') throw new Error('an open bracket')
      this.#at++
      return inside
    }
    if (char === '"') {
      this.#at++
      let text = ''
      while (this.#chars[this.#at] !== '"') text += String.fromCodePoint(this.#char())
      this.#at++
      return { kind: 'text', text }
    }
    if (char === '[') {
      this.#at++
      const negated = this.#chars[this.#at] === '^'
      if (negated) this.#at++
      const ranges: [number, number][] = []
      while (this.#chars[this.#at] !== ']') {
        const from = this.#char()
        const isRange = this.#chars[this.#at] === '-' && this.#chars[this.#at + 1] !== ']'
        if (isRange) this.#at++
        ranges.push([from, isRange ? this.#char() : from])
      }
      this.#at++
      return { kind: 'class', ranges, negated }
    }
    const [name] = /^[a-zA-Z0-9-]+/.exec(this.#chars.slice(this.#at).join('')) ?? []
    if (name === undefined) throw new Error(`not understood: ${this.#chars.slice(this.#at).join('')}`)
    this.#at += name.length
    return { kind: 'rule', name }
  }

  #char(): number {
    const char = this.#chars[this.#at++]
    if (char === undefined) throw new Error('an open text')
    if (char !== '\\') return char.codePointAt(0)!
    const escape = this.#chars[this.#at++] ?? ''
    const digits = { x: 2, u: 4, U: 8 }[escape]
    if (digits === undefined) {
      const code = { n: 10, r: 13, t: 9, '\\': 92, '"': 34, '[': 91, ']': 93, '-': 45 }[escape]
      if (code === undefined) throw new Error(`unknown escape: \\${escape}`)
      return code
    }
    const code = Number.parseInt(this.#chars.slice(this.#at, this.#at + digits).join(''), 16)
    this.#at += digits
    return code
  }
}
