/** Owns what only this process knows of a thread, and goes on knowing when its messages are put away. */
import type { ToolDefinition } from '../../chat/message.js'
import { ShownSteps } from './shown-steps.js'

export class Kept {
  /** What its answers were shown. */
  shown = new ShownSteps()
  /** Tools of ours that the model was last shown beside the client's. */
  own: readonly ToolDefinition[] = []
  /** Whether an engine may hold cells of it. */
  warm = false
}
