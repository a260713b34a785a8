/** Owns the search for stop strings in streamed text, holding back what may still become one. */

export class StopStrings {
  #held = ''

  /** Empty strings are ignored. */
  constructor(private readonly stops: readonly string[]) {
    this.stops = stops.filter((stop) => stop !== '')
  }

  /** Text that may be shown now; `stop` is the stop string that was completed (it and what follows are swallowed), null while there is none. */
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

  /** What was held back, at the end of generation. */
  finish(): string {
    const rest = this.#held
    this.#held = ''
    return rest
  }
}

/** Length of the longest proper beginning of `stop` that `text` ends with. */
function overlap(text: string, stop: string): number {
  for (let size = Math.min(text.length, stop.length - 1); size > 0; size--) if (text.endsWith(stop.slice(0, size))) return size
  return 0
}
