/** Models whose call syntax we do not know: reasoning is read, everything else is text. */
import { BlockParser } from './blocks.js'
import { reasoningBlocks, type SyntaxFamily } from './syntax.js'

export const none: SyntaxFamily = ({ tags }) => ({
  name: 'none',
  parser: (prompt) => new BlockParser(reasoningBlocks(tags), prompt),
  grammar: () => null,
})
