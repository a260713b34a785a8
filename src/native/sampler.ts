/** Owns a sampler: checks its options and its state before the addon draws. */
import { KvfoldError } from '../core/errors.js'
import { type Addon, type ModelHandle, type SamplerHandle, calling, refuse, refuseForeign } from './addon.js'
import { Context, samplerHandles } from './context.js'
import type { NativeContext, NativeSampler, SamplerOptions } from './types.js'

/** llama.cpp parses grammars by recursion; deeper or longer ones could exhaust its stack. */
const DEEPEST_GRAMMAR = 500
const LONGEST_GRAMMAR = 1_000_000

export class Sampler implements NativeSampler {
  #handle: SamplerHandle | null

  /** @throws KvfoldError native/bad-argument, engine/bad-grammar */
  constructor(
    private readonly addon: Addon,
    model: ModelHandle,
    private readonly vocabulary: number,
    options: SamplerOptions,
    private readonly onDispose: (closed: Sampler) => void,
  ) {
    checkOptions(options, vocabulary)
    this.#handle = calling(() => addon.samplerCreate(model, options))
    samplerHandles.set(this, () => this.#alive())
  }

  sample(context: NativeContext, index: number): number {
    const handle = this.#alive()
    if (!(context instanceof Context)) refuse('A sampler draws from a context of this addon, and this is none.')
    const { idle } = context
    return calling(() => this.addon.samplerSample(handle, idle, index))
  }

  accept(token: number): void {
    const handle = this.#alive()
    refuseForeign(token, this.vocabulary)
    calling(() => {
      this.addon.samplerAccept(handle, token)
    })
  }

  reset(): void {
    const handle = this.#alive()
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

  #alive(): SamplerHandle {
    if (this.#handle === null) throw new KvfoldError('native/disposed', 'The sampler was disposed; create another.')
    return this.#handle
  }
}

function checkOptions(options: SamplerOptions, vocabulary: number): void {
  const within = (name: string, value: number | undefined, low: number, high: number, whole = false) => {
    if (value === undefined || (value >= low && value <= high && (!whole || Number.isInteger(value)))) return
    refuse(`${name} is ${String(value)}; give a ${whole ? 'whole ' : ''}number from ${low} to ${high}.`)
  }
  within('temperature', options.temperature, 0, 100)
  within('topK', options.topK, 0, 2 ** 31 - 1, true)
  within('topP', options.topP, 0, 1)
  within('minP', options.minP, 0, 1)
  within('typicalP', options.typicalP, 0, 1)
  within('repeatPenalty', options.repeatPenalty, 0.001, 100)
  within('frequencyPenalty', options.frequencyPenalty, -100, 100)
  within('presencePenalty', options.presencePenalty, -100, 100)
  within('penaltyLastN', options.penaltyLastN, 0, 2 ** 20, true)
  // The last number of 32 bits means "any seed" to llama.cpp.
  within('seed', options.seed, 0, 2 ** 32 - 2, true)
  if (options.mirostat !== undefined) {
    within('mirostat.version', options.mirostat.version, 1, 2, true)
    within('mirostat.tau', options.mirostat.tau, 0.001, 100)
    within('mirostat.eta', options.mirostat.eta, 0.0001, 1)
  }
  for (const { token, bias } of options.logitBias ?? []) {
    within('logitBias.token', token, 0, vocabulary - 1, true)
    if (Number.isNaN(bias) || bias === Infinity)
      refuse(`The logit bias of token ${token} is ${bias}; give a number or -Infinity.`)
  }
  if (options.grammar !== undefined) checkGrammar(options.grammar)
  const { lazy } = options
  if (lazy === undefined) return
  if (options.grammar === undefined || lazy.triggers.length === 0)
    refuse('A lazy grammar needs a grammar and a trigger; give both.')
  const tags = [...lazy.triggers, ...lazy.reasoning.flatMap(({ open, close }) => [open, close])]
  if (tags.some((tag) => tag === '')) refuse('A trigger or a tag of a lazy grammar is empty; leave it out.')
}

function checkGrammar(grammar: string): void {
  const bad = (what: string): never => {
    throw new KvfoldError('engine/bad-grammar', `The grammar ${what}; make it simpler.`)
  }
  if (grammar.length > LONGEST_GRAMMAR) bad(`has ${grammar.length} characters, and ${LONGEST_GRAMMAR} are the most`)
  if (grammar.includes('\0')) bad('contains a NUL character')
  let depth = 0
  // Brackets in texts and character classes nest nothing.
  for (const character of grammar.replace(/"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]/gs, '')) {
    if (character === '(') depth++
    else if (character === ')') depth--
    if (depth > DEEPEST_GRAMMAR) bad(`nests more than ${DEEPEST_GRAMMAR} levels of brackets`)
  }
}
