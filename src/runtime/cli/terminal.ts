/** Owns the output device: its width, whether it shows colour and can be redrawn, how long a coloured text is on it, and the region at its end that is redrawn in place. */
import pc from 'picocolors'

export type Colours = ReturnType<typeof pc.createColors>

/** What a terminal needs to be; process.stdout and process.stderr are. */
export interface Output {
  readonly isTTY?: boolean
  readonly columns?: number
  write(text: string): unknown
}

const HIDE_CURSOR = '\u001b[?25l'
const SHOW_CURSOR = '\u001b[?25h'
const CLEAR_BELOW = '\u001b[0J'
/** Width assumed where nobody says. */
const COLUMNS = 80
/** Frames closer together than this are dropped, except where one says it must be shown. */
const FRAME_MILLISECONDS = 50

/**
 * One output stream. Without a terminal behind it nothing but plain text is written: no colour, no cursor movement, no frames.
 * NO_COLOR takes the colours; TERM=dumb takes redrawing too; a locale without UTF-8 takes glyphs beyond ASCII.
 */
export class Terminal {
  readonly colours: Colours
  readonly live: boolean
  readonly unicode: boolean
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

  /** Characters in a line, never less than 20. */
  get columns(): number {
    return Math.max(20, this.output.columns ?? COLUMNS)
  }

  /** Writes text as it is; lines of the live region must have been closed before. */
  write(text: string): void {
    this.output.write(text)
  }

  /** Writes a line that stays, above the live region if there is one. */
  print(line = ''): void {
    this.output.write(this.#erased() + line + '\n')
  }

  /** Prints prose, broken between words where a terminal would break it anywhere. */
  prose(text: string, paint: (line: string) => string = (line) => line): void {
    for (const line of this.live ? wrap(text, this.columns - 1) : [text]) this.print(paint(line))
  }

  /**
   * Draws `lines` in place of the last frame (terminals only). `force` draws even when the last frame was just now. Lines are cut to the
   * width: a wrapped one would throw off the count of lines to go back.
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
    // The last column stays free: some terminals wrap when it is written.
    for (const line of lines) text += fit(line, this.columns - 1) + '\n'
    this.output.write(text)
    this.#frame = lines.length
  }

  /** Takes the live region away and gives the cursor back. */
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

/** Whether the locale writes UTF-8; macOS always does. */
function utf8(environment: NodeJS.ProcessEnv): boolean {
  const locale = [environment['LC_ALL'], environment['LC_CTYPE'], environment['LANG']].find(
    (value) => value !== undefined && value !== '',
  )
  return process.platform === 'darwin' || /utf-?8/i.test(locale ?? '')
}

// What colour codes do to the length of a text: measuring and cutting as the terminal shows it.

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
