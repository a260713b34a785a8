/** One requested step, from its request to its end: its phase, sampled tokens, stop strings and log-probabilities. */
import { KvfoldError } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import type { StepCache } from '../kv/step-cache.js'
import type { CacheSalt } from '../kv/tenant-salts.js'
import type { LedgerEntry, StepKind } from '../kv/ledger.js'
import type { ReadStates } from '../kv/offload.js'
import { EXACT, type StepContract } from '../kv/plan/parts.js'
import { computedIn, type Plan, reusedIn } from '../kv/plan/plan.js'
import type { Prompt } from '../kv/prompt.js'
import type { LiveSequence } from '../kv/sequence.js'
import type { Step } from '../kv/step.js'
import type { NativeModel, NativeSampler, SamplerOptions } from '../native/types.js'
import { type AdapterSet, NO_ADAPTERS } from './adapters.js'
import type { AttentionWatch } from './attention-capture.js'
import type { AttentionPattern } from './attention.js'
import type { EngineRequest, PlannedStep, PromptLogprob, Timing, TokenLogprob } from './engine.js'
import type { SpeculateOptions } from './speculate-terms.js'
import type { Drafter } from './speculation.js'

// A step on its way through the scheduler: its request, its phase and its result.

/** The fields of a request or completion that its job reads. */
export interface AskedStep extends Pick<
  EngineRequest,
  | 'conversation'
  | 'maxTokens'
  | 'stop'
  | 'endReasoning'
  | 'logprobs'
  | 'promptLogprobs'
  | 'attention'
  | 'speculate'
  | 'last'
  | 'signal'
> {
  readonly kind?: StepKind
}

/** Receives the output of a job while it runs. */
export interface JobListener {
  /** Whether `onText` never ends generation. Then it may receive tokens late, while the next ones are being decoded. Default false. */
  readonly ahead?: boolean
  readonly onPlan?: (plan: PlannedStep) => void
  readonly onPrefill?: (done: number, total: number) => void
  /** Receives new text and tokens. Returns true to end generation here, as if the model had ended it. */
  readonly onText?: (text: string, tokens: readonly number[], logprobs: readonly TokenLogprob[]) => boolean | undefined
}

export interface JobRequest {
  /** The request as its caller gave it. */
  readonly asked: AskedStep
  readonly listener?: JobListener
  /** The tenant's salt (`CacheSalts.of`), which keeps its cells apart from those of other tenants. Default: the salt for no tenant. */
  readonly salt?: CacheSalt
  /** The adapters that its decodes apply. `salt` must have been made for these adapters. Default: none. */
  readonly adapters?: AdapterSet
  readonly prompt: Prompt
  /** The contract and its choices. Default: exact. */
  readonly terms?: StepContract
  /** How tokens are drafted. Default: not at all. */
  readonly speculate?: Required<SpeculateOptions>
  readonly sampler: SamplerOptions
  /** Called when the job is about to begin. If it returns false, the job ends as cancelled. Default: the job begins. */
  readonly isWanted?: () => boolean
}

export const cancelledBeforeBegin = (): KvfoldError =>
  new KvfoldError('engine/cancelled', 'The request was cancelled before it began.')

export interface JobResult {
  /** The sampled tokens, without the one that ended generation. */
  readonly tokens: Int32Array
  /** The text of these tokens up to a stop string, control tokens included. */
  readonly text: string
  readonly finish: 'stop' | 'stop-string' | 'length' | 'cancelled'
  /** The stop string, or the stop token, that ended the answer. */
  readonly stop?: string | number
  readonly ledger: LedgerEntry
  readonly timing: Timing
  readonly logprobs: readonly TokenLogprob[]
  /** The log-probability of the token that ended generation, if the model sampled one and log-probabilities were requested. */
  readonly endLogprob?: TokenLogprob
  /** The log-probabilities of the prompt's tokens after the first, if they were requested. */
  readonly promptLogprobs?: readonly PromptLogprob[]
  /** The captured attention. Present if the request asked for it and the step was not cancelled. */
  readonly attention?: AttentionPattern
}

export const planned = (plan: Plan): PlannedStep => ({
  shown: plan.prompt.tokens.length,
  reused: reusedIn(plan),
  compute: computedIn(plan),
  contract: plan.contract,
  fallback: plan.fallback,
})

/**
 * The phase of a job. `queued`: it waits for its turn. `fetching`: it waits for cells from disk. `prefill`: it computes prompt tokens.
 * `decode`: its last sampled token is to be decoded. `ended`.
 */
