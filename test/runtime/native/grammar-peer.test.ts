/**
 * Tests that a grammar allows the same tokens as llama.cpp's own, step by step; and that grammars which llama.cpp cannot bound stay
 * bounded.
 */
import { getLlama, type LlamaModel } from 'node-llama-cpp'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { jsonSchemaGrammar } from '../../../src/runtime/chat/grammar.js'
import { Random } from '../../../src/runtime/core/random.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeContext, NativeModel } from '../../../src/runtime/native/types.js'
import { Grammar } from '../../support/gbnf.js'
import { hanModel, tinyModel } from '../../support/models.js'
import { feed, someTokens } from './support/fixture.js'

/** node-llama-cpp's internal classes for llama.cpp's grammar; it has no public ones. */
interface Peer {
  readonly _llama: {
    readonly _bindings: {
      readonly AddonGrammar: new (text: string, options: object) => object
      readonly AddonGrammarEvaluationState: new (model: object, grammar: object) => object
      readonly AddonSampler: {
        canBeNextTokenForGrammarEvaluationState(state: object, token: number): boolean
        acceptGrammarEvaluationStateToken(state: object, token: number): void
      }
    }
  }
  readonly _model: object
}

let model: NativeModel
let context: NativeContext
let peer: LlamaModel
let pieces: Uint8Array[]

beforeAll(async () => {
  const path = await tinyModel()
  model = await (await openNative({ gpu: 'cpu' })).loadModel(path)
  context = await model.createContext({ cells: 64, threads: 1 })
  await feed(context, someTokens(4))
  peer = await (await getLlama({ gpu: false, build: 'never', progressLogs: false })).loadModel({ modelPath: path })
  pieces = Array.from({ length: model.info.vocabulary }, (_, token) => model.piece(token, true))
})
afterAll(async () => {
  await model.dispose()
  await peer.dispose()
})

/** A grammar of llama.cpp that has accepted some tokens. */
class PeerGrammar {
  readonly #state: object
  readonly #sampler

  constructor(grammar: string) {
    const { _llama, _model } = peer as unknown as Peer
    const { AddonGrammar, AddonGrammarEvaluationState, AddonSampler } = _llama._bindings
    this.#sampler = AddonSampler
    this.#state = new AddonGrammarEvaluationState(
      _model,
      new AddonGrammar(grammar, { addonExports: _llama._bindings, rootRuleName: 'root' }),
    )
  }

  allows = (token: number): boolean => this.#sampler.canBeNextTokenForGrammarEvaluationState(this.#state, token)

  take(token: number): void {
    this.#sampler.acceptGrammarEvaluationStateToken(this.#state, token)
  }
}

const everyToken = () => Array.from({ length: model.info.vocabulary }, (_, token) => token)

/** Returns the tokens that a sampler can draw after `tokens`. Mirostat masks first; a token that it draws is checked again by itself. */
async function allowedBehind(grammar: string, tokens: readonly number[]): Promise<ReadonlySet<number>> {
  const compiled = await model.compileGrammar(grammar)
  const allowed = new Set<number>()
  for (const token of everyToken()) {
    const logitBias = [{ token, bias: 1e6 }]
    const sampler = model.createSampler({ grammar: compiled, mirostat: { version: 2, tau: 5, eta: 0.1 }, logitBias })
    for (const each of tokens) sampler.accept(each)
    if (sampler.sample(context, 3) === token) allowed.add(token)
    sampler.dispose()
  }
  return allowed
}

/**
 * True for bytes that are not whole characters, or that encode one in too many bytes. llama.cpp accepts these, and UTF-8 readers refuse
 * them.
 */
const isOdd = (bytes: Uint8Array): boolean => new TextDecoder().decode(bytes).includes('\ufffd')

const grammars: readonly (readonly [string, string])[] = [
  ['a schema of everything', jsonSchemaGrammar({})],
  [
    'a schema with bounds',
    jsonSchemaGrammar({
      type: 'object',
      properties: {
        a: { type: 'string', maxLength: 5, pattern: '^[a-zé€]+$' },
        b: { type: 'array', items: { type: 'integer', minimum: -5, maximum: 117 }, minItems: 1, maxItems: 3 },
        c: { anyOf: [{ const: 'x' }, { type: 'object', properties: { a: { type: 'null' } } }] },
      },
      required: ['b'],
      additionalProperties: { type: 'boolean' },
    }),
  ],
  ['ambiguous', 'root ::= a a? | ( "a"? b ){0,3} "."\na ::= "a" | "a" b | [a-c]+ "b"\nb ::= "b"* | [^a] a'],
  ['characters of all sizes', 'root ::= ( [é-ü] | [^\\x00-\\x7f] | "€" | [\\U00010000-\\U0010ffff] ){2,4} "\\u00e9."'],
  ['nested repetitions', 'root ::= ( ( "ab" | "a" ){2} "c"? ){1,3} ( [x-z]{3,} "-" )* "!"+'],
  ['empty parts', 'root ::= e ( e "a" e | e ) e "b" | e\ne ::= "" | ( "" )'],
  ['rules in a ring', 'root ::= "(" root ")" root | "[" other "]" | ""\nother ::= root "," other | root # the end\n'],
]

