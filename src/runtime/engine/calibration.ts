/**
 * Saves and loads measurements of a model on this machine: calibrations, which `kvfold calibrate` makes, and tier rates, which an engine
 * measures when it is loaded. Each is one file per model and settings, used only on the machine that it was measured on.
 */
import { createHash } from 'node:crypto'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { availableParallelism, cpus, homedir } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'
import Type from 'typebox'
import { checked, nullable } from '../core/schema.js'
import { writeWhole } from '../core/whole-file.js'
import { COST_VERSION, type CostModel, type MeasuredOn, type TierRates, tierRatesOf } from '../kv/cost-model.js'
import type { BackendInfo, ContextOptions, ModelInfo, ModelOptions, NativeContext } from '../native/types.js'

/** The engine options that influence its speed. */
export type CalibrationSettings = Pick<
  ContextOptions,
  'threads' | 'batchThreads' | 'ubatch' | 'flashAttention' | 'keyType' | 'valueType'
> & {
  readonly model?: ModelOptions
  /** The adapters that are applied. They cost time for every token. */
  readonly lora?: readonly { readonly path: string; readonly scale?: number }[]
}

/** The model, settings and backend that a calibration belongs to. */
export interface CalibrationSubject {
  readonly info: ModelInfo
  readonly settings: CalibrationSettings
  readonly backend: BackendInfo
}

export type LoadedCalibration =
  | { readonly kind: 'found'; readonly model: CostModel; readonly path: string }
  | { readonly kind: 'none' }
  /** There is a file, but it must not be used, for example because it is damaged or from another machine. */
  | { readonly kind: 'refused'; readonly reason: string }

const Rate = Type.Number({ minimum: 0 })
const Positive = Type.Number({ exclusiveMinimum: 0 })
const fit = <Term extends string>(...terms: readonly Term[]) =>
  Type.Object({
    rates: Type.Object(Object.fromEntries(terms.map((term) => [term, Rate])) as Record<Term, typeof Rate>),
    residual: Type.Object({ median: Rate, worst: Rate }),
    samples: Type.Integer({ minimum: 0 }),
  })
const Host = Type.Object({ saveBytesPerSecond: Positive, loadBytesPerSecond: Positive, bytesPerCell: Positive })
const File = Type.Object({
  subject: Type.String(),
  cost: Type.Object({
    version: Type.Literal(COST_VERSION),
    on: Type.Object({
      model: Type.String(),
      architecture: Type.String(),
      parameters: Type.Number(),
      size: Type.Number(),
      threads: nullable(Type.Number()),
      ubatch: Type.Integer({ minimum: 1 }),
      flashAttention: Type.Boolean(),
      keyType: Type.String(),
      valueType: Type.String(),
      gpu: Type.String(),
      devices: Type.Array(Type.String()),
      cpu: Type.String(),
      release: Type.String(),
      date: Type.String(),
    }),
    deepest: Type.Integer({ minimum: 1 }),
    prefill: fit('call', 'token', 'read', 'attended', 'scanned'),
    decode: fit('token', 'attended', 'scanned'),
    books: fit('step', 'shown', 'moved'),
    host: Host,
  }),
})
const Machine = Type.Object({
  gpu: Type.String(),
  devices: Type.Array(Type.String()),
  cpu: Type.String(),
  release: Type.String(),
})
const RatesFile = Type.Object({
  subject: Type.String(),
  version: Type.Literal(COST_VERSION),
  on: Machine,
  rates: Type.Object({ host: Host, scanned: Type.Object({ prefill: Rate, decode: Rate }) }),
})

/** Returns `$XDG_CACHE_HOME/kvfold`, by default `~/.cache/kvfold`: for files that can be measured or tried again. */
export function cacheFolder(environment: NodeJS.ProcessEnv = process.env): string {
  const given = environment['XDG_CACHE_HOME']
  // The XDG specification says that relative paths must be ignored.
  return join(given !== undefined && isAbsolute(given) ? given : join(homedir(), '.cache'), 'kvfold')
}

/** Returns the folder `calibration` in the cache folder. */
export const calibrationFolder = (environment: NodeJS.ProcessEnv = process.env): string =>
  join(cacheFolder(environment), 'calibration')

/** Returns what a calibration in this context records about its model, settings and machine. */
export function measuredOn({ info, settings, backend }: CalibrationSubject, context: NativeContext): MeasuredOn {
  return {
    model: info.metadata['general.name'] ?? info.description,
    architecture: info.architecture,
    parameters: info.parameters,
    size: info.size,
    threads: settings.threads ?? null,
    ubatch: context.ubatch,
    flashAttention: context.flashAttention,
    keyType: settings.keyType ?? 'f16',
    valueType: settings.valueType ?? 'f16',
    ...machineOf(backend),
    date: new Date().toISOString(),
  }
}

