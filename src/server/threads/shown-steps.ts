/** Owns what a thread's answers were shown since its cells were last exact: enough to show it again, trace of hidden text and all. */
import type { ShownPrompt } from '../../attention/answer-mass.js'

/** Prompts kept; an older beginning is forgotten. */
const MOST = 256

/** Of this process only: what a store brings back has no steps. */
export class ShownSteps {
  #steps: ShownPrompt[] = []
  /** Whether the first of them was exact, so that nothing before it matters. */
  #isWhole = false

  /** The answer to this prompt is there. `isExact`: its cells are what a fresh prefill makes. */
  note(prompt: ShownPrompt, isExact: boolean): void {
    if (isExact) {
      this.#steps = []
      this.#isWhole = true
    }
    this.#steps.push(prompt)
    if (this.#steps.length > MOST) {
      this.#steps.shift()
      this.#isWhole = false
    }
  }

  /** Up to the prompt whose answer is this message, those that only went on left out; null where that is not known. */
  upTo(answer: number): readonly ShownPrompt[] | null {
    const at = this.#steps.findIndex(({ messages }) => messages === answer)
    if (!this.#isWhole || at < 0) return null
    const steps = this.#steps.slice(0, at + 1)
    return steps.filter((step, index) => !isSame(step, steps[index + 1]))
  }
}

const isSame = (a: ShownPrompt, b: ShownPrompt | undefined): boolean =>
  b !== undefined && a.contract === b.contract && JSON.stringify(a.edits) === JSON.stringify(b.edits)
