/** The decode loop: chooses which tokens of which running steps go into the next batch, and handles the result. */
import { CellsBusy, KvfoldError, PromptTooLong, invariant } from '../core/errors.js'
import type { ConversationId } from '../core/ids.js'
import { definedFields } from '../core/json.js'
import type { LedgerEntry, StepKind } from '../kv/ledger.js'
import { computedIn } from '../kv/plan/plan.js'
import type { OpenedSequence, StepCache } from '../kv/step-cache.js'
import type { Batch, DecodeStatus, NativeContext, NativeModel, Watched } from '../native/types.js'
import {
  cancelledBeforeBegin,
  type Job,
  type JobResult,
  type Lost,
  planned,
  type PutOff,
  ReloadAhead,
  termsOf,
  tokenLogprob,
} from './job.js'
import type { TokenLogprob } from './engine.js'
import { type AdapterSet, NO_ADAPTERS } from './adapters.js'
import { byAdapters, composed, isStream, packed, PrefillBudget, type BatchShare, runAhead } from './batch.js'
import type { DraftModel } from './draft-model.js'
import { draftingStreams, withDrafts } from './drafts.js'
import { Speculation } from './speculation.js'

export interface SchedulerOptions {
  /** How many steps run at once; further ones wait in a queue. */
  readonly slots: number
  /** The most milliseconds between two tokens of a stream that prompts may cause. Default: as `PrefillBudget` chooses. */
  readonly maxGap?: number
  /** Decodes a batch. Default: the context's `decode`. */
  readonly decode?: (batch: Batch, watched: readonly Watched[]) => Promise<DecodeStatus>
  /** The adapters that the context applies at the start. Default: none. */
  readonly adapters?: AdapterSet
  /** The draft model for speculation, in addition to repeats from the conversation. Default: none. */
  readonly draft?: DraftModel
}

/** The most milliseconds for copying cells between two decodes. The copy also takes no longer than the last decode. */
const LONGEST_SLICE = 20
/** A prompt that was put off for lack of cells blocks later ones after this many milliseconds, so that it is not overtaken for ever. */
const PATIENCE = 10_000
const hasWaited = (putOff: Job['putOff']): boolean => putOff !== null && performance.now() - putOff.at > PATIENCE
/**
 * The context keeps its adapters for at least this many milliseconds while jobs with other adapters wait. A change costs a few
 * milliseconds, because llama.cpp plans its graphs anew.
 */
const SHORTEST_STAY = 50
/** The most batches that are decoded in a row before the loop checks for other work. Arriving work ends such a run earlier. */
const LONGEST_RUN = 256

/**
 * Continuous batching over one context. Each turn of the loop decodes one batch: one token of every stream (a job that generates), or
 * prompt tokens, or both. While there are streams, PrefillBudget chooses the mix from measured times. Prompts are computed one after
 * another, in order of `Job.due`. Sequences are tagged and untagged only between batches. Jobs of one conversation run one after another. A
 * batch has only jobs with the same adapters; groups with different adapters take turns.
 */
export class Scheduler {
  readonly #jobs: Job[] = []
  readonly #errands: (() => void)[] = []
  readonly #fetching: ReloadAhead
  readonly #budget: PrefillBudget
  readonly #speculation: Speculation
  #running: Promise<void> | null = null
  /** The jobs in the running decode. */
  #decoding: readonly Job[] = []
  #closed = false
  #turns = 0
  /** How many steps have ended. */
  #ended = 0
  /** The adapters that the context applies, and when they were set (performance.now()). */
  #adapters: AdapterSet
  #adaptersSince = -Infinity
  /** Number of prompt tokens computed so far. It is the clock of `Job.due`. */
  #computed = 0
  /**
   * `#news`: a job, an errand, a cancellation or a finished disk read arrived since the loop last checked. `#wake` ends the loop's wait.
   */
  #news = false
  #wake: (() => void) | null = null

