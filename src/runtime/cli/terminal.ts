/** A terminal: its width, colours, a live region at its end that is redrawn in place, and the visible length of coloured text. */
import pc from 'picocolors'

export type Colours = ReturnType<typeof pc.createColors>

/** The stream behind a terminal, such as process.stdout. */
export interface Output {
  readonly isTTY?: boolean
  readonly columns?: number
  write(text: string, written?: () => void): unknown
}

const HIDE_CURSOR = '\u001b[?25l'
const SHOW_CURSOR = '\u001b[?25h'
const CLEAR_BELOW = '\u001b[0J'
/** The width to assume when the stream reports none. */
const COLUMNS = 80
/** A frame is skipped when it comes fewer milliseconds than this after the last one, unless it is forced. */
const FRAME_MILLISECONDS = 50

/**
 * An output stream. If it is no terminal, it gets plain text: no colours, no cursor movement, no frames. NO_COLOR turns colours off.
 * TERM=dumb turns redrawing off, too. In a locale without UTF-8, glyphs beyond ASCII are not used.
 */
export class Terminal {
  readonly colours: Colours
  readonly live: boolean
  readonly unicode: boolean
  /** Whether the program goes on when nothing reads this stream any more. */
  isOptional = false
  #frame = 0
  #drawn = 0
  #hidden = false
  readonly #restore = (): void => {
    if (this.#hidden) this.output.write(SHOW_CURSOR)
    this.#hidden = false
  }

  constructor(
    private readonly output: Output,
    environment: NodeJS.ProcessEnv = process.env,
    private readonly clock: () => number = () => performance.now(),
  ) {
    this.live = output.isTTY === true && environment['TERM'] !== 'dumb'
    const { NO_COLOR } = environment
    this.colours = pc.createColors(this.live && (NO_COLOR === undefined || NO_COLOR === ''))
    this.unicode = output.isTTY !== true || utf8(environment)
  }

  /** The character for the line below the header of a table. */
  get rule(): string {
    return this.unicode ? '─' : '-'
  }

  /** The number of characters in a line, at least 20. */
  get columns(): number {
    return Math.max(20, this.output.columns ?? COLUMNS)
  }

  /** Writes text unchanged. Close the live region first. */
  write(text: string): void {
    this.output.write(text)
  }

  /** Writes a line that stays, above the live region if there is one. Returns false while the stream's reader is behind. */
  print(line = ''): boolean {
    return this.output.write(this.#erased() + line + '\n') !== false
  }

  /** Waits until the reader has got all that was written, or is gone. */
  flushed(): Promise<void> {
    return new Promise((resolve) => {
      this.output.write('', resolve)
    })
  }

  /** Prints prose. On a terminal, wraps it between words. */
  prose(text: string, paint: (line: string) => string = (line) => line): void {
    for (const line of this.live ? wrap(text, this.columns - 1) : [text]) this.print(paint(line))
  }

  /**
   * Draws `lines` in place of the last frame, on terminals only. `force`: draw even if the last frame was drawn just before. Lines are cut
   * to the width: if one wrapped, the cursor would later move up too few lines.
   */
  frame(lines: readonly string[], force = false): void {
    if (!this.live) return
    const now = this.clock()
    if (!force && now - this.#drawn < FRAME_MILLISECONDS) return
    this.#drawn = now
    let text = this.#erased()
    if (!this.#hidden) {
      text = HIDE_CURSOR + text
      this.#hidden = true
      process.once('exit', this.#restore)
    }
    // Leave the last column free. Some terminals wrap when it is written.
    for (const line of lines) text += fit(line, this.columns - 1) + '\n'
    this.output.write(text)
    this.#frame = lines.length
  }

  /** Removes the live region, and shows the cursor again. */
  close(): void {
    const erased = this.#erased()
    if (erased !== '') this.output.write(erased)
    this.#restore()
    process.off('exit', this.#restore)
  }

  #erased(): string {
    if (this.#frame === 0) return ''
    const up = this.#frame
    this.#frame = 0
    return `\u001b[${up}A\r${CLEAR_BELOW}`
  }
}

/** Whether the locale uses UTF-8. On macOS it always does. */
function utf8(environment: NodeJS.ProcessEnv): boolean {
  const locale = [environment['LC_ALL'], environment['LC_CTYPE'], environment['LANG']].find(
    (value) => value !== undefined && value !== '',
  )
  return process.platform === 'darwin' || /utf-?8/i.test(locale ?? '')
}

// The visible length of text with colour codes.

// eslint-disable-next-line no-control-regex -- escape sequences begin with a control character
const SEQUENCE = /\u001b\[[0-9;?]*[A-Za-z]/y
const RESET = '\u001b[0m'

/**
 * Counts the characters that a terminal shows. Escape sequences do not count; a surrogate pair counts as one, and so does a wide character.
 */
export function visibleLength(text: string): number {
  let length = 0
  for (const _piece of pieces(text)) if (!_piece.escape) length++
  return length
}

/** Cuts text to `width` visible characters. A cut text ends with `…` and resets the colours. */
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

/** Wraps text into lines of at most `width` visible characters. A longer word gets a line of its own. Several spaces become one. */
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
 * Makes text from outside safe for a terminal. Control characters, escape included, become visible symbols, so that a model's answer cannot
 * move the cursor or change colours. Newlines and tabs stay.
 */
export const printable = (text: string): string =>
  // eslint-disable-next-line no-control-regex -- this function replaces control characters
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
