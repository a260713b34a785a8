/** Owns where the built-in model lies: in the package, two folders above this file in `src` and in `dist` alike. */
import { fileURLToPath } from 'node:url'

/** What `--model` calls it. */
export const BUILTIN = 'builtin'

/** Absolute path of the built-in GGUF. */
export const builtinModel = (): string =>
  fileURLToPath(new URL('../../../native-models/builtin/kvfold-tiny.gguf', import.meta.url))
