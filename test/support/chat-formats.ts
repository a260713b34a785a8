/** Makes chat formats of real templates with a rule tokenizer, and the text that they should show. */
import { ChatFormat, type Rendered } from '../../src/runtime/chat/format.js'
import { assistantMessage, type ChatMessage } from '../../src/runtime/chat/message.js'
import { realTemplate } from './bundle.js'
import { controlTexts, RuleTokenizer } from './tokenizers.js'

export const fixedNow = () => new Date(2026, 0, 2, 3, 4, 5)

/** The built-in model's template, written down again for the tests. */
export const builtinTemplate = `
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
  <|im_start|>system{{ '\\n' }}{{ system }}
  {%- if tools -%}
    {{ '\\n\\n# Tools' }}
    {%- for tool in tools -%}
      {{ '\\n' + tool.function.name }}({% for name in tool.function.parameters.properties %}{{ name }}{% if not loop.last %}, {% endif %}{% endfor %})
    {%- endfor -%}
  {%- endif -%}
  <|im_end|>{{ '\\n' }}
{%- endif -%}
{%- for message in messages[1 if messages[0].role == 'system' else 0:] -%}
  <|im_start|>{{ message.role + '\\n' + message.content }}
  {%- for call in message.tool_calls or [] -%}
    {{ '\\n' if message.content or not loop.first }}<tool_call>{{ '\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n' }}</tool_call>
  {%- endfor -%}
  <|im_end|>{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}`

export interface RuledFormat {
  readonly format: ChatFormat
  readonly tokenizer: RuleTokenizer
}

/**
 * Makes a format whose tokenizer has the template's control-like texts as control tokens. Other tokens are bytes, or `words` where given.
 */
export function ruledFormat(
  source: string,
  { words, addBos = false }: { readonly words?: RegExp; readonly addBos?: boolean } = {},
): RuledFormat {
  const tokenizer = new RuleTokenizer({ controls: controlTexts(source), addBos, ...(words === undefined ? {} : { words }) })
  return { format: ChatFormat.create({ template: source, tokenizer, bosText: '<s>', eosText: '</s>', now: fixedNow }), tokenizer }
}

/** Returns the text of each message's content tokens, or null for a message without content tokens. */
export function shownContents({ tokens, messages }: Rendered, tokenizer: RuleTokenizer): (string | null)[] {
  return messages.map(({ content }) =>
    content === null ? null : tokenizer.text(tokens.subarray(content.tokens.start, content.tokens.end)),
  )
}

/** Returns whether the messages cover all tokens in order. */
export function coversAll({ tokens, messages }: Rendered): boolean {
  let at = 0
  for (const { span } of messages) {
    if (span.start !== at || span.end < span.start) return false
    at = span.end
  }
  return at === tokens.length
}

/** Makes a message as the model sampled it, with its text and its tokens. */
export function sampledMessage({ format, tokenizer }: RuledFormat, text: string): ChatMessage {
  const parser = format.parser()
  parser.push(text)
  return {
    ...assistantMessage(parser.finish()),
    sampled: { text, tokens: tokenizer.tokenize(text, { parseSpecial: true }) },
  }
}

/** One template for each family, and how a call begins if the family has no trigger. */
export const callingFamilies: readonly (readonly [template: string, begins?: string])[] = [
  ['built-in'],
  ...[
    'Apertus-8B-Instruct',
    'Apriel-1.6-15b-Thinker-fixed',
    'ByteDance-Seed-OSS',
    'Cohere2MoE',
    'GLM-4.6',
    'Kimi-K2-Instruct',
  ].map((name) => [name] as const),
  ...[
    'LFM2-8B-A1B',
    'Mistral-Small-3.2-24B-Instruct-2506',
    'mistralai-Mistral-Nemo-Instruct-2407',
    'Qwen3-Coder',
    'Qwen-Qwen3-0.6B',
  ].map((name) => [name] as const),
  ...[
    'NVIDIA-Nemotron-Nano-v2',
    'fireworks-ai-llama-3-firefunction-v2',
    'ibm-granite-granite-3.3-2B-Instruct',
    'llama-cpp-deepseek-r1',
  ].map((name) => [name] as const),
  ['meetkai-functionary-medium-v3.1'],
  ['meetkai-functionary-medium-v3.2', 'now\n'],
  ['meta-llama-Llama-3.1-8B-Instruct', '{"name": "now"'],
  ['openai-gpt-oss-120b', '<|channel|>commentary to=functions.'],
]

export const familyTemplate = (family = 'built-in'): string => (family === 'built-in' ? builtinTemplate : realTemplate(family))
