/** Draws what changes faster than a page can draw it, as the answer of a fast model does. */

/** The pauses between two drawings, in milliseconds: at least a frame of a usual screen. */
const PAUSE = { least: 16, most: 1000 }

/** Draws at most once a frame. After each drawing, the user's clicks get at least as much time as the drawing took. */
export class PacedDrawing {
  #isWanted = false
  #isRunning = false

  /** @param painted waits until the browser has painted what was drawn */
  constructor(
    private readonly draw: () => void,
    private readonly painted: () => Promise<void>,
  ) {}

  /** Draws as soon as the last drawing leaves time for it. */
  soon(): void {
    this.#isWanted = true
    if (!this.#isRunning) void this.#run()
  }

  /** Draws at once. A drawing that waited is dropped. */
  now(): void {
    this.#isWanted = false
    this.draw()
  }

  async #run(): Promise<void> {
    this.#isRunning = true
    while (this.#isWanted) {
      const began = performance.now()
      this.now()
      await this.painted()
      // A hidden page may be painted minutes later.
      const took = Math.min(PAUSE.most, performance.now() - began)
      await new Promise((resolve) => setTimeout(resolve, Math.max(PAUSE.least, took)))
    }
    this.#isRunning = false
  }
}
