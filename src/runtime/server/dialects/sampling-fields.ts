/** Fields of all dialects for sampling, speculative decoding, and limits on the answer. */
import Type from 'typebox'
import { definedFields, isRecord } from '../../core/json.js'
import { numberText } from '../../core/written-json.js'
import type { Sampling } from '../../engine/engine.js'
import { MOST_DRAFTED, type SpeculateKind, type SpeculateOptions } from '../../engine/speculate-terms.js'
import type { AnswerLimits, SamplerName } from '../../native/types.js'
import { type Ask, SEEDS } from '../ask.js'
import { FieldError } from '../problem.js'
import { LARGEST_TOKEN } from './fields.js'

const Tokens = (description: string) =>
  Type.Optional(Type.Array(Type.Integer({ minimum: 0, maximum: LARGEST_TOKEN }), { maxItems: 65_536, description }))

export const SamplingFields = {
  temperature: Type.Optional(Type.Number({ minimum: 0, maximum: 100, description: '0 always takes the likeliest token' })),
  dynatemp_range: Type.Optional(
    Type.Number({ minimum: 0, maximum: 100, description: 'how far the temperature moves with the entropy; 0: not at all' }),
  ),
  dynatemp_exponent: Type.Optional(Type.Number({ minimum: 0, maximum: 100, description: 'default 1' })),
  top_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  top_k: Type.Optional(Type.Integer({ minimum: -1, maximum: 1_000_000, description: '0 or -1: all' })),
  min_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  typical_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  top_n_sigma: Type.Optional(
    Type.Number({ maximum: 1000, description: 'standard deviations that a logit may be below the best; 0 or less: off' }),
  ),
  xtc_probability: Type.Optional(
    Type.Number({ minimum: 0, maximum: 1, description: 'how often all but the least likely of the likely tokens are left out' }),
  ),
  xtc_threshold: Type.Optional(
    Type.Number({ minimum: 0, maximum: 1, description: 'from which probability on a token counts as likely; default 0.1' }),
  ),
  dry_multiplier: Type.Optional(
    Type.Number({ minimum: 0, maximum: 100, description: 'penalty for tokens that prolong a repetition; 0: off' }),
  ),
  dry_base: Type.Optional(Type.Number({ minimum: 0, maximum: 100, description: 'default 1.75, also for values below 1' })),
  dry_allowed_length: Type.Optional(
    Type.Integer({ minimum: 0, maximum: 2 ** 20, description: 'tokens of a repetition that are free; default 2' }),
  ),
  dry_penalty_last_n: Type.Optional(
    Type.Integer({ minimum: -1, maximum: 2 ** 20, description: 'tokens that it looks back over; default 64; -1: all' }),
  ),
  dry_sequence_breakers: Type.Optional(
    Type.Array(Type.String({ minLength: 1, maxLength: 40 }), {
      minItems: 1,
      maxItems: 32,
      description: 'texts across which nothing counts as a repetition',
    }),
  ),
  mirostat: Type.Optional(Type.Integer({ minimum: 0, maximum: 2, description: 'its version, in place of the filters; 0: off' })),
  mirostat_tau: Type.Optional(
    Type.Number({ exclusiveMinimum: 0, maximum: 100, description: 'the surprise to aim at; default 5' }),
  ),
  mirostat_eta: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 1, description: 'its learning rate; default 0.1' })),
  adaptive_target: Type.Optional(Type.Number({ maximum: 1, description: 'draws tokens near this probability; below 0: off' })),
  adaptive_decay: Type.Optional(Type.Number({ minimum: 0, maximum: 0.99, description: 'default 0.9' })),
  min_keep: Type.Optional(
    Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1, description: 'tokens that the filters leave at least' }),
  ),
  samplers: Type.Optional(
    Type.Unsafe<string | string[]>({
      type: ['string', 'array'],
      items: { type: 'string' },
      maxItems: 32,
      maxLength: 32,
      description: 'the samplers in their order, by llama-server’s names or its letters; others are left out',
    }),
  ),
  repetition_penalty: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 100 })),
  repeat_penalty: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 100, description: 'as repetition_penalty' })),
  repeat_last_n: Type.Optional(
    Type.Integer({ minimum: -1, maximum: 2 ** 20, description: 'tokens that the penalties look back over; -1: all' }),
  ),
  frequency_penalty: Type.Optional(Type.Number({ minimum: -2, maximum: 2 })),
  presence_penalty: Type.Optional(Type.Number({ minimum: -2, maximum: 2 })),
  seed: Type.Optional(
    Type.Integer({
      description: 'the same seed, prompt and options give the same answer; up to 64 bits; -1: another every time',
    }),
  ),
  logit_bias: Type.Optional(
    Type.Unsafe<unknown>({
      type: ['object', 'array'],
      description:
        'token id, or a text, and the number added to its logit, as a map or as pairs; -100 and false ban it; a text means each of its tokens',
    }),
  ),
}

