/** Predicts the effects of steps: runs them through the real planner and the real cell table without computing anything. */
import { KvfoldError } from '../core/errors.js'
import { conversationId } from '../core/ids.js'
import { KvCache } from './cache.js'
import { type Prospect, prospectOf } from './forecast.js'
import type { KvMemory, MemoryCell } from './ports.js'
import type { StepContract } from './plan/parts.js'
import type { Prompt } from './prompt.js'

/** One step of a dry run: its prompt, and the contract and terms that it asks for. */
export interface DryRunStep {
  readonly prompt: Prompt
  readonly terms: StepContract
}

export interface DryRunOptions {
  /** Number of cells of the context. */
  readonly cells: number
  readonly sequences: number
  /** Positions the model was trained on. Default: no limit. */
  readonly positions?: number
  /** Whether the model's keys can be turned to other positions. Default: true. */
  readonly shift?: boolean
}

/**
 * Returns the predicted effects of a conversation's steps, one after another, on a cache that is empty at first. No tokens are generated.
 * @throws KvfoldError context/full when a step has no room
 */
export function dryRun(steps: readonly DryRunStep[], { cells, sequences, positions, shift = true }: DryRunOptions): Prospect[] {
  const cache = new KvCache(new DryRunMemory(cells, sequences, shift), positions === undefined ? {} : { positions })
  return steps.map(({ prompt, terms }) => {
    const opened = cache.open(conversationId('rehearsal'))
    if (opened.kind === 'full') throw new KvfoldError('context/full', opened.reason)
    const { sequence } = opened
    const { held } = sequence
    const plan = cache.plan(sequence, prompt, terms)
    const step = cache.begin(sequence, plan, 'answer')
    const before = cache.totals.used
    for (;;) {
      const chunk = cache.next(step, prompt.tokens.length)
      if (chunk === null) break
      if (cache.reserve(chunk.tokens.length).kind === 'full')
        throw new KvfoldError('context/full', `${prompt.tokens.length} tokens do not fit into the ${cells} cells of the context.`)
      cache.commit(step, chunk.tokens, 'prompt', 0)
    }
    cache.finish(step, 'done', 0)
    return prospectOf(plan, held, { before, after: cache.totals.used })
  })
}

// A memory without content, for dry runs. KvCache itself records all cells.

/** Accepts every call and stores nothing. A saved state is empty, and nothing can be read back. */
export class DryRunMemory implements KvMemory {
  constructor(
    readonly cells: number,
    readonly sequences: number,
    readonly canShift = true,
  ) {}

  tag(): void {
    // There is nothing to tag.
  }

  untag(): void {
    // There is nothing to untag.
  }

  shift(): void {
    // There is nothing to shift.
  }

  positions(): null {
    return null
  }

  saveSequence(): Uint8Array {
    return new Uint8Array()
  }

  loadSequence(): boolean {
    return true
  }

  copyOut(): Promise<Uint8Array> {
    return Promise.resolve(this.saveSequence())
  }

  copyIn(): Promise<boolean> {
    return Promise.resolve(this.loadSequence())
  }

  readback(): readonly MemoryCell[] {
    return []
  }
}