/** Writes the calibration's file, completely or not at all, and replaces an earlier one. Returns its path. */
export async function saveCalibration(
  subject: CalibrationSubject,
  cost: CostModel,
  folder = calibrationFolder(),
): Promise<string> {
  const path = pathOf(subject, folder)
  await writeMeasured(path, { subject: subjectHash(subject), cost })
  return path
}

/**
 * Returns the tier rates of this model on this machine: those of its calibration, else those saved in the folder. If there are none, calls
 * `measure` and saves the result. A damaged or foreign file counts as none, and a folder that cannot be written is ignored.
 */
export async function keptTierRates(
  subject: CalibrationSubject,
  measure: () => Promise<TierRates | null>,
  folder = calibrationFolder(),
): Promise<TierRates | null> {
  const calibration = await loadCalibration(subject, folder)
  if (calibration.kind === 'found') return tierRatesOf(calibration.model)
  const path = pathOf(subject, folder, '.rates')
  const kept = checked(RatesFile, await readMeasured(path))
  const [hash, on] = [subjectHash(subject), machineOf(subject.backend)]
  if (kept.ok && kept.value.subject === hash && otherMachine(kept.value.on, on) === null) return kept.value.rates
  const rates = await measure()
  if (rates !== null) await writeMeasured(path, { subject: hash, version: COST_VERSION, on, rates }).catch(() => undefined)
  return rates
}

/** Writes a measurement to its file as JSON, completely or not at all. Makes its folder, and replaces an earlier file. */
export async function writeMeasured(path: string, content: unknown): Promise<void> {
  await mkdir(dirname(path), { recursive: true })
  await writeWhole(path, (temporary) => writeFile(temporary, `${JSON.stringify(content, null, 2)}\n`))
}

/** Returns the JSON of a file; null when the file cannot be read or is not JSON. */
export const readMeasured = async (path: string): Promise<unknown> => jsonOf(await readFile(path, 'utf8').catch(() => ''))

/** Loads the subject's calibration. Refuses a damaged file, and one of another model, machine or release. */
export async function loadCalibration(subject: CalibrationSubject, folder = calibrationFolder()): Promise<LoadedCalibration> {
  const path = pathOf(subject, folder)
  const refused = (why: string): LoadedCalibration => ({
    kind: 'refused',
    reason: `kvfold does not use the calibration in ${path}, because ${why}; run \`kvfold calibrate\` again.`,
  })
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : String(error)
    return code === 'ENOENT' ? { kind: 'none' } : refused(`it cannot be read (${code})`)
  }
  const parsed = checked(File, jsonOf(text))
  if (!parsed.ok) return refused('it is damaged, or another version of kvfold wrote it')
  const { subject: hash, cost } = parsed.value
  if (hash !== subjectHash(subject)) return refused('it belongs to another model or other settings')
  const other = otherMachine(cost.on, machineOf(subject.backend))
  return other === null ? { kind: 'found', model: cost, path } : refused(other)
}

type Machine = Pick<MeasuredOn, 'gpu' | 'devices' | 'cpu' | 'release'>

/** Returns how this machine differs from the one that was measured, as a clause; null if it does not. */
function otherMachine(on: Machine, now: Machine): string | null {
  if (on.release !== now.release) return `it was measured with llama.cpp ${on.release}, and this is ${now.release}`
  for (const [what, then, here] of [
    ['processor', on.cpu, now.cpu],
    ['set of devices', on.devices.join(', ') || 'none', now.devices.join(', ') || 'none'],
  ] as const)
    if (then !== here) return `it was measured on another ${what} (${then}, here ${here})`
  return null
}

const machineOf = ({ gpu, devices, release }: BackendInfo): Machine => ({
  gpu,
  devices,
  release,
  cpu: `${cpus()[0]?.model.trim() ?? 'unknown'}, ${availableParallelism()} threads`,
})

const pathOf = (subject: CalibrationSubject, folder: string, of = ''): string =>
  join(folder, `${subjectHash(subject).slice(0, 32)}${of}.json`)

/**
 * Returns the hash that names the measurements of a model and its settings. Models of the same shape and size share a hash, because they
 * are equally fast.
 */
function subjectHash({ info, settings, backend }: CalibrationSubject): string {
  const { description, architecture, parameters, size, layers, embedding, heads, kvHeads, vocabulary } = info
  const { threads, batchThreads, ubatch, flashAttention = 'auto', keyType, valueType, model, lora = [] } = settings
  const applied = lora.filter(({ scale = 1 }) => scale !== 0).map(({ path }) => path)
  const what = [
    [info.metadata['general.name'], description, architecture, parameters, size, layers, embedding, heads, kvHeads, vocabulary],
    [threads, batchThreads, ubatch, flashAttention, keyType, valueType, model?.gpuLayers],
    backend.gpu,
    ...(applied.length === 0 ? [] : [applied]),
  ]
  return createHash('sha256').update(JSON.stringify(what)).digest('hex')
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}
