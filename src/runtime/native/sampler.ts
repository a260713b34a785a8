/** Samplers, and grammars, DRY samplers and word lists prepared for them. Checks a sampler's options before the addon draws. */
import { KvfoldError } from '../core/errors.js'
import {
  type Addon,
  calling,
  type ContextHandle,
  type DryHandle,
  type GrammarHandle,
  type ModelHandle,
  refuse,
  refuseForeign,
  type SamplerHandle,
  type WordsHandle,
} from './addon.js'
import type { AnswerLimits, DryOptions, SamplerName, SamplingFilters } from './values.js'

export interface SamplerOptions extends SamplingFilters {
  /** 0 always takes the likeliest token. Default 0.8. */
  readonly temperature?: number
  /** A DRY sampler from `prepareDry`. */
  readonly dry?: NativeDry
  /** The tokens before the answer, oldest first. DRY and the repetition penalty count them, too. Default: none. */
  readonly seen?: Int32Array
  /** Limits on the answer. `badWords` comes from `prepareWords`. */
  readonly limits?: Omit<AnswerLimits, 'badWords'> & { readonly badWords?: NativeWords }
  /** The repetition penalty over the last `penaltyLastN` tokens (default 64). 1: off. */
  readonly repeatPenalty?: number
  readonly frequencyPenalty?: number
  readonly presencePenalty?: number
  readonly penaltyLastN?: number
  /** Mirostat of version 1 or 2, which replaces all filters. */
  readonly mirostat?: { readonly version: 1 | 2; readonly tau: number; readonly eta: number }
  /** The seed of the draws, 0 to 2^32 - 2. Default: another seed for every sampler. */
  readonly seed?: number
  /** A grammar in GBNF with the root rule `root`. A string is compiled at once, on the event loop. */
  readonly grammar?: string | NativeGrammar
  /** Makes the grammar apply only from the first trigger in the answer on. The grammar must match the trigger, too. Needs `grammar`. */
  readonly lazy?: {
    readonly triggers: readonly string[]
    /** More triggers, in which a space matches any whitespace that JSON allows, or none. They must not begin with a space. */
    readonly spaced?: readonly string[]
    /** Triggers between these tags have no effect. With `isFirst`, the tags count only before any other text of the answer. */
    readonly reasoning: readonly { readonly open: string; readonly close: string; readonly isFirst?: boolean }[]
    /** The triggers and tags that the prompt already ends with, as text; empty if there are none. */
    readonly opened: string
  }
  /** Bounds the tokens of the answer's reasoning. Default: no bound. */
  readonly budget?: {
    /**
     * The most tokens of reasoning in the answer, all reasoning blocks together. When they are used up, `forced` is written as soon as the
     * grammar allows it.
     */
    readonly tokens: number
    readonly open: string
    readonly close: string
    /** Whether the prompt ends with `open`. */
    readonly opened: boolean
    /** Whether `open` has a meaning only before any other text. Within the call of a lazy grammar it never has one. Default false. */
    readonly isFirst?: boolean
    /** The tokens that close the reasoning. */
    readonly forced: Int32Array
  }
  /** Numbers that are added to the logits of these tokens; -Infinity bans a token. */
  readonly logitBias?: readonly { readonly token: number; readonly bias: number }[]
}

/** A compiled grammar, for any number of samplers of the model that compiled it. */
export class NativeGrammar {
  /** @internal */
  constructor(
    readonly text: string,
    /** @internal */
    readonly handle: GrammarHandle,
  ) {}
}

/** A prepared DRY sampler, for any number of samplers of the model that prepared it. */
export class NativeDry {
  /** @internal */
  constructor(
    readonly options: DryOptions,
    /** @internal */
    readonly handle: DryHandle,
  ) {}
}

/** Forbidden words for any number of samplers of the model that prepared them. */
export class NativeWords {
  /** @internal */
  constructor(
    readonly words: readonly string[],
    /** @internal */
    readonly handle: WordsHandle,
  ) {}
}

/** Returns the options for the addon: handles replace prepared objects. @throws KvfoldError native/bad-argument */
function rawOptions({ grammar, dry, limits, ...rest }: SamplerOptions): object {
  const { badWords, ...others } = limits ?? {}
  if (dry !== undefined && !(dry instanceof NativeDry)) refuse('dry must come from prepareDry.')
  if (badWords !== undefined && !(badWords instanceof NativeWords)) refuse('limits.badWords must come from prepareWords.')
  return {
    ...rest,
    ...(grammar === undefined ? {} : { grammar: grammar instanceof NativeGrammar ? grammar.handle : grammar }),
    ...(dry === undefined ? {} : { dry: dry.handle }),
    ...(limits === undefined ? {} : { limits: { ...others, ...(badWords === undefined ? {} : { badWords: badWords.handle }) } }),
  }
}

export class NativeSampler {
  #handle: SamplerHandle | null