/** Fields that limit the answer. */
export const LimitFields = {
  ignore_eos: Type.Optional(Type.Boolean({ description: 'whether tokens that end an answer are never drawn' })),
  min_tokens: Type.Optional(
    Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1, description: 'tokens before which no token ends the answer' }),
  ),
  stop_token_ids: Tokens('tokens that end the answer; stop_reason names the one that did'),
  allowed_token_ids: Tokens('the only tokens that the answer may have'),
  bad_words: Type.Optional(
    Type.Array(Type.String({ minLength: 1, maxLength: 256 }), {
      maxItems: 64,
      description: 'texts that the answer does not contain, also not within longer words',
    }),
  ),
}

type SamplingRequest = Type.Static<ReturnType<typeof Type.Object<typeof SamplingFields>>>
type LimitRequest = Type.Static<ReturnType<typeof Type.Object<typeof LimitFields>>>

/** llama.cpp's defaults for missing sampling fields. */
const XTC_THRESHOLD = 0.1
const MIROSTAT = { tau: 5, eta: 0.1 }
const ADAPTIVE_DECAY = 0.9

/** Returns the request's sampling settings over the server's defaults. @throws FieldError server/bad-request */
export function samplingOf(request: SamplingRequest, defaults: Sampling): Sampling {
  const { seed, ...rest } = defaults
  return {
    ...rest,
    ...definedFields({
      temperature: request.temperature,
      dynatemp: dynatempOf(request),
      topP: request.top_p,
      topK: request.top_k === undefined ? undefined : Math.max(0, request.top_k),
      minP: request.min_p,
      typicalP: request.typical_p,
      topNSigma: request.top_n_sigma === undefined ? undefined : Math.max(0, request.top_n_sigma),
      xtc: xtcOf(request),
      dry: dryOf(request),
      mirostat: mirostatOf(request),
      adaptive: adaptiveOf(request),
      minKeep: request.min_keep,
      order: request.samplers === undefined ? undefined : orderOf(request.samplers),
      repeatPenalty: request.repetition_penalty ?? request.repeat_penalty,
      penaltyLastN: request.repeat_last_n,
      frequencyPenalty: request.frequency_penalty,
      presencePenalty: request.presence_penalty,
      seed: request.seed === undefined ? seed : seedOf(request),
      logitBias: request.logit_bias === undefined ? undefined : biasOf(request.logit_bias),
    }),
  }
}

/** Returns the limits on the answer; none when no field sets one. */
export function limitsOf(request: LimitRequest): Pick<Ask, 'limits'> {
  const { ignore_eos, min_tokens, stop_token_ids = [], allowed_token_ids, bad_words = [] } = request
  const limits: AnswerLimits = definedFields({
    ignoreEnd: ignore_eos === true ? true : undefined,
    minTokens: min_tokens === 0 ? undefined : min_tokens,
    stopTokens: stop_token_ids.length === 0 ? undefined : stop_token_ids,
    allowedTokens: allowed_token_ids,
    badWords: bad_words.length === 0 ? undefined : bad_words,
  })
  return Object.keys(limits).length === 0 ? {} : { limits }
}

const dynatempOf = ({ dynatemp_range: range = 0, dynatemp_exponent: exponent = 1 }: SamplingRequest): Sampling['dynatemp'] =>
  range === 0 ? undefined : { range, exponent }

const xtcOf = ({
  xtc_probability: probability = 0,
  xtc_threshold: threshold = XTC_THRESHOLD,
}: SamplingRequest): Sampling['xtc'] => (probability === 0 ? undefined : { probability, threshold })

const adaptiveOf = ({
  adaptive_target: target = -1,
  adaptive_decay: decay = ADAPTIVE_DECAY,
}: SamplingRequest): Sampling['adaptive'] => (target < 0 ? undefined : { target, decay })

