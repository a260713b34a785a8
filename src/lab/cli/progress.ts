/** The progress line of a long command, such as `kvfold eval`. */
import { duration, percent, plural } from '../../runtime/figures/numbers.js'
import type { Terminal } from '../../runtime/cli/terminal.js'

/** Milliseconds between two progress lines if the output is not a terminal, where a line could be redrawn. */
const EVERY = 10_000

export interface ProgressNews {
  /** Estimated milliseconds that the work still takes; null: unknown. Default: an estimate from the time for the parts done so far. */
  readonly left?: number | null
  readonly errors?: number
  /** The name of the part that was done last, or that begins. */
  readonly what?: string
}

/** Shows a command's progress. In a terminal it redraws one line. Elsewhere it prints a line from time to time, or nothing if `quiet`. */
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
    // Print a line at once after the first finished part, because it gives the first estimate.
    if (this.quiet || (now - this.#said < EVERY && worked !== 1 && done < total)) return
    this.#said = now
    this.notes.print(text)
  }
}
