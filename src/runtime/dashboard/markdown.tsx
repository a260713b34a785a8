/** Shows a model's Markdown safely: HTML in it is shown as text, there are no images or scripts, and links open in a new tab. */
import DOMPurify from 'dompurify'
import { Marked } from 'marked'
import { useEffect, useMemo, useState } from 'preact/hooks'

/** Returns code as HTML with CSS classes for highlighting; null when the language is unknown. */
type Colours = (code: string, language: string) => string | null

/** Longer code is not highlighted, in characters: an answer is rendered again with each token. */
const LONGEST_COLOURED = 20_000

let colours: Colours | null = null

/** Loads the highlighter once a page shows code. */
async function loadColours(): Promise<void> {
  const { default: highlighter } = await import('highlight.js/lib/common')
  colours = (code, language) =>
    highlighter.getLanguage(language) === undefined ? null : highlighter.highlight(code, { language, ignoreIllegals: true }).value
}

const escaped = (text: string): string => text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0) ?? 0};`)

/** HTML within Markdown is shown as plain text. */
const marked = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => escaped(`${text} (${href})`),
    code: ({ text, lang = '' }) => {
      const language = lang.split(/\s/)[0] ?? ''
      const coloured = text.length > LONGEST_COLOURED ? null : colours?.(text, language)
      return (
        `<figure class="code"><figcaption>${escaped(language)}<button type="button" class="quiet">Copy code</button></figcaption>` +
        `<pre tabindex="0"><code>${coloured ?? escaped(text)}</code></pre></figure>`
      )
    },
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
  },
})

const purify = DOMPurify()
purify.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName !== 'A') return
  node.setAttribute('rel', 'noopener noreferrer')
  node.setAttribute('target', '_blank')
})

const ALLOWED = {
  ALLOWED_TAGS: [
    ...['p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'a', 'em', 'strong', 'del', 'code'],
    ...['pre', 'figure', 'figcaption', 'button', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'span'],
  ],
  ALLOWED_ATTR: ['href', 'title', 'class', 'type', 'start', 'align', 'tabindex'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
}

/** Shows Markdown. The text may break off anywhere. */
export function Markdown({ text }: { readonly text: string }) {
  const [hasColours, setHasColours] = useState(colours !== null)
  const hasCode = text.includes('```') || text.includes('~~~')
  useEffect(() => {
    if (!hasCode || hasColours) return
    loadColours().then(
      () => {
        setHasColours(true)
      },
      // Without its file, the highlighter is not used and code has no colours.
      () => undefined,
    )
  }, [hasCode, hasColours])
  const html = useMemo(() => purify.sanitize(marked.parse(text, { async: false }), ALLOWED), [text, hasColours])
  return <div class="markdown" onClick={copyCode} dangerouslySetInnerHTML={{ __html: html }} />
}

function copyCode({ target }: MouseEvent): void {
  if (!(target instanceof HTMLButtonElement)) return
  void copyText(target.closest('.code')?.querySelector('code')?.textContent ?? '').then((isCopied) => {
    target.textContent = isCopied ? 'Copied' : 'Not allowed'
  })
}

/** Copies text to the clipboard. Returns false when the browser does not allow it, for example over plain HTTP from another machine. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return false
  }
}
