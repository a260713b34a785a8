import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeContext, NativeModel, NativeSampler, SamplerOptions } from '../../../src/runtime/native/types.js'
import { tinyModel } from '../../support/models.js'
import { batchOf, feed, refused, someTokens } from './support/fixture.js'

let model: NativeModel
let context: NativeContext
const OUTPUTS = 40

beforeAll(async () => {
  const native = await openNative({ gpu: 'cpu' })
  model = await native.loadModel(await tinyModel())
  context = await model.createContext({ cells: 256, sequences: 2, threads: 1 })
  expect(await context.decode(batchOf(someTokens(OUTPUTS), 0, 0, 'all'))).toBe('done')
})

afterAll(() => model.dispose())

function drawn(options: SamplerOptions): number[] {
  const sampler = model.createSampler(options)
  try {
    return Array.from({ length: OUTPUTS }, (_, index) => sampler.sample(context, index))
  } finally {
    sampler.dispose()
  }
}

/** Returns the tokens by falling logit. */
function ranking(index: number): number[] {
  const logits = context.logits(index)
  return [...logits.keys()].sort((a, b) => (logits[b] ?? 0) - (logits[a] ?? 0))
}

/** Samples from output 0 this many times. */
function repeated(sampler: NativeSampler, times: number): number[] {
  return Array.from({ length: times }, () => sampler.sample(context, 0))
}

describe('choosing', () => {
  test('temperature 0 takes the most likely token', () => {
    expect(drawn({ temperature: 0 })).toEqual(Array.from({ length: OUTPUTS }, (_, index) => ranking(index)[0]))
  })

  test('the same seed draws the same, another seed others', () => {
    expect(drawn({ temperature: 1.5, seed: 7 })).toEqual(drawn({ temperature: 1.5, seed: 7 }))
    expect(drawn({ temperature: 1.5, seed: 7 })).not.toEqual(drawn({ temperature: 1.5, seed: 8 }))
  })

  test('top-k, top-p, min-p and typical keep to likely tokens', () => {
    const sampler = model.createSampler({ temperature: 5, topK: 3, seed: 1 })
    expect(new Set(repeated(sampler, 200))).toEqual(new Set(ranking(0).slice(0, 3)))
    sampler.dispose()
    for (const filter of [{ topP: 0.05 }, { minP: 0.99 }] as const)
      expect(drawn({ temperature: 1, seed: 1, ...filter })).toEqual(drawn({ temperature: 0 }))
    expect(drawn({ temperature: 1, seed: 1, typicalP: 0.1 })).not.toEqual(drawn({ temperature: 1, seed: 1 }))
  })

  test('draws follow the distribution', () => {
    const logits = context.logits(0)
    const weights = logits.map((logit) => Math.exp(logit))
    const sum = weights.reduce((total, weight) => total + weight, 0)
    const sampler = model.createSampler({ temperature: 1, seed: 3 })
    const draws = repeated(sampler, 4000)
    sampler.dispose()
    for (const token of ranking(0).slice(0, 5)) {
      const share = draws.filter((one) => one === token).length / draws.length
      expect(Math.abs(share - (weights[token] ?? 0) / sum)).toBeLessThan(0.04)
    }
  })

  test.each([1, 2] as const)('mirostat %s draws, reproducibly', (version) => {
    const options: SamplerOptions = { temperature: 1, seed: 5, mirostat: { version, tau: 3, eta: 0.1 } }
    expect(drawn(options)).toEqual(drawn(options))
    expect(new Set(drawn(options)).size).toBeGreaterThan(1)
  })

  test('a bias can ban or force a token', () => {
    const best = ranking(0)[0] ?? -1
    expect(drawn({ temperature: 0, logitBias: [{ token: best, bias: -Infinity }] })[0]).toBe(ranking(0)[1])
    expect(drawn({ temperature: 0, logitBias: [{ token: 5, bias: 1000 }] }).every((token) => token === 5)).toBe(true)
  })

  test('penalties make a repeated token unlikely, and a reset clears them', () => {
    const best = ranking(0)[0] ?? -1
    for (const options of [{ presencePenalty: 50 }, { frequencyPenalty: 50 }, { repeatPenalty: 50 }]) {
      const sampler = model.createSampler({ temperature: 0, ...options })
      expect(repeated(sampler, 2)[0]).toBe(best)
      expect(sampler.sample(context, 0)).not.toBe(best)
      sampler.reset()
      expect(sampler.sample(context, 0)).toBe(best)
      sampler.reset()
      sampler.accept(best)
      expect(sampler.sample(context, 0)).not.toBe(best)
      sampler.dispose()
    }
  })
})

