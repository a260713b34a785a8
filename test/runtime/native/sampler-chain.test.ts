/** Tests the parts of a sampler's chain by what they leave of the candidates, and the limits of an answer. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import type {
  AnswerLimits,
  DryOptions,
  NativeContext,
  NativeDry,
  NativeModel,
  NativeWords,
  SamplerOptions,
} from '../../../src/runtime/native/types.js'
import { layerNormModel, tinyModel } from '../../support/models.js'
import { batchOf, refused, someTokens } from './support/fixture.js'

let model: NativeModel
let context: NativeContext
/** The logits of output 0, and its tokens, the likeliest first. */
let all: readonly number[]
let ranking: readonly number[]
const OUTPUTS = 8

beforeAll(async () => {
  const native = await openNative({ gpu: 'cpu' })
  model = await native.loadModel(await tinyModel())
  context = await model.createContext({ cells: 256, sequences: 2, threads: 1 })
  expect(await context.decode(batchOf(someTokens(OUTPUTS), 0, 0, 'all'))).toBe('done')
  all = Array.from(context.logits(0))
  ranking = [...all.keys()].sort((a, b) => all[b]! - all[a]!)
})

afterAll(() => model.dispose())

/** Returns the tokens that output 0 gives over these seeds: with a high temperature, all tokens that the chain leaves. */
function support(options: SamplerOptions, seeds = 1200): Set<number> {
  const sampled = new Set<number>()
  for (let seed = 0; seed < seeds; seed++) sampled.add(first({ temperature: 20, seed, ...options }))
  return sampled
}

function first(options: SamplerOptions): number {
  const sampler = model.createSampler(options)
  try {
    return sampler.sample(context, 0)
  } finally {
    sampler.dispose()
  }
}

/** Samples output 0 again and again. */
function repeated(options: SamplerOptions, times: number): number[] {
  const sampler = model.createSampler(options)
  try {
    return Array.from({ length: times }, () => sampler.sample(context, 0))
  } finally {
    sampler.dispose()
  }
}

function probabilities(): number[] {
  const most = Math.max(...all)
  const weights = all.map((logit) => Math.exp(logit - most))
  const sum = weights.reduce((total, weight) => total + weight, 0)
  return weights.map((weight) => weight / sum)
}

/** Whether every sampled token is among the expected, and the likeliest expected ones were sampled. */
function within(sampled: ReadonlySet<number>, expected: readonly number[]): void {
  expect([...sampled].filter((token) => !expected.includes(token))).toEqual([])
  expect([...sampled].length).toBeGreaterThanOrEqual(Math.min(expected.length, 3))
}