type Phase =
  | { readonly name: 'queued' }
  | { readonly name: 'fetching' }
  /** `done`: how many of the `total` prompt tokens to compute are in the cache. */
  | { readonly name: 'prefill'; readonly step: Step; done: number; readonly total: number }
  | { readonly name: 'decode'; readonly step: Step; readonly token: number }
  | { readonly name: 'ended' }

/** Returns the last tokens of the prompt, if the repetition penalty or DRY counts them. */
function seenBy({ sampler, prompt }: JobRequest): Pick<SamplerOptions, 'seen'> {
  const { dry, repeatPenalty = 1, penaltyLastN = 64 } = sampler
  const most = Math.max(dry === undefined ? 0 : (dry.options.lastN ?? 64), repeatPenalty === 1 ? 0 : penaltyLastN)
  return most === 0 ? {} : { seen: prompt.tokens.subarray(Math.max(0, prompt.tokens.length - most)) }
}

/** A bound on generated tokens that no context reaches. */
const MOST_LEFT = 2 ** 30

/** The state of a prompt that gave up its cells for other jobs. */
export interface PutOff {
  /** How many of the scheduler's steps had ended when it last checked whether the prompt fits. */
  ended: number
  /** When it was first put off, by the clock of `performance.now()`. */
  readonly at: number
}

/** What was computed for a prompt before it was put off: tokens, and milliseconds of decodes. */
export interface Lost {
  readonly tokens: number
  readonly milliseconds: number
}

export class Job {
  phase: Phase = { name: 'queued' }
  cancelled = false
  /** The sequence states read from disk for the job; null before the first read. */
  fetched: ReadStates | null = null
  /** Number of the scheduler's latest batch that had tokens of the job; -1 before the first one. */
  ran = -1
  /**
   * The prompt with the smallest `due` is computed first. The scheduler's clock counts computed prompt tokens. `due` is the clock at the
   * job's arrival, plus the job's own prompt tokens once its step begins. So equal prompts go by arrival, a short one passes a long one,
   * and none waits for prompts that arrive after it is due.
   */
  due = 0
  /** Set when the prompt was put off for lack of cells. */
  putOff: PutOff | null = null
  lost: Lost = { tokens: 0, milliseconds: 0 }
  readonly result: Promise<JobResult>
  resolve!: (result: JobResult) => void
  reject!: (error: unknown) => void
  readonly tokens: number[] = []
  readonly logprobs: TokenLogprob[] = []
  readonly promptLogprobs: PromptLogprob[] = []
  endLogprob: TokenLogprob | null = null
  text = ''
  /** The stop string, or the stop token, that ended the answer. */
  stop: string | number | null = null
  /** Drafts tokens of the answer; null before the first token is sampled, and for jobs without drafts. */
  drafter: Drafter | null = null
  prefillTokens = 0
  /** How many tokens were sampled, the token that ended the answer included. */
  sampled = 0
  firstToken: number | null = null
  readonly asked: AskedStep
  readonly sampler: NativeSampler
  readonly #stops: StopStrings
  readonly #stopTokens: ReadonlySet<number>
  readonly #decoder = new TextDecoder()
  readonly #endReasoning = () => {
    this.sampler.endReasoning()
  }

  constructor(
    readonly request: JobRequest,
    private readonly model: NativeModel,
    readonly started: number,
    readonly watch: AttentionWatch | null = null,
  ) {
    this.asked = request.asked
    this.#stops = new StopStrings(this.asked.stop ?? [])
    this.#stopTokens = new Set(request.sampler.limits?.stopTokens)
    this.sampler = model.createSampler({ ...request.sampler, ...seenBy(request) })
    const { endReasoning } = this.asked
    if (endReasoning?.aborted === true) this.#endReasoning()
    endReasoning?.addEventListener('abort', this.#endReasoning, { once: true })
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve
      this.reject = reject
    })
    this.result.catch(() => undefined)
  }

  /** Frees the job's sampler and listener. Call it once the job has ended, or if it was never submitted. */
  dispose(): void {
    this.asked.endReasoning?.removeEventListener('abort', this.#endReasoning)
    this.sampler.dispose()
  }

  get adapters(): AdapterSet {
    return this.request.adapters ?? NO_ADAPTERS
  }

  /** The running step; null before it begins and after it ends. */
  get step(): Step | null {
    return this.phase.name === 'prefill' || this.phase.name === 'decode' ? this.phase.step : null
  }

  /**
   * Whether only an end token, the sampler or `maxTokens` can end the job. Then several tokens may be sampled in a row before the job
   * receives them.
   */
  get runsAhead(): boolean {
    const { stop = [], logprobs } = this.asked
    const { ahead = false, onText } = this.request.listener ?? {}
    return (ahead || onText === undefined) && stop.every((each) => each === '') && logprobs === undefined && this.watch === null
  }

  /** How many tokens may still be sampled. */
  get left(): number {
    return Math.min((this.asked.maxTokens ?? Infinity) - this.tokens.length, MOST_LEFT)
  }

  /** Takes a sampled token and streams its text. Returns the reason if generation ends with it, else null. */
  take(token: number, logprob: TokenLogprob | null): 'stop' | 'stop-string' | 'length' | null {
    this.sampled++
    const isStop = this.#stopTokens.has(token)
    if (isStop || this.model.isEndOfGeneration(token)) {
      if (isStop) this.stop = token
      this.endLogprob = logprob
      this.flush()
      return 'stop'
    }
    this.tokens.push(token)
    this.drafter?.push(token)
    if (logprob !== null) this.logprobs.push(logprob)
    const { text, stop } = this.#stops.push(this.#decoder.decode(this.model.piece(token, true), { stream: true }))
    const isEnough = this.#emit(text, [token], logprob === null ? [] : [logprob])
    this.stop = stop
    if (stop !== null) return 'stop-string'
    if (isEnough) {
      this.flush()
      return 'stop'
    }
    if (this.tokens.length >= (this.asked.maxTokens ?? Infinity)) {
      this.flush()
      return 'length'
    }
    return null
  }

  /**
   * Records the log-probabilities of prompt tokens: the logits of each of `count` tokens, from prompt index `place` on, give those of its
   * successor.
   */
  read(place: number, count: number, logits: (offset: number) => Float32Array): void {
    const { promptLogprobs: alternatives = 0 } = this.asked
    const { prompt } = this.request
    for (let offset = 0; offset < count; offset++) {
      const next = prompt.tokens[place + offset + 1]
      if (next === undefined) return
      const piece = (id: number) => this.model.piece(id, true)
      const all = logits(offset)
      this.promptLogprobs.push({ ...tokenLogprob(all, next, alternatives, piece), rank: rankOf(all, next) })
    }
  }

  /** Streams the text that was held back as a possible stop string or an unfinished character. */
  flush(): void {
    this.#emit(this.#stops.finish() + this.#decoder.decode(), [])
  }

  #emit(text: string, tokens: readonly number[], logprobs: readonly TokenLogprob[] = []): boolean {
    this.text += text
    return (text !== '' || tokens.length > 0) && this.request.listener?.onText?.(text, tokens, logprobs) === true
  }
}

