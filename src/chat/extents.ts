/** Divides a rendered prompt among its messages and the generation prompt. */
import type { Owner, Tracked } from './text/tracked.js'

/**
 * Where each message begins in the text, and where the generation prompt does (the last entry): `count + 1` characters, never
 * decreasing, the first 0. Text that belongs to nobody goes with what stands before it.
 */
export function messageStarts(text: Tracked, count: number): number[] {
  const starts: number[] = new Array<number>(count + 1).fill(text.length)
  let at = 0
  let prompt = text.length
  for (const { text: shown, origin, owner } of text.pieces) {
    const whose: Owner | null = owner ?? (typeof origin === 'string' || origin.field === 'tool' ? null : origin.message)
    if (whose === 'prompt') prompt = Math.min(prompt, at)
    else {
      prompt = text.length
      if (whose !== null && whose < count) starts[whose] = Math.min(starts[whose] ?? at, at)
    }
    at += shown.length
  }
  starts[count] = prompt
  for (let index = count - 1; index >= 0; index--) starts[index] = Math.min(starts[index] ?? 0, starts[index + 1] ?? 0)
  starts[0] = 0
  return starts
}