describe('grammars', () => {
  const answer = 'root ::= "yes" | "no"'

  test.each<[string, SamplerOptions]>([
    ['greedy', { temperature: 0 }],
    ['drawn', { temperature: 2, seed: 9 }],
    ['mirostat', { temperature: 2, seed: 9, mirostat: { version: 2, tau: 5, eta: 0.1 } }],
  ])('%s: the text fits and then ends', (_, options) => {
    const sampler = model.createSampler({ ...options, grammar: answer })
    const tokens: number[] = []
    for (let token = sampler.sample(context, 0); !model.isEndOfGeneration(token); token = sampler.sample(context, 0))
      tokens.push(token)
    expect(['yes', 'no']).toContain(model.detokenize(tokens))
    sampler.reset()
    expect(['y', 'n']).toContain(model.detokenize([sampler.sample(context, 0)])[0])
    sampler.dispose()
  })

  test('allowed tokens keep their relative probabilities', () => {
    const [first = -1, second = -1] = ranking(0).filter((token) => /^[a-z]$/.test(model.detokenize([token])))
    const text = (token: number) => model.detokenize([token])
    const logits = context.logits(0)
    const expected = 1 / (1 + Math.exp((logits[second] ?? 0) - (logits[first] ?? 0)))
    let count = 0
    for (let seed = 0; seed < 400; seed++) {
      const sampler = model.createSampler({ temperature: 1, seed, grammar: `root ::= [${text(first)}${text(second)}]` })
      if (sampler.sample(context, 0) === first) count++
      sampler.dispose()
    }
    expect(Math.abs(count / 400 - expected)).toBeLessThan(0.1)
  })

  test('a token that does not fit is refused, and the sampler continues', async () => {
    const sampler = model.createSampler({ temperature: 0, grammar: answer })
    const { eos } = model.special
    await refused('engine/bad-grammar', () => {
      sampler.accept(eos ?? -1)
    })
    await refused('engine/bad-grammar', () => {
      sampler.accept(model.tokenize('x')[0] ?? -1)
    })
    sampler.accept(model.tokenize('y')[0] ?? -1)
    expect(model.detokenize([sampler.sample(context, 0)])[0]).toBe('e')
    sampler.dispose()
  })

  test.each<[string, string]>([
    ['nothing', ''],
    ['no rule', 'root := "a"'],
    ['an undefined rule', 'root ::= other'],
    ['no root', 'other ::= "a"'],
    ['left recursion', 'root ::= root "a" | "a"'],
    ['too many levels', `root ::= ${'('.repeat(2000)}"a"${')'.repeat(2000)}`],
    ['a NUL', 'root ::= "a\0"'],
    ['too long', `root ::= "${'a'.repeat(4_000_001)}"`],
  ])('refuses %s', async (_, grammar) => {
    await refused('engine/bad-grammar', () => model.createSampler({ grammar }))
  })

  test('a grammar that leaves no token to choose throws, and does not end the answer', async () => {
    const ban = Array.from({ length: model.info.vocabulary }, (_, token) => ({ token, bias: -Infinity }))
    const sampler = model.createSampler({ temperature: 1, grammar: answer, logitBias: ban })
    await refused('engine/bad-grammar', () => sampler.sample(context, 0))
    sampler.dispose()
  })
})

describe('refusals', () => {
  test.each<[string, SamplerOptions]>([
    ['temperature', { temperature: -1 }],
    ['temperature', { temperature: NaN }],
    ['topK', { topK: 1.5 }],
    ['topP', { topP: 1.1 }],
    ['minP', { minP: -0.1 }],
    ['typicalP', { typicalP: 2 }],
    ['repeatPenalty', { repeatPenalty: 0 }],
    ['penaltyLastN', { penaltyLastN: -1 }],
    ['seed', { seed: -1 }],
    ['mirostat.tau', { mirostat: { version: 2, tau: 0, eta: 0.1 } }],
    ['logitBias.token', { logitBias: [{ token: 400, bias: 0 }] }],
    ['bias', { logitBias: [{ token: 1, bias: NaN }] }],
  ])('%s out of range', async (name, options) => {
    expect((await refused('native/bad-argument', () => model.createSampler(options))).message).toContain(name)
  })

  test('a batch index without logits, an unknown token, another model', async () => {
    const sampler = model.createSampler()
    await refused('native/bad-argument', () => sampler.sample(context, OUTPUTS))
    await refused('native/bad-argument', () => {
      sampler.accept(400)
    })
    const native = await openNative({ gpu: 'cpu' })
    const other = await native.loadModel(await tinyModel({ vocabulary: 300 }))
    const foreign = await other.createContext({ cells: 256, threads: 1 })
    await feed(foreign, [1])
    await refused('native/bad-argument', () => sampler.sample(foreign, 0))
    await other.dispose()
    sampler.dispose()
  })
})