describe('filters', () => {
  test('top-n-sigma keeps the tokens within n standard deviations of the best', () => {
    const mean = all.reduce((sum, logit) => sum + logit, 0) / all.length
    const deviation = Math.sqrt(all.reduce((sum, logit) => sum + (logit - mean) ** 2, 0) / all.length)
    for (const n of [0.2, 0.5, 1]) {
      const kept = [...all.keys()].filter((token) => all[token]! >= Math.max(...all) - n * deviation)
      expect(kept.length).toBeLessThan(all.length)
      within(support({ topNSigma: n, order: ['top_n_sigma', 'temperature'] }), kept)
    }
  })

  test('typical keeps the tokens whose surprise is nearest to the entropy', () => {
    const shares = probabilities()
    const entropy = -shares.reduce((sum, share) => sum + (share > 0 ? share * Math.log(share) : 0), 0)
    const order = [...shares.keys()].sort(
      (a, b) => Math.abs(-Math.log(shares[a]!) - entropy) - Math.abs(-Math.log(shares[b]!) - entropy),
    )
    let sum = 0
    const kept = order.slice(0, 1 + order.findIndex((token) => (sum += shares[token]!) > 0.3))
    within(support({ typicalP: 0.3, order: ['typ_p', 'temperature'] }), kept)
    expect(kept).not.toContain(ranking[0])
    // Also where the likeliest token left is taken.
    expect(kept).toContain(first({ temperature: 0, typicalP: 0.3 }))
  })

  test('XTC leaves only the least likely of the tokens at or above the threshold', () => {
    const shares = probabilities()
    const threshold = 0.02
    const likely = ranking.filter((token) => shares[token]! >= threshold)
    expect(likely.length).toBeGreaterThan(2)
    const sampled = support({ xtc: { probability: 1, threshold }, order: ['xtc', 'temperature'] })
    for (const token of likely.slice(0, -1)) expect(sampled).not.toContain(token)
    expect(first({ temperature: 0, xtc: { probability: 1, threshold } })).toBe(likely.at(-1))
    // A half of the draws leave out nothing.
    const draws = Array.from({ length: 400 }, (_, seed) =>
      first({ temperature: 0.01, seed, xtc: { probability: 0.5, threshold }, order: ['xtc', 'temperature'] }),
    )
    expect(new Set(draws)).toEqual(new Set([likely[0], likely.at(-1)]))
    expect(Math.abs(draws.filter((token) => token === likely[0]).length / draws.length - 0.5)).toBeLessThan(0.1)
    expect(first({ temperature: 0, xtc: { probability: 1, threshold: 0.6 } })).toBe(likely[0])
  })

  test('dynamic temperature lies between its bounds', () => {
    const share = (options: SamplerOptions): number => {
      const draws = Array.from({ length: 1500 }, (_, seed) => first({ seed, ...options }))
      return draws.filter((token) => token === ranking[0]).length / draws.length
    }
    const [cold, moving, hot] = [
      share({ temperature: 0.3 }),
      share({ temperature: 1.15, dynatemp: { range: 0.85, exponent: 1 } }),
      share({ temperature: 2 }),
    ]
    expect(moving).toBeLessThan(cold)
    expect(moving).toBeGreaterThan(hot)
    // With a temperature of 0 the range alone sets it.
    expect(
      new Set(Array.from({ length: 50 }, (_, seed) => first({ seed, temperature: 0, dynatemp: { range: 2, exponent: 1 } }))).size,
    ).toBeGreaterThan(1)
  })

  test('minKeep keeps at least so many', () => {
    expect(support({ minP: 0.999, order: ['min_p', 'temperature'] }).size).toBe(1)
    expect(support({ minP: 0.999, minKeep: 4, order: ['min_p', 'temperature'] })).toEqual(new Set(ranking.slice(0, 4)))
  })

  test('adaptive-p at temperature 0 leaves the likeliest token, as llama.cpp does', () => {
    for (let seed = 0; seed < 50; seed++)
      expect(first({ temperature: 0, seed, adaptive: { target: 0.5, decay: 0.9 } })).toBe(ranking[0])
  })

  test('a token that the model file suppresses is never drawn', async () => {
    const native = await openNative({ gpu: 'cpu' })
    const greedy = async (suppressed: readonly number[]) => {
      const more = suppressed.length === 0 ? [] : [['tokenizer.ggml.suppress_tokens', { i32s: suppressed }] as const]
      const own = await native.loadModel(await layerNormModel(4, more))
      const its = await own.createContext({ cells: 256, threads: 1 })
      await its.decode(batchOf(someTokens(8)))
      const logits = its.logits(7)
      const best = [...logits.keys()].sort((a, b) => logits[b]! - logits[a]!)
      const drawn = own.createSampler({ temperature: 0 }).sample(its, 7)
      await own.dispose()
      return { best, drawn }
    }
    const { best, drawn } = await greedy([])
    expect(drawn).toBe(best[0])
    expect((await greedy([best[0]!])).drawn).toBe(best[1])
  })

  test('adaptive-p prefers tokens near its target', () => {
    const shares = probabilities()
    const mean = (options: SamplerOptions) => {
      const draws = Array.from({ length: 500 }, (_, seed) => shares[first({ temperature: 1, seed, ...options })]!)
      return draws.reduce((sum, share) => sum + share, 0) / draws.length
    }
    const low = mean({ adaptive: { target: 0.01, decay: 0.5 } })
    const high = mean({ adaptive: { target: 0.9, decay: 0.5 } })
    expect(low).toBeLessThan(high)
    expect(repeated({ temperature: 1, seed: 1, adaptive: { target: 0.1, decay: 0.9 } }, 20)).toEqual(
      repeated({ temperature: 1, seed: 1, adaptive: { target: 0.1, decay: 0.9 } }, 20),
    )
  })

  test('mirostat draws more surprising tokens for a higher target, and learns', () => {
    const shares = probabilities()
    const surprise = (version: 1 | 2, tau: number) => {
      const draws = repeated({ temperature: 1, seed: 3, mirostat: { version, tau, eta: 0.2 } }, 300)
      return draws.slice(100).reduce((sum, token) => sum - Math.log2(shares[token]!), 0) / 200
    }
    expect(surprise(2, 1)).toBeLessThan(surprise(2, 6))
    expect(surprise(2, 1)).toBeLessThan(2)
    expect(surprise(1, 1)).not.toBe(surprise(1, 6))
  })
})

