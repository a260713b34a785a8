/** How the dashboard becomes files that the server sends: `vite build src/runtime/dashboard`. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vite'

const at = (path) => fileURLToPath(new URL(path, import.meta.url))

/** What is bundled keeps its licence beside it. */
const licences = {
  name: 'licences',
  generateBundle() {
    const source = ['preact', 'marked', 'dompurify', 'eventsource-parser']
      .map((name) => `${name}\n\n${readFileSync(at(`../../../node_modules/${name}/LICENSE`), 'utf8')}`)
      .join('\n\n')
    this.emitFile({ type: 'asset', fileName: 'assets/licences.txt', source })
  },
}

export default defineConfig({
  root: at('.'),
  base: '/dashboard/',
  plugins: [licences],
  build: {
    outDir: at('../../../dist/dashboard'),
    emptyOutDir: true,
    target: 'es2022',
    // Everything comes as a file of its own: the page allows no inline script, style or image.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
})
