/** Paced drawing, for content that changes faster than a page can render, such as the answer of a fast model. */

/** Limits for the pause between two drawings, in milliseconds: at least a frame of an ordinary screen. */
const PAUSE = { least: 16, most: 1000 }

/** Draws at most once per frame. After each drawing, the page has at least as much time for the user's clicks as the drawing took. */
export class PacedDrawing {
  #isWanted = false
  #isRunning = false

  /** @param painted waits until the browser has painted the drawing */
  constructor(
    private readonly draw: () => void,
    private readonly painted: () => Promise<void>,
  ) {}

  /** Draws as soon as the pause after the last drawing is over. */
  soon(): void {
    this.#isWanted = true
    if (!this.#isRunning) void this.#run()
  }

  /** Draws at once. A drawing that waits for the pause is dropped. */
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
      // While the page is hidden, painting may take minutes.
      const took = Math.min(PAUSE.most, performance.now() - began)
      await new Promise((resolve) => setTimeout(resolve, Math.max(PAUSE.least, took)))
    }
    this.#isRunning = false
  }
}
