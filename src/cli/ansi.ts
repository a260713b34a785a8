/** Owns what colour codes do to the length of a text: measuring and cutting as the terminal shows it. */

// eslint-disable-next-line no-control-regex -- escape sequences begin with a control character
const SEQUENCE = /\u001b\[[0-9;?]*[A-Za-z]/y
const RESET = '\u001b[0m'

/** Characters a terminal shows: escape sequences do not count, a surrogate pair is one. Wide characters are not known. */
export function visibleLength(text: string): number {
  let length = 0
  for (const _piece of pieces(text)) if (!_piece.escape) length++
  return length
}

/** The text cut to `width` shown characters; what was cut off is marked by `…` in the last place, colours are closed. */
export function fit(text: string, width: number): string {
  if (visibleLength(text) <= width) return text
  if (width <= 0) return ''
  let kept = ''
  let length = 0
  let coloured = false
  for (const piece of pieces(text)) {
    if (piece.escape) coloured = true
    else if (++length > width - 1) break
    kept += piece.text
  }
  return `${kept}…${coloured ? RESET : ''}`
}

/** Words of the text on lines of at most `width` shown characters; a longer word gets a line of its own. Blanks between words become one. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = []
  for (const word of text.split(/ +/)) {
    const last = lines.at(-1)
    if (last !== undefined && visibleLength(last) + 1 + visibleLength(word) <= width) lines[lines.length - 1] = `${last} ${word}`
    else lines.push(word)
  }
  return lines
}

/**
 * Text of unknown origin made fit for a terminal: control characters, escape included, become visible symbols, so that a model's answer
 * cannot move the cursor or recolour the screen. Newlines and tabs stay.
 */
export const printable = (text: string): string =>
  // eslint-disable-next-line no-control-regex -- these are what it is about
  text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, (character) => {
    const code = character.charCodeAt(0)
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? '\u2421' : '\ufffd'
  })

function* pieces(text: string): Generator<{ readonly text: string; readonly escape: boolean }> {
  for (let at = 0; at < text.length;) {
    SEQUENCE.lastIndex = at
    const escape = SEQUENCE.exec(text)
    const piece = escape?.[0] ?? String.fromCodePoint(text.codePointAt(at)!)
    yield { text: piece, escape: escape !== null }
    at += piece.length
  }
}
