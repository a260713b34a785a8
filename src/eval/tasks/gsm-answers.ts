/** Owns reading answers to GSM-Infinite: a number as its authors' program reads it, or the variables that are named at the end. */

/** What an answer may stand behind and in front of; tried in this order. `is ` and boxes count from their last occurrence. */
const frames: readonly { readonly before: string; readonly after: string | null; readonly last?: true }[] = [
  { before: 'answer: ', after: '.' },
  { before: 'solution: ', after: '.' },
  { before: 'oxed{', after: '}', last: true },
  { before: '**answer:** ', after: '.' },
  { before: '**answer: ', after: '**' },
  { before: 'final answer: answer: ', after: '.' },
  { before: '\nanswer: ', after: '.' },
  { before: '\\text{answer: } ', after: null },
  { before: 'is ', after: '.', last: true },
  { before: 'answer: ', after: '\n' },
]

/** The integer in the first frame that holds one; null when none does. Source: criteriaoutput in gsm-infinite/pred/eval_realistic.py. */
export function finalInteger(answer: string): number | null {
  // A backspace and what it deletes: a box that was not escaped.
  const text = answer.replace(/[^\n]\x08/gu, 'b').toLowerCase() // eslint-disable-line no-control-regex
  for (const { before, after, last } of frames) {
    const at = last === true ? text.lastIndexOf(before) : text.indexOf(before)
    if (at < 0) continue
    const start = at + before.length
    const stop = after === null ? start + (/^\d*/u.exec(text.slice(start))?.[0].length ?? 0) : text.indexOf(after, start)
    const number = integer(text.slice(start, stop < 0 ? text.length : stop))
    if (number !== null) return number
  }
  return null
}

/** As Python's int() takes it. */
function integer(text: string): number | null {
  const digits = /^\s*([+-]?\d+(?:_\d+)*)\s*$/u.exec(text)?.[1]
  return digits === undefined ? null : Number(digits.replaceAll('_', ''))
}

/**
 * The variables (V and a number) of the last sentence that names one, or none when a later one says there are none; null when the
 * answer says neither. What a model thought before `</think>` does not count.
 */
export function finalVariables(answer: string): ReadonlySet<string> | null {
  const said = (answer.split('</think>').at(-1) ?? '').replace(/[*$\\`]/gu, '')
  const sentences = said.split(/(?<=[.!?])\s+|\n+/u).reverse()
  for (const sentence of sentences) {
    const names = sentence.replace(/_\{?(\d+)\}?/gu, '$1').match(/\bV\d+\b/gu)
    if (names !== null) return new Set(names)
    if (/\b(?:none|no variables?|nothing)\b/iu.test(sentence)) return new Set()
  }
  return null
}
