/** Detects a template's tool-call syntax by marker texts in its source. */
import type { TemplateForm } from '../conversation.js'
import { apertus, apriel, commandR, firefunction, granite, nemotron } from './arrays.js'
import { functionary31, functionary32 } from './functionary.js'
import { lazyBareCalls, USUAL_TAGS } from '../grammar.js'
import { harmony } from './harmony.js'
import { hermes, seed } from './hermes.js'
import { llama3 } from './llama3.js'
import { mistral } from './mistral.js'
import { pythonic } from './pythonic.js'
import { deepseek, kimi } from './sections.js'
import { BlockParser, reasoningBlocks, type ReasoningTags, type SyntaxFamily, type ToolSyntax } from './syntax.js'

// For models whose call syntax is unknown: reasoning is parsed, all else is text.

export const none: SyntaxFamily = ({ tags }) => ({
  name: 'none',
  parser: (prompt) => new BlockParser(reasoningBlocks(tags), prompt),
  grammar: () => null,
  lazy: (tools, _prompt, _single, bare = false) => (bare && tools.length > 0 ? lazyBareCalls(tools, tags ?? USUAL_TAGS) : null),
  reasoning: tags ?? USUAL_TAGS,
})

/** The syntaxes with their markers. The first one whose markers all occur in the source is taken. */
const families: readonly (readonly [SyntaxFamily, readonly string[]])[] = [
  [harmony, ['<|channel|>', '<|message|>', 'functions.']],
  [mistral, ['[TOOL_CALLS]']],
  [functionary32, ['>>>', 'recipient']],
  [kimi, ['<|tool_call_begin|>', '<|tool_call_argument_begin|>']],
  [deepseek, ['<｜tool▁call▁begin｜>']],
  [commandR, ['<|START_ACTION|>']],
  [apertus, ['<|tools_prefix|>', '<|tools_suffix|>']],
  [nemotron, ['<TOOLCALL>']],
  [pythonic, ['<|tool_call_start|>']],
  [pythonic, ['<|tool_list_start|>']],
  [seed, ['<seed:tool_call>']],
  [apriel, ['<tool_calls>[']],
  // MiniMax M3 puts a mark before each tag and writes other tags within: not Hermes.
  [none, [']<]minimax[>[']],
  [hermes, ['<tool_call>']],
  [granite, ['<|tool_call|>']],
  [firefunction, ['functools[']],
  [functionary31, ['<function=', '</function>']],
  [llama3, ['"parameters": ', 'ipython']],
]

const reasonings: readonly ReasoningTags[] = [
  { open: '<think>', close: '</think>' },
  { open: '[THINK]', close: '[/THINK]' },
  { open: '<seed:think>', close: '</seed:think>' },
]

/**
 * Returns the call syntax of a template. It is Hermes when kvfold describes the tools, or when it must write calls as text and knows no
 * syntax for the template.
 */
export function detectSyntax(source: string, capabilities: Pick<TemplateForm, 'tools' | 'calls'>): ToolSyntax {
  const tags = reasonings.find(({ open, close }) => source.includes(open) && source.includes(close)) ?? null
  const found = families.find(([, markers]) => markers.every((marker) => source.includes(marker)))
  const family = capabilities.tools === 'described' ? hermes : (found?.[0] ?? (capabilities.calls === 'text' ? hermes : none))
  return family({ source, tags })
}
