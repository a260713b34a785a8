/** Reads facts from kvfold's package.json. Its relative path is the same from `src` and from `dist`. */
import { readFileSync } from 'node:fs'

export const packageFacts = (): { readonly version: string; readonly description: string } =>
  JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as ReturnType<typeof packageFacts>