function dryOf(request: SamplingRequest): Sampling['dry'] {
  const { dry_multiplier: multiplier = 0, dry_base: base = 0 } = request
  if (multiplier === 0) return undefined
  return {
    multiplier,
    ...definedFields({
      base: base < 1 ? undefined : base,
      allowedLength: request.dry_allowed_length,
      lastN: request.dry_penalty_last_n,
      breakers: request.dry_sequence_breakers,
    }),
  }
}

function mirostatOf(request: SamplingRequest): Sampling['mirostat'] {
  const { mirostat: version, mirostat_tau: tau = MIROSTAT.tau, mirostat_eta: eta = MIROSTAT.eta } = request
  return version === undefined ? undefined : { version: version as 0 | 1 | 2, tau, eta }
}

/** Samplers with their letters in the short form of `samplers`. */
const SAMPLERS: readonly (readonly [name: SamplerName, letter: string])[] = [
  ['penalties', 'e'],
  ['dry', 'd'],
  ['top_n_sigma', 's'],
  ['top_k', 'k'],
  ['typ_p', 'y'],
  ['top_p', 'p'],
  ['min_p', 'm'],
  ['xtc', 'x'],
  ['temperature', 't'],
  ['adaptive_p', 'a'],
  ['infill', 'i'],
]

/** Other names of samplers, with underscores. */
const ALIASES: Readonly<Record<string, SamplerName>> = {
  typical_p: 'typ_p',
  typical: 'typ_p',
  nucleus: 'top_p',
  temp: 'temperature',
}

/** Reads `samplers`: which samplers run, and in which order. @throws FieldError for an unknown sampler */
function orderOf(samplers: string | readonly string[]): readonly SamplerName[] {
  const isShort = typeof samplers === 'string'
  return Array.from(samplers, (given, at) => {
    const name = given.toLowerCase().replaceAll('-', '_')
    const found = SAMPLERS.find(([known, letter]) => (isShort ? given === letter : name === known))?.[0]
    const sampler = found ?? (isShort || !Object.hasOwn(ALIASES, name) ? undefined : ALIASES[name])
    if (sampler !== undefined) return sampler
    const known = SAMPLERS.map(([one, letter]) => (isShort ? `${letter} (${one})` : one)).join(', ')
    throw new FieldError(
      `samplers[${at}]`,
      `samplers[${at}] is ${JSON.stringify(given.slice(0, 40))}; it may be one of ${known}.`,
    )
  })
}

/** Accepted seeds: all integers of 64 bits, signed or unsigned. */
const [LEAST_SEED, GREATEST_SEED] = [-(2n ** 63n), 2n ** 64n - 1n]

/** Maps a seed of up to 64 bits to the sampler's 32 bits. Undefined: a random seed for each answer. */
function seedOf(request: SamplingRequest): number | undefined {
  const text = numberText(request, 'seed') ?? String(request.seed)
  const seed = /^-?\d{1,20}$/.test(text) ? BigInt(text) : null
  if (seed === null || seed < LEAST_SEED || seed > GREATEST_SEED)
    throw new FieldError('seed', 'seed must be a whole number of at most 64 bits.')
  const most = BigInt(SEEDS)
  // In llama.cpp both values ask for a random seed.
  if (seed === -1n || seed === most) return undefined
  return Number(((seed % most) + most) % most)
}

/** The most entries of `logit_bias`, and the most characters of their texts. */
const MOST_BIASES = 65_536
/** Matches a token id written as text. */
const ID = /^\d{1,9}$/
const BAN = -100

/** Reads `logit_bias`: a map or pairs of a token id or text with a number, or `false` to ban it. @throws FieldError */
function biasOf(bias: unknown): NonNullable<Sampling['logitBias']> {
  const pairs: readonly unknown[] = Array.isArray(bias) ? bias : isRecord(bias) ? Object.entries(bias) : []
  if (pairs.length > MOST_BIASES)
    throw new FieldError('logit_bias', `logit_bias has ${pairs.length} pairs; send ${MOST_BIASES} at most.`)
  let characters = 0
  return pairs.map((pair) => {
    const [of, added] = Array.isArray(pair) ? (pair as readonly unknown[]) : []
    const amount = added === false ? -Infinity : added
    if (typeof amount !== 'number')
      throw new FieldError('logit_bias', 'logit_bias must be pairs of a token id or a text and a number, or false for never.')
    const value = amount <= BAN ? -Infinity : amount
    if (typeof of === 'number' && Number.isInteger(of) && of >= 0 && of <= LARGEST_TOKEN) return { token: of, bias: value }
    if (typeof of !== 'string' || of === '')
      throw new FieldError('logit_bias', 'logit_bias: a pair begins with a token id or a text.')
    if (ID.test(of)) return { token: Number(of), bias: value }
    if (/^-?\d+$/.test(of))
      throw new FieldError('logit_bias', `logit_bias: ${JSON.stringify(of.slice(0, 20))} is not a token id.`)
    if ((characters += of.length) > MOST_BIASES)
      throw new FieldError('logit_bias', `logit_bias has texts of more than ${MOST_BIASES} characters; shorten them.`)
    return { token: of, bias: value }
  })
}

