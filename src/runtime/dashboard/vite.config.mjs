/** Builds the dashboard into files that the server sends: `vite build src/runtime/dashboard`. */
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vite'

const at = (path) => fileURLToPath(new URL(path, import.meta.url))

/** Bundled libraries keep their licences beside them. */
const licences = {
  name: 'licences',
  generateBundle() {
    const source = ['preact', 'marked', 'dompurify', 'eventsource-parser', 'highlight.js']
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
    // Every asset becomes a file of its own, because the page allows no inline script, style or image.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
})
