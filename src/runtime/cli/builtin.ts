/** Finds what the package brings along: the built-in model and an adapter. Relative paths are the same from `src` and from `dist`. */
import { fileURLToPath } from 'node:url'

/** The name of the built-in model for `--model`. */
export const BUILTIN = 'builtin'

/** The name for `--lora` of the adapter that teaches Qwen2.5-Coder 0.5B Instruct the context tools (native-models/acm). */
export const ACM = 'acm'

const packaged = (path: string): string => fileURLToPath(new URL(`../../../native-models/${path}`, import.meta.url))

/** Absolute path of the built-in GGUF. */
export const builtinModel = (): string => packaged('builtin/kvfold-tiny.gguf')

/** Absolute path of the adapter `acm`. */
export const acmAdapter = (): string => packaged('acm/acm.gguf')
