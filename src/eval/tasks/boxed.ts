/** Owns reading an answer in a box, as NeedleBench's authors read it. */

/**
 * What the last `\boxed{...}` of an answer holds, without LaTeX, quotes and escapes; null when there is no box, it is not closed,
 * or it holds nothing. Source: extract_boxed_answer and clean_atc_answer of opencompass.
 */
export function boxed(answer: string): string | null {
  const start = answer.lastIndexOf('\\boxed')
  const open = '\\boxed{'
  if (start < 0 || !answer.startsWith(open, start)) return null
  const end = closing(answer, start)
  if (end === null) return null
  const content = answer.slice(start + open.length, end)
  const inner = /^\{(.*)\}\n?$/u.exec(content)?.[1] ?? content
  return inner === '' ? null : clean(inner).trim()
}

/** Where the first brace after `from` is closed. */
function closing(text: string, from: number): number | null {
  let depth = 0
  for (let at = from; at < text.length; at++) {
    if (text[at] === '{') depth++
    if (text[at] === '}' && --depth === 0) return at
  }
  return null
}

const clean = (text: string): string =>
  text
    .replace(/\\text\{([^}]+)\}/gu, '$1')
    .replace(/\\boxed\{([^}]+)\}/gu, '$1')
    .replace(/\\[[\]]/gu, '')
    .replaceAll('\\', '')
    .replace(/\s+/gu, ' ')
    .trim()
    .replace(/["']/gu, '')
    .replaceAll('~', ' ')