  /** Checks the options and makes the sampler. @throws KvfoldError native/bad-argument, engine/bad-grammar */
  constructor(
    private readonly addon: Addon,
    model: ModelHandle,
    private readonly vocabulary: number,
    options: SamplerOptions,
    private readonly onDispose: (closed: NativeSampler) => void,
  ) {
    checkOptions(options, vocabulary)
    const raw = rawOptions(options)
    this.#handle = calling(() => addon.samplerCreate(model, raw))
  }

  /** @throws KvfoldError native/disposed */
  get handle(): SamplerHandle {
    if (this.#handle === null) throw new KvfoldError('native/disposed', 'The sampler was disposed; create another.')
    return this.#handle
  }

  /** Samples a token from the logits of batch index `index`, and accepts it. @throws engine/bad-grammar if the grammar allows no token */
  sample(context: { readonly idle: ContextHandle }, index: number): number {
    const { handle } = this
    if (!('idle' in context)) refuse('A sampler needs a context that this addon created.')
    const { idle } = context
    return calling(() => this.addon.samplerSample(handle, idle, index))
  }

  /**
   * Passes a token that this sampler did not sample, e.g. a token of the prompt, to the penalties and the grammar.
   * @throws engine/bad-grammar if the grammar does not allow it; then nothing changes
   */
  accept(token: number): void {
    const { handle } = this
    refuseForeign(token, this.vocabulary)
    calling(() => {
      this.addon.samplerAccept(handle, token)
    })
  }

  /** Uses up the rest of the reasoning budget, so that reasoning is closed at the next draw. Nothing happens without a budget. */
  endReasoning(): void {
    const { handle } = this
    calling(() => {
      this.addon.samplerEndReasoning(handle)
    })
  }

  reset(): void {
    const { handle } = this
    calling(() => {
      this.addon.samplerReset(handle)
    })
  }

  dispose(): void {
    const handle = this.#handle
    if (handle === null) return
    this.#handle = null
    this.addon.samplerFree(handle)
    this.onDispose(this)
  }
}

/** Checks that an option lies within its bounds, or is undefined. @throws KvfoldError native/bad-argument */
function within(name: string, value: number | undefined, low: number, high: number, whole = false): void {
  if (value === undefined || (value >= low && value <= high && (!whole || Number.isInteger(value)))) return
  refuse(`${name} is ${String(value)}; give a ${whole ? 'whole ' : ''}number from ${low} to ${high}.`)
}

/** The most breakers of DRY, and the most bytes of each. Every token is searched for each; llama.cpp would cut longer ones. */
const MOST_BREAKERS = { count: 32, bytes: 40 }

/** Checks the options of DRY. @throws KvfoldError native/bad-argument */
export function checkDry({ multiplier, base, allowedLength, lastN, breakers = [] }: DryOptions): void {
  within('dry.multiplier', multiplier, 0, 100)
  within('dry.base', base, 1, 100)
  within('dry.allowedLength', allowedLength, 0, 2 ** 20, true)
  within('dry.lastN', lastN, 0, 2 ** 20, true)
  const { count, bytes } = MOST_BREAKERS
  if (breakers.length > count) refuse(`dry.breakers has ${breakers.length} texts; give ${count} at most.`)
  for (const text of breakers)
    if (text === '' || text.includes('\0') || Buffer.byteLength(text) > bytes)
      refuse(`dry.breakers has a text that is empty, has a NUL or is longer than ${bytes} bytes; shorten it or leave it out.`)
}

/** The most forbidden words, and the most bytes of each. Every token is searched for each of them. */
const MOST_WORDS = { count: 64, bytes: 256 }

/** Checks a list of forbidden words. @throws KvfoldError native/bad-argument */
export function checkWords(words: readonly string[]): void {
  const { count, bytes } = MOST_WORDS
  if (words.length === 0 || words.length > count) refuse(`There are ${words.length} forbidden words; give 1 to ${count}.`)
  for (const word of words)
    if (word === '' || word.includes('\0') || Buffer.byteLength(word) > bytes)
      refuse(`A forbidden word is empty, has a NUL or is longer than ${bytes} bytes; shorten it or leave it out.`)
}

/** The names that a sampler's option `order` may contain. */
const CHAIN_PARTS = {
  ...{ penalties: true, dry: true, top_n_sigma: true, top_k: true, typ_p: true, top_p: true, min_p: true, xtc: true },
  ...{ temperature: true, adaptive_p: true, infill: true },
} satisfies Record<SamplerName, true>

/** The most names in the option `order`. A sampler that is named twice is applied twice. */
const MOST_CHAINED = 32

/** Checks the options of the chain's samplers. @throws KvfoldError native/bad-argument */
function checkChain({ topNSigma, xtc, dynatemp, adaptive, minKeep, order = [] }: SamplerOptions): void {
  within('topNSigma', topNSigma, 0, 1000)
  within('xtc.probability', xtc?.probability, 0, 1)
  within('xtc.threshold', xtc?.threshold, 0, 1)
  within('dynatemp.range', dynatemp?.range, 0, 100)
  within('dynatemp.exponent', dynatemp?.exponent, 0, 100)
  within('adaptive.target', adaptive?.target, 0, 1)
  within('adaptive.decay', adaptive?.decay, 0, 0.99)
  within('minKeep', minKeep, 0, 2 ** 31 - 1, true)
  if (order.length > MOST_CHAINED) refuse(`order has ${order.length} parts; give ${MOST_CHAINED} at most.`)
  for (const name of order)
    if (!Object.hasOwn(CHAIN_PARTS, name)) refuse(`order has ${JSON.stringify(name)}, which does not exist.`)
}

/** Checks the limits of an answer and the tokens before it. @throws KvfoldError native/bad-argument */
function checkLimits({ seen = new Int32Array(), limits = {} }: SamplerOptions, vocabulary: number): void {
  const { minTokens, stopTokens = [], allowedTokens } = limits
  within('limits.minTokens', minTokens, 0, 2 ** 31 - 1, true)
  for (const token of seen) within('seen', token, 0, vocabulary - 1, true)
  for (const token of stopTokens) within('limits.stopTokens', token, 0, vocabulary - 1, true)
  for (const token of allowedTokens ?? []) within('limits.allowedTokens', token, 0, vocabulary - 1, true)
  if (allowedTokens?.length === 0) refuse('limits.allowedTokens is empty; name a token or leave it out.')
}

function checkOptions(options: SamplerOptions, vocabulary: number): void {
  within('temperature', options.temperature, 0, 100)
  within('topK', options.topK, 0, 2 ** 31 - 1, true)
  within('topP', options.topP, 0, 1)
  within('minP', options.minP, 0, 1)
  within('typicalP', options.typicalP, 0, 1)
  within('repeatPenalty', options.repeatPenalty, 0.001, 100)
  within('frequencyPenalty', options.frequencyPenalty, -100, 100)
  within('presencePenalty', options.presencePenalty, -100, 100)
  within('penaltyLastN', options.penaltyLastN, 0, 2 ** 20, true)
  // 2^32 - 1 is excluded, because it means "any seed" to llama.cpp.
  within('seed', options.seed, 0, 2 ** 32 - 2, true)
  if (options.mirostat !== undefined) {
    within('mirostat.version', options.mirostat.version, 1, 2, true)
    within('mirostat.tau', options.mirostat.tau, 0.001, 100)
    within('mirostat.eta', options.mirostat.eta, 0.0001, 1)
  }
  checkChain(options)
  checkLimits(options, vocabulary)
  for (const { token, bias } of options.logitBias ?? []) {
    within('logitBias.token', token, 0, vocabulary - 1, true)
    if (Number.isNaN(bias) || bias === Infinity)
      refuse(`The logit bias of token ${token} is ${bias}; give a number or -Infinity.`)
  }
  if (typeof options.grammar === 'string') checkGrammar(options.grammar)
  else if (options.grammar !== undefined && !(options.grammar instanceof NativeGrammar))
    refuse('grammar must be a text in GBNF, or a grammar from compileGrammar.')
  if (options.budget !== undefined) {
    const { tokens, open, close, forced } = options.budget
    within('budget.tokens', tokens, 0, 2 ** 31 - 1, true)
    for (const token of forced) within('budget.forced', token, 0, vocabulary - 1, true)
    if (open === '' || close === '' || forced.length === 0)
      refuse(
        'A reasoning budget needs the tag that opens reasoning, the tag that closes it, and the tokens to force; give all three.',
      )
  }
  const { lazy } = options
  if (lazy === undefined) return
  const { spaced = [] } = lazy
  if (options.grammar === undefined || lazy.triggers.length + spaced.length === 0)
    refuse('lazy needs a grammar and at least one trigger; give both.')
  const tags = [...lazy.triggers, ...lazy.reasoning.flatMap(({ open, close }) => [open, close])]
  if (tags.some((tag) => tag === '')) refuse('A trigger or a tag of a lazy grammar is empty; leave it out.')
  if (spaced.some((trigger) => /^(?: |$)/.test(trigger)))
    refuse('A spaced trigger of a lazy grammar is empty or begins with a space; give the text from its first other character on.')
}

const LONGEST_GRAMMAR = 4_000_000

/** Checks a grammar's length and characters. The addon checks its size with repetitions written out, and its nesting. */
export function checkGrammar(grammar: string): void {
  if (grammar.length > LONGEST_GRAMMAR)
    throw new KvfoldError(
      'engine/bad-grammar',
      `The grammar has ${grammar.length} characters, but at most ${LONGEST_GRAMMAR} are allowed; make it simpler.`,
    )
  if (grammar.includes('\0')) throw new KvfoldError('engine/bad-grammar', 'The grammar contains a NUL character; write \\x00.')
}
