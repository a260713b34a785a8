/** Owns the set of the six context tools (Sculptor, appendix H): which there are, in which order a model sees them. */
import { foldFragment } from './fold-fragment.js'
import { fragmentContext } from './fragment-context.js'
import { getSearchDetail } from './get-search-detail.js'
import { restoreFragment } from './restore-fragment.js'
import { searchContext } from './search-context.js'
import { summarizeFragment } from './summarize-fragment.js'
import type { ContextTool } from './tool.js'

export const contextTools: readonly ContextTool[] = [
  fragmentContext,
  foldFragment,
  restoreFragment,
  summarizeFragment,
  searchContext,
  getSearchDetail,
]