/** Returns an answer's sampling settings under llama-server's names. Missing settings are off. */
export function samplingSettings(sampling: Sampling = {}, limits: AnswerLimits = {}): object {
  const { dynatemp, xtc, dry, mirostat, adaptive, logitBias = [], order } = sampling
  return {
    seed: sampling.seed ?? SEEDS,
    temperature: sampling.temperature ?? 0,
    dynatemp_range: dynatemp?.range ?? 0,
    dynatemp_exponent: dynatemp?.exponent ?? 1,
    top_k: sampling.topK ?? 0,
    top_p: sampling.topP ?? 1,
    min_p: sampling.minP ?? 0,
    top_n_sigma: sampling.topNSigma ?? -1,
    xtc_probability: xtc?.probability ?? 0,
    xtc_threshold: xtc?.threshold ?? XTC_THRESHOLD,
    typical_p: sampling.typicalP ?? 1,
    repeat_last_n: sampling.penaltyLastN ?? 64,
    repeat_penalty: sampling.repeatPenalty ?? 1,
    presence_penalty: sampling.presencePenalty ?? 0,
    frequency_penalty: sampling.frequencyPenalty ?? 0,
    dry_multiplier: dry?.multiplier ?? 0,
    dry_base: dry?.base ?? 1.75,
    dry_allowed_length: dry?.allowedLength ?? 2,
    dry_penalty_last_n: dry?.lastN ?? 64,
    dry_sequence_breakers: dry?.breakers ?? ['\n', ':', '"', '*'],
    mirostat: mirostat?.version ?? 0,
    mirostat_tau: mirostat?.tau ?? MIROSTAT.tau,
    mirostat_eta: mirostat?.eta ?? MIROSTAT.eta,
    adaptive_target: adaptive?.target ?? -1,
    adaptive_decay: adaptive?.decay ?? ADAPTIVE_DECAY,
    min_keep: sampling.minKeep ?? 0,
    ignore_eos: limits.ignoreEnd ?? false,
    logit_bias: logitBias.map(({ token, bias }) => ({ token, bias: bias === -Infinity ? false : bias })),
    samplers: order ?? SAMPLERS.slice(0, USUAL).map(([name]) => name),
  }
}

/** How many of `SAMPLERS`, from the first on, run by default. */
const USUAL = 9

// llama-server's fields for speculative decoding.

const Drafted = Type.Integer({ minimum: 0, maximum: MOST_DRAFTED })

export const SpeculateFields = {
  'speculative.n_max': Type.Optional({ ...Drafted, description: 'the most tokens drafted at once; 0: none' }),
  'speculative.n_min': Type.Optional({ ...Drafted, description: 'fewer tokens than this are not drafted' }),
  'speculative.type': Type.Optional(
    Type.String({ maxLength: 64, description: 'none, auto, ngram, or draft; llama-server’s n-gram kinds mean ngram' }),
  ),
}

type SpeculateRequest = Type.Static<ReturnType<typeof Type.Object<typeof SpeculateFields>>>

/** Returns how tokens are drafted; undefined when no field says it. @throws FieldError for an unknown method */
export function speculateOf(request: SpeculateRequest): SpeculateOptions | undefined {
  const { 'speculative.n_max': most, 'speculative.n_min': least, 'speculative.type': type } = request
  if (most === undefined && least === undefined && type === undefined) return undefined
  return definedFields({ most, least, kind: type === undefined ? undefined : kindOf(type) })
}

function kindOf(type: string): SpeculateKind {
  if (type === 'none') return 'off'
  if (type === 'auto') return 'auto'
  if (/^ngram(-|$)/u.test(type)) return 'ngram'
  if (type === 'draft' || type === 'draft-simple') return 'draft'
  throw new FieldError(
    'speculative.type',
    `speculative.type ${JSON.stringify(type)} is not there; this server drafts by ngram, draft, auto, or none.`,
  )
}
