/** Finds the built-in model and adapter in the package. The relative paths are the same from `src` and from `dist`. */
import { fileURLToPath } from 'node:url'

/** The name of the built-in model for `--model`. */
export const BUILTIN = 'builtin'

/** The `--lora` name of the adapter that teaches Qwen2.5-Coder 0.5B Instruct the context tools (native-models/acm). */
export const ACM = 'acm'

const packaged = (path: string): string => fileURLToPath(new URL(`../../../native-models/${path}`, import.meta.url))

export const builtinModel = (): string => packaged('builtin/kvfold-tiny.gguf')

export const acmAdapter = (): string => packaged('acm/acm.gguf')
