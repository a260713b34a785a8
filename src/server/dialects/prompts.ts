/** Owns the field `prompt` of routes that complete bare text: a text, token ids, both mixed, or a list of such prompts. */
import Type from 'typebox'
import { isRecord } from '../../core/json.js'
import type { Service } from '../ask.js'
import { FieldError, unsupported } from '../problem.js'
import { isTokenList } from './fields.js'

/** Prompts of one request, each with all its answers. */
const MOST_PROMPTS = 64

export const PromptField = Type.Unsafe<unknown>({
  type: ['string', 'array', 'object'],
  description: 'text, token ids, or a list of both mixed; a list of such prompts is answered one after the other',
})

type Prompt = string | readonly number[]

/** One for each prompt that the field has. @throws FieldError */
export async function promptsOf(prompt: unknown, model: string | undefined, service: Service): Promise<readonly Prompt[]> {
  const isSeveral = Array.isArray(prompt) && prompt.length > 0 && !prompt.some((part) => typeof part === 'number')
  const prompts = isSeveral ? (prompt as readonly unknown[]) : [prompt]
  if (prompts.length > MOST_PROMPTS)
    throw new FieldError('prompt', `prompt has ${prompts.length} prompts; send ${MOST_PROMPTS} at most.`)
  return Promise.all(prompts.map((one, at) => promptOf(one, isSeveral ? `prompt[${at}]` : 'prompt', model, service)))
}

async function promptOf(prompt: unknown, place: string, model: string | undefined, service: Service): Promise<Prompt> {
  if (typeof prompt === 'string') return prompt
  if (isRecord(prompt) && typeof prompt['prompt_string'] === 'string') {
    if (prompt['multimodal_data'] !== undefined)
      throw unsupported(`${place}.multimodal_data`, `${place}.multimodal_data is not supported; this server takes text only.`)
    return prompt['prompt_string']
  }
  if (!Array.isArray(prompt) || prompt.length === 0)
    throw new FieldError(place, `${place} must be a text, or a list of token ids and texts.`)
  const parts = prompt as readonly unknown[]
  if (isTokenList(parts)) return parts
  const tokens = parts.map((part, at) => {
    if (typeof part === 'string') return service.tokenize(model, part, { special: true, bos: at === 0 })
    if (isTokenList([part])) return Promise.resolve([Number(part)])
    throw new FieldError(`${place}[${at}]`, `${place}[${at}] must be a token id or a text.`)
  })
  return (await Promise.all(tokens)).flat()
}
