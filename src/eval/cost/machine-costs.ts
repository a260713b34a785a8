/** Owns having a cost model for the study: measured in this very run, or the one that `kvfold calibrate` kept. */
import { KvfoldError } from '../../core/errors.js'
import { calibrate, SEQUENCES, type CalibrateOptions } from '../../engine/calibrate.js'
import { loadCalibration, measuredOn, type CalibrationSettings } from '../../engine/calibration.js'
import type { CostModel } from '../../kv/cost-model.js'
import type { ContextOptions, ModelInfo, Native } from '../../native/types.js'

export interface MachineCosts {
  readonly info: ModelInfo
  readonly cost: CostModel
}

/** Cells of a calibration's context: more are not filled. */
const CELLS = 18_432

/**
 * Loads the model for it and gives it back.
 * @param saved take the kept one instead of measuring
 * @param check throws where the model is not fit for the study, before anything is measured
 * @throws KvfoldError cli/bad-usage when none was kept, model/*, memory/*, engine/cancelled
 */
export async function machineCosts(
  native: Native,
  path: string,
  settings: CalibrationSettings & ContextOptions,
  { saved, check, ...options }: CalibrateOptions & { readonly saved: boolean; readonly check: (info: ModelInfo) => void },
): Promise<MachineCosts> {
  const model = await native.loadModel(path, settings.model)
  try {
    const { info } = model
    check(info)
    const subject = { info, settings, backend: native.backend }
    if (saved) {
      const kept = await loadCalibration(subject)
      if (kept.kind === 'found') return { info, cost: kept.model }
      throw new KvfoldError(
        'cli/bad-usage',
        kept.kind === 'refused'
          ? kept.reason
          : 'There is no calibration of this model with these options yet: run `kvfold calibrate`.',
      )
    }
    const trained = info.trainedContext
    const context = await model.createContext({
      ...settings,
      cells: trained > 0 ? Math.min(trained, CELLS) : CELLS,
      sequences: SEQUENCES,
      fullSlidingWindow: info.slidingWindow > 0,
    })
    return { info, cost: await calibrate(context, info.vocabulary, measuredOn(subject, context), options) }
  } finally {
    await model.dispose()
  }
}
