/** The line that shows the progress of a run of the laboratory. */
import { duration, percent, plural } from '../../runtime/figures/numbers.js'
import type { Terminal } from '../../runtime/cli/terminal.js'

/** Milliseconds between progress lines when the output cannot be redrawn. */
const EVERY = 10_000

export interface ProgressNews {
  /** Estimated milliseconds until all is done; null before there is an estimate. Default: as long for each part as so far. */
  readonly left?: number | null
  readonly errors?: number
  /** What was done last, or what begins. */
  readonly what?: string
}

/** Shows the progress: redrawn in a terminal, a line now and then elsewhere, nothing when `quiet`. */
export class ProgressLine {
  #said = -Infinity
  #begun: { readonly at: number; readonly done: number } | null = null

  constructor(
    private readonly notes: Terminal,
    private readonly quiet: boolean,
    private readonly clock: () => number = () => performance.now(),
  ) {}

  say(done: number, total: number, { left, errors = 0, what = '' }: ProgressNews = {}): void {
    const now = this.clock()
    this.#begun ??= { at: now, done }
    const worked = done - this.#begun.done
    const guess = worked === 0 ? null : ((now - this.#begun.at) / worked) * (total - done)
    const rest = left === undefined ? guess : left
    const time = rest === null || done === total ? '' : `, about ${duration(rest)} left`
    const failed = errors === 0 ? '' : `, ${plural(errors, 'error')}`
    const text = `${done} of ${total} (${percent(total === 0 ? 1 : done / total, 0)})${time}${failed}${what === '' ? '' : `: ${what}`}`
    if (this.notes.live) {
      this.notes.frame([text])
      return
    }
    // Print a line for the first finished part at once, because it gives the first estimate.
    if (this.quiet || (now - this.#said < EVERY && worked !== 1 && done < total)) return
    this.#said = now
    this.notes.print(text)
  }
}
