/** Owns how the model's Markdown becomes part of the page: no HTML of its own, no pictures, no scripts, links that lead away safely. */
import DOMPurify from 'dompurify'
import { Marked } from 'marked'
import { useMemo } from 'preact/hooks'

const escaped = (text: string): string => text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0) ?? 0};`)

/** HTML within Markdown is shown as the text that it is. */
const marked = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => escaped(`${text} (${href})`),
    code: ({ text, lang = '' }) =>
      `<figure class="code"><figcaption>${escaped(lang.split(/\s/)[0] ?? '')}<button type="button" class="quiet">Copy code</button></figcaption>` +
      `<pre tabindex="0"><code>${escaped(text)}</code></pre></figure>`,
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
    ...['pre', 'figure', 'figcaption', 'button', 'table', 'thead', 'tbody', 'tr', 'th', 'td'],
  ],
  ALLOWED_ATTR: ['href', 'title', 'class', 'type', 'start', 'align', 'tabindex'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
}

/** What is written so far may end anywhere. */
export function Markdown({ text }: { readonly text: string }) {
  const html = useMemo(() => purify.sanitize(marked.parse(text, { async: false }), ALLOWED), [text])
  return <div class="markdown" onClick={copyCode} dangerouslySetInnerHTML={{ __html: html }} />
}

function copyCode({ target }: MouseEvent): void {
  if (!(target instanceof HTMLButtonElement)) return
  void copyText(target.closest('.code')?.querySelector('code')?.textContent ?? '').then((isCopied) => {
    target.textContent = isCopied ? 'Copied' : 'Not allowed'
  })
}

/** False: the browser does not let pages copy, as it does over plain HTTP from other machines. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return false
  }
}
