/** One step on its way through the scheduler: what was asked, how far it is, what came out. */
import type { ConversationId } from '../core/ids.js'
import { EXACT, type Terms } from '../kv/plan-parts.js'
import type { LedgerEntry, StepKind } from '../kv/ledger.js'
import type { Plan } from '../kv/plan.js'
import type { Prompt } from '../kv/prompt.js'
import type { Step } from '../kv/step.js'
import type { ReadStates } from '../kv/offload.js'
import type { CacheSalt } from '../kv/cell-hash.js'
import type { NativeModel, NativeSampler, SamplerOptions } from '../native/types.js'
import type { AttentionPattern, AttentionRequest } from './attention.js'
import type { AttentionWatch } from './attention-capture.js'
import type { Timing, TokenLogprob } from './engine.js'
import { StopStrings } from './stop-strings.js'

export interface JobRequest {
  readonly conversation: ConversationId
  /** Whose it is (`CacheSalts.of` its tenant): cells of other tenants' conversations are never lent to it. Default: nobody's, all of which share. */
  readonly salt?: CacheSalt
  readonly shown: Prompt
  /** Default: exact. */
  readonly terms?: Terms
  readonly sampler: SamplerOptions
  /** 0: the prompt is computed and nothing is generated. */
  readonly maxTokens?: number
  readonly stop?: readonly string[]
  readonly logprobs?: number
  /** Where tokens look; needs an engine that was loaded with `attention`. */
  readonly attention?: AttentionRequest
  readonly kind?: StepKind
  readonly signal?: AbortSignal
  /** `onText` never ends generation: it may hear of a token when the next ones are under way. Default false. */
  readonly ahead?: boolean
  readonly onPlan?: (plan: Plan) => void
  readonly onPrefill?: (done: number, total: number) => void
  /** True: generation ends here, as if the model had ended it. */
  readonly onText?: (text: string, tokens: readonly number[], logprobs: readonly TokenLogprob[]) => boolean | undefined
}

export interface JobResult {
  /** Sampled tokens without the one that ended generation. */
  readonly tokens: Int32Array
  /** Their text up to a stop string; control tokens written out. */
  readonly text: string
  readonly finish: 'stop' | 'stop-string' | 'length' | 'cancelled'
  /** The stop string that ended it. */
  readonly stop?: string
  readonly ledger: LedgerEntry
  readonly timing: Timing
  readonly logprobs: readonly TokenLogprob[]
  /** When it was asked for and the step was not cancelled. */
  readonly attention?: AttentionPattern
}

/** What a job does next: wait for its live sequence, or for what is read from disk for it, compute prompt tokens, or submit its last sampled token. */
type Phase =
  | { readonly name: 'queued' }
  | { readonly name: 'fetching' }
  /** `done` of the `total` prompt tokens to compute. */
  | { readonly name: 'prefill'; readonly step: Step; done: number; readonly total: number }
  | { readonly name: 'decode'; readonly step: Step; readonly token: number }
  | { readonly name: 'ended' }

/** More than any context has cells. */
const MOST_LEFT = 2 ** 30

export class Job {
  phase: Phase = { name: 'queued' }
  cancelled = false
  /** What was read from disk for it; null: nobody has looked yet. */
  fetched: ReadStates | null = null
  /** The scheduler's turn that last computed some of its prompt; -1: none did. */
  served = -1
  readonly result: Promise<JobResult>
  resolve!: (result: JobResult) => void
  reject!: (error: unknown) => void
  readonly tokens: number[] = []
  readonly logprobs: TokenLogprob[] = []
  text = ''
  /** The stop string that ended it. */
  stop: string | null = null
  prefillTokens = 0
  firstToken: number | null = null
  readonly sampler: NativeSampler
  readonly #stops: StopStrings
  readonly #decoder = new TextDecoder()

  constructor(
    readonly request: JobRequest,
    private readonly model: NativeModel,
    readonly started: number,
    readonly watch: AttentionWatch | null = null,
  ) {
    this.#stops = new StopStrings(request.stop ?? [])
    this.sampler = model.createSampler(request.sampler)
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve
      this.reject = reject
    })
    this.result.catch(() => undefined)
  }

  /** The running step, null before and after. */
  get step(): Step | null {
    return this.phase.name === 'prefill' || this.phase.name === 'decode' ? this.phase.step : null
  }

  /** Whether only its sampler, the end of generation and `maxTokens` can end it, so that tokens may be drawn before anybody looks at them. */
  get runsAhead(): boolean {
    const { ahead = false, onText, stop = [], logprobs } = this.request
    return (ahead || onText === undefined) && stop.every((each) => each === '') && logprobs === undefined && this.watch === null
  }

  /** Tokens that may still be sampled. */
  get left(): number {
    return Math.min((this.request.maxTokens ?? Infinity) - this.tokens.length, MOST_LEFT)
  }

  /** Takes a sampled token; says whether and why generation ends with it. Streams its text. */
  take(token: number, logprob: TokenLogprob | null): 'stop' | 'stop-string' | 'length' | null {
    if (this.model.isEndOfGeneration(token)) {
      this.flush()
      return 'stop'
    }
    this.tokens.push(token)
    if (logprob !== null) this.logprobs.push(logprob)
    const { text, stop } = this.#stops.push(this.#decoder.decode(this.model.piece(token, true), { stream: true }))
    const isEnough = this.#emit(text, [token], logprob === null ? [] : [logprob])
    this.stop = stop
    if (stop !== null) return 'stop-string'
    if (isEnough) {
      this.flush()
      return 'stop'
    }
    if (this.tokens.length >= (this.request.maxTokens ?? Infinity)) {
      this.flush()
      return 'length'
    }
    return null
  }

  /** Streams what stop strings and unfinished characters held back. */
  flush(): void {
    this.#emit(this.#decoder.decode() + this.#stops.finish(), [])
  }

  #emit(text: string, tokens: readonly number[], logprobs: readonly TokenLogprob[] = []): boolean {
    this.text += text
    return (text !== '' || tokens.length > 0) && this.request.onText?.(text, tokens, logprobs) === true
  }
}

/** What the job's step is asked to keep to. A token that is watched has to be computed. */
export function termsOf({ request: { terms }, watch }: Job): Terms | undefined {
  const anew = watch?.anew ?? null
  return anew === null ? terms : { ...EXACT, ...terms, anew }
}