describe('the order of the chain', () => {
  test('parts that it lacks have no effect, also the temperature', () => {
    expect(support({ topK: 2, order: ['temperature'] }).size).toBeGreaterThan(2)
    expect(support({ topK: 2, order: ['top_k'] })).toEqual(new Set(ranking.slice(0, 2)))
    const draws = new Set(Array.from({ length: 60 }, (_, seed) => first({ temperature: 0, seed, order: ['top_k'] })))
    expect(draws.size).toBeGreaterThan(1)
  })

  test('changes which tokens are left', () => {
    // After a high temperature all tokens are about as likely, so that top-p keeps nearly all of them.
    const filters = { topP: 0.5, temperature: 20 }
    const before = support({ ...filters, order: ['top_p', 'temperature'] })
    const after = support({ ...filters, order: ['temperature', 'top_p'] })
    expect(after.size).toBeGreaterThan(2 * before.size)
  })

  test('left out, it is the usual one', () => {
    const options = { temperature: 1.5, topK: 20, topP: 0.9, minP: 0.01, typicalP: 0.9, repeatPenalty: 1.1 }
    const usual = ['penalties', 'dry', 'top_n_sigma', 'top_k', 'typ_p', 'top_p', 'min_p', 'xtc', 'temperature'] as const
    for (let seed = 0; seed < 50; seed++)
      expect(repeated({ ...options, seed }, 4)).toEqual(repeated({ ...options, seed, order: usual }, 4))
  })

  test('a part that is off leaves every draw as it was', async () => {
    const plain = { temperature: 1.2, topK: 30, topP: 0.95, minP: 0.02 }
    const off: SamplerOptions = {
      ...{ topNSigma: 0, xtc: { probability: 0, threshold: 0.1 }, dynatemp: { range: 0, exponent: 1 }, minKeep: 0 },
      ...{ limits: {}, seen: someTokens(20), dry: await model.prepareDry({ multiplier: 0 }) },
    }
    for (let seed = 0; seed < 40; seed++) expect(repeated({ ...plain, ...off, seed }, 5)).toEqual(repeated({ ...plain, seed }, 5))
    expect(repeated({ temperature: 0, ...off }, 5)).toEqual(repeated({ temperature: 0 }, 5))
  })
})

describe('DRY', () => {
  const strong: DryOptions = { multiplier: 100, base: 4, allowedLength: 1, breakers: ['#'] }
  const sampler = async (seen: readonly number[], options: DryOptions = strong, more: SamplerOptions = {}) =>
    model.createSampler({ temperature: 0, dry: await model.prepareDry(options), seen: Int32Array.from(seen), ...more })

  test('forbids the token that would prolong a repetition of the text shown before', async () => {
    const best = ranking[0]!
    const [a, b] = ranking.slice(5, 7) as [number, number]
    const say = async (...shown: Parameters<typeof sampler>) => {
      const made = await sampler(...shown)
      const token = made.sample(context, 0)
      // The state is that of the request: a reset returns to the text shown before.
      made.reset()
      expect(made.sample(context, 0)).toBe(token)
      made.dispose()
      return token
    }
    // "a b best ... a b": best would make the repetition three tokens long.
    expect(await say([a, b, best, 7, a, b])).not.toBe(best)
    expect(await say([a, b, 8, 7, a, b])).toBe(best)
    // Repetitions of the allowed length are free.
    expect(await say([a, b, best, 7, a, b], { ...strong, allowedLength: 3 })).toBe(best)
    // The repetition lies outside of what it looks at.
    expect(await say([a, b, best, 7, a, b], { ...strong, lastN: 3 })).toBe(best)
    expect(await say([a, b, best, 7, a, b], { ...strong, multiplier: 0 })).toBe(best)
  })

  test('sees no repetition across a breaker', async () => {
    const best = ranking[0]!
    const breaker = model.tokenize('#')[0]!
    const [a] = ranking.slice(5, 6) as [number]
    for (const [breakers, isFree] of [
      [['#'], true],
      [['~'], false],
    ] as const) {
      const made = await sampler([a, breaker, best, 7, a, breaker], { ...strong, breakers })
      expect(made.sample(context, 0) === best).toBe(isFree)
      made.dispose()
    }
  })

  test('an answer does not repeat itself', async () => {
    const free = repeated({ temperature: 0 }, 12)
    expect(new Set(free).size).toBe(1)
    const made = await sampler([])
    const held = Array.from({ length: 12 }, () => made.sample(context, 0))
    made.dispose()
    const pairs = held.slice(1).map((token, at) => `${held[at]} ${token}`)
    expect(new Set(pairs).size).toBe(pairs.length)
  })

  test('is prepared once for the same options', async () => {
    expect(await model.prepareDry(strong)).toBe(await model.prepareDry({ ...strong }))
    await refused('native/bad-argument', () => model.prepareDry({ multiplier: 1, base: 0.5 }))
    await refused('native/bad-argument', () => model.prepareDry({ multiplier: 1, breakers: [''] }))
    await refused('native/bad-argument', () => model.prepareDry({ multiplier: 1, lastN: -1 }))
  })
})

