/** Owns jobs that wait for the disk: what their steps need from it is read while other jobs go on. */
import type { ConversationId } from '../core/ids.js'
import type { StepCache } from '../kv/cache.js'
import type { ReadStates } from '../kv/offload.js'
import type { LiveSequence } from '../kv/sequence.js'
import { type Job, termsOf } from './job.js'

export class ReloadAhead {
  readonly #waiting = new Set<Job>()

  /**
   * @param news a job need not wait any longer
   * @param fail a job's reading failed
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

  /** Whether a job of the conversation waits; later ones of it stay behind. */
  holds(conversation: ConversationId): boolean {
    return [...this.#waiting].some((job) => isWaiting(job) && job.request.conversation === conversation)
  }

  /** Begins to read what the job needs from disk, once a job; false when that is nothing. */
  begin(job: Job, sequence: LiveSequence): boolean {
    const reading = job.fetched === null ? this.cache.fetch(sequence, job.request.shown, termsOf(job)) : null
    if (reading === null) return false
    job.phase = { name: 'fetching' }
    this.#waiting.add(job)
    void reading
      .then(
        (fetched: ReadStates) => {
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

/** Not any more when it was cancelled meanwhile. */
const isWaiting = ({ phase }: Job): boolean => phase.name === 'fetching'
