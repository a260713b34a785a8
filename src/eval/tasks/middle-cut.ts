/** Owns making a text fit by leaving out its middle, as authors of long-context tasks do. */

/** The first and the last half of so many characters (UTF-16 units; no pair is torn); the text itself when it fits. */
export function middleCut(text: string, characters: number): string {
  if (text.length <= characters) return text
  const head = Math.floor(characters / 2)
  const tail = text.length - (characters - head)
  return text.slice(0, torn(text, head) ? head - 1 : head) + text.slice(torn(text, tail) ? tail + 1 : tail)
}

/** Whether a border would part the two units of one character. */
const torn = (text: string, at: number): boolean =>
  /^[\ud800-\udbff][\udc00-\udfff]$/.test(text.slice(Math.max(0, at - 1), at + 1))