describe('the repetition penalty', () => {
  test('looks at the text shown before, too', () => {
    const best = ranking[0]!
    expect(first({ temperature: 0, repeatPenalty: 50, seen: Int32Array.of(best) })).not.toBe(best)
    expect(first({ temperature: 0, presencePenalty: 50, seen: Int32Array.of(best) })).toBe(best)
  })
})

describe('limits', () => {
  const limited = async ({ badWords = [], ...rest }: AnswerLimits, options: SamplerOptions = {}) =>
    model.createSampler({
      temperature: 0,
      ...options,
      limits: { ...rest, ...(badWords.length === 0 ? {} : { badWords: await model.prepareWords(badWords) }) },
    })
  const ends = () =>
    Array.from({ length: model.info.vocabulary }, (_, token) => token).filter((token) => model.isEndOfGeneration(token))
  const forced = () => ({ logitBias: ends().map((token) => ({ token, bias: 1000 })) })

  test('minTokens: no token ends the answer before, and one may after', async () => {
    const sampler = await limited({ minTokens: 5 }, forced())
    const tokens = Array.from({ length: 6 }, () => sampler.sample(context, 0))
    sampler.dispose()
    expect(tokens.map((token) => model.isEndOfGeneration(token))).toEqual([false, false, false, false, false, true])
  })

  test('ignoreEnd: no token ends the answer', async () => {
    const sampler = await limited({ ignoreEnd: true }, forced())
    const tokens = Array.from({ length: 30 }, () => sampler.sample(context, 0))
    sampler.dispose()
    expect(tokens.some((token) => model.isEndOfGeneration(token))).toBe(false)
  })

  test('a grammar whose text is complete ends the answer all the same', async () => {
    for (const limits of [{ ignoreEnd: true }, { minTokens: 50 }]) {
      const sampler = await limited(limits, { grammar: 'root ::= "yes"' })
      const tokens: number[] = []
      while (!model.isEndOfGeneration(tokens.at(-1) ?? 0)) tokens.push(sampler.sample(context, 0))
      expect(model.detokenize(tokens)).toBe('yes')
      sampler.dispose()
    }
  })

  test('stopTokens are held back, too, before minTokens', async () => {
    const best = ranking[0]!
    const sampler = await limited({ minTokens: 2, stopTokens: [best] })
    const tokens = Array.from({ length: 3 }, () => sampler.sample(context, 0))
    sampler.dispose()
    expect(tokens.map((token) => token === best)).toEqual([false, false, true])
  })

  test('a run ends at a stop token', async () => {
    const own = await model.createContext({ cells: 256, sequences: 1, threads: 1 })
    expect(await own.decode(batchOf(someTokens(OUTPUTS), 0, 0, 'last'))).toBe('done')
    const run = async (stopTokens: readonly number[]) => {
      const sampler = await limited({ stopTokens })
      const heard: number[] = []
      const ended = await own.generate(
        {
          ...{ tokens: Int32Array.of(1), positions: Int32Array.of(OUTPUTS), sequences: Int32Array.of(0) },
          ...{ samplers: [sampler], limits: Int32Array.of(6), steps: 6 },
        },
        ({ tokens }) => heard.push(...tokens),
      )
      own.untag(0 as never, { start: OUTPUTS, end: 64 })
      sampler.dispose()
      return [...heard, ...ended.drawn.tokens]
    }
    const whole = await run([])
    expect(whole.length).toBeGreaterThan(2)
    const stop = whole[2]!
    expect(await run([stop])).toEqual(whole.slice(0, whole.indexOf(stop) + 1))
    await own.dispose()
  })

  test('allowedTokens: no other is drawn', async () => {
    const some = [...ranking.slice(40, 44)]
    const sampler = await limited({ allowedTokens: some }, { temperature: 20, seed: 1 })
    const drawn = new Set(Array.from({ length: 300 }, () => sampler.sample(context, 0)))
    sampler.dispose()
    expect(drawn).toEqual(new Set(some))
  })

  test('badWords are never said, however they are tokenized', async () => {
    const words = ['e', 'th', 'an']
    const grammar = 'root ::= [a-z]+'
    const said = async (limits: AnswerLimits, seed: number) => {
      const sampler = await limited(limits, { temperature: 3, seed, grammar })
      const tokens = Array.from({ length: 40 }, () => sampler.sample(context, 0))
      sampler.dispose()
      return model.detokenize(tokens)
    }
    const free = await Promise.all([1, 2, 3, 4].map((seed) => said({ ignoreEnd: true }, seed)))
    for (const word of words) expect(free.some((text) => text.includes(word))).toBe(true)
    for (let seed = 0; seed < 12; seed++) expect(await said({ ignoreEnd: true, badWords: words }, seed)).not.toMatch(/e|th|an/)
  })

  test('a bad word is not completed across tokens', async () => {
    const sampler = await limited({ badWords: ['yes'] }, { grammar: 'root ::= "ye" ("s" | "t")' })
    const tokens: number[] = []
    while (!model.isEndOfGeneration(tokens.at(-1) ?? 0)) tokens.push(sampler.sample(context, 0))
    sampler.dispose()
    expect(model.detokenize(tokens)).toBe('yet')
  })

  test('mirostat draws among the tokens left', async () => {
    const sampler = await limited(
      { allowedTokens: ranking.slice(0, 5) },
      { temperature: 1, seed: 1, mirostat: { version: 2, tau: 3, eta: 0.1 } },
    )
    for (let i = 0; i < 50; i++) expect(ranking.slice(0, 5)).toContain(sampler.sample(context, 0))
    sampler.dispose()
  })

  test('mirostat 1 draws among few tokens by their chances, too', async () => {
    const some = ranking.slice(0, 5)
    const mirostat = { version: 1, tau: 6, eta: 0.1 } as const
    const drawn = new Set<number>()
    for (let seed = 0; seed < 40; seed++) {
      const sampler = await limited({ allowedTokens: some }, { temperature: 5, seed, mirostat })
      drawn.add(sampler.sample(context, 0))
      sampler.dispose()
    }
    expect(drawn.size).toBeGreaterThan(1)
    for (const token of drawn) expect(some).toContain(token)
  })

  test('limits that leave no token say so', async () => {
    const sampler = await limited({ badWords: ['y', 'n'] }, { grammar: 'root ::= "yes" | "no"' })
    const error = await refused('engine/bad-request', () => sampler.sample(context, 0))
    expect(error.message).toContain('forbidden words')
    sampler.dispose()
  })
})