/**
 * Returns the terms of the job's step. Prompt tokens whose attention is captured are computed even if they are held. So is the whole prompt
 * if its log-probabilities are requested.
 */
export function termsOf({ request: { terms, asked }, watch }: Job): StepContract | undefined {
  const recomputeFrom = asked.promptLogprobs === undefined ? (watch?.recomputeFrom ?? null) : 0
  return recomputeFrom === null ? terms : { ...EXACT, ...terms, recomputeFrom }
}

// The search for stop strings in streamed text. Text that may become a stop string is held back.

export class StopStrings {
  #held = ''

  /** Empty strings are ignored. */
  constructor(private readonly stops: readonly string[]) {
    this.stops = stops.filter((stop) => stop !== '')
  }

  /**
   * Adds text. Returns the text that may be streamed, and the stop string that was completed, or null. Drops the stop string and what
   * follows.
   */
  push(text: string): { readonly text: string; readonly stop: string | null } {
    this.#held += text
    const [first] = this.stops
      .map((stop) => ({ stop, at: this.#held.indexOf(stop) }))
      .filter(({ at }) => at >= 0)
      .sort((a, b) => a.at - b.at)
    if (first !== undefined) {
      const shown = this.#held.slice(0, first.at)
      this.#held = ''
      return { text: shown, stop: first.stop }
    }
    const keep = Math.max(0, ...this.stops.map((stop) => overlap(this.#held, stop)))
    const shown = this.#held.slice(0, this.#held.length - keep)
    this.#held = this.#held.slice(this.#held.length - keep)
    return { text: shown, stop: null }
  }

  /** Returns the text that is still held back, at the end of generation. */
  finish(): string {
    const rest = this.#held
    this.#held = ''
    return rest
  }
}

/** Returns the length of the longest beginning of `stop` with which `text` ends; shorter than `stop` itself. */
function overlap(text: string, stop: string): number {
  for (let size = Math.min(text.length, stop.length - 1); size > 0; size--) if (text.endsWith(stop.slice(0, size))) return size
  return 0
}

// Log-probabilities from raw logits.

/**
 * Returns log-probabilities (natural logarithm) of `token` and of the `count` likeliest tokens, best first. They are those of the model,
 * before the sampler changes them.
 * @param piece returns a token's bytes
 */
export function tokenLogprob(
  logits: Float32Array,
  token: number,
  count: number,
  piece: (token: number) => Uint8Array,
): TokenLogprob {
  let max = -Infinity
  for (const logit of logits) if (logit > max) max = logit
  let sum = 0
  for (const logit of logits) sum += Math.exp(logit - max)
  const offset = max + Math.log(sum)
  const named = (id: number) => ({ token: id, ...written(piece(id)), logprob: (logits[id] ?? -Infinity) - offset })
  return { ...named(token), top: largest(logits, count).map(named) }
}

/** Returns the rank of the token, 1 for the likeliest. Of equal logits, the lower token id comes first, as in `largest`. */
function rankOf(logits: Float32Array, token: number): number {
  const own = logits[token] ?? -Infinity
  let rank = 1
  for (let id = 0; id < logits.length; id++) if (logits[id]! > own || (logits[id] === own && id < token)) rank++
  return rank
}

const decoder = new TextDecoder('utf-8', { ignoreBOM: true })

/** Returns the text of these bytes, and also the bytes if they are not whole characters. */
function written(bytes: Uint8Array): { readonly text: string; readonly bytes?: readonly number[] } {
  const text = decoder.decode(bytes)
  return text.includes('\ufffd') ? { text, bytes: [...bytes] } : { text }
}

/** Returns the indices of the `count` largest values, largest first; of equal values, the lower index first. */
function largest(values: Float32Array, count: number): number[] {
  const best: number[] = []
  for (let index = 0; index < values.length; index++) {
    const value = values[index]!
    const last = best.at(-1)
    if (best.length === count && (last === undefined || value <= values[last]!)) continue
    const place = best.findIndex((other) => value > values[other]!)
    best.splice(place < 0 ? best.length : place, 0, index)
    if (best.length > count) best.pop()
  }
  return best
}

// Jobs that wait for the disk: their cells are read while other jobs run.

export class ReloadAhead {
  readonly #waiting = new Set<Job>()

  /**
   * @param news called when a job has finished waiting
   * @param fail called when reading for a job failed
   */
  constructor(
    private readonly cache: StepCache,
    private readonly news: () => void,
    private readonly fail: (job: Job, error: unknown) => void,
  ) {}

  /** Whether any job waits. */
  get busy(): boolean {
    return [...this.#waiting].some(isWaiting)
  }

  /** Whether a job of the conversation waits. Later jobs of the conversation must wait behind it. */
  holds(conversation: ConversationId): boolean {
    return [...this.#waiting].some((job) => isWaiting(job) && job.asked.conversation === conversation)
  }

  /**
   * Begins to delete forgotten text from the shared tier, or else to read the cells that the job needs from disk; that only once per job.
   * Returns false if there is nothing to wait for.
   */
  begin(job: Job, sequence: LiveSequence): boolean {
    const { prompt } = job.request
    const forgetting = this.cache.forgetting?.(job.asked.conversation, prompt)?.then(() => null)
    const reading = forgetting ?? (job.fetched === null ? this.cache.fetch(sequence, prompt, termsOf(job)) : null)
    if (reading === null) return false
    job.phase = { name: 'fetching' }
    this.#waiting.add(job)
    void reading
      .then(
        (fetched: ReadStates | null) => {
          if (!isWaiting(job)) return
          job.phase = { name: 'queued' }
          job.fetched = fetched
        },
        (error: unknown) => {
          if (isWaiting(job)) this.fail(job, error)
        },
      )
      .finally(() => {
        this.#waiting.delete(job)
        this.news()
      })
    return true
  }
}

/** Whether the job still waits; a cancelled job does not. */
const isWaiting = ({ phase }: Job): boolean => phase.name === 'fetching'
