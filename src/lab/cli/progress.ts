/** Prints the line that shows the progress of a long command, such as `kvfold eval`. */
import { duration, percent, plural } from '../../runtime/figures/numbers.js'
import type { Terminal } from '../../runtime/cli/terminal.js'

/** The milliseconds between two progress lines when the output is not a terminal, where the line could be redrawn. */
const EVERY = 10_000

export interface ProgressNews {
  /** The estimated milliseconds that the work still takes; null without an estimate. Default: a guess from the parts done so far. */
  readonly left?: number | null
  readonly errors?: number
  /** The name of the part that was done last, or that begins now. */
  readonly what?: string
}

/** Shows the progress of a command. In a terminal it redraws one line; elsewhere it prints a line now and then, or nothing if `quiet`. */
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
    // The first finished part gets a line at once, because it gives the first estimate.
    if (this.quiet || (now - this.#said < EVERY && worked !== 1 && done < total)) return
    this.#said = now
    this.notes.print(text)
  }
}
