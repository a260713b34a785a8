/** The sampling of a served model for requests that set none: the model file's recommendation, else llama-server's defaults. */
import { definedFields } from '../core/json.js'
import type { Sampling } from './engine.js'

/** llama-server's defaults. Samplers that they do not name are off. */
export const LLAMA_SERVER_SAMPLING = { temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05 } as const satisfies Sampling

/** The most tokens that a penalty may count. */
const MOST_PENALISED = 2 ** 20
/** llama.cpp's defaults of mirostat, for files that name only the version. */
const MIROSTAT = { tau: 5, eta: 0.1 }

/** The samplers that a file's `general.sampling.sequence` may name, each with the fields that turn it off. */
const SAMPLERS: readonly (readonly [names: readonly string[], off: Sampling])[] = [
  [['temperature', 'temp'], { temperature: 1 }],
  [['topk'], { topK: 0 }],
  [['topp', 'nucleus'], { topP: 1 }],
  [['minp'], { minP: 0 }],
  [['penalties'], { repeatPenalty: 1 }],
]

/**
 * Returns the sampling that a GGUF's metadata recommends (`general.sampling.*`), over llama-server's defaults. Numbers are read as
 * llama.cpp reads them, and clamped to the sampler's range. Of a sampler sequence only the names count; the order stays llama.cpp's own.
 * `xtc_*` is ignored.
 * @param context tokens of the context; a penalty over the last -1 tokens covers them all
 */
export function samplingDefaultsOf(metadata: Readonly<Record<string, string>>, context: number): Sampling {
  const number = (name: string, least: number, most: number): number | undefined => {
    const value = Number.parseFloat(metadata[`general.sampling.${name}`] ?? '')
    return Number.isNaN(value) ? undefined : Math.min(most, Math.max(least, value))
  }
  const whole = (name: string, least: number, most: number): number | undefined => {
    const value = number(name, least, most)
    return value === undefined ? undefined : Math.trunc(value)
  }
  const penaltyLastN = whole('penalty_last_n', -1, MOST_PENALISED)
  const version = whole('mirostat', 0, 2)
  const [tau = MIROSTAT.tau, eta = MIROSTAT.eta] = [number('mirostat_tau', 0.001, 100), number('mirostat_eta', 0.0001, 1)]
  return {
    ...LLAMA_SERVER_SAMPLING,
    ...definedFields({
      temperature: number('temp', 0, 100),
      topK: whole('top_k', 0, 2 ** 31 - 1),
      topP: number('top_p', 0, 1),
      minP: number('min_p', 0, 1),
      repeatPenalty: number('penalty_repeat', 0.001, 100),
      penaltyLastN: penaltyLastN === -1 ? Math.min(context, MOST_PENALISED) : penaltyLastN,
      mirostat: version === 1 || version === 2 ? { version, tau, eta } : undefined,
    }),
    ...leftOut(metadata['general.sampling.sequence'] ?? ''),
  }
}

/** Returns fields that turn off the samplers that the sequence does not name; none if it names no sampler in SAMPLERS. */
function leftOut(sequence: string): Sampling {
  const named = sequence.split(';').map((name) => name.trim().toLowerCase().replaceAll(/[-_]/gu, ''))
  const unused = SAMPLERS.filter(([names]) => !names.some((name) => named.includes(name)))
  return unused.length === SAMPLERS.length ? {} : unused.reduce<Sampling>((all, [, off]) => ({ ...all, ...off }), {})
}