describe('allows the tokens that llama.cpp allows', () => {
  test.each(grammars)('%s', async (_, grammar) => {
    for (let seed = 1; seed <= 3; seed++) {
      const drawn = new Random(seed)
      const random = () => drawn.word() / 2 ** 32
      const lines = grammar.replace(/ #.*/g, '').trim()
      const text = new Grammar(lines).draw(random, 12)
      const tokens = [...model.tokenize(text)].slice(0, 12)
      const theirs = new PeerGrammar(grammar)
      for (let at = 0; at <= tokens.length; at += 1) {
        if (at % 3 === seed % 3) {
          const ours = await allowedBehind(grammar, tokens.slice(0, at))
          const differs = everyToken().filter((token) => ours.has(token) !== theirs.allows(token))
          const behind = tokens.slice(0, at).map((token) => pieces[token]!)
          expect(
            differs.filter((token) => !isOdd(Buffer.concat([...behind, pieces[token]!]))),
            model.detokenize(tokens.slice(0, at)),
          ).toEqual([])
        }
        if (at < tokens.length) theirs.take(tokens[at]!)
      }
    }
  })
})

/** Definitions that each name the one before twice: the text is linear in n, the ways to begin are 2^n. */
function doublings(n: number): string {
  const level = (i: number) => `d${i} ::= d${i - 1} | "[" d${i - 1}? "]"`
  return [`root ::= d${n}`, ...Array.from({ length: n }, (_, i) => level(i + 1)), 'd0 ::= "null"'].join('\n')
}

/** A thousand rules that each begin with all thousand rules. */
const manyWays = [
  ...Array.from({ length: 1000 }, (_, i) => `c${i} ::= c${i + 1}`),
  'c1000 ::= "z"',
  ...Array.from({ length: 1000 }, (_, i) => `a${i} ::= c0`),
  `root ::= ${Array.from({ length: 1000 }, (_, i) => `a${i} "x"`).join(' | ')}`,
].join('\n')

const writes = async (grammar: string, text: string): Promise<boolean> => {
  // The bias ends the text as soon as the grammar allows.
  const logitBias = [{ token: model.special.eos!, bias: 1e6 }]
  const sampler = model.createSampler({ grammar: await model.compileGrammar(grammar), temperature: 0, logitBias })
  try {
    for (const token of model.tokenize(text)) sampler.accept(token)
    return model.isEndOfGeneration(sampler.sample(context, 3))
  } catch (error) {
    expect(error).toMatchObject({ code: 'engine/bad-grammar' })
    return false
  } finally {
    sampler.dispose()
  }
}

describe('states that would multiply are shared', () => {
  test.each([
    [
      'each definition twice within the next',
      doublings(200),
      `${'['.repeat(90)}null${']'.repeat(90)}`,
      `${'['.repeat(90)}null${']'.repeat(91)}`,
    ],
    ['optional parts', `root ::= ${'"a"? '.repeat(300)}"."`, `${'a'.repeat(300)}.`, `${'a'.repeat(301)}.`],
    [
      'alternatives that begin alike',
      'root ::= ( v ","? ){40} "."\nv ::= "a" | "a" "b"? | v2\nv2 ::= "a" v2 | "a"',
      `${'aab,'.repeat(20)}.`,
      'b.',
    ],
    [
      'repetitions within each other',
      'root ::= ( "a"{0,2000} "-" ){0,2000} "."',
      `${'aaa-'.repeat(50)}.`,
      `${'a'.repeat(2001)}-.`,
    ],
    [
      'rules that are thousands deep',
      [...Array.from({ length: 20_000 }, (_, i) => `r${i} ::= r${i + 1} "x"?`), 'r20000 ::= "a"', 'root ::= r0'].join('\n'),
      'axx',
      'xa',
    ],
  ])('%s', async (_, grammar, right, wrong) => {
    const begun = process.cpuUsage()
    expect(await writes(grammar, right)).toBe(true)
    expect(await writes(grammar, wrong)).toBe(false)
    const { user } = process.cpuUsage(begun)
    // These take some hundredths of a second; llama.cpp does not return from most of them.
    expect(user / 1e6).toBeLessThan(5)
  })
})

test('many ways on are checked with all of 20,000 tokens of several bytes each', async () => {
  const large = await (await openNative({ gpu: 'cpu' })).loadModel(await hanModel())
  const prompt = await large.createContext({ cells: 64, threads: 1 })
  await feed(prompt, someTokens(4))
  const ways = Array.from({ length: 30 }, (_, way) => `"-" "${way}"`)
  const grammar = await large.compileGrammar(`root ::= "a" ( [^-] | ${ways.join(' | ')} )*`)
  const sampler = large.createSampler({ grammar, mirostat: { version: 2, tau: 5, eta: 0.1 } })
  for (const token of large.tokenize('ab')) sampler.accept(token)
  expect(sampler.sample(prompt, 3)).toBeLessThan(large.info.vocabulary)
  sampler.dispose()
  await large.dispose()
})

describe('a grammar is refused, at its start or at a later token, that', () => {
  test.each([
    ['writes out to too much', 'root ::= ( "a" | "b" ){2000000}'],
    ['writes out to too much, in small steps', `root ::= ( ( "ab"{3000} ){3000} )\nother ::= ${'"a"{0,100000} '.repeat(10)}`],
    ['has a number of 40 digits', `root ::= "a"{${'9'.repeat(40)}}`],
    ['is too ambiguous to begin', manyWays],
    ['begins with itself behind what may be nothing', 'root ::= e f root "x" | "x"\ne ::= f\nf ::= "y" |'],
    ['leads into itself alone', 'root ::= root'],
    ['has a class of no characters', 'root ::= []'],
    ['has no such character', 'root ::= "\\UFFFFFFFF"'],
    ['names a token that there is not', 'root ::= <[99999999]>'],
  ])('%s', async (_, grammar) => {
    const begun = process.cpuUsage()
    await expect(model.compileGrammar(grammar)).rejects.toMatchObject({ code: 'engine/bad-grammar' })
    expect(process.cpuUsage(begun).user / 1e6).toBeLessThan(2)
  })

  test('a later token throws, and the process continues', async () => {
    const grammar = await model.compileGrammar('root ::= "a" root root | "a" | ""')
    const sampler = model.createSampler({ grammar, temperature: 0 })
    const [a] = model.tokenize('a')
    const begun = process.cpuUsage()
    expect(() => {
      for (let i = 0; i < 5000; i++) sampler.accept(a!)
    }).toThrow(/too ambiguous/)
    expect(process.cpuUsage(begun).user / 1e6).toBeLessThan(60)
    expect(() => {
      sampler.accept(a!)
    }).toThrow(/too ambiguous/)
    sampler.dispose()
  })

  test('states are dropped and computed again in a long answer', async () => {
    // Each closing bracket leads to another state, and no text repeats.
    const grammar = await model.compileGrammar('root ::= "(" root? ")" | [a-z] root?')
    const sampler = model.createSampler({ grammar, temperature: 0 })
    const [open, a, close] = ['(', 'a', ')'].map((text) => model.tokenize(text)[0]!)
    const depth = 60_000
    for (let i = 0; i < depth; i++) {
      sampler.accept(open!)
      sampler.accept(a!)
    }
    for (let i = 0; i < depth; i++) sampler.accept(close!)
    expect(model.isEndOfGeneration(sampler.sample(context, 3))).toBe(true)
    sampler.dispose()
  })
})

test('a compiled grammar belongs to one model and serves any number of samplers', async () => {
  const other = await (await openNative({ gpu: 'cpu' })).loadModel(await tinyModel())
  const grammar = await other.compileGrammar('root ::= "a"{3}')
  expect(() => model.createSampler({ grammar })).toThrow(/another model/)
  const samplers = [other.createSampler({ grammar }), other.createSampler({ grammar })]
  const [a] = other.tokenize('a')
  for (const sampler of samplers) for (let i = 0; i < 3; i++) sampler.accept(a!)
  for (const sampler of samplers)
    expect(() => {
      sampler.accept(a!)
    }).toThrow(/does not allow/)
  const compiling = other.compileGrammar(`root ::= ${'"a"? '.repeat(20_000)}`)
  await Promise.all([expect(compiling).resolves.toBeDefined(), other.dispose()])
  await expect(other.compileGrammar('root ::= "a"')).rejects.toMatchObject({ code: 'native/disposed' })
})
