/** Finds the built-in model in the package. Its relative path is the same from `src` and from `dist`. */
import { fileURLToPath } from 'node:url'

/** The name of the built-in model for `--model`. */
export const BUILTIN = 'builtin'

/** Absolute path of the built-in GGUF. */
export const builtinModel = (): string =>
  fileURLToPath(new URL('../../../native-models/builtin/kvfold-tiny.gguf', import.meta.url))
