/** Lists all tasks, and opens a task by its spec. */
import type { Task, TaskName, TaskSpec } from '../task.js'
import { openBabilong } from './babilong.js'
import { openFrames } from './frames.js'
import { openGsmInfinite } from './gsm-infinite.js'
import { openLogbook } from './logbook.js'
import { openLongBench } from './longbench.js'
import { openMrcr } from './mrcr.js'
import { openNeedles } from './needles.js'
import { openPiLlm } from './pi-llm.js'

const openers: Readonly<Record<TaskName, (spec: TaskSpec) => Task | Promise<Task>>> = {
  'pi-llm': openPiLlm,
  needles: openNeedles,
  mrcr: openMrcr,
  'longbench-v2': openLongBench,
  frames: openFrames,
  babilong: openBabilong,
  'gsm-infinite': openGsmInfinite,
  logbook: openLogbook,
}

/** Opens the task. @throws KvfoldError eval/bad-data for wrong options, and for wrong files if the fault shows before the first sample */
export async function openTask(spec: TaskSpec): Promise<Task> {
  return openers[spec.task](spec)
}
