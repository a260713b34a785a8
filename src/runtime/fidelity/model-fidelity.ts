/**
 * How far folds change one model's answers under each contract. The measurement is made once and kept in a file; a server reads it at its
 * start.
 */
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import Type, { type Static } from 'typebox'
import { type ContractChoice, contractOfStep } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import { checked } from '../core/schema.js'
import { calibrationFolder, readMeasured, writeMeasured } from '../engine/calibration.js'
import type { LlamaEngine } from '../engine/llama.js'
import { type CaseKind, fidelityCases } from './cases.js'
import { type FidelityAnswer, type FidelityWay, measureCase } from './measure.js'

/** The version of the records. Raise it when cases, ways or the measuring change: records of other versions are ignored. */
const VERSION = 1

/** The kinds of cases: one that folds may spoil badly, one that they should hardly affect, and an agent's session. */
const KINDS = ['stale, within', 'unrelated, within', 'agent'] as const satisfies readonly CaseKind[]

const WAYS = [
  { name: 'unfolded', contract: 'whole' },
  { name: 'exact', contract: 'exact' },
  { name: 'splice', contract: 'splice' },
  { name: 'blend', contract: 'blend' },
] as const satisfies readonly FidelityWay[]

const Count = Type.Integer({ minimum: 0 })
const Row = Type.Object({
  way: Type.Enum(['unfolded', 'exact', 'splice', 'blend']),
  right: Count,
  /** How many answers name a value that was right earlier. */
  outdated: Count,
  /** How many answers are right under `exact` but wrong in this way. */
  lost: Count,
  /** Mean and largest distance of an answer's first token from that after an exact prefill, in nats. */
  distance: Type.Object({ mean: Type.Number({ minimum: 0 }), worst: Type.Number({ minimum: 0 }) }),
  /** How many tokens a step computes, on average. */
  computed: Type.Number({ minimum: 0 }),
})
const Subject = Type.Object({
  /** The fingerprint of the weights, adapters included. */
  weights: Type.String(),
  /** The engine's options that change the model's answers, by name. */
  settings: Type.Record(Type.String(), Type.Union([Type.String(), Type.Number()])),
})
const File = Type.Object({
  version: Type.Literal(VERSION),
  ...Subject.properties,
  model: Type.String(),
  date: Type.String(),
  questions: Type.Integer({ minimum: 1 }),
  rows: Type.Array(Row),
})
export type FidelityRow = Static<typeof Row>
/** What a record is valid for: these weights under these settings. */
export type FidelitySubject = Static<typeof Subject>
export type ModelFidelity = Static<typeof File>

/** The subject must be the engine's own; the record is kept under it. */
export interface FidelityOptions extends FidelitySubject {
  /** How many questions of each kind of case to ask. */
  readonly questions: number
  readonly signal?: AbortSignal
  readonly onProgress?: (share: number, what: string) => void
}

/**
 * Measures the engine's model. On the same device, the same model gives the same result.
 * @throws KvfoldError engine/cancelled; model/unsupported when the engine supports only `exact` with this model
 */
export async function measureFidelity(engine: LlamaEngine, options: FidelityOptions): Promise<ModelFidelity> {
  const { contracts, refusal } = engine.abilities
  // Steps would fall back to `exact`, and the record would praise contracts that this engine does not support.
  if (!contracts.includes('splice') || !contracts.includes('blend'))
    throw new KvfoldError(
      'model/unsupported',
      `There is no fidelity to measure, because all folds are exact here: ${refusal}. Choose another model.`,
    )
  const { weights, settings, questions, signal, onProgress } = options
  const cases = KINDS.flatMap((kind) => fidelityCases(kind, questions, 1))
  const answers: ReadonlyMap<string, FidelityAnswer>[] = []
  for (const [at, one] of cases.entries()) {
    onProgress?.(at / cases.length, `${one.kind}, question ${at + 1} of ${cases.length}`)
    answers.push(await measureCase(engine, one, WAYS, signal))
  }
  return {
    version: VERSION,
    weights,
    settings,
    model: engine.info.model,
    date: new Date().toISOString(),
    questions: cases.length,
    rows: WAYS.map(({ name }) => rowOf(name, answers)),
  }
}

function rowOf(way: FidelityRow['way'], answers: readonly ReadonlyMap<string, FidelityAnswer>[]): FidelityRow {
  const own = answers.map((of) => of.get(way)!)
  const mean = (of: (answer: FidelityAnswer) => number) => own.reduce((sum, answer) => sum + of(answer), 0) / own.length
  return {
    way,
    right: own.filter(({ isRight }) => isRight).length,
    outdated: own.filter(({ isOutdated }) => isOutdated).length,
    lost: answers.filter((of) => of.get('exact')!.isRight && !of.get(way)!.isRight).length,
    distance: { mean: mean(({ distance }) => distance), worst: Math.max(...own.map(({ distance }) => distance)) },
    computed: mean(({ computed }) => computed),
  }
}

/** The largest mean distance, in nats, with which answers count as near. */
const NEAR = 0.1

/** Whether the contract is good enough for this model: no answer is lost, and answers are near those after an exact prefill. */
export const isBorne = ({ lost, distance }: FidelityRow): boolean => lost === 0 && distance.mean <= NEAR

function pathOf({ weights, settings }: FidelitySubject, folder: string): string {
  const key = createHash('sha256')
    .update(JSON.stringify([weights, settings]))
    .digest('hex')
  return join(folder, `${key.slice(0, 32)}.fidelity.json`)
}

/** Writes the record atomically, replacing an earlier one. Returns its path. */
export async function saveFidelity(fidelity: ModelFidelity, folder = calibrationFolder()): Promise<string> {
  const path = pathOf(fidelity, folder)
  await writeMeasured(path, fidelity)
  return path
}

/** Returns the record for these weights and settings; null when there is none or it cannot be used. */
export async function loadFidelity(subject: FidelitySubject, folder = calibrationFolder()): Promise<ModelFidelity | null> {
  const found = checked(File, await readMeasured(pathOf(subject, folder)))
  const isSame = found.ok && found.value.weights === subject.weights && isDeepStrictEqual(found.value.settings, subject.settings)
  return isSame ? found.value : null
}

/**
 * For a server whose default contract is not `exact`: returns a sentence for its user on how far the contract changes this model's answers,
 * or that this was not measured. Returns null for `exact`.
 */
export function fidelityNotice(contract: ContractChoice, fidelity: ModelFidelity | null): string | null {
  if (contract === 'exact') return null
  const measured = contractOfStep(contract)
  const row = fidelity?.rows.find(({ way }) => way === measured)
  if (fidelity === null || row === undefined)
    return `What contract ${contract} costs this model's answers was not measured; \`kvfold calibrate --fidelity\` with the same options says it in a few minutes.`
  const exact = fidelity.rows.find(({ way }) => way === 'exact')?.right ?? 0
  const { questions } = fidelity
  if (2 * exact < questions)
    return `Whether this model bears ${measured} is not known: it answers only ${exact} of ${questions} questions right even under exact.`
  const facts = `right answers: ${row.right} of ${questions}, under exact ${exact}; mean distance ${row.distance.mean.toFixed(2)} nats`
  const until = contract === 'auto' ? ' until the engine was idle' : ''
  return isBorne(row)
    ? `This model bears ${measured} (${facts}).`
    : `This model does not bear ${measured}${until} (${facts}); use --contract exact where answers matter.`
}