describe('a budget of reasoning', () => {
  const tags = { open: '<think>', close: '</think>' }
  const forced = () => model.tokenize(tags.close, { parseSpecial: true })
  const letters = 'root ::= [a-z]* "</think>Red."'
  /** Draws until the grammar has ended, or `most` tokens. */
  function written(options: SamplerOptions, most = OUTPUTS): { readonly tokens: readonly number[]; readonly text: string } {
    const sampler = model.createSampler({ temperature: 0, ...options })
    const tokens: number[] = []
    while (tokens.length < most && !model.isEndOfGeneration(tokens.at(-1) ?? 0)) tokens.push(sampler.sample(context, 0))
    sampler.dispose()
    return { tokens, text: model.detokenize(tokens) }
  }
  /** Bans all tokens that could close the reasoning; a forced token is written all the same. */
  const banned = () =>
    Array.from({ length: model.info.vocabulary }, (_, token) => token)
      .filter((token) => Buffer.from(model.piece(token, true)).includes('<') && !model.isEndOfGeneration(token))
      .map((token) => ({ token, bias: -Infinity }))

  test.each([0, 1, 6])('of %s tokens is kept to the token', (tokens) => {
    const options = { grammar: letters, logitBias: banned(), budget: { tokens, ...tags, opened: true, forced: forced() } }
    const { tokens: drawn, text } = written(options)
    expect(text).toMatch(/^[a-z]*<\/think>Red\./)
    expect(drawn.slice(tokens, tokens + forced().length)).toEqual([...forced()])
    expect(written({ ...options, budget: { ...options.budget, tokens: OUTPUTS } }).text).toMatch(/^[a-z]*$/)
  })

  test('begins when the model opens reasoning, and covers all reasoning of the answer', () => {
    const sampler = model.createSampler({ temperature: 0, budget: { tokens: 3, ...tags, opened: false, forced: forced() } })
    const accept = (text: string) => {
      for (const token of model.tokenize(text, { parseSpecial: true })) sampler.accept(token)
    }
    const draws = (count: number) => Array.from({ length: count }, () => sampler.sample(context, 0))
    const free = draws(8)
    expect(free).not.toEqual(expect.arrayContaining([...forced()]))
    accept(`<think>a${tags.close}Well.<think>`)
    // If the closing tag is several tokens, they count, too, so fewer may be left.
    accept('b')
    const rest = draws(2 + forced().length)
    expect(model.detokenize(rest)).toContain(tags.close)
    accept('<think>')
    expect(draws(forced().length)).toEqual([...forced()])
    sampler.dispose()
  })

  test('counts no tag that is text: behind other text where only the first one opens, and within a call', () => {
    const budget = { tokens: 0, ...tags, opened: false, forced: forced() }
    const drawn = (text: string, options: SamplerOptions) => {
      const sampler = model.createSampler({ temperature: 0, ...options })
      for (const token of model.tokenize(text, { parseSpecial: true })) sampler.accept(token)
      const next = Array.from({ length: forced().length }, () => sampler.sample(context, 0))
      sampler.dispose()
      return model.detokenize(next, true)
    }
    expect(drawn(' \n<think>', { budget: { ...budget, isFirst: true } })).toBe(tags.close)
    expect(drawn('<think>', { budget })).toBe(tags.close)
    expect(drawn('Well <think>', { budget })).toBe(tags.close)
    expect(drawn('Well <think>', { budget: { ...budget, isFirst: true } })).not.toBe(tags.close)
    expect(drawn(`A long text before it. <think>`, { budget: { ...budget, isFirst: true } })).not.toBe(tags.close)
    const lazy = { triggers: ['<call>'], reasoning: [tags], opened: '' }
    expect(drawn('<call><think>', { budget, lazy, grammar: 'root ::= "<call>" [^@]*' })).not.toBe(tags.close)
  })

  test('yields to a grammar that does not allow the closing tag', () => {
    const { text } = written({ grammar: 'root ::= [a-z]*', budget: { tokens: 2, ...tags, opened: true, forced: forced() } }, 12)
    expect(text).toMatch(/^[a-z]{6,}$/)
  })

  test('lets a started character and a started tag end', () => {
    const budget = { tokens: 1, ...tags, opened: true, forced: forced() }
    const grammar = 'root ::= "€" "</think>" "Red."'
    expect(written({ grammar, budget }).text).toMatch(/^€<\/think>Red\./)
    expect(written({ grammar: 'root ::= "</think>Red."', budget }).text).toMatch(/^<\/think>Red\./)
  })

  test('with impossible values is refused', async () => {
    const budget = { tokens: 1, ...tags, opened: true, forced: forced() }
    for (const bad of [
      { tokens: -1 },
      { tokens: 0.5 },
      { open: '' },
      { forced: new Int32Array() },
      { forced: Int32Array.of(-1) },
    ])
      await refused('native/bad-argument', () => model.createSampler({ budget: { ...budget, ...bad } }))
  })
})