  constructor(
    private readonly model: NativeModel,
    private readonly context: NativeContext,
    private readonly cache: StepCache,
    private readonly options: SchedulerOptions,
  ) {
    this.#budget = new PrefillBudget(context.batch, options.maxGap)
    this.#speculation = new Speculation((token) => model.isEndOfGeneration(token), options.draft)
    this.#adapters = options.adapters ?? NO_ADAPTERS
    this.#fetching = new ReloadAhead(
      cache,
      () => {
        this.#tell()
      },
      (job, error) => {
        this.#fail(job, error)
      },
    )
  }

  submit(job: Job): Promise<JobResult> {
    if (this.#closed) throw new KvfoldError('engine/disposed', 'The engine was disposed; create a new one.')
    const { prompt } = job.request
    const { signal } = job.asked
    const cells = this.context.cells
    if (prompt.tokens.length === 0) throw new KvfoldError('engine/bad-request', 'The prompt is empty; give at least one token.')
    if (prompt.tokens.length >= cells)
      throw new PromptTooLong(
        { tokens: prompt.tokens.length, atLeast: false, context: cells },
        `The prompt has ${prompt.tokens.length} tokens, but the context has ${cells} cells; fold parts of it, or load the model with a larger context.`,
      )
    const cancel = () => {
      this.#cancel(job)
    }
    if (signal?.aborted === true) job.cancelled = true
    signal?.addEventListener('abort', cancel, { once: true })
    void job.result
      .catch(() => undefined)
      .finally(() => {
        signal?.removeEventListener('abort', cancel)
      })
    job.due = this.#computed
    this.#jobs.push(job)
    this.#start()
    return job.result
  }

  /** Runs `errand` as soon as no decode runs, so it may use the cache. If it throws, the promise rejects with its error. */
  between<T>(errand: () => T): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#errands.push(() => {
        try {
          resolve(errand())
        } catch (error) {
          reject(error)
        }
      })
      this.#start()
    })
  }

  /** Waits until no job is running or waiting. */
  async idle(): Promise<void> {
    while (this.#jobs.length > 0) await Promise.allSettled(this.#jobs.map(({ result }) => result))
  }

  /** Cancels the conversation's jobs: all of them, or those of one kind. */
  cancel(conversation: ConversationId, only?: StepKind): void {
    for (const job of this.#jobs)
      if (job.asked.conversation === conversation && (only === undefined || job.asked.kind === only)) this.#cancel(job)
  }

  /** Cancels all jobs and waits until the loop has ended. */
  async close(): Promise<void> {
    this.#closed = true
    for (const job of [...this.#jobs]) this.#cancel(job)
    await this.#running
  }

  #cancel(job: Job): void {
    job.cancelled = true
    this.#tell()
    // Aborting a decode discards the work of all jobs in the batch. So only a job that decodes alone is aborted.
    if (this.#decoding.length === 1 && this.#decoding[0] === job) this.context.abort()
  }

  #tell(): void {
    this.#news = true
    this.context.interrupt()
    this.#wake?.()
  }

  #start(): void {
    this.#tell()
    this.#running ??= this.#loop().finally(() => {
      this.#running = null
      if (this.#errands.length > 0 || this.#jobs.length > 0) this.#start()
    })
  }

  async #loop(): Promise<void> {
    await Promise.resolve()
    do {
      while (this.#jobs.length > 0 || this.#errands.length > 0) {
        this.#news = false
        for (const job of this.#jobs.filter((job) => job.cancelled)) this.#end(job, 'cancelled')
        for (const errand of this.#errands.splice(0)) errand()
        await this.#admit()
        const composed = this.#compose()
        const shares = this.#mayDraft(composed) ? await withDrafts(composed, this.#speculation, this.#draftRoom) : composed
        // The draft model took some time, in which a job may have been cancelled.
        if (shares !== composed && shares.some(({ job }) => job.cancelled)) continue
        const steps = this.#ahead(shares)
        const begun = performance.now()
        if (steps > 1) await this.#run(shares, steps)
        else if (shares.length > 0) await this.#turn(shares)
        else if (this.#fetching.busy) await this.#heard()
        if (this.cache.moving === true) await this.cache.moveOn?.(Math.min(performance.now() - begun, LONGEST_SLICE))
      }
      // Yield once, so that callers whose steps ended can submit the next ones. Then use the idle time to move a sequence off the device.
      await new Promise<void>((resolve) => {
        this.#wake = resolve
        setImmediate(resolve)
      })
      this.#wake = null
    } while (
      this.#jobs.length > 0 ||
      this.#errands.length > 0 ||
      (!this.#closed && (await this.cache.tidy?.(undefined, LONGEST_SLICE)) === true)
    )
  }

  /** Waits until `#tell` is called, unless it was called since the loop last checked. */
  async #heard(): Promise<void> {
    if (!this.#news) await new Promise<void>((resolve) => (this.#wake = resolve))
    this.#wake = null
  }

  /**
   * Starts waiting jobs on their live sequences, in order of arrival. Cells on disk are read while other jobs run. No job starts while a
   * prompt that has waited too long is computed, so that it is not put off once more.
   */
  async #admit(): Promise<void> {
    if (this.#jobs.some(({ phase, putOff }) => phase.name === 'prefill' && hasWaited(putOff))) return
    const active = () => this.#jobs.filter((job) => job.step !== null || job.phase.name === 'fetching').length
    /** Conversations with a prompt that is still put off. Their later jobs wait behind it. */
    const behind = new Set<ConversationId>()
    for (const job of [...this.#jobs]) {
      if (job.phase.name !== 'queued' || active() >= this.options.slots) continue
      const { conversation } = job.asked
      if (behind.has(conversation) || this.#fetching.holds(conversation)) continue
      if (job.putOff !== null && active() > 0 && !this.#fits(job, job.putOff)) {
        if (hasWaited(job.putOff)) break
        behind.add(conversation)
        continue
      }
      const opened = this.#open(job)
      if (opened === null) continue
      if (opened.kind === 'full') {
        if (active() === 0) this.#fail(job, new KvfoldError('context/full', opened.reason))
        continue
      }
      if (opened.sequence.running) continue
      if (job.request.isWanted?.() === false) {
        this.#end(job, 'cancelled')
        continue
      }
      try {
        if (this.#fetching.begin(job, opened.sequence)) continue
        const plan = await this.cache.prepare(opened.sequence, job.request.prompt, termsOf(job), job.fetched ?? undefined)
        job.fetched = null
        const alone = this.#jobs.every((other) => other.step === null)
        const step = this.cache.begin(opened.sequence, plan, job.asked.kind ?? 'answer', alone)
        job.phase = { name: 'prefill', step, done: 0, total: computedIn(plan) }
        job.due += job.phase.total
        job.request.listener?.onPlan?.(planned(plan))
      } catch (error) {
        this.#fail(job, error)
      }
    }
  }

  /**
   * Whether the new cells of a prompt that was put off fit beside those of running steps. Returns false at once if no step has ended since
   * the last check, because nothing has been freed.
   */
  #fits(job: Job, putOff: PutOff): boolean {
    if (putOff.ended === this.#ended) return false
    putOff.ended = this.#ended
    const opened = this.#open(job)
    if (opened?.kind !== 'live' || opened.sequence.running) return false
    try {
      return this.cache.fits(opened.sequence, this.cache.plan(opened.sequence, job.request.prompt, termsOf(job)))
    } catch (error) {
      this.#fail(job, error)
      return false
    }
  }

  /** Opens the job's live sequence. If that throws, fails the job and returns null. */
  #open(job: Job): OpenedSequence | null {
    try {
      return this.cache.open(job.asked.conversation, job.request.salt)
    } catch (error) {
      this.#fail(job, error)
      return null
    }
  }

  /** Composes the next batch. Jobs without free cells wait as long as other jobs can run. */
  #compose(): readonly BatchShare[] {
    const stays = performance.now() - this.#adaptersSince < SHORTEST_STAY
    const streams = this.#jobs.filter(isStream).length
    const starved: Job[] = []
    let shares: BatchShare[] = []
    for (const group of byAdapters(this.#jobs, this.#adapters.key, stays)) {
      const waiting = streams - group.filter(isStream).length
      const made = composed(group, this.cache, this.context.batch, this.#budget, waiting)
      starved.push(...made.starved)
      shares = made.shares
      if (shares.length > 0) break
    }
    // llama.cpp reorders the batches of hybrid models, so captured rows could not be assigned to jobs. A job with capture gets its own
    // batch, and takes turns with the other jobs.
    if (this.model.info.hybrid) {
      const [alone] = shares.filter(({ job }) => job.watch !== null).sort((a, b) => a.job.ran - b.job.ran)
      const others = shares.filter(({ job }) => job.watch === null)
      if (alone !== undefined) return others.some(({ job }) => job.ran < alone.job.ran) ? others : [alone]
    }
    if (shares.length === 0) this.#makeRoom(this.#jobs.filter((job) => starved.includes(job)))
    return shares
  }

  /**
   * Whether drafts may be added to these shares. Not while a prompt with the same adapters is computed, because prompts fill the batches.
   * And only if the cache can remove rejected drafts.
   */
  #mayDraft(shares: readonly BatchShare[]): boolean {
    const key = shares[0]?.job.adapters.key
    return (
      this.cache.verified !== undefined && !this.#jobs.some((job) => job.phase.name === 'prefill' && job.adapters.key === key)
    )
  }

  /** The most tokens of a batch with drafts. It counts free cells only, so that nothing is evicted for drafts. */
  get #draftRoom(): number {
    return Math.min(this.cache.spare ?? 0, this.context.batch)
  }

  /** Sets the context's adapters for these shares, and records the batch number in their jobs (`Job.ran`). */
  #prepare(shares: readonly BatchShare[]): void {
    this.#turns++
    for (const { job } of shares) job.ran = this.#turns
    const [first] = shares
    const adapters = first?.job.adapters ?? this.#adapters
    if (adapters.key === this.#adapters.key) return
    this.context.useAdapters(adapters.applied)
    this.#adapters = adapters
    this.#adaptersSince = performance.now()
  }

  async #turn(shares: readonly BatchShare[]): Promise<void> {
    this.#prepare(shares)
    const { batch, size, outputs, read, watched } = packed(shares)
    this.#decoding = shares.map(({ job }) => job)
    const begun = performance.now()
    let failure: unknown = null
    const { decode = (...of: Parameters<NativeContext['decode']>) => this.context.decode(...of) } = this.options
    const status = await decode(batch, [...watched.values()]).catch((error: unknown) => {
      failure = error
      return 'failed' as const
    })
    const elapsed = performance.now() - begun
    this.#decoding = []

    if (status === 'done') {
      // Commit all shares before any job ends: the end of a job checks the cache's records against llama.cpp's positions.
      for (const { job, tokens, what } of shares) this.cache.commit(job.step!, tokens, what, (elapsed * tokens.length) / size)
      for (const [{ job, seat, tokens }, at] of read) job.read(seat.place, tokens.length, (to) => this.context.logits(at + to))
      for (const share of shares)
        if ((share.drafted ?? 0) > 0) this.#verify(share, outputs.get(share)!)
        else if (this.#keep(share, watched)) this.#advance(share, outputs.get(share) ?? null)
      this.#measured(shares, size, performance.now() - begun)
      return
    }
    this.#stopped(shares, status, failure)
  }

  /** Updates the measured times with a decoded batch. */
  #measured(shares: readonly BatchShare[], rows: number, milliseconds: number): void {
    const streams = shares.filter(({ what }) => what === 'generated').length
    const drafted = shares.reduce((sum, share) => sum + (share.drafted ?? 0), 0)
    if (drafted === 0) this.#budget.took({ prompt: rows - streams, streams, milliseconds })
    if (streams === shares.length) this.#speculation.took(rows, drafted, milliseconds)
    else if (streams === 0) this.#speculation.times.tookPrompt(rows, milliseconds)
  }

  /**
   * Verifies the drafts of a share: samples row after row while the sampled token equals the drafted one. The sampler sees exactly the
   * tokens of the answer, so it draws what it would draw without drafts. Then the cells of the rejected drafts are removed.
   * @param first the batch index of the share's first row
   */
  #verify({ job, tokens, drafted = 0 }: BatchShare, first: number): void {
    const step = job.step!
    let accepted = 0
    let token = tokens[0]!
    let ended: ReturnType<Job['take']> = null
    let failure: { readonly error: unknown } | null = null
    try {
      while (!job.cancelled) {
        token = job.sampler.sample(this.context, first + accepted)
        ended = job.take(token, this.#logprob(job, token, first + accepted))
        if (ended !== null || accepted === drafted || token !== tokens[accepted + 1]) break
        accepted++
      }
    } catch (error) {
      failure = { error }
    }
    // The last accepted draft of a cancelled job is removed again: a job's last token counts as not submitted.
    if (job.cancelled && ended === null && failure === null && accepted > 0 && token === tokens[accepted]) accepted--
    this.cache.verified!(step, accepted, drafted - accepted)
    if (failure !== null) this.#fail(job, failure.error)
    else if (ended !== null) this.#end(job, ended)
    else job.phase = { name: 'decode', step, token }
  }

  #logprob({ asked: { logprobs } }: Job, token: number, output: number): TokenLogprob | null {
    if (logprobs === undefined) return null
    return tokenLogprob(this.context.logits(output), token, logprobs, (id) => this.model.piece(id, true))
  }

  /**
   * Handles a decode that failed or was aborted. Some ubatches may have entered the cache, so the records follow what llama.cpp reports.
   */
  #stopped(shares: readonly BatchShare[], status: Exclude<DecodeStatus, 'done'> | 'failed', failure: unknown): void {
    for (const { job, tokens, what, drafted = 0 } of shares) {
      const entered = this.cache.settle(job.step!, tokens, what)
      if (drafted > 0 && entered > 1) this.cache.verified?.(job.step!, 0, entered - 1)
    }
    if (status === 'failed') for (const job of this.#struck(shares)) this.#fail(job, failure)
    else if (status === 'no-room') this.#makeRoom([shares.at(-1)!.job])
    else for (const { job } of shares) invariant(job.cancelled, 'a decode was aborted, but its jobs were not cancelled')
  }

  /** Returns how many decodes may run in a row without checking for other work. Returns 1 if each batch needs the loop. */
  #ahead(shares: readonly BatchShare[]): number {
    const isSteady = shares.every(({ job, what, drafted = 0 }) => what === 'generated' && drafted === 0 && job.runsAhead)
    const { attention } = this.context
    if (!isSteady || shares.length === 0 || this.#news || attention !== null || this.options.decode !== undefined) return 1
    const { key } = shares[0]!.job.adapters
    const isOtherDue = this.#jobs.some(
      ({ phase, step, adapters }) => phase.name === 'prefill' || (step !== null && adapters.key !== key),
    )
    return isOtherDue || this.cache.moving === true
      ? 1
      : Math.min(LONGEST_RUN, Math.floor((this.cache.spare ?? 0) / shares.length))
  }

  /**
   * Decodes and samples several batches of streams in a row, without returning to the loop. Their tokens are recorded and streamed while
   * the next batches run. Everything else that uses the cache waits for the end of the run; `#tell` requests that end.
   */
  async #run(shares: readonly BatchShare[], steps: number): Promise<void> {
    this.#prepare(shares)
    this.#decoding = shares.map(({ job }) => job)
    const onStep = (milliseconds: number) => {
      this.#measured(shares, shares.length, milliseconds)
    }
    const hasDrafts = () => {
      const streams = this.#mayDraft(shares) ? draftingStreams(shares, this.#draftRoom) : null
      return streams !== null && this.#speculation.choose(streams, false) !== null
    }
    const ran = await runAhead(shares, steps, { context: this.context, cache: this.cache, onStep, hasDrafts })
    this.#decoding = []
    if (ran.status !== 'done') {
      this.#stopped(ran.shares, ran.status, ran.failure)
      for (const [job, error] of ran.errors) if (job.step !== null) this.#fail(job, error)
      return
    }
    for (const [at, { job }] of ran.shares.entries()) {
      if (ran.errors.has(job)) this.#fail(job, ran.errors.get(job))
      else if (!job.cancelled) this.#entered(job, ran.drawn[at]!, null)
    }
  }

  /** Returns the jobs that cannot continue after the decode of these shares failed. */
  #struck(shares: readonly BatchShare[]): readonly Job[] {
    if (shares.length === 1 || this.cache.distrust === undefined) return shares.map(({ job }) => job)
    this.cache.distrust()
    return this.#jobs.filter(({ step }) => step !== null)
  }

  /** Takes over the attention captured for the share. If that fails, fails the job and returns false. */
  #keep(share: BatchShare, watched: ReadonlyMap<BatchShare, Watched>): boolean {
    try {
      if (watched.has(share)) share.job.watch?.take()
      return true
    } catch (error) {
      this.#fail(share.job, error)
      return false
    }
  }

  /**
   * Advances a job whose tokens entered the cache: counts prompt tokens, and samples the next token from the logits at batch index
   * `output`.
   * @param output null if the share needs no logits
   */
  #advance(share: BatchShare, output: number | null): void {
    const { job } = share
    if (job.phase.name === 'prefill') {
      job.phase.done += share.tokens.length
      job.prefillTokens += share.tokens.length
      this.#computed += share.tokens.length
      try {
        job.request.listener?.onPrefill?.(job.phase.done, job.phase.total)
      } catch (error) {
        this.#fail(job, error)
        return
      }
    }
    if (output === null || job.cancelled) return
    if (job.asked.maxTokens === 0) {
      this.#end(job, 'length')
      return
    }
    try {
      const token = job.sampler.sample(this.context, output)
      this.#entered(job, token, this.#logprob(job, token, output))
    } catch (error) {
      this.#fail(job, error)
    }
  }

  /** Gives the job a sampled token. The job then continues or ends. */
  #entered(job: Job, token: number, logprob: TokenLogprob | null): void {
    const step = job.step!
    try {
      if (job.firstToken === null) {
        job.firstToken = performance.now()
        const { speculate, prompt } = job.request
        if (speculate !== undefined && job.watch === null && this.cache.verified !== undefined)
          job.drafter = this.#speculation.drafter(prompt, speculate, {
            conversation: job.asked.conversation,
            ...definedFields({ salt: job.request.salt }),
          })
      }
      const ended = job.take(token, logprob)
      if (ended === null) job.phase = { name: 'decode', step, token }
      else this.#end(job, ended)
    } catch (error) {
      this.#fail(job, error)
    }
  }

  /**
   * Makes room when no job can run for lack of cells. The youngest prompt that may wait gives up its cells. If no prompt may wait, the
   * youngest job ends for lack of room.
   */
  #makeRoom(starved: readonly Job[]): void {
    const last = starved.findLast((job) => this.#mayWait(job))
    if (last !== undefined) this.#putOff(last)
    else if (starved.length > 0) this.#noRoom(starved.at(-1)!)
  }

  /** Ends a job for which no cells are left. An answer keeps the tokens it has, and a prompt fails with context/full. */
  #noRoom(job: Job): void {
    if (job.phase.name === 'decode') {
      try {
        job.flush()
        this.#end(job, 'length')
      } catch (error) {
        this.#fail(job, error)
      }
      return
    }
    const { used, cells } = this.cache.totals
    this.#fail(
      job,
      new CellsBusy(
        `The rest of a prompt of ${job.request.prompt.tokens.length} tokens does not fit: running steps hold ${used} of ${cells} cells. ` +
          'Nothing was lost. Fold parts of the conversation, wait for the other steps, or load the model with a larger context.',
      ),
    )
  }

  /**
   * Whether the job is a prompt that can be started over: its caller has received nothing that depends on it. Other steps must be running.
   */
  #mayWait({ phase, asked: { kind = 'answer' }, step, watch }: Job): boolean {
    const hasOthers = this.#jobs.some((other) => other.step !== null && other.step !== step)
    return phase.name === 'prefill' && kind !== 'refresh' && watch === null && hasOthers
  }

  /** Cancels the prompt's step and queues the job again, so that other jobs get its cells. It is admitted again once it fits. */
  #putOff(job: Job): void {
    invariant(job.phase.name === 'prefill', 'only a prompt can be put off')
    const { step, total } = job.phase
    job.due -= total
    job.prefillTokens = 0
    // The next plan computes the whole prompt, so all of its log-probabilities are read again.
    job.promptLogprobs.length = 0
    job.phase = { name: 'queued' }
    job.putOff = { ended: this.#ended, at: job.putOff?.at ?? performance.now() }
    const { submitted, milliseconds } = this.cache.finish(step, 'cancelled', 0)
    job.lost = { tokens: job.lost.tokens + submitted, milliseconds: job.lost.milliseconds + milliseconds.prefill }
  }

  #end(job: Job, finish: JobResult['finish']): void {
    const { step } = job
    this.#remove(job)
    if (step === null) {
      job.reject(cancelledBeforeBegin())
      return
    }
    const now = performance.now()
    const pending = Math.max(0, job.sampled - step.generated)
    job.resolve({
      tokens: Int32Array.from(job.tokens),
      text: job.text,
      finish,
      ...(job.stop === null ? {} : { stop: job.stop }),
      ledger: withLost(
        this.cache.finish(step, finish === 'cancelled' ? 'cancelled' : 'done', pending, job.asked.last),
        job.lost,
        step.compared,
      ),
      timing: {
        firstToken: (job.firstToken ?? now) - job.started,
        total: now - job.started,
        prefillTokens: job.lost.tokens + job.prefillTokens,
        generatedTokens: job.tokens.length,
      },
      logprobs: job.logprobs,
      ...(job.endLogprob === null ? {} : { endLogprob: job.endLogprob }),
      ...(job.asked.promptLogprobs === undefined ? {} : { promptLogprobs: job.promptLogprobs }),
      ...(job.watch === null || finish === 'cancelled' ? {} : { attention: job.watch.pattern() }),
    })
    this.cache.check('positions')
  }

  #fail(job: Job, error: unknown): void {
    const { step } = job
    this.#remove(job)
    if (step !== null) this.cache.finish(step, 'cancelled', 0)
    job.reject(error)
  }

  #remove(job: Job): void {
    if (job.step !== null) this.#ended++
    const at = this.#jobs.indexOf(job)
    if (at >= 0) this.#jobs.splice(at, 1)
    job.phase = { name: 'ended' }
    if (job.drafter !== null) this.#speculation.ended(job.drafter)
    job.drafter = null
    job.dispose()
  }
}

/**
 * Adds what was computed for the step before it was put off to its entry, as side work.
 * @param compared whether `plain` was counted against an earlier prompt; otherwise it is all that was submitted
 */
function withLost(entry: LedgerEntry, { tokens, milliseconds }: Lost, compared: boolean): LedgerEntry {
  if (tokens === 0) return entry
  const { submitted, side, plain, milliseconds: times } = entry
  return {
    ...entry,
    submitted: submitted + tokens,
    side: side + tokens,
    ...(plain === undefined || compared ? {} : { plain: plain + tokens }),
    milliseconds: { ...times, prefill: times.prefill + milliseconds },
  }
}