describe('refusals', () => {
  test.each<[string, SamplerOptions]>([
    ['topNSigma', { topNSigma: -1 }],
    ['xtc.probability', { xtc: { probability: 2, threshold: 0.1 } }],
    ['xtc.threshold', { xtc: { probability: 1, threshold: -0.1 } }],
    ['dynatemp.range', { dynatemp: { range: -1, exponent: 1 } }],
    ['adaptive.decay', { adaptive: { target: 0.5, decay: 1 } }],
    ['minKeep', { minKeep: -1 }],
    ['order', { order: ['top_z' as 'top_k'] }],
    ['infill', { order: ['infill'] }],
    ['infill', { order: ['infill', 'top_k'], topK: 40 }],
    ['infill', { order: ['top_k', 'infill'], topK: 0 }],
    ['infill', { order: ['top_k', 'infill'], topK: 40, grammar: 'root ::= "a"' }],
    ['infill', { order: ['top_k', 'infill'], topK: 40, limits: { ignoreEnd: true } }],
    ['seen', { seen: Int32Array.of(400) }],
    ['limits.minTokens', { limits: { minTokens: -1 } }],
    ['limits.stopTokens', { limits: { stopTokens: [400] } }],
    ['limits.allowedTokens', { limits: { allowedTokens: [] } }],
    ['dry', { dry: { options: { multiplier: 1 } } as unknown as NativeDry }],
    ['limits.badWords', { limits: { badWords: { words: ['a'] } as unknown as NativeWords } }],
  ])('%s', async (name, options) => {
    expect((await refused('native/bad-argument', () => model.createSampler(options))).message).toContain(name)
  })

  test('words and DRY of another model', async () => {
    const native = await openNative({ gpu: 'cpu' })
    const other = await native.loadModel(await tinyModel({ vocabulary: 300 }))
    const [words, dry] = [await other.prepareWords(['a']), await other.prepareDry({ multiplier: 1 })]
    await refused('native/bad-argument', () => model.createSampler({ limits: { badWords: words } }))
    await refused('native/bad-argument', () => model.createSampler({ dry }))
    await refused('native/bad-argument', () => other.prepareWords(['']))
    await refused('native/bad-argument', () => other.prepareWords([]))
    await other.dispose()
    await refused('native/disposed', () => other.prepareWords(['b']))
  })
})
